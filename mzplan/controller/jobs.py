"""The scheduler of a runner's background work: jobs of several kinds, each kind with its own threads.

No kind can take the threads of another kind. If a server doesn't answer, only the jobs that ask it wait. Work
that recurs for many keys is a Recurring.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Set
from concurrent.futures import Executor as Pool
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

from mzplan.model.observed import JobKind, JobReport

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
D = TypeVar("D")
R = TypeVar("R")
log = logging.getLogger("mzplan.runner")


class Budget(NamedTuple):
    """How many jobs of a kind run at once, and after how many seconds a job counts as hanging.

    A hanging job keeps its thread, because Python can't end it. But it leaves its place to another job, so
    that one server that hangs doesn't stop the checks of all others. Each place is left at most once.
    """

    threads: int
    limit: float = float("inf")


BUDGETS: Mapping[JobKind, Budget] = {
    "start": Budget(8, 600.0),  # --parallelism changes the number
    "task": Budget(2),
    "append": Budget(2),
    "upstream": Budget(1, 60.0),
    "connection": Budget(2, 30.0),
    "lag": Budget(1, 60.0),
    "copy": Budget(1, 60.0),
    "secret": Budget(1, 60.0),
    "survey": Budget(1, 300.0),
    "maintenance": Budget(1),
    "compaction": Budget(1),
    "release": Budget(2, 300.0),
    "removal": Budget(2),
    "check": Budget(8, 60.0),
    "proposal": Budget(8, 60.0),
}
"""A proposal waits for its checks, so both have the same number: checks that hang delay no other proposal."""

SLICE = 0.2  # seconds during which one job may do recurring work
REST = 0.8  # seconds without recurring work of a kind after a job that had to leave some undone
_MAX_THREADS = 10_000  # of a kind; Jobs itself limits how many run


def _make_pool(kind: JobKind) -> Pool:
    return ThreadPoolExecutor(_MAX_THREADS, kind)


@dataclass(slots=True, eq=False)
class _Job:
    kind: JobKind
    key: str
    work: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)
    since: float = field(default_factory=time.time)
    started_at: float | None = None  # monotonic seconds; None while it waits
    hangs: bool = False


class Jobs:
    """Runs jobs on threads. Thread-safe. `make_pool` returns the threads of a kind, without a limit."""

    def __init__(self, make_pool: Callable[[JobKind], Pool] = _make_pool):
        self._make_pool = make_pool
        self._lock = threading.RLock()
        self._budgets = dict(BUDGETS)
        self._pools: dict[JobKind, Pool] = {}
        self._waiting: dict[JobKind, deque[_Job]] = {kind: deque() for kind in BUDGETS}
        self._running: dict[JobKind, list[_Job]] = {kind: [] for kind in BUDGETS}
        self._current = threading.local()
        self._is_closed = False

    def submit(
        self, kind: JobKind, key: object, work: Callable[P, T], /, *arguments: P.args, **more: P.kwargs
    ) -> Future[T]:
        """Run the work once a thread of its kind is free. `key`: the subject of the work, for people."""
        job = _Job(kind, str(key), partial(work, *arguments, **more))
        with self._lock:
            if self._is_closed:
                raise RuntimeError("these jobs have been shut down")
            self._waiting[kind].append(job)
        self._start_waiting(kind)
        return job.future

    def set_key(self, key: object) -> None:
        """Change the subject of the job that runs on this thread, and restart its time limit."""
        job: _Job = self._current.job
        job.key, job.since, job.started_at, job.hangs = str(key), time.time(), time.monotonic(), False

    def is_full(self, kind: JobKind) -> bool:
        """Whether a new job of this kind would wait."""
        with self._lock:
            return bool(self._waiting[kind]) or self._free(kind) <= 0

    def free(self, kind: JobKind) -> int:
        """Return how many new jobs of this kind would run at once."""
        with self._lock:
            return 0 if self._waiting[kind] else max(0, self._free(kind))

    def set_threads(self, kind: JobKind, number: int) -> None:
        """Change how many jobs of this kind run at once."""
        self._budgets[kind] = self._budgets[kind]._replace(threads=number)
        self._start_waiting(kind)

    def reports(self, min_age: float) -> tuple[JobReport, ...]:
        """Return the jobs that have run, or waited for a thread, for at least `min_age` seconds.

        Logs each job that has begun to hang.
        """
        now = time.time()
        with self._lock:
            jobs = [job for kind in BUDGETS for job in (*self._running[kind], *self._waiting[kind])]
        for job in jobs:
            if self._is_over_limit(job) and not job.hangs:
                job.hangs = True
                log.warning("%s: its job (%s) hangs; other jobs continue", job.key, job.kind)
                self._start_waiting(job.kind)
        return tuple(
            JobReport(
                kind=job.kind,
                key=job.key,
                since=round(job.since, 1),
                is_running=job.started_at is not None,
                hangs=job.hangs,
            )
            for job in jobs
            if now - job.since >= min_age
        )

    def shutdown(self, wait: bool = True) -> None:
        """Drop the jobs that wait, and end all threads once their jobs are done."""
        with self._lock:
            self._is_closed = True
            dropped = [job for waiting in self._waiting.values() for job in waiting]
            pools = list(self._pools.values())
        for job in dropped:
            job.future.cancel()
        for pool in pools:
            pool.shutdown(wait)

    def _start_waiting(self, kind: JobKind) -> None:
        with self._lock:
            while self._waiting[kind] and self._free(kind) > 0:
                job = self._waiting[kind].popleft()
                if not job.future.set_running_or_notify_cancel():
                    continue
                if kind not in self._pools:
                    self._pools[kind] = self._make_pool(kind)
                self._running[kind].append(job)
                job.since, job.started_at = time.time(), time.monotonic()
                self._pools[kind].submit(self._run, job)

    def _run(self, job: _Job) -> None:
        self._current.job = job
        try:
            result = job.work()
        except BaseException as problem:  # for the caller of the future
            self._end(job)
            job.future.set_exception(problem)
        else:
            self._end(job)
            job.future.set_result(result)

    def _end(self, job: _Job) -> None:
        with self._lock:
            self._running[job.kind].remove(job)
        self._start_waiting(job.kind)

    def _free(self, kind: JobKind) -> int:
        threads, running = self._budgets[kind].threads, self._running[kind]
        hanging = sum(map(self._is_over_limit, running))
        return threads - len(running) + min(hanging, threads)

    def _is_over_limit(self, job: _Job) -> bool:
        if job.started_at is None:
            return False
        return time.monotonic() - job.started_at >= self._budgets[job.kind].limit


class Recurring(Generic[K, D, R]):
    """The work of a kind that recurs for each of many keys.

    `results` has the newest result by key; work that raises has none. The keys that have waited longest come
    first. A job starts work for SLICE seconds, so that thousands of keys take a bounded share of the time.

    - `clock`: returns monotonic seconds. `wake`: called after each job.
    - `waits_first`: whether a new key waits for a whole interval, because its query has just been checked.
    """

    def __init__(
        self,
        jobs: Jobs,
        kind: JobKind,
        work: Callable[[D], R],
        clock: Callable[[], float],
        *,
        waits_first: bool = False,
        wake: Callable[[], None] = lambda: None,
    ):
        self._jobs, self._kind, self._work, self._clock = jobs, kind, work, clock
        self._waits_first, self._wake = waits_first, wake
        self._lock = threading.Lock()
        self._began: dict[K, float] = {}  # when the work of a key last began
        self._due: deque[tuple[K, D]] = deque()
        self._new: dict[K, R] = {}  # results that `poll` hasn't returned yet
        self._resume_at = float("-inf")
        self._in_progress: set[K] = set()
        self.results: dict[K, R] = {}

    @property
    def in_progress(self) -> Set[K]:
        """The keys whose work is under way."""
        with self._lock:
            return set(self._in_progress)

    def poll(self, wanted: Mapping[K, D], every: Callable[[K], float]) -> Mapping[K, R]:
        """Start the work of the keys that are due. Return the results since the last poll.

        `every`: the interval of a key, in seconds. Forgets keys that aren't wanted.
        """
        now = self._clock()
        with self._lock:
            new, self._new = self._new, {}
            for unwanted in {*self._began, *self.results} - wanted.keys():
                self._began.pop(unwanted, None)
                self.results.pop(unwanted, None)
            began = self._began
            if self._waits_first:
                for key in wanted.keys() - began.keys():
                    began[key] = now
            free = self._jobs.free(self._kind)
            if not free or time.monotonic() < self._resume_at:
                self._due = deque((key, wanted[key]) for key, _ in self._due if key in wanted)
                return new
            due = [key for key in wanted if key not in began or now - began[key] >= every(key)]
            due.sort(key=lambda key: began.get(key, float("-inf")))
            self._due = deque((key, wanted[key]) for key in due if key not in self._in_progress)
            free = min(free, len(self._due))
        for _ in range(free):
            self._jobs.submit(self._kind, "", self._work_off, now).add_done_callback(lambda _: self._wake())
        return new

    def forget(self, key: K) -> None:
        """Forget the result for a key, even of work that is under way. The next poll starts it again."""
        with self._lock:
            self._began.pop(key, None)
            self.results.pop(key, None)

    def postpone(self, key: K, seconds: float) -> None:
        """Delay the next work of a key by so many seconds beyond its interval."""
        with self._lock:
            if key in self._began:
                self._began[key] += seconds

    def _work_off(self, now: float) -> None:
        until = time.monotonic() + SLICE
        while time.monotonic() < until:
            with self._lock:
                if not self._due:
                    return
                key, subject = self._due.popleft()
                self._began[key] = now
                self._in_progress.add(key)
            self._jobs.set_key(key)
            result: list[R] = []
            try:
                result.append(self._work(subject))
            except Exception as problem:  # a defect of a connector must not end the runner
                log.warning("%s: its job (%s) failed: %s", key, self._kind, type(problem).__name__)
            with self._lock:
                self._in_progress.discard(key)
                self.results.pop(key, None)
                if result and key in self._began:  # it wasn't forgotten meanwhile
                    self.results[key] = self._new[key] = result[0]
        with self._lock:
            if self._due:
                self._resume_at = time.monotonic() + REST
