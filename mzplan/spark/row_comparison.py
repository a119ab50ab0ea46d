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
    from pyspark.sql.types import DataType

_BEFORE, _AFTER, _SAME = "_mzplan_before", "_mzplan_after", "_mzplan_same"
_WHOLE = "_mzplan_whole"
_MORE = "_mzplan_more"  # how many more of these rows are before than after
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
    before, after = f.struct(*left.columns), f.struct(*right.columns)
    no_before, no_after = _null_like(left, before), _null_like(right, after)
    sides = left.select(
        _whole(left, right).alias(_WHOLE),
        before.alias(_BEFORE),
        no_after.alias(_AFTER),
        f.lit(1).alias(_MORE),
    ).unionAll(right.select(_whole(right, left), no_before, after, f.lit(-1)))
    rows = (f.first(side, ignorenulls=True).alias(side) for side in (_BEFORE, _AFTER))
    groups = sides.groupBy(_WHOLE).agg(*rows, f.sum(_MORE).alias(_MORE)).where(f"{_MORE} <> 0").persist()
    numbers = (f"coalesce(sum(greatest({more}, 0L)), 0L)" for more in (_MORE, f"-{_MORE}"))
    only_before, only_after = groups.selectExpr(*numbers).collect()[0]

    def some(side: str, more: str) -> pa.Table:
        rows = groups.where(f"{more} > 0").limit(limit)
        repeated = rows.selectExpr(f"inline(array_repeat({side}, CAST(least({more}, {limit}) AS INT)))")
        return repeated.limit(limit).toArrow()

    after_rows = some(_AFTER, f"-{_MORE}")
    nothing = after_rows.slice(0, 0)
    return RowsOfBoth(
        compared=tuple(compared),
        keys=(),
        same=right.count() - only_after,
        only_before=only_before,
        only_after=only_after,
        changed=0,
        before_rows=some(_BEFORE, _MORE),
        after_rows=after_rows,
        changed_before=nothing,
        changed_after=nothing,
    )


def _whole(rows: DataFrame, others: DataFrame) -> Expression:
    """Return a value of a row that equals the value of an equal row on the other side."""
    fields = enumerate(zip(rows.schema.fields, others.schema.fields, strict=True))
    return f.struct(
        *(
            _comparable(f.col(quoted(field.name)), field.dataType, other.dataType).alias(f"c{number}")
            for number, (field, other) in fields
        )
    )


def _null_like(rows: DataFrame, value: Expression) -> Expression:
    return f.lit(None).cast(rows.select(value.alias("value")).schema["value"].dataType)


def _is_same(left: DataFrame, right: DataFrame, compared: Sequence[str]) -> Expression:
    """Return whether all values are equal."""
    old: Any = left.schema[_BEFORE].dataType
    new: Any = right.schema[_AFTER].dataType
    equal = []
    for name, before, after in zip(compared, old.fields, new.fields, strict=True):
        one = _comparable(f.col(f"{_BEFORE}.{quoted(name)}"), before.dataType, after.dataType)
        other = _comparable(f.col(f"{_AFTER}.{quoted(name)}"), after.dataType, before.dataType)
        equal.append(one.eqNullSafe(other))
    return reduce(lambda one, other: one & other, equal)


def _comparable(value: Expression, type_: DataType, other: DataType) -> Expression:
    """Return what to compare of a value. If the other side's column has another type, this is its JSON."""
    if type_ == other:
        return without_maps(value, type_, is_sorted=True)
    return f.to_json(f.struct(value.alias("value")), _EXACT)
