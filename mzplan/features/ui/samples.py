"""Rates and lag of the last hour.

This process's own samples take a fixed amount of memory. Earlier samples come from the runners' records.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable

from mzplan.model.address import Address
from mzplan.model.observed import MAX_SAMPLES as MINUTES
from mzplan.model.observed import Condition, Recent
from mzplan.model.state import QueryStatus

SAMPLE_SECONDS = 10.0  # seconds between two samples
SAMPLES = 360  # samples of each query: one hour
MAX_RUNS = 20  # starts remembered for each query

Point = tuple[float, float | None]  # seconds since the epoch, and a value


class Samples:
    """A ring of samples for each query: 360 samples of two numbers, 6 KB.

    One thread adds. A concurrent reader may see one sample more or less."""

    def __init__(self, size: int = SAMPLES):
        self._size = size
        self._added = 0
        self._times = array("d", [math.nan]) * size
        self._values: dict[Address, tuple[array[float], array[float]]] = {}
        self._runs: dict[Address, deque[tuple[float, str]]] = {}
        self.recalled: Recent = {}  # the runners' records, which also cover the time before this process

    def add(self, queries: Iterable[QueryStatus], now: float) -> None:
        """Add a sample of every query at `now` (seconds since the epoch), and forget removed queries."""
        at = self._added % self._size
        self._times[at] = now
        present = set()
        for query in queries:
            address, observation = query.resource.address, query.observation
            present.add(address)
            rates, lags = self._ring(address)
            rates[at] = observation.input_rows_per_second if observation is not None else math.nan
            lags[at] = (
                observation.lag if observation is not None and observation.lag is not None else math.nan
            )
        for gone in self._values.keys() - present:
            del self._values[gone]
            self._runs.pop(gone, None)
        self._added += 1

    def started(self, address: Address, run_id: str, now: float) -> None:
        """Record that a run of a query was seen at `now`; a known run changes nothing."""
        runs = self._runs.setdefault(address, deque(maxlen=MAX_RUNS))
        if not runs or runs[-1][1] != run_id:
            runs.append((now, run_id))

    def runs(self, address: Address) -> list[float]:
        """Return when each run was first seen, the oldest first. The first may have begun earlier."""
        return [at for at, _ in list(self._runs.get(address, ()))]

    def rates(self, address: Address) -> list[Point]:
        """Return rows per second, the oldest first."""
        return self._points(address, 0)

    def lags(self, address: Address) -> list[Point]:
        """Return the unread input, in the query's own unit."""
        return self._points(address, 1)

    def conditions(self, address: Address) -> list[tuple[float, Condition]]:
        """Return the times, to the minute, at which the condition changed, the oldest first."""
        changes: list[tuple[float, Condition]] = []
        for at, _, _, condition in self.recalled.get(address, ())[-MINUTES:]:
            if not changes or changes[-1][1] != condition:
                changes.append((at, condition))
        return changes

    def _points(self, address: Address, index: int) -> list[Point]:
        """Return the runners' records up to this process's first sample, then its own samples."""
        own = self._own_points(address, index)
        first = own[0][0] if own else math.inf
        recalled = self.recalled.get(address, ())[-MINUTES:]
        return [*((at, (rate, lag)[index]) for at, rate, lag, _ in recalled if at < first), *own]

    def _own_points(self, address: Address, index: int) -> list[Point]:
        if address not in self._values:
            return []
        values, added = self._values[address][index], self._added
        order = (n % self._size for n in range(max(0, added - self._size), added))
        return [(self._times[n], None if math.isnan(values[n]) else values[n]) for n in order]

    def _ring(self, address: Address) -> tuple[array[float], array[float]]:
        if address not in self._values:
            empty = array("d", [math.nan]) * self._size
            self._values[address] = (empty, array("d", empty))
        return self._values[address]
