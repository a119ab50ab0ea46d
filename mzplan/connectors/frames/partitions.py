"""Rows for a target with partition columns; see mzplan.warehouse.partitions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.types import quoted
from mzplan.warehouse.partitions import AS_NULL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def as_stored(rows: DataFrame, columns: Iterable[str]) -> DataFrame:
    """Return the rows as a target with these partition columns stores them. Spark does the same when it
    writes, but a MERGE would look for the original values and not find them."""
    partitions = {name.lower() for name in columns}
    texts = [name for name, type_ in rows.dtypes if type_ == "string" and name.lower() in partitions]
    return rows.withColumns(
        {name: f.when(~f.col(quoted(name)).isin(*AS_NULL), f.col(quoted(name))) for name in texts}
    )
