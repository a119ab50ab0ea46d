"""Compares the rows that a test expects with the rows that its query gave."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mzplan.render.row_files import json_values

if TYPE_CHECKING:
    import pyarrow as pa

Row = Mapping[str, Any]
"""The values of a row by column, as JSON: decimals and times are text."""
_DIGITS = 12  # of a DOUBLE that are compared: sums depend on the order of the rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedRow:
    """An expected row, and the found row in its place. `columns`: the columns whose values differ."""

    expected: Row
    found: Row
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDifference:
    """How rows differ from the expected ones. `columns`: the compared columns, in order."""

    columns: tuple[str, ...]
    missing: tuple[Row, ...] = ()
    unexpected: tuple[Row, ...] = ()
    changed: tuple[ChangedRow, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.missing or self.unexpected or self.changed)


def rows_of(table: pa.Table, columns: Sequence[str]) -> list[Row]:
    """Return these columns of a table as rows."""
    chosen = table.select(list(columns)).combine_chunks()
    values = [
        json_values(chunk) if (chunk := _array(column)) is not None else [] for column in chosen.columns
    ]
    return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]


def _array(column: Any) -> Any:
    return column.chunk(0) if column.num_chunks else None


def compare_rows(
    expected: Sequence[Row], found: Sequence[Row], columns: Sequence[str], keys: Sequence[str]
) -> RowDifference:
    """Compare rows in any order; equal rows count as often as they occur.

    `keys`: the columns that identify a row. A missing and an unexpected row with one key are a changed row;
    without a key, rows are paired that differ in fewer than all columns.
    """
    left, right = list(expected), list(found)
    common = Counter(map(_identity, left)) & Counter(map(_identity, right))
    missing, unexpected = _without(left, common), _without(right, common)
    changed: list[ChangedRow] = []
    rest: list[Row] = []
    by_key = set(keys) <= set(columns) and bool(keys)
    for row in missing:
        partner = _partner(row, unexpected, keys if by_key else columns, is_key=by_key)
        if partner is None:
            rest.append(row)
            continue
        unexpected.remove(partner)
        differing = tuple(name for name in columns if _text(row[name]) != _text(partner[name]))
        changed.append(ChangedRow(expected=row, found=partner, columns=differing))
    return RowDifference(
        columns=tuple(columns),
        missing=tuple(sorted(rest, key=_identity)),
        unexpected=tuple(sorted(unexpected, key=_identity)),
        changed=tuple(changed),
    )


def _without(rows: Sequence[Row], common: Counter[str]) -> list[Row]:
    left, remaining = Counter(common), []
    for row in rows:
        identity = _identity(row)
        if left[identity]:
            left[identity] -= 1
        else:
            remaining.append(row)
    return remaining


def _partner(row: Row, others: Sequence[Row], names: Sequence[str], *, is_key: bool) -> Row | None:
    """Return the row that differs least; None if none has the same key, or any equal value."""
    equal = [sum(_text(row[name]) == _text(other[name]) for name in names) for other in others]
    best = max(equal, default=0)
    if best < (len(names) if is_key else 1):
        return None
    return others[equal.index(best)]


def _identity(row: Row) -> str:
    return "\0".join(map(_text, row.values()))


def _text(value: Any) -> str:
    return json.dumps(_rounded(value), sort_keys=True)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return value
