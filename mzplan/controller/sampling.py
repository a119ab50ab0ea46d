"""Asking many things the same question, now and then, for no more than a bounded part of the time."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Executor as Pool
from concurrent.futures import Future
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
D = TypeVar("D")
R = TypeVar("R")
log = logging.getLogger("mzplan.runner")

BUDGET = 0.2  # seconds of asking that one look may begin, in each of its jobs
REST = 0.8  # seconds without any, after a job that had to leave some: looks may follow each other at once


class Sampler(Generic[K, D, R]):
    """`found` has the newest answer of each. Asks on the pool, those first that were asked longest ago; a
    thousand things are asked as often as the budget allows. An answer that raises is none."""

    def __init__(self, ask: Callable[[D], R], pool: Pool, clock: Callable[[], float], *, jobs: int = 1):
        self._ask, self._pool, self._clock, self._jobs = ask, pool, clock, jobs
        self._lock = threading.Lock()
        self._asked: dict[K, float] = {}
        self._due: deque[tuple[K, D]] = deque()
        self._at_work: set[K] = set()
        self._working: list[Future[None]] = []
        self._rests_until = float("-inf")
        self.found: dict[K, R] = {}

    def look(self, wanted: Mapping[K, D], every: Callable[[K], float]) -> None:
        """Have those asked that were not for so many seconds, and forget those that are not wanted."""
        now = self._clock()
        self._working = [one for one in self._working if not one.done()]
        with self._lock:
            for gone in [key for known in (self._asked, self.found) for key in known if key not in wanted]:
                self._asked.pop(gone, None)
                self.found.pop(gone, None)
            free = self._jobs - len(self._working)
            if free <= 0 or time.monotonic() < self._rests_until:
                return
            last = self._asked
            due = [key for key in wanted if key not in last or now - last[key] >= every(key)]
            due.sort(key=lambda key: last.get(key, float("-inf")))
            self._due = deque((key, wanted[key]) for key in due if key not in self._at_work)
            free = min(free, len(self._due))
        self._working += [self._pool.submit(self._work, now) for _ in range(free)]

    def _work(self, now: float) -> None:
        until = time.monotonic() + BUDGET
        while time.monotonic() < until:
            with self._lock:
                if not self._due:
                    return
                key, what = self._due.popleft()
                self._asked[key] = now
                self._at_work.add(key)
            try:
                answer = self._ask(what)
            except Exception as problem:  # a defect of a connector must not end the runner
                log.warning("%s: it could not be looked at: %s", key, type(problem).__name__)
                with self._lock:
                    self.found.pop(key, None)
            else:
                with self._lock:
                    if key in self._asked:
                        self.found[key] = answer
            finally:
                with self._lock:
                    self._at_work.discard(key)
        with self._lock:
            if self._due:
                self._rests_until = time.monotonic() + REST
