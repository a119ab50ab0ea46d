"""The pool that a controller's work is done on, and how much of it is under way."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor as Pool
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

LONG = 2  # commands at once that may take hours


class WorkPool(Pool):
    """Threads whose number can be changed. Python's own pools keep theirs, so each size that is asked for has
    a pool. What was given to another one goes on there: who must not do more counts what it has given out.
    `long`: threads of their own, for what may take hours."""

    def __init__(self, size: int) -> None:
        self._by_size: dict[int, ThreadPoolExecutor] = {}
        self.long = ThreadPoolExecutor(LONG, thread_name_prefix="long")
        self.resize(size)

    def resize(self, size: int) -> None:
        if size not in self._by_size:
            self._by_size[size] = ThreadPoolExecutor(size, thread_name_prefix="work")
        self._current = self._by_size[size]

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._current.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for pool in (self.long, *self._by_size.values()):
            pool.shutdown(wait, cancel_futures=cancel_futures)


class Lane:
    """Work of one sort on a pool, of which no more than `most` is to be under way at once. Who has to wait
    asks again when some of it has ended."""

    def __init__(self, pool: Pool, most: int) -> None:
        self.pool = pool
        self.most = most
        self._working: list[Future[Any]] = []  # those that had not ended at the last look

    def is_full(self) -> bool:
        self._working = [one for one in self._working if not one.done()]
        return len(self._working) >= self.most

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        future = self.pool.submit(fn, *args)
        self._working.append(future)
        return future
