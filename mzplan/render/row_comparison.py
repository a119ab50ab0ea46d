"""The rows of a query, and how two sets of rows differ, as a table or JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mzplan.model.previews import PreviewedRows
from mzplan.model.row_comparison import RowsOfBoth
from mzplan.model.words import count
from mzplan.render.row_files import json_values, texts
from mzplan.render.text import Paint, aligned_lines, cut, safe

if TYPE_CHECKING:
    import pyarrow as pa

_CELL = 60  # characters


def rows_to_json(rows: pa.Table) -> list[dict[str, Any]]:
    """Return rows as JSON objects."""
    batch = rows.combine_chunks()
    columns = [json_values(column.chunk(0)) if column.num_chunks else [] for column in batch.columns]
    return [dict(zip(batch.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def previewed_to_json(rows: PreviewedRows) -> dict[str, Any]:
    return {
        "columns": [{"name": name, "type": type_} for name, type_ in rows.columns],
        "key": list(rows.keys),
        "count": rows.count,
        "rows": rows_to_json(rows.rows),
    }


def table_of_rows(previewed: PreviewedRows, paint: Paint) -> str:
    """Return the rows as a table for people, and how many there are."""
    rows = previewed.rows
    head, *lines = aligned_lines(
        [[safe(name) for name in rows.column_names], *map(row_cells, row_texts(rows))]
    )
    more = f", of which {rows.num_rows} are shown" if rows.num_rows < previewed.count else ""
    return "\n".join([paint(head, "bold"), *lines, "", f"{count(previewed.count, 'row')}{more}."])


def compared_to_json(both: RowsOfBoth) -> dict[str, Any]:
    """Return how rows differ as JSON; of a changed row, also the names of its columns that differ."""
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
        "changed": [
            {
                "before": before,
                "after": after,
                "columns": [
                    name
                    for (name, value), former in zip(after.items(), before.values(), strict=True)
                    if value != former
                ],
            }
            for before, after in changed
        ],
    }


def table_of_both(
    both: RowsOfBoth, paint: Paint, sides: tuple[str, str] = ("before", "after"), changed: str = "~"
) -> str:
    """Return how rows differ, as a table with a sign before each row.

    `sides`: their names. `changed`: the sign of a changed row.
    """
    lines: list[tuple[str, list[str]]] = [("bold", ["", *map(safe, both.compared)])]
    for old, new in zip(row_texts(both.changed_before), row_texts(both.changed_after), strict=True):
        pairs = zip(row_cells(old), row_cells(new), strict=True)
        lines.append(
            ("yellow", [changed, *(one if one == other else f"{one} → {other}" for one, other in pairs)])
        )
    for sign, colour, rows in (("-", "red", both.before_rows), ("+", "green", both.after_rows)):
        lines += [(colour, [sign, *row_cells(row)]) for row in row_texts(rows)]
    shown = aligned_lines([cells for _, cells in lines]) if len(lines) > 1 else []
    painted = [paint(line, colour) for line, (colour, _) in zip(shown, lines, strict=False)]
    by = f" by {', '.join(both.keys)}" if both.keys else ""
    only = f"{both.only_before} only {sides[0]}, {both.only_after} only {sides[1]}"
    summary = f"{count(both.same, 'row')} unchanged, {both.changed} changed{by}, {only}."
    return "\n".join([*painted, *([""] if painted else []), summary])


def malformed_lines(malformed: Mapping[int, str], before: Mapping[int, str] | None, limit: int) -> list[str]:
    """Return which records are malformed, as lines for people. `before`: the same of another definition."""
    if not malformed and not before:
        return []
    head = f"{count(len(malformed), 'malformed record')}" + (
        f", {len(before)} before" if before is not None else ""
    )
    lines = [f"  record {number}: {safe(why)}" for number, why in malformed.items()]
    more = [f"  … {len(lines) - limit} more"] if len(lines) > limit else []
    return [f"{head}{':' if lines else '.'}", *lines[:limit], *more]


def row_texts(rows: pa.Table) -> list[Sequence[str | None]]:
    """Return the values of each row as text."""
    batch = rows.combine_chunks()
    columns = [texts(column.chunk(0)) if column.num_chunks else [] for column in batch.columns]
    return list(zip(*columns, strict=True))


def row_cells(row: Sequence[str | None]) -> list[str]:
    """Return a row's values for the cells of a table."""
    return ["NULL" if value is None else cut(safe(value), _CELL) for value in row]
