"""Detects that Spark's jobs wait: for a free core, or because no executor is left to run their tasks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mzplan.model.times import instant_text
from mzplan.spark.process.pools import cores_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONGEST_WAIT = 2.0  # seconds that a stage may wait for its first task
REMEMBERED = 60.0  # seconds for which a long wait counts, because jobs come and go
EVERY = 5  # calls of `look` (one a second) per question about stages
MISSING = 2  # questions in a row that find no executor
REMOVED = "Spark has removed its only executor, which local mode can't start again, so no task can run."


class JobWatch:
    """Watches the executors of a Spark session, and the stages that it has submitted.

    `measure` is called with Spark's status tracker. `clock` returns seconds since the epoch, like Spark's
    times.
    """

    def __init__(
        self,
        spark: SparkSession,
        measure: Callable[[Any], None] = lambda tracker: None,
        clock: Callable[[], float] = time.time,
    ):
        self._spark = spark
        self._measure = measure
        self._clock = clock
        self._is_local = bool(spark.sparkContext._jsc.sc().isLocal())
        self._looks = 0
        self._cores = 0
        self._waited_at = float("-inf")
        self._missing = 0  # questions in a row that found no executor
        self._missing_since = 0.0

    def look(self) -> str | None:
        """Return why Spark will never run a task again, as a sentence; None if it may.

        Call this once a second. It asks about stages less often, because that takes several calls into Java.
        """
        context: Any = self._spark.sparkContext._jsc.sc()
        # The driver is always in this list. In local mode it is the only executor.
        executors = context.getExecutorMemoryStatus().size() - (not self._is_local)
        if self._is_local:
            self._count_missing(executors == 0)
        self._looks += 1
        if self._looks % EVERY == 0:
            tracker = context.statusTracker()
            stages = sorted(tracker.getActiveStageIds())
            if not self._is_local:  # without jobs, dynamic allocation may have stopped all executors
                self._count_missing(executors == 0 and bool(stages))
            cores = cores_of(self._spark)
            # A pool serves its oldest job first, so the longest-waiting stages come right after the running.
            oldest = stages[: 2 * cores + 2]
            if executors and any(self._is_waiting(tracker.getStageInfo(stage)) for stage in oldest):
                self._cores, self._waited_at = cores, self._clock()
            self._measure(tracker)
        return REMOVED if self._is_local and self._missing >= MISSING else None

    def scarce_cores(self) -> int:
        """Return the number of cores if there are too few, else 0."""
        return self._cores if self._clock() - self._waited_at < REMEMBERED else 0

    def stall(self) -> str | None:
        """Return why no query makes progress until the cluster changes, as a sentence; None if queries do."""
        if self._is_local or self._missing < MISSING:
            return None
        since = instant_text(int(self._missing_since) * 1000)
        return (
            f"Spark has had no executor since {since}, so its jobs wait: look at the log of the cluster "
            "manager, which has to start one."
        )

    def _count_missing(self, is_missing: bool) -> None:
        if is_missing and self._missing == 0:
            self._missing_since = self._clock()
        self._missing = self._missing + 1 if is_missing else 0

    def _is_waiting(self, info: Any) -> bool:
        if info.isEmpty():
            return False
        stage = info.get()
        began = stage.numActiveTasks() or stage.numCompletedTasks() or stage.numFailedTasks()
        return not began and self._clock() - stage.submissionTime() / 1000 > LONGEST_WAIT
