"""The last hour of each query of an instance, minute by minute, as its runner records it."""

from __future__ import annotations

from collections.abc import Mapping

from mzplan.model.address import Address
from mzplan.model.state import Condition, Observation

EVERY = 60.0  # seconds between two samples
KEPT = 60  # samples of each query
Sample = tuple[int, float, int | None, Condition]  # seconds since the epoch; rows/s; lag in the query's unit
Recent = Mapping[Address, tuple[Sample, ...]]  # the oldest first


def sampled(recent: Recent, observations: Mapping[Address, Observation], now: float) -> Recent:
    """With one more sample of each query, at `now` in seconds since the epoch; those that are gone are
    forgotten, as is what is older than an hour."""
    oldest = now - EVERY * KEPT
    return {
        address: (
            *(sample for sample in recent.get(address, ())[1 - KEPT :] if oldest <= sample[0] < now),
            (int(now), seen.input_rows_per_second, seen.lag, seen.condition),
        )
        for address, seen in observations.items()
    }
