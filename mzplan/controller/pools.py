"""The pool that a controller's work is done on."""

from __future__ import annotations

from concurrent.futures import Executor as Pool
from concurrent.futures import ThreadPoolExecutor


def resize(pool: Pool, size: int) -> None:
    """Let a pool of threads do so much at once; any other one stays as it is. Threads that are there already
    stay, too: who must not do more counts what it has given out."""
    if isinstance(pool, ThreadPoolExecutor):
        pool._max_workers = size
