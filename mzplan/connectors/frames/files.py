"""Rows of files: reading exactly the given files, the order of their rows, and partition values."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.types import quoted
from mzplan.warehouse.partitions import AS_NULL

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame, SparkSession

# Options to read exactly the given files, whatever characters their paths contain. Spark takes a
# path with any of [ ] { } * ? \ as a pattern, unless the first option forbids that. Then it replaces each
# such path with the whole list of files, and reads the rows several times. A recursive lookup reads each file
# once, but finds no partitions. With partitions, Spark reads each file once anyway.
EXACT_PARTITIONED_FILES = {"__globPaths__": "false"}
EXACT_FILES = {**EXACT_PARTITIONED_FILES, "recursiveFileLookup": "true"}


CLOCK = f"mzplan_clock_{secrets.token_hex(8)}"
"""The name of Spark's `reflect` in this process. SQL can't guess it (see spark.unsafe_functions)."""


def read_parquet(spark: SparkSession, files: Sequence[str], schema: str) -> DataFrame:
    """Return the rows of exactly these Parquet files, which may be none. `schema`: the columns as DDL."""
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).options(**EXACT_FILES).parquet(*files)


def row_clock() -> Expression:
    """Return the nanoseconds of a clock that never goes back, to order the rows that one task reads.

    A stream has no row numbers, and Spark refuses `monotonically_increasing_id` in a stream."""
    return f.call_function(CLOCK, f.lit("java.lang.System"), f.lit("nanoTime")).cast("bigint")


def as_stored(rows: DataFrame, columns: Iterable[str]) -> DataFrame:
    """Return the rows as a target with these partition columns stores them (see mzplan.warehouse.partitions).
    Spark does the same when it writes, but a MERGE would look for the original values and not find them."""
    partitions = {name.lower() for name in columns}
    texts = [name for name, type_ in rows.dtypes if type_ == "string" and name.lower() in partitions]
    return rows.withColumns(
        {name: f.when(~f.col(quoted(name)).isin(*AS_NULL), f.col(quoted(name))) for name in texts}
    )
