"""What a sink reads of a keyed collection: its change feed, as rows that come and rows that go.

An update is both: the row as it was goes, the row as it is comes. `select` and `where` see each of them by
itself, so that a row which leaves the `where` leaves the target, and one whose key in the target changes
leaves its old place. Of one key of the target, the last event counts: in the order of the table's versions,
within one what goes before what comes, then by the source's positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mzplan.connectors.frames.types import quoted
from mzplan.schema.columns import CHANGE, DELETE, POSITION, UPSERT, Column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHANGE_FEED = {"readChangeFeed": "true"}
VERSION, THERE = "_version", "_there"  # the first fields of `_position` in what a sink is given


def with_order(feed: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """The user's columns, and `_position` with two more fields in front: the table's version, and 1 for a row
    that comes, 0 for one that goes."""
    from pyspark.sql import functions as f

    comes = f.col("_change_type").isin("insert", "update_postimage").cast("int")
    position: Any = feed.schema[POSITION].dataType
    fields = [f.col(f"{POSITION}.{quoted(name)}") for name in position.names]
    order = f.struct(f.col("_commit_version").alias(VERSION), comes.alias(THERE), *fields)
    return feed.select(*(f.col(quoted(column.name)) for column in columns), order.alias(POSITION))


def with_change(rows: DataFrame) -> DataFrame:
    """The same rows, and `_change`, as SinkConnector.write takes them."""
    from pyspark.sql import functions as f

    comes = f.col(f"{POSITION}.{THERE}") == 1
    return rows.withColumn(CHANGE, f.when(comes, f.lit(UPSERT)).otherwise(f.lit(DELETE)))
