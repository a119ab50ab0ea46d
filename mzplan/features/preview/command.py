"""The `preview` command: run an edited query over the rows that its inputs hold."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from mzplan.cli.arguments import QUERY, SINCE, STEPS
from mzplan.cli.context import Invocation, command
from mzplan.model.address import Address
from mzplan.model.diagnostics import ExitCode, error
from mzplan.model.trials import GivenRecord
from mzplan.operations.previews import Extent, Previewed, open_preview
from mzplan.render.row_comparison import (
    compared_to_json,
    malformed_lines,
    previewed_to_json,
    row_texts,
    table_of_both,
    table_of_rows,
)
from mzplan.render.row_files import csv_line
from mzplan.render.text import Paint


@command("preview")
@click.argument("address", type=QUERY)
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=1, max=100_000),
    default=20,
    show_default=True,
    help="How many rows to show; with --compare, of each kind.",
)
@click.option("--steps", metavar="A..B", type=STEPS, help="Only read these steps of the inputs.")
@click.option("--since", metavar="TIME", type=SINCE, help="Only read steps from this time on, such as 2h.")
@click.option("--where", metavar="SQL", help="Only rows that meet this condition (Spark SQL).")
@click.option(
    "--records",
    metavar="FILE",
    help="Parse these records with a source's format: a value a line (- for stdin).",
)
@click.option("--compare", is_flag=True, help="Compare with the rows of the committed definition.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the rows as CSV.")
def command_preview(
    invocation: Invocation,
    address: Address,
    limit: int,
    steps: tuple[int, int | None] | None,
    since: float | None,
    where: str | None,
    records: str | None,
    compare: bool,
    as_csv: bool,
) -> int:
    """Show the rows that an edited view or sink gives over what its inputs hold.

    Computes the query as the files define it, with Spark in this process, over the inputs' collections in the
    warehouse. Writes nothing: neither rows nor state. A view is computed in batch, so it also has windows
    that are still open, and no row is late. A sink's rows are what its `select` and `where` make of its
    input. With --records, a source's rows are what its format makes of the records in a file.

    With --compare, the committed definition is computed over the same rows. Rows are compared by the key if
    both definitions have the same one, otherwise as a whole.
    """
    if as_csv and (compare or invocation.json):
        raise click.UsageError("--csv prints rows: leave out --compare and --json.")
    if records is not None and (steps, since) != (None, None):
        raise click.UsageError("--records reads no steps: leave out --steps and --since.")
    given = _records(records) if records is not None else ()
    work = invocation.work(whole=True)
    extent = Extent(steps=steps, since=since)
    with (
        invocation.progress.working(f"computing {address}"),
        open_preview(
            work, address, extent, given, lambda: invocation.note("Starting Spark in this process")
        ) as previewed,
    ):
        document, text = _shown(invocation, previewed, where, limit, compare=compare, as_csv=as_csv)
    invocation.result(document, text)
    return ExitCode.OK


def _records(file: str) -> tuple[GivenRecord, ...]:
    """Return the records in a file. Raises MzplanError MZ353."""
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as problem:
        raise error("MZ353.cannot-read", file=file, strerror=problem.strerror) from None
    if not (lines := data.splitlines()):
        raise error("MZ353.empty-file", file=file)
    return tuple(GivenRecord(value=line) for line in lines)


def _shown(
    invocation: Invocation,
    previewed: Previewed,
    where: str | None,
    limit: int,
    *,
    compare: bool,
    as_csv: bool,
) -> tuple[object, str]:
    paint = Paint(invocation.color)
    head: dict[str, object] = {"format_version": "1.0", "address": str(previewed.after.address)}
    preview, before, after = previewed.preview, previewed.before, previewed.after
    if compare and before is not None:
        both = preview.compare(before, after, where, limit)
        head |= compared_to_json(both)
        text = table_of_both(both, paint)
    else:
        before = None
        rows = preview.rows(after, where, limit)
        head |= previewed_to_json(rows)
        table = [rows.rows.column_names, *row_texts(rows.rows)]
        text = "\n".join(map(csv_line, table)) if as_csv else table_of_rows(rows, paint)
    if not previewed.records:
        return head, text
    malformed = preview.malformed(after)
    head["malformed"] = [{"record": number, "reason": why} for number, why in malformed.items()]
    lines = malformed_lines(malformed, preview.malformed(before) if before is not None else None, limit)
    if as_csv:
        invocation.note("\n".join(lines))
        return head, text
    return head, "\n".join([text, "", *lines] if lines else [text])
