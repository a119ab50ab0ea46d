"""Collections: the Delta table of each source, with the user's columns and `_position`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mzplan.connectors.frames.types import ddl, quoted
from mzplan.schema.columns import POSITION, Column

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Delta's sink reads the log since the last checkpoint in each micro-batch, and writing a checkpoint costs as
# much as several small commits: between the two. (Delta's default is 10.)
_CHECKPOINT_INTERVAL = 20
# How long a sink waits for its source to restart with a column that is new.
_WRITER_WAIT_S = 15.0
_PROPERTIES = {
    "delta.enableChangeDataFeed": "true",
    "delta.checkpointInterval": str(_CHECKPOINT_INTERVAL),
    # What is removed of a table and its log follows those who read it (delta_storage.py). Delta's own rules
    # would remove what a paused sink has still to read, and list each file that was replaced in every
    # checkpoint of a week: of 1 s batches, 600,000.
    "delta.logRetentionDuration": "interval 36500 days",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
    # Statistics of columns are for queries that skip files. A collection is read in whole files, step by
    # step, and gathering them slows ingest (0.95 without, 0.91 with, of a query written by hand).
    "delta.dataSkippingNumIndexedCols": "0",
}
# A change of one row notes down that it is deleted in its file, and writes it to a new one, instead of
# writing the whole file again.
_KEYED_PROPERTIES = {**_PROPERTIES, "delta.enableDeletionVectors": "true"}


class Collections:
    """Makes tables that are missing and adds columns that are new. Safe to use from several threads: a
    source and its sinks start at the same time, and all of them need the table."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._ready: dict[str, tuple[Column, ...]] = {}
        self._written: dict[str, tuple[Column, ...]] = {}
        self._rewriting: dict[str, threading.Lock] = {}

    def rewriting(self, path: str) -> threading.Lock:
        """What whoever rewrites files of the table must hold. Delta would let only one of two do so, and
        fail the other: a step that merges changes, and the one who makes large files of small ones."""
        with self._lock:
            return self._rewriting.setdefault(path, threading.Lock())

    def ensure(
        self, spark: SparkSession, path: str, columns: Sequence[Column], position: str, *, keyed: bool = False
    ) -> None:
        """Make sure that the table at `path` exists and has the columns (0.03 s; 0.4 s to create it)."""
        wanted = tuple(columns)
        properties = _KEYED_PROPERTIES if keyed else _PROPERTIES
        with self._lock:
            lock = self._locks.setdefault(path, threading.Lock())
        with lock:
            if self._ready.get(path) == wanted:
                return
            existing = _columns_at(spark, path)
            if existing is None:
                create_table(spark, path, f"{ddl(columns)}, {POSITION} {position}", properties)
            else:
                if POSITION not in existing:  # adopted from a query that somebody else has written
                    adopt_table(spark, path, f"{POSITION} {position}", properties)
                added = [c for c in columns if c.name.lower() not in existing]
                if added:
                    spark.sql(f"ALTER TABLE {table_at(path)} ADD COLUMNS ({ddl(added)})")
            self._ready[path] = wanted

    def is_written_with(self, path: str, columns: Sequence[Column]) -> None:
        """Remember the columns with which a source starts to write."""
        with self._lock:
            self._written[path] = tuple(columns)

    def wait_for_writer(self, path: str, columns: Sequence[Column], runs: Callable[[], bool]) -> None:
        """Let a source that still `runs` without a new column restart first, for a while: if a sink altered
        the table under it, it would end with an error (and be started again)."""

        def is_behind() -> bool:
            with self._lock:
                written = self._written.get(path)
            return written is not None and bool(set(columns) - set(written)) and runs()

        deadline = time.monotonic() + _WRITER_WAIT_S
        while is_behind() and time.monotonic() < deadline:
            time.sleep(0.05)

    def forget_all(self) -> None:
        """Look again next time: a query has failed, perhaps because its table is gone."""
        with self._lock:
            self._ready.clear()


def table_at(path: str) -> str:
    """A Delta table by its path, for SQL."""
    return f"delta.{quoted(path)}"


def create_table(spark: SparkSession, path: str, columns: str, properties: dict[str, str]) -> None:
    """Create a Delta table unless it is there."""
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    spark.sql(f"CREATE TABLE IF NOT EXISTS {table_at(path)} ({columns}) USING DELTA TBLPROPERTIES ({listed})")


def adopt_table(spark: SparkSession, path: str, position: str, properties: dict[str, str]) -> None:
    """Make a Delta table of somebody else a collection; its rows have no position."""
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    spark.sql(f"ALTER TABLE {table_at(path)} ADD COLUMNS ({position})")
    spark.sql(f"ALTER TABLE {table_at(path)} SET TBLPROPERTIES ({listed})")


def _columns_at(spark: SparkSession, path: str) -> set[str] | None:
    from pyspark.errors import AnalysisException

    try:
        return {name.lower() for name in spark.read.format("delta").load(path).columns}
    except AnalysisException as problem:
        if problem.getCondition() in ("PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST"):
            return None
        if "is not a Delta table" in str(problem):
            return None
        raise
