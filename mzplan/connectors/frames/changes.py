"""What a sink reads of a keyed collection: its change feed, as deleted and inserted rows.

An update is both: the old row is deleted, the new one inserted. `select` and `where` apply to each of them,
so that a row which no longer meets the `where` is removed from the target, and so is the old row of one whose
key in the target changes. Of one key of the target, the last event counts: in the order of the table's
versions, within one version deletes before inserts, then by the source's positions.
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
VERSION, THERE = "_version", "_there"  # the first fields of `_position` in a sink's rows
GOES = f"{POSITION}.{THERE} = 0"
"""Of a row with this order: that it is no longer there after its change, as SQL."""
_LATEST = "_mzplan_latest"


def is_there() -> Any:
    """Of a row of a change feed: 1 where it is in the table after its change, 0 where it no longer is."""
    return f.col("_change_type").isin("insert", "update_postimage").cast("int")


def with_order(feed: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """The user's columns, and `_position` with two more fields in front: the table's version, and 1 for an
    inserted row, 0 for a deleted one."""
    position: Any = feed.schema[POSITION].dataType
    fields = [f.col(f"{POSITION}.{quoted(name)}") for name in position.names]
    order = f.struct(f.col("_commit_version").alias(VERSION), is_there().alias(THERE), *fields)
    return feed.select(*(f.col(quoted(column.name)) for column in columns), order.alias(POSITION))


def without_order(rows: DataFrame) -> DataFrame:
    """The same rows with the `_position` that they had before `with_order`."""
    position: Any = rows.schema[POSITION].dataType
    fields = [f.col(f"{POSITION}.{quoted(name)}") for name in position.names if name not in (VERSION, THERE)]
    return rows.withColumn(POSITION, f.struct(*fields))


def with_change(rows: DataFrame, field: str = THERE) -> DataFrame:
    """The same rows with `_change`, as SinkConnector.write takes them, by this field of `_position`."""
    comes = f.col(f"{POSITION}.{field}") == 1
    return rows.withColumn(CHANGE, f.when(comes, f.lit(UPSERT)).otherwise(f.lit(DELETE)))


def latest_rows(batch: DataFrame, keys: Sequence[str], *, position: bool = False) -> DataFrame:
    """The latest row of each key of a micro-batch; `_position` only with `position`; for a keyed collection
    with its `_change`."""
    wanted = [quoted(column) for column in batch.columns if position or column != POSITION]
    grouped = batch.groupBy(*(f.col(quoted(key)) for key in keys))
    # The grouped columns stay, so the result needs a name that no column has.
    latest = grouped.agg(f.max_by(f.struct(*wanted), f.col(POSITION)).alias(_LATEST))
    return latest.select(*(f"{_LATEST}.{column}" for column in wanted))
