"""Upserts: of each key, the row that comes last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mzplan.columns import POSITION
from mzplan.connectors.spark_types import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def latest_rows(batch: DataFrame, keys: Sequence[str], *, position: bool = False) -> DataFrame:
    """The latest row of each key of a micro-batch, without `_position` unless that is wanted; of a keyed
    collection with its `_change`."""
    from pyspark.sql import functions as f

    columns = [f.col(quoted(column)) for column in batch.columns if position or column != POSITION]
    grouped = batch.groupBy(*(f.col(quoted(key)) for key in keys))
    return grouped.agg(f.max_by(f.struct(*columns), f.col(POSITION)).alias("row")).select("row.*")
