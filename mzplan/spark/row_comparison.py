"""Compares the rows of two DataFrames, by key or as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.row_hash import without_maps
from mzplan.connectors.frames.types import quoted
from mzplan.model.row_comparison import RowsOfBoth

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

_BEFORE, _AFTER, _SAME = "_mzplan_before", "_mzplan_after", "_mzplan_same"
# Without it, the text of a timestamp has milliseconds.
_EXACT = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}


def compare_rows(
    old: DataFrame, new: DataFrame, compared: Sequence[str], keys: Sequence[str], limit: int
) -> RowsOfBoth:
    """Return how the rows differ in the columns that both have.

    `keys`: columns that identify a row on both sides; empty to compare whole rows. `limit`: how many rows of
    each kind to return.
    """
    compare = _compared_by_key if keys else _compared_as_a_whole
    return compare(old, new, compared, keys, limit)


def _compared_by_key(
    old: DataFrame, new: DataFrame, compared: Sequence[str], keys: Sequence[str], limit: int
) -> RowsOfBoth:
    names = [quoted(name) for name in compared]
    left = old.select(f.struct(*names).alias(_BEFORE))
    right = new.select(f.struct(*names).alias(_AFTER))
    same_key = (f"{_BEFORE}.{quoted(key)} <=> {_AFTER}.{quoted(key)}" for key in keys)
    joined = left.join(right, f.expr(" AND ".join(same_key)), "full_outer")
    both = joined.withColumn(_SAME, _is_same(left, right, compared)).persist()
    gone, added = f"{_AFTER} IS NULL", f"{_BEFORE} IS NULL"
    there = f"{_BEFORE} IS NOT NULL AND {_AFTER} IS NOT NULL"
    changed = f"{there} AND NOT {_SAME}"
    counts = both.selectExpr(
        *(
            f"count_if({condition}) AS {name}"
            for name, condition in (
                ("only_before", gone),
                ("only_after", added),
                ("changed", changed),
                ("same", f"{there} AND {_SAME}"),
            )
        )
    ).collect()[0]

    order = [f"coalesce({_AFTER}.{quoted(key)}, {_BEFORE}.{quoted(key)})" for key in keys]

    def some(condition: str, *sides: str) -> list[pa.Table]:
        rows = both.where(condition).orderBy(*map(f.expr, order)).limit(limit)
        return _structs(rows.select(*sides).toArrow(), sides)

    changed_before, changed_after = some(changed, _BEFORE, _AFTER)
    return RowsOfBoth(
        compared=tuple(compared),
        keys=tuple(keys),
        **counts.asDict(),
        before_rows=some(gone, _BEFORE)[0],
        after_rows=some(added, _AFTER)[0],
        changed_before=changed_before,
        changed_after=changed_after,
    )


def _structs(rows: pa.Table, names: Sequence[str]) -> list[pa.Table]:
    """Return each of these struct columns as a table."""
    import pyarrow as pa

    return [pa.Table.from_struct_array(rows.column(name)) for name in names]


def _compared_as_a_whole(
    old: DataFrame, new: DataFrame, compared: Sequence[str], keys: Sequence[str], limit: int
) -> RowsOfBoth:
    names = [quoted(name) for name in compared]
    left, right = old.select(*names), new.select(*names)
    gone, added = left.exceptAll(right).persist(), right.exceptAll(left).persist()
    only_before, only_after = gone.count(), added.count()
    nothing = added.limit(0).toArrow()
    return RowsOfBoth(
        compared=tuple(compared),
        keys=(),
        same=right.count() - only_after,
        only_before=only_before,
        only_after=only_after,
        changed=0,
        before_rows=gone.limit(limit).toArrow(),
        after_rows=added.limit(limit).toArrow(),
        changed_before=nothing,
        changed_after=nothing,
    )


def _is_same(left: DataFrame, right: DataFrame, compared: Sequence[str]) -> Expression:
    """Return whether all values are equal. If a column has another type, its values' JSON is compared."""
    old: Any = left.schema[_BEFORE].dataType
    new: Any = right.schema[_AFTER].dataType
    equal = []
    for name, before, after in zip(compared, old.fields, new.fields, strict=True):
        values = f.col(f"{_BEFORE}.{quoted(name)}"), f.col(f"{_AFTER}.{quoted(name)}")
        if before.dataType == after.dataType:
            one, other = (without_maps(value, before.dataType, is_sorted=True) for value in values)
        else:
            one, other = (f.to_json(f.struct(value.alias("value")), _EXACT) for value in values)
        equal.append(one.eqNullSafe(other))
    return reduce(lambda one, other: one & other, equal)
