"""Rates and lag of the last hour: what this process has seen since it runs, in memory of a fixed size, and
before that what the runners have recorded."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable

from mzplan.model.address import Address
from mzplan.model.observed import SAMPLES_KEPT as MINUTES
from mzplan.model.observed import Condition, Recent
from mzplan.model.state import QueryStatus

EVERY = 10.0  # seconds between two samples
KEPT = 360  # samples of each query: an hour
RUNS = 20  # starts of each query that are remembered

Point = tuple[float, float | None]  # seconds since the epoch, and a value


class Samples:
    """A ring for each query: 360 samples of two numbers, 6 KB. One thread adds; who reads
    meanwhile, in another one, sees a sample more or less."""

    def __init__(self, kept: int = KEPT):
        self._kept = kept
        self._taken = 0
        self._times = array("d", [math.nan]) * kept
        self._values: dict[Address, tuple[array[float], array[float]]] = {}
        self._runs: dict[Address, deque[tuple[float, str]]] = {}
        self.recalled: Recent = {}  # what the runners have recorded, also before this process

    def add(self, queries: Iterable[QueryStatus], now: float) -> None:
        """A sample of every query, at `now` in seconds since the epoch. Those that are gone are forgotten."""
        at = self._taken % self._kept
        self._times[at] = now
        present = set()
        for query in queries:
            address, seen = query.resource.address, query.observation
            present.add(address)
            rates, lags = self._ring(address)
            rates[at] = seen.input_rows_per_second if seen is not None else math.nan
            lags[at] = seen.lag if seen is not None and seen.lag is not None else math.nan
        for gone in self._values.keys() - present:
            del self._values[gone]
            self._runs.pop(gone, None)
        self._taken += 1

    def started(self, address: Address, run_id: str, now: float) -> None:
        """A run of a query that was seen at `now`; the same one again says nothing."""
        runs = self._runs.setdefault(address, deque(maxlen=RUNS))
        if not runs or runs[-1][1] != run_id:
            runs.append((now, run_id))

    def runs(self, address: Address) -> list[float]:
        """When each run of a query was first seen, the oldest first; the first one may have begun before."""
        return [at for at, _ in list(self._runs.get(address, ()))]

    def rates(self, address: Address) -> list[Point]:
        """Rows per second, the oldest first."""
        return self._points(address, 0)

    def lags(self, address: Address) -> list[Point]:
        """What was not read yet, in the query's own unit."""
        return self._points(address, 1)

    def conditions(self, address: Address) -> list[tuple[float, Condition]]:
        """When it was first seen in a condition after another one, the oldest first, by the minute."""
        changes: list[tuple[float, Condition]] = []
        for at, _, _, condition in self.recalled.get(address, ())[-MINUTES:]:
            if not changes or changes[-1][1] != condition:
                changes.append((at, condition))
        return changes

    def _points(self, address: Address, which: int) -> list[Point]:
        """What was recorded before this process looked, and from then on what it has seen itself."""
        own = self._own(address, which)
        first = own[0][0] if own else math.inf
        recalled = self.recalled.get(address, ())[-MINUTES:]
        return [*((at, (rate, lag)[which]) for at, rate, lag, _ in recalled if at < first), *own]

    def _own(self, address: Address, which: int) -> list[Point]:
        if address not in self._values:
            return []
        values, taken = self._values[address][which], self._taken
        order = (n % self._kept for n in range(max(0, taken - self._kept), taken))
        return [(self._times[n], None if math.isnan(values[n]) else values[n]) for n in order]

    def _ring(self, address: Address) -> tuple[array[float], array[float]]:
        if address not in self._values:
            empty = array("d", [math.nan]) * self._kept
            self._values[address] = (empty, array("d", empty))
        return self._values[address]
