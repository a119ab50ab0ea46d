"""The `snapshot` command: print a collection as of a step."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import click

from mzplan.cli.arguments import QUERY, STEP
from mzplan.cli.context import Invocation, command
from mzplan.cli.streams import unwritable
from mzplan.features.snapshot.collection_snapshot import open_snapshot
from mzplan.host.guarded_folder import open_whole
from mzplan.model.address import Address
from mzplan.model.diagnostics import ExitCode
from mzplan.model.words import count
from mzplan.render.row_files import json_lines, out_format_of, table_lines, texts, write_rows
from mzplan.render.text import safe_json

if TYPE_CHECKING:
    import pyarrow as pa

    from mzplan.features.snapshot.collection_snapshot import CollectionSnapshot
    from mzplan.render.row_files import OutFormat

_BINARY = ("parquet", "arrow")


class _OutputClosed(Exception):  # noqa: N818 - not an error: `| head` closes its input early
    """Raised when stdout is closed or can't be written."""


@command("snapshot")
@click.argument("address", type=QUERY)
@click.option(
    "--as-of",
    "as_of",
    metavar="STEP",
    type=STEP,
    help="Include the rows of all steps up to this one (default: the newest).",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["table", "json", "csv", "parquet", "arrow"]),
    help="The rows' format (default: from --out's file name, or a table). json is one object per line.",
)
@click.option("--out", metavar="FILE", help="Write the rows to this file (default: stdout).")
@click.option("--count", "only_count", is_flag=True, help="Only print the number of rows.")
@click.option("--where", metavar="SQL", help="Only print rows that meet this condition (DataFusion SQL).")
@click.option("--position", is_flag=True, help="Include `_position`: each row's place in the upstream.")
def command_snapshot(
    invocation: Invocation,
    address: Address,
    as_of: int | None,
    format_: str | None,
    out: str | None,
    only_count: bool,
    where: str | None,
    position: bool,
) -> int:
    """Print the rows of a collection as of a step.

    Reads the warehouse directly, without Spark or a runner. The order of the rows may vary.
    """
    chosen = _format(invocation, format_, out, only_count)
    snapshot = open_snapshot(invocation.project(), address, as_of, invocation.progress)
    if only_count:
        _show_count(invocation, snapshot, where)
        return ExitCode.OK
    schema, batches = snapshot.rows(where, position=position)
    if out is not None:
        _write_file(invocation, snapshot, chosen, (schema, batches), out)
        return ExitCode.OK
    with contextlib.suppress(_OutputClosed):
        if invocation.json:
            _write_document(invocation, snapshot, schema, batches)
        elif chosen == "table":
            for piece in _table_pieces(invocation, snapshot, schema, batches):
                _write(invocation, piece)
        else:
            write_rows(cast("OutFormat", chosen), schema, batches, cast(BinaryIO, _Stdout(invocation)))
    return ExitCode.OK


def _format(invocation: Invocation, requested: str | None, out: str | None, only_count: bool) -> str:
    if only_count and (requested or out):
        raise click.UsageError("--count prints a number: leave out --format and --out.")
    if out is None:
        if invocation.json and requested is not None:
            raise click.UsageError("--json prints one document; --format is for --out, or without --json.")
        if requested in _BINARY and sys.stdout is not None and sys.stdout.isatty():
            raise click.UsageError(
                f"{requested} can't be printed to a terminal: give --out FILE, or redirect the output."
            )
        return requested or "table"

    chosen = requested or out_format_of(out)
    if chosen is None:
        raise click.UsageError(
            f"The format for {out!r} is unknown: give --format json, csv, parquet or arrow."
        )
    return chosen


def _show_count(invocation: Invocation, snapshot: CollectionSnapshot, where: str | None) -> None:
    row_count = snapshot.count(where)
    if invocation.json:
        invocation.document({**_summary(snapshot), "count": row_count})
    else:
        invocation.out(str(row_count))


def _summary(snapshot: CollectionSnapshot) -> dict[str, Any]:
    return {
        "address": str(snapshot.address),
        "as_of": snapshot.as_of,
        "since": snapshot.since,
        "upper": snapshot.upper,
    }


def _table_pieces(
    invocation: Invocation, snapshot: CollectionSnapshot, schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> Iterator[str]:
    """Yield the table's lines, many at once. At the end, print a note with its size and step."""
    from pyarrow import types

    right = [
        types.is_integer(f.type) or types.is_floating(f.type) or types.is_decimal(f.type) for f in schema
    ]
    rows = (row for batch in batches for row in zip(*map(texts, batch.columns), strict=True))
    lines = table_lines(schema.names, right, rows, color=invocation.color)
    number = -1
    while chunk := list(islice(lines, 1000)):
        number += len(chunk)
        yield "\n".join(chunk) + "\n"
    invocation.note(f"{count(number, 'row')} of {snapshot.address} as of step {snapshot.as_of}.")


def _write_document(
    invocation: Invocation, snapshot: CollectionSnapshot, schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> None:
    """Write one JSON document with a row on each line, as the rows arrive.

    The first rows are read before anything is written, so an immediate error is the only document."""
    head = safe_json(
        json.dumps({**_summary(snapshot), "columns": schema.names}, ensure_ascii=False, indent=2)
    )
    pieces, comma = [f'{head[:-2]},\n  "rows": ['], ""
    for batch in batches:
        for line in json_lines(batch):
            pieces.append(f"{comma}\n    {line}")
            comma = ","
        invocation.output.documents = 1
        _write(invocation, "".join(pieces))
        pieces = []
    invocation.output.documents = 1
    _write(invocation, "".join(pieces) + "\n  ]\n}\n")


def _write(invocation: Invocation, text: str) -> None:
    _Stdout(invocation).write(text.encode())


class _Stdout:
    """Stdout as a binary file. Raises _OutputClosed once it is closed."""

    closed = False

    def __init__(self, invocation: Invocation):
        self._output = invocation.output
        invocation.end_progress()

    def write(self, data: bytes) -> int:
        self._output.data(bytes(data))
        if self._output.reader_gone or self._output.problem is not None:
            raise _OutputClosed
        return len(data)

    def flush(self) -> None:
        pass

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False


def _write_file(
    invocation: Invocation,
    snapshot: CollectionSnapshot,
    format_: str,
    content: tuple[pa.Schema, Iterator[pa.RecordBatch]],
    out: str,
) -> None:
    schema, batches = content
    rows = 0
    with (
        invocation.progress.working(lambda: f"writing rows to {out}: {rows:,} so far"),
        _open_output(out) as sink,
    ):

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            for batch in batches:
                yield batch
                rows += batch.num_rows

        if format_ == "table":
            for piece in _table_pieces(invocation, snapshot, schema, counted()):
                sink.write(piece.encode())
        else:
            write_rows(cast("OutFormat", format_), schema, counted(), sink)
    if invocation.json:
        invocation.document({**_summary(snapshot), "rows": rows, "file": out, "format": format_})
    else:
        invocation.note(f"{count(rows, 'row')} as of step {snapshot.as_of} written to {out}.")


@contextlib.contextmanager
def _open_output(out: str) -> Iterator[BinaryIO]:
    """Open a file that appears only when it is complete. Raises MzplanError MZ035."""
    try:
        with open_whole(out) as stream:
            yield stream
    except OSError as problem:
        raise unwritable(out, problem) from None
