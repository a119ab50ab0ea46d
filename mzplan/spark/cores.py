"""Detects that Spark has too few cores: a job waits for seconds before its first task starts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mzplan.spark.pools import cores_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONGEST_WAIT = 2.0  # seconds that a stage may wait for its first task
REMEMBERED = 60.0  # seconds for which a long wait counts, because jobs come and go
EVERY = 5  # calls of `look` (one a second) per question to Spark


class CoreWatch:
    """Watches the stages that Spark has submitted.

    `clock` returns seconds since the epoch, like Spark's times.
    """

    def __init__(self, spark: SparkSession, clock: Callable[[], float] = time.time):
        self._spark = spark
        self._clock = clock
        self._looks = 0
        self._cores = 0
        self._waited_at = float("-inf")

    def look(self) -> None:
        """Ask Spark in one of EVERY calls, because a question takes several calls into Java."""
        self._looks += 1
        if self._looks % EVERY:
            return
        java: Any = self._spark.sparkContext._jsc
        tracker = java.sc().statusTracker()
        cores = cores_of(self._spark)
        # A pool serves its oldest job first, so the longest-waiting stages come right after the running ones.
        oldest = sorted(tracker.getActiveStageIds())[: 2 * cores + 2]
        if any(self._is_waiting(tracker.getStageInfo(stage)) for stage in oldest):
            self._cores, self._waited_at = cores, self._clock()

    def scarce_cores(self) -> int:
        """Return the number of cores if there are too few, else 0."""
        return self._cores if self._clock() - self._waited_at < REMEMBERED else 0

    def _is_waiting(self, info: Any) -> bool:
        if info.isEmpty():
            return False
        stage = info.get()
        began = stage.numActiveTasks() or stage.numCompletedTasks() or stage.numFailedTasks()
        return not began and self._clock() - stage.submissionTime() / 1000 > LONGEST_WAIT
