"""init, validate, schema."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mzplan.cli.arguments import EXAMPLE, SCHEMA
from mzplan.cli.context import Invocation, command
from mzplan.model.diagnostics import ExitCode, error
from mzplan.model.words import count

if TYPE_CHECKING:
    from mzplan.model.diagnostics import Diagnostic
    from mzplan.operations.validation import Reach

_PROJECT = """\
version: 1
project: {name}
warehouse: ./warehouse          # where collections and checkpoints live: a path or a URI
"""


@command("init")
@click.option("--from", "example", metavar="EXAMPLE", type=EXAMPLE, help="Begin with a copy of an example.")
def command_init(invocation: Invocation, example: str | None) -> int:
    """Begin a new project here, empty or from an example."""
    from mzplan.cli.examples import copy_example

    folder = Path(invocation.directory)
    if example is not None:
        written = copy_example(example, folder)
        text = f"Copied example {example}: {count(len(written), 'file')} in {folder.resolve()}."
    else:
        written = [_begin(folder)]
        text = f"Wrote {written[0]}. Declare connections, sources and sinks beside it."
    if invocation.json:
        invocation.document({"written": [str(path) for path in written]})
    else:
        invocation.out(f"{text} Then run `mzplan plan`.")
    return ExitCode.OK


def _begin(folder: Path) -> Path:
    import re

    file = folder / "mzplan.yaml"
    if file.exists():
        raise error(
            "MZ070", f"{file} exists already", "Nothing was changed.", "edit it, or begin in another folder."
        )
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^a-z0-9_-]+", "_", folder.resolve().name.lower()).strip("_-") or "project"
    if not name[0].isalpha():
        name = f"p_{name}"
    file.write_text(_PROJECT.format(name=name[:60]), encoding="utf-8")
    return file


@command("validate")
@click.option("--live", is_flag=True, help="Also reach every connection, through what uses it.")
def command_validate(invocation: Invocation, live: bool) -> int:
    """Check every file; with --live also the servers behind them."""
    from mzplan.operations.plan import validate, validate_live

    project = invocation.project(whole=True)
    if live:
        runners = invocation.runners(project)
        configuration, reached, found = validate_live(project, runners, invocation.progress)
    else:
        configuration, reached, found = validate(project, invocation.progress), (), ()
    if invocation.json:
        document: dict[str, object] = {"diagnostics": [d.to_json() for d in found]}
        if live:
            document["connections"] = [
                {"address": str(r.address), "queries": [str(q) for q in r.queries]} for r in reached
            ]
        invocation.document(document)
        return ExitCode.OK
    _show_reached(invocation, reached, found)
    invocation.out(f"Valid: {count(len(configuration.resources), 'resource')}.")
    return ExitCode.OK


def _show_reached(invocation: Invocation, reached: tuple[Reach, ...], found: tuple[Diagnostic, ...]) -> None:
    for connection in reached:
        if connection.queries:
            number = count(len(connection.queries), "query", "queries")
            invocation.out(f"Reached: {connection.address}, for {number}")
        elif connection.why:
            invocation.out(f"Not reached: {connection.address}, {connection.why}")
        else:
            invocation.out(f"Reached: {connection.address}, though nothing uses it")
    if found:
        invocation.show(found)


@command("schema")
@click.argument("kind", required=False, type=SCHEMA)
def command_schema(invocation: Invocation, kind: str | None) -> int:
    """Print a JSON Schema, or list them all.

    KIND is connection.kafka, sink.postgres, …, or project (mzplan.yaml).
    """
    from mzplan.schema.kinds import load_schema, schema_names

    names = (*schema_names(), "project")
    if kind is None:
        if invocation.json:
            invocation.document({"schemas": list(names)})
        else:
            invocation.out("\n".join(names))
        return ExitCode.OK
    if kind not in names:
        raise click.UsageError(f"There is no schema {kind!r}. There are: {', '.join(names)}.")
    schema = load_schema(kind)
    connection = schema["properties"].get("connection", {})
    if "x-reference" in connection:  # by its name, or written out: see mzplan.config.declarations
        schema = {
            **schema,
            "properties": {
                **schema["properties"],
                "connection": {**connection, "type": ["string", "object"]},
            },
        }
    invocation.document(schema)
    return ExitCode.OK
