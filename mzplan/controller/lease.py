"""Keeping the lease: a heartbeat each second, and the news when it is lost."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from mzplan.model.diagnostics import MzplanError
from mzplan.model.state import Lease
from mzplan.state.store import HEARTBEAT, Store

log = logging.getLogger("mzplan.lease")


class LeaseKeeper:
    """Renews a lease on a thread of its own, so that no slow batch or server can let it lapse.

    `on_lost` is called once: when another runner has taken over, or when the store could not be reached
    until shortly before the lease lapses (so that the queries end while nobody else may start them).
    """

    def __init__(self, store: Store, lease: Lease, on_lost: Callable[[str], None]):
        self.store = store
        self.lease = lease
        self.on_lost = on_lost
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def release(self) -> None:
        """Stop renewing, and say that the instance has no leader any more."""
        self._stopping.set()
        self._thread.join(timeout=5.0)
        try:
            self.store.renew_lease(self.lease, released=True)
        except MzplanError as problem:
            log.warning("the lease could not be released: %s", problem)

    def _keep(self) -> None:
        renewed_at = time.monotonic()
        while not self._stopping.wait(HEARTBEAT):
            try:
                renewed = self.store.renew_lease(self.lease)
            except MzplanError as problem:
                log.warning("the lease could not be renewed: %s", problem)
                if time.monotonic() - renewed_at > self.lease.ttl * 2 / 3:
                    self.on_lost(f"the store could not be reached for {self.lease.ttl * 2 / 3:.0f} s")
                    return
                continue
            if renewed is None:
                self.on_lost("another runner leads this instance now")
                return
            self.lease, renewed_at = renewed, time.monotonic()
