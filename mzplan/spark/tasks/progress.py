"""How far the work is that queries do before they start: for `status`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mzplan.model.address import Address
from mzplan.model.tasks import TaskProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GROUP = "spark.jobGroup.id"


class TasksUnderWay:
    """The tasks that run now, one for each query. Safe to use from several threads.

    Spark counts its own tasks in each job of a thread, which is all that is known of how far a job is.
    """

    def __init__(self, clock: Callable[[], float] = time.time):
        self._clock = clock
        self._lock = threading.Lock()
        self._tasks: dict[Address, TaskProgress] = {}
        self._jobs: dict[Address, str] = {}  # how far Spark's jobs are

    @contextmanager
    def running(self, spark: SparkSession, address: Address, title: str) -> Iterator[None]:
        """Show a task while this block runs, with the jobs that this thread submits."""
        with self._lock:
            self._tasks[address] = TaskProgress(title=title, since=self._clock())
        spark.sparkContext.setLocalProperty(_GROUP, _group(address))
        try:
            yield
        finally:
            with self._lock:
                del self._tasks[address]
                self._jobs.pop(address, None)
            spark.sparkContext.setLocalProperty(_GROUP, None)  # type: ignore[arg-type]

    def note(self, address: Address, text: str) -> None:
        """Set what a running task does now."""
        with self._lock:
            self._tasks[address] = replace(self._tasks[address], text=text)
            self._jobs.pop(address, None)

    def all(self) -> Mapping[Address, TaskProgress]:
        """Return the running tasks, with how far they are."""
        with self._lock:
            return {
                address: replace(task, text=", ".join(filter(None, (task.text, self._jobs.get(address)))))
                for address, task in self._tasks.items()
            }

    def measure(self, tracker: Any) -> None:
        """Ask Spark's status tracker how far the jobs of each task are."""
        for address in list(self._tasks):
            done, total = _progress(tracker, _group(address))
            with self._lock:
                if address in self._tasks and total:
                    self._jobs[address] = f"{done:,} of {total:,} Spark tasks of this job are done"


def _group(address: Address) -> str:
    return f"mzplan task of {address}"


def _progress(tracker: Any, group: str) -> tuple[int, int]:
    """Return how many tasks of the running jobs are done, and how many they have."""
    done = total = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        if info.isEmpty() or str(info.get().status()) != "RUNNING":
            continue
        for stage in map(tracker.getStageInfo, info.get().stageIds()):
            if stage.isDefined():
                done += stage.get().numCompletedTasks()
                total += stage.get().numTasks()
    return done, total
