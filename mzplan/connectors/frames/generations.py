"""The rows that a keyed target needs to go from the rows of one generation to those of the next."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.merges import EXISTS, TIME, VERSION, latest_rows
from mzplan.connectors.frames.row_hash import without_maps
from mzplan.connectors.frames.types import quoted
from mzplan.schema.columns import CHANGE, DELETE, OWN, POSITION, UPSERT
from mzplan.warehouse.damage import GoneError

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

_ROW, _NEW, _OLD, _COUNT = (f"{OWN}{name}" for name in ("row", "new", "old", "count"))


def rows_between(
    batch: DataFrame, former: Sequence[DataFrame], keys: Sequence[str], *, is_certain: bool
) -> DataFrame:
    """Return the rows to write, cached: one per key, with `_change` and `_position`.

    `batch`: all rows of the new generation. `former`: what the target may hold. A key of any of them that the
    batch doesn't have is deleted. With `is_certain`, the target holds all rows of one of them; a row that all
    of them have is then left out. Raises GoneError if the keys can't be compared, and Spark's errors.
    """
    new = _with_changes(latest_rows(batch, keys, position=True))
    columns = [name for name in batch.columns if name not in (CHANGE, POSITION)]
    for old in former:
        _require_types(new, old, keys)
    rows = new
    if is_certain and former and all(_has_columns(old, new, columns) for old in former):
        rows = _changed(new, former, keys, columns)
    if former:
        rows = rows.unionByName(_gone(new, former, keys, columns))
    rows = rows.persist()
    try:
        rows.count()
    except BaseException:
        rows.unpersist()
        raise
    return rows


def _with_changes(latest: DataFrame) -> DataFrame:
    """Return the rows as those of a keyed collection that exist: see merges.with_order."""
    if CHANGE in latest.columns:
        return latest.where(f.col(CHANGE) != DELETE)
    position: Any = latest.schema[POSITION].dataType
    order = f.struct(
        f.lit(0).cast("bigint").alias(VERSION),
        f.lit(1).cast("int").alias(EXISTS),
        f.lit(None).cast("timestamp").alias(TIME),
        *(f.col(f"{POSITION}.{quoted(name)}") for name in position.names),
    )
    return latest.withColumn(POSITION, order).withColumn(CHANGE, f.lit(UPSERT))


def _changed(
    new: DataFrame, former: Sequence[DataFrame], keys: Sequence[str], columns: Sequence[str]
) -> DataFrame:
    """Return the new rows that any of the former sides doesn't have."""
    type_, everything = _struct_type(new, columns), f.struct(*map(quoted, new.columns))
    joined = new.select(*_keys(new, keys, _NEW), everything.alias(_ROW), _struct(columns).alias(_NEW))
    wanted = without_maps(f.col(_NEW), type_, is_sorted=True)
    equal: list[Expression] = []
    for i, old in enumerate(former):
        side = f"{_OLD}{i}"
        grouped = old.select(*_keys(old, keys, side), _struct(columns).alias(side)).groupBy(
            *(f"{side}_{k}" for k in range(len(keys)))
        )
        # Which of several rows the target holds depends on the steps in which they were written.
        single = grouped.agg(f.first(side).alias(side), f.count(f.lit(1)).alias(_COUNT)).where(
            f.col(_COUNT) == 1
        )
        joined = joined.join(single.drop(_COUNT), _same_key(joined, single, keys, _NEW, side), "left")
        equal.append(wanted.eqNullSafe(without_maps(f.col(side), type_, is_sorted=True)))
    changed = joined.where(~reduce(lambda one, other: one & other, equal))
    return changed.select(*(f.col(f"{_ROW}.{quoted(name)}") for name in new.columns))


def _gone(
    new: DataFrame, former: Sequence[DataFrame], keys: Sequence[str], columns: Sequence[str]
) -> DataFrame:
    """Return a delete for each key that only the former sides have."""
    old = reduce(lambda one, other: one.unionByName(other), (_aligned(side, new, columns) for side in former))
    keyed = old.select(*_keys(old, keys, _OLD), _struct(columns).alias(_ROW))
    one = keyed.groupBy(*(f"{_OLD}_{k}" for k in range(len(keys)))).agg(f.first(_ROW).alias(_ROW))
    present = new.select(*_keys(new, keys, _NEW))
    gone = one.join(present, _same_key(one, present, keys, _OLD, _NEW), "left_anti")
    position: Any = new.schema[POSITION].dataType
    order = (
        f.lit(0 if field.name == EXISTS else None).cast(field.dataType).alias(field.name)
        for field in position.fields
    )
    values = (f.col(f"{_ROW}.c{i}").alias(name) for i, name in enumerate(columns))
    return gone.select(*values, f.struct(*order).alias(POSITION), f.lit(DELETE).alias(CHANGE))


def _aligned(old: DataFrame, new: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return former rows with the new columns. Those that they don't have are NULL."""
    types = {field.name.lower(): field for field in old.schema.fields}
    selected = []
    for name in columns:
        wanted, found = new.schema[name].dataType, types.get(name.lower())
        has_value = found is not None and found.dataType == wanted
        value = f.col(quoted(found.name)) if has_value and found is not None else f.lit(None).cast(wanted)
        selected.append(value.alias(name))
    return old.select(*selected)


def _require_types(new: DataFrame, old: DataFrame, keys: Sequence[str]) -> None:
    for key in keys:
        before, after = (
            next((field.dataType for field in rows.schema.fields if field.name.lower() == key.lower()), None)
            for rows in (old, new)
        )
        if before != after:
            raise GoneError(f"the column {key} of its key had another type")


def _has_columns(old: DataFrame, new: DataFrame, columns: Sequence[str]) -> bool:
    """Whether former rows have the new columns, in the same order and with the same types."""
    before = [(field.name, field.dataType) for field in old.drop(POSITION).schema.fields]
    return before == [(name, new.schema[name].dataType) for name in columns]


def _struct(columns: Sequence[str]) -> Expression:
    return f.struct(*(f.col(quoted(name)).alias(f"c{i}") for i, name in enumerate(columns)))


def _struct_type(rows: DataFrame, columns: Sequence[str]) -> Any:
    return rows.select(_struct(columns).alias(_NEW)).schema[_NEW].dataType


def _keys(rows: DataFrame, keys: Sequence[str], side: str) -> list[Expression]:
    return [f.col(quoted(key)).alias(f"{side}_{i}") for i, key in enumerate(keys)]


def _same_key(
    left: DataFrame, right: DataFrame, keys: Sequence[str], left_side: str, right_side: str
) -> Expression:
    pairs = ((left[f"{left_side}_{i}"], right[f"{right_side}_{i}"]) for i in range(len(keys)))
    return reduce(lambda one, other: one & other, (one.eqNullSafe(other) for one, other in pairs))
