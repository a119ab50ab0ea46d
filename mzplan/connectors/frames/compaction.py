"""Merging the small files of a Delta table: of a collection, and of a sink's target that asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mzplan.warehouse.snapshot import SMALL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def merge_small_files(session: SparkSession, table: str) -> tuple[int, int]:
    """Merge the small files of a table (its name in SQL) into large ones; how many these were, and have
    become. One commit without new rows, which streams over the table pass over; none where nothing is to be
    merged. Larger files are left: they would be written again each time. Raises what Spark raises."""
    own = session.newSession()  # for its settings
    own.conf.set("spark.databricks.delta.optimize.minFileSize", str(SMALL))
    done = own.sql(f"OPTIMIZE {table}").first()
    assert done is not None
    metrics = done["metrics"]
    return int(metrics["numFilesRemoved"]), int(metrics["numFilesAdded"])


def count_files(session: SparkSession, table: str) -> int:
    """How many data files the newest version of a table has; 0 where there is none."""
    from pyspark.errors import AnalysisException

    try:
        found = session.sql(f"DESCRIBE DETAIL {table}").first()
    except AnalysisException as problem:
        if is_no_table(problem):
            return 0
        raise
    return int(found["numFiles"] or 0) if found is not None else 0


def is_no_table(problem: Exception) -> bool:
    """Whether Spark has found no Delta table there."""
    condition = getattr(problem, "getCondition", lambda: None)() or ""
    text = str(problem)
    return (
        condition in ("PATH_NOT_FOUND", "TABLE_OR_VIEW_NOT_FOUND")
        or "is not a Delta table" in text
        or "DOES_NOT_EXIST" in text
    )
