"""The storage instances, which of them this process leads, and how it keeps the lease: by a heartbeat each
second, until it is lost or given back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from mzplan.controller.terms import (
    IdentifierMissingError,
    IdentifierReusedError,
    InstanceId,
    InstanceInUseError,
    NotAttachedError,
    ReplicaLocation,
    StorageError,
)
from mzplan.model.diagnostics import MzplanError
from mzplan.model.observed import Lease
from mzplan.store.leases import HEARTBEAT
from mzplan.store.store import Store

log = logging.getLogger("mzplan.lease")

RELEASE = 5.0  # seconds for giving a lease back; it lapses by itself


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


class LeaseKeeper:
    """Keeps a lease on two threads of its own, so that no slow batch or server can let it lapse: one renews
    it, and may hang in the store; the other waits for that no longer than the lease allows.

    `on_lost` is called once: when another runner has taken over, or when the lease was not renewed for two
    thirds of its time to live, whatever the store did (so that the queries end while nobody else may start
    them). A renewal that ends after that changes nothing.
    """

    def __init__(self, store: Store, lease: Lease, on_lost: Callable[[str], None]):
        self.store = store
        self.lease = lease
        self.on_lost = on_lost
        self._renewed_at = time.monotonic() - max(0.0, time.time() - lease.heartbeat)
        self._is_taken = False
        self._ended = threading.Event()  # released or lost
        self._news = threading.Condition()
        self._renewing = threading.Thread(target=self._renew, name="lease renewal", daemon=True)
        self._watching = threading.Thread(target=self._watch, name="lease", daemon=True)

    def start(self) -> None:
        self._renewing.start()
        self._watching.start()

    def release(self) -> None:
        """Stop renewing, and say that the instance has no leader any more. A store that hangs is waited for
        a few seconds only: then the lease lapses by itself."""
        self._end()
        giving = threading.Thread(target=self._give_back, name="lease release", daemon=True)
        giving.start()
        giving.join(timeout=RELEASE)
        if giving.is_alive():
            log.warning("the lease could not be released within %.0f s: it lapses by itself", RELEASE)

    def _end(self) -> None:
        with self._news:
            self._ended.set()
            self._news.notify_all()

    def _give_back(self) -> None:
        self._renewing.join()  # of two writes at once, one would find the other's
        try:
            self.store.leases.renew(self.lease, released=True)
        except MzplanError as problem:
            log.warning("the lease could not be released: %s", problem)
        except Exception:
            log.exception("the lease could not be released")

    def _renew(self) -> None:
        while not self._ended.wait(HEARTBEAT):
            began = time.monotonic()
            try:
                renewed = self.store.leases.renew(self.lease)
            except MzplanError as problem:
                log.warning("the lease could not be renewed: %s", problem)
                continue
            except Exception:  # a defect of a backend is no reason to be silent about a lease that lapses
                log.exception("the lease could not be renewed")
                continue
            with self._news:
                if self._ended.is_set():
                    return
                if renewed is None:
                    self._is_taken = True
                else:
                    # From when it was asked for: the heartbeat that was written is no older than that.
                    self.lease, self._renewed_at = renewed, began
                self._news.notify_all()
            if renewed is None:
                return

    def _watch(self) -> None:
        why = self._wait_for_loss()
        if why is None:
            return
        try:
            self.on_lost(why)
        except Exception:
            log.exception("the queries could not all be stopped")

    def _wait_for_loss(self) -> str | None:
        """How the lease was lost; None when it was released."""
        asked_late: float | None = None
        with self._news:
            while True:
                if self._ended.is_set():
                    return None
                if self._is_taken:
                    self._ended.set()
                    return "another runner leads this instance now"
                allowed = self.lease.ttl * 2 / 3
                until = self._renewed_at + allowed
                now = time.monotonic()
                if now > until + HEARTBEAT and asked_late != self._renewed_at:
                    # This very process was suspended: see once whether the lease is still there.
                    asked_late, until = self._renewed_at, now + 2 * HEARTBEAT
                elif now >= until:
                    self._ended.set()
                    return f"the store could not be reached for {allowed:.0f} s"
                self._news.wait(until - now)
