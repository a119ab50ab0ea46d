"""Names for shell completion: committed resources, declared environments, shipped examples."""

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
from mzplan.model.words import scalar_text

_PACKAGED = Path(__file__).parent.parent / "_examples"
EXAMPLES = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).parent.parent.parent / "examples"
"""The folder with one folder per example."""
_OWN_STATE = re.compile(rb"^[\"']?(state|environments)[\"']?\s*:", re.MULTILINE)


def examples() -> dict[str, str]:
    """Return the examples by name, with the comment in the first line of each mzplan.yaml."""
    titles = {}
    for file in sorted(EXAMPLES.glob("*/mzplan.yaml")):
        with file.open(encoding="utf-8") as lines:
            first = lines.readline().strip()
        titles[file.parent.name] = first.removeprefix("#").strip() if first.startswith("#") else ""
    return titles


def example_names(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Return the examples whose names start with the text."""
    return _items(examples(), incomplete)


def schemas(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Return the schemas whose names start with the text."""
    from mzplan.schema.loading import schema_names

    return _items((*schema_names(), "project"), incomplete)


def addresses(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Return the committed resources whose addresses start with the text."""
    return _items(_state(ctx).get("resources", {}), incomplete)


def queries(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Return the committed queries whose addresses start with the text."""
    resources = _state(ctx).get("resources", {})
    return _items((a for a in resources if not a.startswith("connection.")), incomplete)


def addresses_or_files(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Complete committed addresses; if none fits, complete file names."""
    return addresses(ctx, incomplete) or [CompletionItem(incomplete, type="file")]


def connections(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Return the committed connections whose names start with the text."""
    resources = _state(ctx).get("resources", {})
    return _items(
        (a.removeprefix("connection.") for a in resources if a.startswith("connection.")), incomplete
    )


def labels(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Return the labels of committed queries, as `key=value`, that start with the text."""
    label_sets = (
        resource.get("body", {}).get("labels", {}) for resource in _state(ctx).get("resources", {}).values()
    )
    return _items(
        {f"{key}={scalar_text(value)}" for label_set in label_sets for key, value in label_set.items()},
        incomplete,
    )


def instances(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Return the committed instances whose names start with the text."""
    return _items(_state(ctx).get("instances", {}), incomplete)


def environments(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Return the declared environments whose names start with the text."""
    try:
        from mzplan.config import environment_names

        return _items(environment_names(_directory(ctx)), incomplete)
    except Exception:  # a shell can't show an error
        return []


def _items(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(names, key=natural) if name.startswith(incomplete)]


def _state(ctx: click.Context) -> dict[str, Any]:
    """Return the state file's content, unchecked; {} if there is none.

    A shell waits for this, so mzplan.yaml is parsed only if it says where the state is.
    """
    try:
        folder = Path(_directory(ctx))
        path = "state"
        if _OWN_STATE.search(read_regular(folder / "mzplan.yaml")):
            from mzplan.config import load_project

            variables = dict(item.split("=", 1) for item in _option_values(ctx, "var") if "=" in item)
            settings = load_project(
                folder, variables, _option_values(ctx, "var_file"), environment=_environment(ctx)
            )
            path = str(settings.state.get("path", path))
        content = json.loads(read_regular(folder / path / "mzplan.state.json"))
        return content if isinstance(content, dict) else {}
    except Exception:  # a shell can't show an error
        return {}


def _option_values(ctx: click.Context, option: str) -> list[str]:
    """Return the values of a repeatable option: first before the command, then after it."""
    before = _option_values(ctx.parent, option) if ctx.parent is not None else []
    return [*before, *(ctx.params.get(option) or ())]


def _directory(ctx: click.Context) -> str:
    """Return the value of -C, given before or after the command."""
    return _last(ctx, "directory") or "."


def _environment(ctx: click.Context) -> str:
    return _last(ctx, "environment") or os.environ.get(ENVIRONMENT_VARIABLE, "")


def _last(ctx: click.Context, option: str) -> str:
    context: click.Context | None = ctx
    while context is not None:
        value = context.params.get(option)
        if value:
            return str(value)
        context = context.parent
    return ""
