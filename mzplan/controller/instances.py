"""The storage instances, and which of them this process leads."""

from __future__ import annotations

from collections.abc import Callable

from mzplan.controller.lease import LeaseKeeper
from mzplan.controller.types import (
    IdentifierMissingError,
    IdentifierReusedError,
    InstanceId,
    InstanceInUseError,
    NotAttachedError,
    ReplicaLocation,
    StorageError,
)
from mzplan.model.state import Lease
from mzplan.store.store import Store


class Instances:
    """An instance has no runner or one; this process is the runner of at most one. `sever` is called when its
    lease is lost, on the thread that kept it: queries must end before it lapses, whatever else is blocked."""

    def __init__(self, store: Store, sever: Callable[[], None]):
        self._store = store
        self._sever = sever
        self._known: set[InstanceId] = set()
        self._keeper: LeaseKeeper | None = None
        self.attached: tuple[InstanceId, Lease] | None = None
        self.lost: str | None = None

    def create(self, id_: InstanceId) -> None:
        """Raises IdentifierReusedError."""
        if id_ in self._known:
            raise IdentifierReusedError(f"There is an instance {id_} already.")
        self._known.add(id_)

    def ensure(self, id_: InstanceId) -> None:
        """Raises IdentifierMissingError."""
        if id_ not in self._known:
            raise IdentifierMissingError("instance", id_)

    def drop(self, id_: InstanceId) -> None:
        """Raises InstanceInUseError while it has a live runner; a lapsed lease counts as none."""
        self.ensure(id_)
        leader = self._store.leases.leader(id_)
        if leader is not None:
            raise InstanceInUseError(
                f"Instance {id_} has a runner: process {leader.pid} on {leader.host}, epoch {leader.epoch}. "
                "Stop it first."
            )
        self._known.discard(id_)

    def connect(self, id_: InstanceId, location: ReplicaLocation) -> Lease:
        """Take the lease for this process, whoever has it, and keep it. Raises IdentifierMissingError."""
        self.ensure(id_)
        if self.attached is not None and self.attached[0] != id_ and self.lost is None:
            raise StorageError(f"This runner leads instance {self.attached[0]}: it can't lead {id_} as well.")
        self.release()
        lease = self._store.leases.take(id_, location.owner)
        self.attached, self.lost = (id_, lease), None
        self._keeper = LeaseKeeper(self._store, lease, self._on_lost)
        self._keeper.start()
        return lease

    @property
    def lease(self) -> Lease | None:
        """The lease as it was renewed last; None where no instance is attached."""
        if self._keeper is not None:
            return self._keeper.lease
        return self.attached[1] if self.attached is not None else None

    def require(self) -> InstanceId:
        """The instance that this process leads. Raises NotAttachedError."""
        if self.attached is None:
            raise NotAttachedError("No instance is attached to this controller: connect_replica comes first.")
        if self.lost is not None:
            raise NotAttachedError(f"Instance {self.attached[0]} is no longer led from here: {self.lost}.")
        return self.attached[0]

    def release(self) -> None:
        """Give the lease back; no error where there is none, or it is lost."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.release()

    def _on_lost(self, why: str) -> None:
        self.lost = why
        self._sever()
