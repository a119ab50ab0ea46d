"""Periodic work for many keys, one key at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from mzplan.controller.jobs import Jobs
from mzplan.model.observed import JobKind

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")


class RoundRobin(Generic[K, R]):
    """Runs the work of each key every `every` seconds, as jobs of a kind.

    `clock` returns monotonic seconds. `wake` is called when work has ended. A new key waits `every` seconds
    for its first turn, because its query has just been started.
    """

    def __init__(
        self,
        jobs: Jobs,
        kind: JobKind,
        clock: Callable[[], float],
        every: float,
        wake: Callable[[], None] = lambda: None,
    ):
        self.every = every
        self._jobs, self._kind, self._clock, self._wake = jobs, kind, clock, wake
        self._last: dict[K, float] = {}
        self._work: tuple[K, Future[R]] | None = None

    @property
    def in_progress(self) -> K | None:
        """The key whose work is under way, or whose result `take_result` hasn't returned yet."""
        return self._work[0] if self._work is not None else None

    def due(self, wanted: Collection[K]) -> K | None:
        """Return the key whose turn it is, and forget keys that aren't wanted. None while work runs."""
        now = self._clock()
        self._last = {key: self._last.get(key, now) for key in wanted}
        if self._work is not None or not self._last:
            return None
        key = min(self._last, key=self._last.__getitem__)
        if now - self._last[key] < self.every:
            return None
        self._last[key] = now
        return key

    def start(self, key: K, subject: object, work: Callable[..., R], *arguments: Any) -> None:
        """Start the work of a key. `subject` names it for people."""
        future = self._jobs.submit(self._kind, subject, work, *arguments)
        self._work = (key, future)
        future.add_done_callback(lambda _: self._wake())

    def take_result(self) -> tuple[K, Future[R]] | None:
        """Return the key and the result of work that has ended. Each result is returned once."""
        if self._work is None or not self._work[1].done():
            return None
        ended, self._work = self._work, None
        return ended

    def postpone(self, key: K, factor: float) -> None:
        """Delay the next turn of a key to this many times the usual interval."""
        if key in self._last:
            self._last[key] = self._clock() + self.every * (factor - 1)
