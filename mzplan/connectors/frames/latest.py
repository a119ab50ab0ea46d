"""Upserts: the last row of each key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mzplan.connectors.frames.types import quoted
from mzplan.schema.columns import POSITION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LATEST = "_mzplan_latest"


def latest_rows(batch: DataFrame, keys: Sequence[str], *, position: bool = False) -> DataFrame:
    """The latest row of each key of a micro-batch; `_position` only with `position`; for a keyed collection
    with its `_change`."""
    from pyspark.sql import functions as f

    wanted = [quoted(column) for column in batch.columns if position or column != POSITION]
    grouped = batch.groupBy(*(f.col(quoted(key)) for key in keys))
    # The grouped columns stay, so the result needs a name that no column has.
    latest = grouped.agg(f.max_by(f.struct(*wanted), f.col(POSITION)).alias(_LATEST))
    return latest.select(*(f"{_LATEST}.{column}" for column in wanted))
