"""The instance that this process leads, its lease, and the record in the warehouse of which runner leads.

The record is for runners that can't reach the store. A former runner without the store reads the epoch there,
and stops its queries. If it may still run, queries start only when it has had the time to stop.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial

from mzplan.controller.lease_keeper import LeaseKeeper, OutageTerms
from mzplan.controller.storage import Storage
from mzplan.controller.terms import InstanceId, NotAttachedError, StorageError
from mzplan.model.observed import Lease
from mzplan.store.leases import LEASE_TTL, has_ended, next_epoch, raise_epoch
from mzplan.store.store import Store

log = logging.getLogger("mzplan.lease")


class Instances:
    """This process leads at most one instance, and an instance has at most one runner.

    `stop_queries` is called when the lease is lost, on the thread that watches it. Queries must stop even if
    other threads are blocked. `outages`: how the lease outlives an outage of the store.
    """

    def __init__(self, store: Store, stop_queries: Callable[[], None]):
        self._store = store
        self._stop_queries = stop_queries
        self.outages = OutageTerms()
        self._keeper: LeaseKeeper | None = None
        self.attached: Lease | None = None  # as it was taken
        self.loss: str | None = None

    def connect(self, id_: InstanceId, owner: str) -> Lease:
        """Take the lease for this process, even from another runner, and keep it renewed.

        Raises StorageError while this process leads another instance.
        """
        before = self.attached
        if before is not None and before.instance != id_ and self.loss is None:
            raise StorageError(f"This runner leads instance {before.instance}: it can't lead {id_} as well.")
        self.release()
        lease = self._store.leases.take(id_, owner)
        self.attached, self.loss = lease, None
        self._keeper = LeaseKeeper(self._store, lease, self._on_loss, self.outages)
        self._keeper.start()
        return lease

    @property
    def lease(self) -> Lease | None:
        """The lease as of its last renewal; None if no instance is attached."""
        return self._keeper.lease if self._keeper is not None else self.attached

    def require_lease(self) -> Lease:
        """Return the lease as of its last renewal. Raises NotAttachedError without one."""
        self.require()
        lease = self.lease
        assert lease is not None
        return lease

    @property
    def is_store_away(self) -> bool:
        """Whether the store hasn't answered for so long that another runner may soon take the lease."""
        return self._keeper is not None and self._keeper.is_store_away

    def require(self) -> InstanceId:
        """Return the instance that this process leads. Raises NotAttachedError without one."""
        if self.attached is None:
            raise NotAttachedError("No instance is attached to this controller: take its lease first.")
        instance = self.attached.instance
        if self.loss is not None:
            raise NotAttachedError(f"Instance {instance} is no longer led from here: {self.loss}.")
        return instance

    def release(self) -> None:
        """Give the lease back. No error if there is none or it is lost."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.release()

    def give_up(self, reason: str) -> None:
        """Stop leading, because a target shows that another runner leads."""
        if self._keeper is not None:
            self._keeper.end()
        self._on_loss(reason)

    def _on_loss(self, reason: str) -> None:
        self.loss = reason
        self._stop_queries()


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
