"""Names for shell completion: committed resources, declared environments, shipped examples.

The functions may raise any exception: a shell can't show an error, so it gets no names then.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from mzplan.host.files import read_regular
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


def schemas(ctx: click.Context) -> Iterable[str]:
    from mzplan.schema.loading import schema_names

    return (*schema_names(), "project", "test")


def addresses(ctx: click.Context) -> Iterable[str]:
    """Return the addresses of the committed resources."""
    return _resources(ctx)


def queries(ctx: click.Context) -> Iterable[str]:
    """Return the addresses of the committed queries."""
    return [address for address in _resources(ctx) if not address.startswith("connection.")]


def connections(ctx: click.Context) -> Iterable[str]:
    """Return the names of the committed connections."""
    return [a.removeprefix("connection.") for a in _resources(ctx) if a.startswith("connection.")]


def labels(ctx: click.Context) -> Iterable[str]:
    """Return the labels of the committed queries, as `key=value`."""
    label_sets = (resource.get("body", {}).get("labels", {}) for resource in _resources(ctx).values())
    return {f"{key}={scalar_text(value)}" for label_set in label_sets for key, value in label_set.items()}


def instances(ctx: click.Context) -> Iterable[str]:
    """Return the names of the committed instances."""
    return list(_state(ctx).get("instances", {}))


def environments(ctx: click.Context) -> Iterable[str]:
    """Return the names of the declared environments."""
    from mzplan.config import environment_names

    return environment_names(_directory(ctx))


def tests(ctx: click.Context) -> Iterable[str]:
    """Return the names of the project's tests."""
    from mzplan.config.findings import Findings
    from mzplan.config.project_files import test_files
    from mzplan.config.yaml.parser import load

    documents = (load(file, Findings()) for file in test_files(_directory(ctx), Findings()))
    contents = [document.data for document in documents if document is not None]
    return [name for data in contents if isinstance(data, dict) for name in data.get("tests") or ()]


def _resources(ctx: click.Context) -> dict[str, Any]:
    resources: dict[str, Any] = _state(ctx).get("resources", {})
    return resources


def _state(ctx: click.Context) -> dict[str, Any]:
    """Return the state file's content, unchecked. Raises an exception if there is none.

    A shell waits for this, so mzplan.yaml is parsed only if it says where the state is.
    """
    folder = Path(_directory(ctx))
    path = "state"
    if _OWN_STATE.search(read_regular(folder / "mzplan.yaml")):
        from mzplan.config import load_project

        variables = dict(item.split("=", 1) for item in _option_values(ctx, "var") if "=" in item)
        settings = load_project(
            folder, variables, _option_values(ctx, "var_file"), environment=_environment(ctx)
        )
        path = str(settings.state.get("path", path))
    content: dict[str, Any] = json.loads(read_regular(folder / path / "mzplan.state.json"))
    return content


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
