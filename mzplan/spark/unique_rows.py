"""Counts the rows of a step that repeat values of another key in a keyed collection (`expect: unique`).

The collection is compared as it is after the step. A row violates the expectation if the step writes it, and
a row with another key has the same values. NULL equals nothing, as in SQL's UNIQUE.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.merges import latest_rows
from mzplan.connectors.frames.types import quoted
from mzplan.schema.columns import CHANGE, DELETE, POSITION, Column
from mzplan.spark.sql.projection import null_of

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

_ROWS, _STORED, _KEY, _AT = "_mzplan_rows", "_mzplan_stored", "_mzplan_key", "_mzplan_at"


def final_rows(
    rows: DataFrame, stored: DataFrame, keys: Sequence[str], *, is_ordered: bool, compares_positions: bool
) -> DataFrame:
    """Return the last change of each key in a step, without those that the merge ignores.

    `is_ordered`: a key may have several changes, in the order of `_position`. `compares_positions`: see
    mzplan.connectors.frames.merges.merge.
    """
    latest = latest_rows(rows, keys, position=True) if is_ordered else rows
    if not compares_positions:
        return latest
    held = _keys_of(stored, keys, f.col(POSITION).alias(_AT))
    newer = f.col(_AT).isNull() | (f.col(POSITION) > f.col(_AT))
    columns = [quoted(name) for name in latest.columns]
    return latest.join(held, _has_key(keys), "left").where(newer).select(*columns)


def count_duplicates(
    changes: DataFrame, stored: DataFrame | None, columns: Sequence[str], keys: Sequence[str]
) -> int:
    """Return how many of these rows share their values of `columns` with a row of another key.

    `changes`: one row for each key; with `_change`, some may delete their key.
    `stored`: the collection before these changes; None for no rows.
    """
    names = [quoted(name) for name in columns]
    complete = f.expr(" AND ".join(f"{name} IS NOT NULL" for name in names))
    rows = changes.where(complete)
    if CHANGE in changes.columns:
        rows = rows.where(~f.col(CHANGE).eqNullSafe(DELETE))
    counted = rows.groupBy(*names).agg(f.count(f.lit(1)).alias(_ROWS))
    if stored is None:
        violating = counted.where(f.col(_ROWS) > 1)
    else:
        same_values = [f"r.{name} = s.{name}" for name in names]
        changed = _keys_of(changes, keys)
        others = stored.where(complete).join(changed, _has_key(keys), "left_anti").select(*names)
        known = others.distinct().withColumn(_STORED, f.lit(True))
        joined = counted.alias("r").join(known.alias("s"), f.expr(" AND ".join(same_values)), "left")
        violating = joined.where((f.col(_ROWS) > 1) | f.col(_STORED))
    found = violating.agg(f.sum(_ROWS)).first()
    return int(found[0] or 0) if found is not None else 0


def stored_rows(table: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """Return these columns of a collection, and `_position`. A column that it doesn't have yet is NULL."""
    stored = {name.lower() for name in table.columns}
    items = (quoted(c.name) if c.name.lower() in stored else null_of(c) for c in columns)
    return table.selectExpr(*items, POSITION)


def _keys_of(rows: DataFrame, keys: Sequence[str], *more: Expression) -> DataFrame:
    """Return the keys of rows under names that no column has."""
    return rows.select(*(f.col(quoted(key)).alias(f"{_KEY}{i}") for i, key in enumerate(keys)), *more)


def _has_key(keys: Sequence[str]) -> Expression:
    return f.expr(" AND ".join(f"{quoted(key)} <=> {_KEY}{i}" for i, key in enumerate(keys)))
