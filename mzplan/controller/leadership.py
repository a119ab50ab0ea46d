"""Records in the warehouse which runner leads, for runners that can't reach the store.

A former runner without the store reads the epoch there, and stops its queries. If it may still run, queries
start only when it has had the time to stop.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial

from mzplan.controller.instances import Instances
from mzplan.controller.storage import Storage
from mzplan.controller.terms import InstanceId
from mzplan.store.leases import LEASE_TTL, has_ended, next_epoch, raise_epoch
from mzplan.store.store import Store

log = logging.getLogger("mzplan.lease")


class Leadership:
    """The epochs that one runner records. `clock`: returns monotonic seconds.

    `raise_own_epoch`: Controller.raise_epoch.
    """

    def __init__(
        self,
        instances: Instances,
        store: Store,
        storage: Storage,
        clock: Callable[[], float],
        raise_own_epoch: Callable[[int], int],
    ):
        self._instances, self._store, self._storage = instances, store, storage
        self._clock = clock
        self._raise_own_epoch = raise_own_epoch
        self._lineage = ""
        self._start_at = -math.inf  # when queries may start
        self._record_at = math.inf  # when to record the epoch; infinite if it is recorded

    def follow(self, lineage: str) -> None:
        """Follow a state of this lineage: record the epoch before any of its queries starts."""
        if lineage != self._lineage:
            self._lineage, self._start_at, self._record_at = lineage, -math.inf, self._clock()

    def may_start(self) -> bool:
        """Return whether a former runner has stopped its queries, as far as this runner can know.

        Records the epoch if that is due. Raises MzplanError if the store fails.
        """
        if self._record_at <= self._clock():
            try:
                self._record()
                self._record_at = math.inf
            except OSError as problem:  # queries start if no other runs; their errors say what is wrong
                self._record_at = self._clock() + LEASE_TTL
                log.warning("can't record in the warehouse that this runner leads: %s", problem)
        is_recorded = math.isinf(self._record_at)
        return self._clock() >= self._start_at and (is_recorded or not self._has_rival())

    def fence(self, instance: InstanceId) -> None:
        """Make a runner of another instance stop, if it can't reach the store. Raises OSError."""
        self._storage.record_epoch(self._lineage, instance, self._raise_own_epoch(0))

    def _has_rival(self) -> bool:
        """Whether the former runner may still run queries."""
        former = self._store.leases.former
        return former is not None and not has_ended(former)

    def _record(self) -> None:
        """Record the epoch in the warehouse. Raises OSError, and MzplanError if the store fails."""
        lease = self._instances.require_lease()
        epoch = lease.epoch
        newest = self._storage.newest_epoch(self._lineage, lease.instance)
        if newest >= epoch:  # the store has lost epochs, as after its restore from a backup
            raise_epoch(self._store.backend, newest)
            epoch = self._raise_own_epoch(next_epoch(self._store.backend))
        self._storage.record_epoch(self._lineage, lease.instance, epoch)
        read = partial(self._read_successor, self._lineage, lease.instance, epoch)
        self._instances.outages.read_successor = read
        if self._has_rival():
            self._start_at = self._clock() + LEASE_TTL
            log.info("queries start in %.0f s: the previous runner may still be stopping", LEASE_TTL)

    def _read_successor(self, lineage: str, instance: InstanceId, epoch: int) -> int | None:
        """Return the epoch of a runner that has taken over, as the warehouse has it; otherwise None."""
        newest = self._storage.newest_epoch(lineage, instance)
        return newest if newest > epoch else None
