"""The instance that this process leads, and its lease."""

from __future__ import annotations

from collections.abc import Callable

from mzplan.controller.lease_keeper import LeaseKeeper, OutageTerms
from mzplan.controller.terms import InstanceId, NotAttachedError, StorageError
from mzplan.model.observed import Lease
from mzplan.store.store import Store


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
