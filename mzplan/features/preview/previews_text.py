"""Previewed rows as a table, CSV or JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mzplan.model.words import count
from mzplan.render.row_comparison import row_cells, row_texts, rows_to_json
from mzplan.render.row_files import csv_line
from mzplan.render.text import Paint, aligned_lines, safe

if TYPE_CHECKING:
    import pyarrow as pa

    from mzplan.spark.trials.previews import PreviewedRows


def previewed_to_json(rows: PreviewedRows) -> dict[str, Any]:
    return {
        "columns": [{"name": column.name, "type": column.type} for column in rows.columns],
        "key": list(rows.keys),
        "count": rows.count,
        "rows": rows_to_json(rows.rows),
    }


def csv_lines(rows: pa.Table) -> Iterator[str]:
    """Yield the rows as CSV, with a line of names."""
    yield csv_line(rows.column_names)
    yield from (csv_line(row) for row in row_texts(rows))


def table_of_rows(previewed: PreviewedRows, paint: Paint) -> str:
    """Return the rows as a table for people, and how many there are."""
    rows = previewed.rows
    head, *lines = aligned_lines(
        [[safe(name) for name in rows.column_names], *map(row_cells, row_texts(rows))]
    )
    more = f", of which {rows.num_rows} are shown" if rows.num_rows < previewed.count else ""
    return "\n".join([paint(head, "bold"), *lines, "", f"{count(previewed.count, 'row')}{more}."])
