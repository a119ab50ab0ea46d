"""The `append` command: add rows to a local source."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mzplan.cli.arguments import QUERY
from mzplan.cli.context import Invocation, command
from mzplan.connectors.local.row_files import FORMATS, format_of
from mzplan.features.append.append import AppendedFile, append
from mzplan.model.address import Address
from mzplan.model.diagnostics import ExitCode, error
from mzplan.model.words import count
from mzplan.secrets.policy import NO_SECRET_VALUES

if TYPE_CHECKING:
    from mzplan.connectors.local.row_files import Format


@command("append")
@click.argument("address", metavar="ADDRESS", type=QUERY)
@click.option(
    "--file", "file", metavar="FILE", required=True, help="The file that contains the rows (- for stdin)."
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["jsonl", "csv", "parquet"]),
    help="The rows' format (default: from the file's name).",
)
@click.option(
    "--id",
    "id_",
    metavar="ID",
    help="An id for this append. Repeating an append with the same id has no effect.",
)
@click.option(
    "--expect-step",
    metavar="N",
    type=click.IntRange(min=0),
    help="Fail unless this is the next step's number.",
)
@click.option("--delete", "deletes", is_flag=True, help="Delete the rows with the keys in the file.")
def command_append(
    invocation: Invocation,
    address: Address,
    file: str,
    format_: str | None,
    id_: str | None,
    expect_step: int | None,
    deletes: bool,
) -> int:
    """Append rows to a local source, as one durable step.

    mzplan appends all rows of the file, or none if a row is wrong. This doesn't need a runner; a runner reads
    the rows later.
    """
    work = invocation.work()
    name, data = _read(file)
    format_found = _format(name, format_)
    rows = AppendedFile(
        name=name, data=data, format=format_found, id=id_ or str(uuid.uuid4()), deletes=deletes
    )
    appended = append(work.project, address, rows, work.reporter, expect=expect_step)
    for instance in work.project.settings.instances.values():
        work.runners.wake(instance, NO_SECRET_VALUES)
    if invocation.json:
        invocation.document(
            {
                "address": str(address),
                "step": appended.step,
                "rows": appended.rows,
                "id": rows.id,
                "repeated": appended.is_repeat,
                "differs": appended.differs,
            }
        )
    elif appended.is_repeat:
        text = f"{address}: id {rows.id} was appended before, as step {appended.step}: nothing was written."
        invocation.out(text)
    else:
        invocation.out(f"{address}: step {appended.step}, {count(appended.rows, 'row')} (id {rows.id}).")
    return ExitCode.OK


def _read(file: str) -> tuple[str, bytes]:
    if file == "-":
        return "stdin", sys.stdin.buffer.read()
    try:
        return file, Path(file).read_bytes()
    except OSError as problem:
        raise error(
            "MZ083", f"{file} can't be read", f"{problem.strerror}. Nothing was written.", "check the path."
        ) from None


def _format(name: str, requested: str | None) -> Format:
    chosen = next((format_ for format_ in FORMATS if format_ == requested), None) or format_of(name)
    if chosen is None and name == "stdin":
        return "jsonl"
    if chosen is None:
        raise click.UsageError(f"The format of {name!r} is unknown: give --format jsonl, csv or parquet.")
    return chosen
