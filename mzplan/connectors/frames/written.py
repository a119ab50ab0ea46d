"""How many rows a step has written, where Spark itself writes them: a count that goes along with the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WRITTEN = "mzplan_written"
"""The name of the metric in Spark's progress events; its one field is `rows`."""


def observed(rows: DataFrame) -> DataFrame:
    """The same rows of a stream; each of its progress events has their number."""
    from pyspark.sql import functions as f

    return rows.observe(WRITTEN, f.count(f.lit(1)).alias("rows"))
