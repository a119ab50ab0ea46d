"""Collections: the Delta table of each source, with the user's columns and `_position`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mzplan.connectors.frames.types import ddl, quoted
from mzplan.schema.columns import POSITION, Column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Delta's sink reads the log since the last checkpoint in each micro-batch, but writing a checkpoint costs as
# much as several small commits. This is a compromise; Delta's default is 10.
_CHECKPOINT_INTERVAL = 20
# How long a sink waits for its source to restart with a new column.
_WRITER_WAIT_S = 15.0
_PROPERTIES = {
    "delta.enableChangeDataFeed": "true",
    "delta.checkpointInterval": str(_CHECKPOINT_INTERVAL),
    # delta_storage.py removes files and log entries as readers finish with them. Delta's own rules would
    # remove rows that a paused sink still has to read, and would list each replaced file in every checkpoint
    # for a week: 600,000 files with 1 s batches.
    "delta.logRetentionDuration": "interval 36500 days",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
    # Column statistics help queries that skip files. A collection is read in whole files, step by step, and
    # gathering statistics slows ingest: 0.95 of a hand-written query's speed without them, 0.91 with them.
    "delta.dataSkippingNumIndexedCols": "0",
}
# Changing a row marks it as deleted in its file and writes the new row to a new file, instead of rewriting
# the whole file.
_KEYED_PROPERTIES = {**_PROPERTIES, "delta.enableDeletionVectors": "true"}


class Collections:
    """Creates missing tables and adds new columns.

    Safe to use from several threads: a source and its sinks start at the same time, and all of them need the
    table.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._ready: dict[str, tuple[Column, ...]] = {}
        self._writer_columns: dict[str, tuple[Column, ...]] = {}
        self._rewriting: dict[str, threading.Lock] = {}

    def rewriting(self, path: str) -> threading.Lock:
        """Return the lock to hold while rewriting files of the table.

        Of two concurrent rewrites (a merging step and a compaction), Delta lets one commit and fails the
        other.
        """
        with self._lock:
            return self._rewriting.setdefault(path, threading.Lock())

    def ensure(
        self, spark: SparkSession, path: str, columns: Sequence[Column], position: str, *, keyed: bool = False
    ) -> None:
        """Create the table at `path` if it is missing (0.4 s), and add missing columns (0.03 s)."""
        declared = tuple(columns)
        properties = _KEYED_PROPERTIES if keyed else _PROPERTIES
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        table, place = table_at(path), f"{POSITION} {position}"
        with self._lock:
            lock = self._locks.setdefault(path, threading.Lock())
        with lock:
            if self._ready.get(path) == declared:
                return
            existing = _columns_at(spark, path)
            if existing is None:
                spark.sql(
                    f"CREATE TABLE IF NOT EXISTS {table} ({ddl(columns)}, {place}) USING DELTA "
                    f"TBLPROPERTIES ({listed})"
                )
            else:
                if POSITION not in existing:  # adopted from a query that mzplan didn't write
                    spark.sql(f"ALTER TABLE {table} ADD COLUMNS ({place})")
                    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({listed})")
                added = [c for c in columns if c.name.lower() not in existing]
                if added:
                    spark.sql(f"ALTER TABLE {table} ADD COLUMNS ({ddl(added)})")
            self._ready[path] = declared

    def record_writer_columns(self, path: str, columns: Sequence[Column]) -> None:
        """Record the columns that a starting source writes."""
        with self._lock:
            self._writer_columns[path] = tuple(columns)

    def wait_for_writer(self, path: str, columns: Sequence[Column], runs: Callable[[], bool]) -> None:
        """Wait some seconds for a source that `runs` without a new column to restart with it.

        If a sink altered the table first, the source would fail and have to be started again.
        """

        def is_behind() -> bool:
            with self._lock:
                writer_columns = self._writer_columns.get(path)
            return writer_columns is not None and bool(set(columns) - set(writer_columns)) and runs()

        deadline = time.monotonic() + _WRITER_WAIT_S
        while is_behind() and time.monotonic() < deadline:
            time.sleep(0.05)

    def forget_all(self) -> None:
        """Forget which tables are ready, so that they are rechecked.

        Called when a query has failed, perhaps because its table is gone."""
        with self._lock:
            self._ready.clear()


def table_at(path: str) -> str:
    """Return the SQL reference to the Delta table at a path."""
    return f"delta.{quoted(path)}"


def read_table(spark: SparkSession, path: str, version: int | None = None) -> DataFrame:
    """Return the rows of the Delta table at a path, as of a version (None: the newest)."""
    reader = spark.read.format("delta")
    return (reader if version is None else reader.option("versionAsOf", version)).load(path)


def _columns_at(spark: SparkSession, path: str) -> set[str] | None:
    from pyspark.errors import AnalysisException

    try:
        return {name.lower() for name in read_table(spark, path).columns}
    except AnalysisException as problem:
        if problem.getCondition() in ("PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST"):
            return None
        if "is not a Delta table" in str(problem):
            return None
        raise
