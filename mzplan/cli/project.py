"""init, validate, schema."""

from __future__ import annotations

from pathlib import Path

import click

from mzplan.cli.context import Invocation, command
from mzplan.model.diagnostics import ExitCode, error

_PROJECT = """\
version: 1
project: {name}
warehouse: ./warehouse          # where collections and checkpoints live: a path or a URI
"""


@command("init")
def command_init(invocation: Invocation) -> int:
    """Begin a new project here."""
    folder = Path(invocation.directory)
    file = folder / "mzplan.yaml"
    if file.exists():
        raise error(
            "MZ070", f"{file} exists already", "Nothing was changed.", "edit it, or begin in another folder."
        )
    import re

    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^a-z0-9_-]+", "_", folder.resolve().name.lower()).strip("_-") or "project"
    if not name[0].isalpha():
        name = f"p_{name}"
    file.write_text(_PROJECT.format(name=name[:60]), encoding="utf-8")
    invocation.out(f"Wrote {file}. Declare connections, sources and sinks beside it, then run `mzplan plan`.")
    return ExitCode.OK


@command("validate")
def command_validate(invocation: Invocation) -> int:
    """Check every file, without reaching any server."""
    from mzplan.operations import validate

    configuration = validate(invocation.project())
    if invocation.json:
        invocation.document({"diagnostics": []})
    else:
        invocation.out(f"Valid: {len(configuration.resources)} resources.")
    return ExitCode.OK


@command("schema")
@click.argument("kind", required=False)
def command_schema(invocation: Invocation, kind: str | None) -> int:
    """Print the JSON Schema of a kind (connection.kafka, sink.postgres, …); without one, list them."""
    from mzplan.kinds import load_schema, schema_names

    names = (*schema_names(), "project")
    if kind is None:
        invocation.out("\n".join(names))
        return ExitCode.OK
    if kind not in names:
        raise click.UsageError(f"There is no kind {kind!r}. There are: {', '.join(names)}.")
    invocation.document(load_schema(kind))
    return ExitCode.OK
