"""The background work of a runner: jobs of several kinds, each kind with its own threads.

No kind can take the threads of another kind. If a server doesn't answer, only the jobs that ask it wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor as Pool
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar, get_args

from mzplan.model.observed import JobKind, JobReport

P = ParamSpec("P")
T = TypeVar("T")

BUDGETS: Mapping[JobKind, int] = {
    "start": 8,
    "task": 2,
    "append": 2,
    "upstream": 1,
    "connection": 2,
    "lag": 1,
    "copy": 1,
    "secret": 1,
    "survey": 1,
    "maintenance": 1,
    "compaction": 1,
    "release": 2,
    "removal": 2,
    "check": 8,
    "proposal": 8,
}
"""How many jobs of each kind run at once. `start` follows `--parallelism`.

A proposal waits for its checks, so both have the same number: checks that hang don't delay other proposals.
"""


@dataclass(slots=True)
class _Job:
    kind: JobKind
    key: str
    since: float
    is_running: bool = False


class Jobs:
    """Runs jobs on threads. Thread-safe.

    `make_pool` returns the pool of a kind, given the number of its threads and their name.
    """

    def __init__(self, make_pool: Callable[[int, str], Pool] = ThreadPoolExecutor) -> None:
        self._make_pool = make_pool
        self._lock = threading.Lock()
        self._budgets = dict(BUDGETS)
        self._pools: dict[tuple[JobKind, int], Pool] = {}
        self._jobs: dict[int, _Job] = {}
        self._current = threading.local()
        self._is_closed = False

    def submit(
        self, kind: JobKind, key: object, work: Callable[P, T], /, *arguments: P.args, **more: P.kwargs
    ) -> Future[T]:
        """Run the work once a thread of its kind is free. `key`: the subject of the work, for people."""
        job = _Job(kind, str(key), time.time())
        with self._lock:
            if self._is_closed:
                raise RuntimeError("these jobs have been shut down")
            self._jobs[id(job)] = job
            size = self._budgets[kind]
            pool = self._pools.get((kind, size))
            if pool is None:
                pool = self._pools[kind, size] = self._make_pool(size, kind)

        def run() -> T:
            job.since, job.is_running = time.time(), True
            self._current.job = job
            return work(*arguments, **more)

        def forget(_: Future[T]) -> None:
            with self._lock:
                self._jobs.pop(id(job), None)

        future = pool.submit(run)
        future.add_done_callback(forget)
        return future

    def set_key(self, key: object) -> None:
        """Change the subject of the job that runs on this thread."""
        self._current.job.key = str(key)

    def is_full(self, kind: JobKind) -> bool:
        """Whether a new job of this kind would wait."""
        with self._lock:
            return sum(job.kind == kind for job in self._jobs.values()) >= self._budgets[kind]

    def budget(self, kind: JobKind) -> int:
        """Return how many jobs of this kind run at once."""
        return self._budgets[kind]

    def set_budget(self, kind: JobKind, number: int) -> None:
        """Change how many jobs of this kind run at once. Submitted jobs continue as before."""
        with self._lock:
            self._budgets[kind] = number

    def reports(self, min_age: float) -> tuple[JobReport, ...]:
        """Return the jobs that have run, or waited for a thread, for at least `min_age` seconds."""
        now = time.time()
        with self._lock:
            jobs = list(self._jobs.values())
        old = (job for job in jobs if now - job.since >= min_age)
        reports = (
            JobReport(kind=job.kind, key=job.key, since=round(job.since, 1), is_running=job.is_running)
            for job in old
        )
        return tuple(sorted(reports, key=lambda report: (_ORDER[report.kind], report.since)))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End all threads once their jobs are done. `cancel_futures`: drop the jobs that still wait."""
        with self._lock:
            self._is_closed = True
            pools = list(self._pools.values())
        for pool in pools:
            pool.shutdown(wait, cancel_futures=cancel_futures)


_ORDER = {kind: place for place, kind in enumerate(get_args(JobKind))}
