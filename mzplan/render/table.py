"""Rows as a table for a person, as they come: the widths are those of the first ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from mzplan.render.text import Paint, cut, safe

CELL = 60  # characters
_MEASURED = 200  # rows that say how wide a column is
NULL = "NULL"


def table_lines(
    names: Sequence[str],
    right: Sequence[bool],
    rows: Iterable[Sequence[str | None]],
    *,
    color: bool = False,
) -> Iterator[str]:
    """The lines of a table. `right`: whether a column is set to the right; None in a row is NULL."""
    paint = Paint(color)
    shown = ([_cell(value) for value in row] for row in rows)
    first = list(islice(shown, _MEASURED))
    head = [_cell(name) for name in names]
    widths = [max(len(row[i]) for row in (head, *first)) for i in range(len(head))]
    yield paint(_line(head, widths, right), "bold")
    for row in chain(first, shown):
        yield _line(row, widths, right)


def _cell(value: str | None) -> str:
    return NULL if value is None else cut(safe(value), CELL)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    parts = [
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(cells, widths, right, strict=True)
    ]
    return "  ".join(parts).rstrip()
