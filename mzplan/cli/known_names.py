"""Names that a command line may hold, as a shell is offered them: what is committed, declared or shipped."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from mzplan.host.files import read_regular
from mzplan.model.address import natural
from mzplan.model.resources import ENVIRONMENT_VARIABLE
from mzplan.model.words import label_value

_PACKAGED = Path(__file__).parent.parent / "_examples"
EXAMPLES = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).parent.parent.parent / "examples"
"""The folder with a folder for each example."""
_OWN_STATE = re.compile(rb"^[\"']?(state|environments)[\"']?\s*:", re.MULTILINE)


def examples() -> dict[str, str]:
    """The examples by name, with what each is about: the first line of its mzplan.yaml, a comment."""
    titles = {}
    for file in sorted(EXAMPLES.glob("*/mzplan.yaml")):
        with file.open(encoding="utf-8") as lines:
            first = lines.readline().strip()
        titles[file.parent.name] = first.removeprefix("#").strip() if first.startswith("#") else ""
    return titles


def example_names(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """The examples whose name begins so."""
    return _items(examples(), incomplete)


def schemas(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """The schemas whose name begins so."""
    from mzplan.schema.loading import schema_names

    return _items((*schema_names(), "project"), incomplete)


def addresses(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """The committed resources whose address begins so."""
    return _items(_state(ctx).get("resources", {}), incomplete)


def queries(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """The committed queries whose address begins so."""
    resources = _state(ctx).get("resources", {})
    return _items((a for a in resources if not a.startswith("connection.")), incomplete)


def addresses_or_files(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """The same as `addresses`; where there are none, what files there are."""
    return addresses(ctx, incomplete) or [CompletionItem(incomplete, type="file")]


def connections(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """The names of the committed connections that begin so."""
    resources = _state(ctx).get("resources", {})
    return _items(
        (a.removeprefix("connection.") for a in resources if a.startswith("connection.")), incomplete
    )


def labels(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """The labels of committed queries, `key=value`, that begin so."""
    label_sets = (
        resource.get("body", {}).get("labels", {}) for resource in _state(ctx).get("resources", {}).values()
    )
    return _items(
        {f"{key}={label_value(value)}" for label_set in label_sets for key, value in label_set.items()},
        incomplete,
    )


def instances(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """The committed instances whose name begins so."""
    return _items(_state(ctx).get("instances", {}), incomplete)


def environments(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """The declared environments whose name begins so."""
    try:
        from mzplan.config import environment_names

        return _items(environment_names(_directory(ctx)), incomplete)
    except Exception:  # a shell has no place for it
        return []


def _items(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Those that begin so."""
    return [CompletionItem(name) for name in sorted(names, key=natural) if name.startswith(incomplete)]


def _state(ctx: click.Context) -> dict[str, Any]:
    """The state file's content, unchecked; {} where there is none. A shell waits for this: where mzplan.yaml
    does not say where the state is, it is not even parsed."""
    try:
        folder = Path(_directory(ctx))
        path = "state"
        if _OWN_STATE.search(read_regular(folder / "mzplan.yaml")):
            from mzplan.config import load_project

            variables = dict(item.split("=", 1) for item in _given(ctx, "var") if "=" in item)
            settings = load_project(folder, variables, _given(ctx, "var_file"), environment=_environment(ctx))
            path = str(settings.state.get("path", path))
        content = json.loads(read_regular(folder / path / "mzplan.state.json"))
        return content if isinstance(content, dict) else {}
    except Exception:  # a shell has no place for it
        return {}


def _given(ctx: click.Context, option: str) -> list[str]:
    """The values of a repeatable option: those before the command, then those after it."""
    before = _given(ctx.parent, option) if ctx.parent is not None else []
    return [*before, *(ctx.params.get(option) or ())]


def _directory(ctx: click.Context) -> str:
    """-C, given after the command or before it."""
    return _last(ctx, "directory") or "."


def _environment(ctx: click.Context) -> str:
    return _last(ctx, "environment") or os.environ.get(ENVIRONMENT_VARIABLE, "")


def _last(ctx: click.Context, option: str) -> str:
    context: click.Context | None = ctx
    while context is not None:
        given = context.params.get(option)
        if given:
            return str(given)
        context = context.parent
    return ""
