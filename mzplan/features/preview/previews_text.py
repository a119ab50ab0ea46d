"""Previews as a table, CSV or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mzplan.model.words import count
from mzplan.render.row_files import csv_line, json_values, texts
from mzplan.render.text import Paint, aligned_lines, cut, safe

if TYPE_CHECKING:
    import pyarrow as pa

    from mzplan.spark.trials.previews import PreviewedRows, RowsOfBoth

_CELL = 60  # characters


def rows_to_json(rows: pa.Table) -> list[dict[str, Any]]:
    """Return rows as JSON objects."""
    batch = rows.combine_chunks()
    columns = [json_values(column.chunk(0)) if column.num_chunks else [] for column in batch.columns]
    return [dict(zip(batch.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def previewed_to_json(rows: PreviewedRows) -> dict[str, Any]:
    return {
        "columns": [{"name": column.name, "type": column.type} for column in rows.columns],
        "key": list(rows.keys),
        "count": rows.count,
        "rows": rows_to_json(rows.rows),
    }


def compared_to_json(both: RowsOfBoth) -> dict[str, Any]:
    changed = zip(rows_to_json(both.changed_before), rows_to_json(both.changed_after), strict=True)
    return {
        "compared": list(both.compared),
        "key": list(both.keys),
        "counts": {
            "same": both.same,
            "only_before": both.only_before,
            "only_after": both.only_after,
            "changed": both.changed,
        },
        "only_before": rows_to_json(both.before_rows),
        "only_after": rows_to_json(both.after_rows),
        "changed": [{"before": before, "after": after} for before, after in changed],
    }


def csv_lines(rows: pa.Table) -> Iterator[str]:
    """Yield the rows as CSV, with a line of names."""
    yield csv_line(rows.column_names)
    yield from (csv_line(row) for row in _texts(rows))


def table_of_rows(previewed: PreviewedRows, paint: Paint) -> str:
    """Return the rows as a table for people, and how many there are."""
    rows = previewed.rows
    head, *lines = aligned_lines([[safe(name) for name in rows.column_names], *map(_cells, _texts(rows))])
    more = f", of which {rows.num_rows} are shown" if rows.num_rows < previewed.count else ""
    return "\n".join([paint(head, "bold"), *lines, "", f"{count(previewed.count, 'row')}{more}."])


def table_of_both(both: RowsOfBoth, paint: Paint) -> str:
    """Return how two definitions differ, as a table with a sign before each row."""
    lines: list[tuple[str, list[str]]] = [("bold", ["", *map(safe, both.compared)])]
    for old, new in zip(_texts(both.changed_before), _texts(both.changed_after), strict=True):
        pairs = zip(_cells(old), _cells(new), strict=True)
        lines.append(
            ("yellow", ["~", *(one if one == other else f"{one} → {other}" for one, other in pairs)])
        )
    for sign, colour, rows in (("-", "red", both.before_rows), ("+", "green", both.after_rows)):
        lines += [(colour, [sign, *_cells(row)]) for row in _texts(rows)]
    shown = aligned_lines([cells for _, cells in lines]) if len(lines) > 1 else []
    painted = [paint(line, colour) for line, (colour, _) in zip(shown, lines, strict=False)]
    by = f" by {', '.join(both.keys)}" if both.keys else ""
    summary = (
        f"{count(both.same, 'row')} unchanged, {both.changed} changed{by}, {both.only_before} only before, "
        f"{both.only_after} only after."
    )
    return "\n".join([*painted, *([""] if painted else []), summary])


def _texts(rows: pa.Table) -> list[Sequence[str | None]]:
    batch = rows.combine_chunks()
    columns = [texts(column.chunk(0)) if column.num_chunks else [] for column in batch.columns]
    return list(zip(*columns, strict=True))


def _cells(row: Sequence[str | None]) -> list[str]:
    return ["NULL" if value is None else cut(safe(value), _CELL) for value in row]
