"""The storage instances, and the lease of the instance that this process leads.

A heartbeat renews the lease each second, until it is lost or released.
"""

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

RELEASE_TIMEOUT = 5.0  # seconds to wait for the release of a lease, which otherwise lapses


class Instances:
    """The known instances. Each has at most one runner, and this process leads at most one instance.

    `stop_queries` is called when the lease is lost, on the thread that kept it. Queries must stop before the
    lease lapses, even if other threads are blocked.
    """

    def __init__(self, store: Store, stop_queries: Callable[[], None]):
        self._store = store
        self._stop_queries = stop_queries
        self._names: set[InstanceId] = set()
        self._keeper: LeaseKeeper | None = None
        self.attached: Lease | None = None  # as it was taken
        self.loss: str | None = None

    def create(self, id_: InstanceId) -> None:
        """Register an instance. Raises IdentifierReusedError if the name is in use."""
        if id_ in self._names:
            raise IdentifierReusedError(f"Instance {id_} already exists.")
        self._names.add(id_)

    def ensure(self, id_: InstanceId) -> None:
        """Raise IdentifierMissingError unless the instance exists."""
        if id_ not in self._names:
            raise IdentifierMissingError("instance", id_)

    def drop(self, id_: InstanceId) -> None:
        """Forget an instance.

        Raises IdentifierMissingError; InstanceInUseError while it has a runner whose lease hasn't lapsed.
        """
        self.ensure(id_)
        leader = self._store.leases.leader(id_)
        if leader is not None:
            raise InstanceInUseError(
                f"Instance {id_} has a runner: process {leader.pid} on {leader.host}, epoch {leader.epoch}. "
                "Stop it first."
            )
        self._names.discard(id_)

    def connect(self, id_: InstanceId, location: ReplicaLocation) -> Lease:
        """Take the lease for this process, even from another runner, and keep it renewed.

        Raises IdentifierMissingError; StorageError while this process leads another instance.
        """
        self.ensure(id_)
        before = self.attached
        if before is not None and before.instance != id_ and self.loss is None:
            raise StorageError(f"This runner leads instance {before.instance}: it can't lead {id_} as well.")
        self.release()
        lease = self._store.leases.take(id_, location.owner)
        self.attached, self.loss = lease, None
        self._keeper = LeaseKeeper(self._store, lease, self._on_loss)
        self._keeper.start()
        return lease

    @property
    def lease(self) -> Lease | None:
        """The lease as of its last renewal; None if no instance is attached."""
        return self._keeper.lease if self._keeper is not None else self.attached

    def require(self) -> InstanceId:
        """Return the instance that this process leads. Raises NotAttachedError without one."""
        if self.attached is None:
            raise NotAttachedError("No instance is attached to this controller: call connect_replica first.")
        instance = self.attached.instance
        if self.loss is not None:
            raise NotAttachedError(f"Instance {instance} is no longer led from here: {self.loss}.")
        return instance

    def release(self) -> None:
        """Give the lease back. No error if there is none or it is lost."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.release()

    def _on_loss(self, reason: str) -> None:
        self.loss = reason
        self._stop_queries()


class LeaseKeeper:
    """Renews a lease on its own threads, so that no slow batch or server lets it lapse.

    One thread renews the lease and may hang in the store. The other thread waits for each renewal. It calls
    `on_loss` once: when another runner has taken over, or when the lease wasn't renewed for two thirds of its
    time to live. The queries then stop before another runner may start them. A later renewal changes nothing.
    """

    def __init__(self, store: Store, lease: Lease, on_loss: Callable[[str], None]):
        self.store = store
        self.lease = lease
        self.on_loss = on_loss
        self._renewed_at = time.monotonic() - max(0.0, time.time() - lease.heartbeat)
        self._is_taken_over = False
        self._ended = threading.Event()  # released or lost
        self._change = threading.Condition()
        self._renewal_thread = threading.Thread(target=self._renew, name="lease renewal", daemon=True)
        self._watch_thread = threading.Thread(target=self._watch, name="lease", daemon=True)

    def start(self) -> None:
        self._renewal_thread.start()
        self._watch_thread.start()

    def release(self) -> None:
        """Stop renewing the lease and release it in the store.

        Waits at most RELEASE_TIMEOUT seconds for a store that hangs; the lease then lapses.
        """
        self._end()
        thread = threading.Thread(target=self._release_now, name="lease release", daemon=True)
        thread.start()
        thread.join(timeout=RELEASE_TIMEOUT)
        if thread.is_alive():
            log.warning("the lease could not be released within %.0f s: it lapses by itself", RELEASE_TIMEOUT)

    def _end(self) -> None:
        with self._change:
            self._ended.set()
            self._change.notify_all()

    def _release_now(self) -> None:
        self._renewal_thread.join()  # two writes at once would conflict
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
            except Exception:  # log defects of a backend too, because the lease may lapse
                log.exception("the lease could not be renewed")
                continue
            with self._change:
                if self._ended.is_set():
                    return
                if renewed is None:
                    self._is_taken_over = True
                else:
                    # Count from the request, because the stored heartbeat isn't older than that.
                    self.lease, self._renewed_at = renewed, began
                self._change.notify_all()
            if renewed is None:
                return

    def _watch(self) -> None:
        reason = self._wait_for_loss()
        if reason is None:
            return
        try:
            self.on_loss(reason)
        except Exception:
            log.exception("could not stop all queries")

    def _wait_for_loss(self) -> str | None:
        """Wait until the lease is lost and return how; None if it was released."""
        asked_late: float | None = None
        with self._change:
            while True:
                if self._ended.is_set():
                    return None
                if self._is_taken_over:
                    self._ended.set()
                    return "another runner leads this instance now"
                allowed = self.lease.ttl * 2 / 3
                until = self._renewed_at + allowed
                now = time.monotonic()
                if now > until + HEARTBEAT and asked_late != self._renewed_at:
                    # This process was suspended. Wait for one more renewal, which shows who holds the lease.
                    asked_late, until = self._renewed_at, now + 2 * HEARTBEAT
                elif now >= until:
                    self._ended.set()
                    return f"the store has not answered for {allowed:.0f} s"
                self._change.wait(until - now)
