"""The pool that a controller's work is done on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor as Pool
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class WorkPool(Pool):
    """Threads whose number can be changed. Python's own pools keep theirs, so each size that is asked for has
    a pool. What was given to another one goes on there: who must not do more counts what it has given out."""

    def __init__(self, size: int) -> None:
        self._by_size: dict[int, ThreadPoolExecutor] = {}
        self.resize(size)

    def resize(self, size: int) -> None:
        if size not in self._by_size:
            self._by_size[size] = ThreadPoolExecutor(size, thread_name_prefix="work")
        self._current = self._by_size[size]

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._current.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for pool in self._by_size.values():
            pool.shutdown(wait, cancel_futures=cancel_futures)
