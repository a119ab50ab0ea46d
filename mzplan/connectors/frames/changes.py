"""The rows that a sink reads from a keyed collection: its change feed, as deleted and inserted rows.

An update deletes the old row and inserts the new one. `select` and `where` apply to each of them. So a row
that no longer meets the `where` is removed from the target, and so is the old row if the target's key
changes. For each target key, only the last event counts. Events are ordered by the table's version, then
deletes before inserts, then by the source's positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.types import quoted
from mzplan.schema.columns import CHANGE, DELETE, POSITION, UPSERT, Column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHANGE_FEED = {"readChangeFeed": "true"}
VERSION, EXISTS = "_version", "_there"  # the first fields of `_position` in a sink's rows
IS_REMOVED = f"{POSITION}.{EXISTS} = 0"
"""SQL that is true if a row with this order no longer exists after its change."""
_LATEST = "_mzplan_latest"


def exists_after() -> Any:
    """Return 1 for rows of a change feed that are in the table after their change, 0 for the others."""
    return f.col("_change_type").isin("insert", "update_postimage").cast("int")


def with_order(feed: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """Return the user's columns, and `_position` with two more fields in front: the table's version, and 1
    for an inserted row or 0 for a deleted one."""
    position: Any = feed.schema[POSITION].dataType
    fields = [f.col(f"{POSITION}.{quoted(name)}") for name in position.names]
    order = f.struct(f.col("_commit_version").alias(VERSION), exists_after().alias(EXISTS), *fields)
    return feed.select(*(f.col(quoted(column.name)) for column in columns), order.alias(POSITION))


def without_order(rows: DataFrame) -> DataFrame:
    """Return the rows with the `_position` that they had before `with_order`."""
    position: Any = rows.schema[POSITION].dataType
    fields = [f.col(f"{POSITION}.{quoted(name)}") for name in position.names if name not in (VERSION, EXISTS)]
    return rows.withColumn(POSITION, f.struct(*fields))


def with_change(rows: DataFrame, field: str = EXISTS) -> DataFrame:
    """Return the rows with `_change`, as SinkConnector.write takes them. A row is an upsert if this field of
    `_position` is 1, otherwise a delete."""
    is_upsert = f.col(f"{POSITION}.{field}") == 1
    return rows.withColumn(CHANGE, f.when(is_upsert, f.lit(UPSERT)).otherwise(f.lit(DELETE)))


def latest_rows(batch: DataFrame, keys: Sequence[str], *, position: bool = False) -> DataFrame:
    """Return the latest row of each key of a micro-batch, with `_change` if the collection is keyed. Keeps
    `_position` only with `position`."""
    columns = [quoted(column) for column in batch.columns if position or column != POSITION]
    grouped = batch.groupBy(*(f.col(quoted(key)) for key in keys))
    # The grouped columns stay, so the result needs a name that no column has.
    latest = grouped.agg(f.max_by(f.struct(*columns), f.col(POSITION)).alias(_LATEST))
    return latest.select(*(f"{_LATEST}.{column}" for column in columns))
