"""How much of their upstreams' logs running sources have still to read: asked now and then, aside."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from mzplan.spark.query import Running

EVERY_S = 10.0


class Backlogs:
    """Asks one upstream at a time, in its own thread; one that does not answer holds up no report."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._asked: dict[str, float] = {}

    def look(self, running: Sequence[Running]) -> None:
        """Have those asked again that were not for a while."""
        now = time.monotonic()
        measured = [one for one in running if one.measure is not None and one.ended is None]
        ids = {one.run_id for one in measured}
        self._asked = {run_id: at for run_id, at in self._asked.items() if run_id in ids}
        for one in measured:
            if now - self._asked.get(one.run_id, -EVERY_S) < EVERY_S:
                continue
            self._asked[one.run_id] = now
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, "mzplan-backlog")
            self._pool.submit(_ask, one)

    def close(self) -> None:
        """Wait for nobody."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _ask(running: Running) -> None:
    assert running.measure is not None
    running.backlog = running.measure()
