"""Keeps the lease of a runner: renews it, and decides when it is lost.

An outage of the store doesn't end the lease at once, because no other runner can take it through the same
store. Another runner may still reach the store. It then records its epoch in the warehouse, and waits
LEASE_TTL seconds before it starts queries. So during an outage, the warehouse shows whether this runner still
leads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from mzplan.model.diagnostics import MzplanError
from mzplan.model.observed import Lease
from mzplan.model.words import span
from mzplan.store.leases import HEARTBEAT
from mzplan.store.store import Store

log = logging.getLogger("mzplan.lease")

RELEASE_TIMEOUT = 5.0  # seconds to wait for the release of a lease, which otherwise lapses


@dataclass(slots=True, kw_only=True)
class OutageTerms:
    """How a lease outlives an outage of the store.

    - `survive`: how many seconds the queries continue.
    - `read_successor`: returns the epoch of a runner that has taken over, as the warehouse has it; otherwise
      None. It may raise any exception if the warehouse fails.
    - `on_change`: called with True when an outage begins, and with False when it ends.
    """

    survive: float = 0.0
    read_successor: Callable[[], int | None] = lambda: None
    on_change: Callable[[bool], None] = lambda is_away: None


class LeaseKeeper:
    """Renews a lease on its own threads, so that no slow batch or server lets it lapse.

    One thread renews the lease and may hang in the store. Another thread waits for each renewal. If the lease
    wasn't renewed for two thirds of its time to live, an outage begins, before another runner may take the
    lease. During an outage, a third thread reads the warehouse.

    `on_loss` is called once: when another runner has taken over, when an outage has lasted for
    `outages.survive` seconds, or when the warehouse doesn't answer either. A later renewal changes nothing.
    """

    def __init__(
        self, store: Store, lease: Lease, on_loss: Callable[[str], None], outages: OutageTerms | None = None
    ):
        self.store = store
        self.lease = lease
        self.on_loss = on_loss
        self.outages = outages or OutageTerms()
        self.is_store_away = False
        self._renewed_at = time.monotonic() - max(0.0, time.time() - lease.heartbeat)
        self._asked_late: tuple[float, bool] | None = None
        self._successor_epoch: int | None = None
        self._unread_since: float | None = None  # when the oldest unanswered request to the warehouse began
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
        self.end()
        thread = threading.Thread(target=self._release_now, name="lease release", daemon=True)
        thread.start()
        thread.join(timeout=RELEASE_TIMEOUT)
        if thread.is_alive():
            log.warning("the lease could not be released within %.0f s: it lapses by itself", RELEASE_TIMEOUT)

    def end(self) -> None:
        """Stop renewing the lease."""
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
        logged = ""
        while not self._ended.wait(HEARTBEAT):
            began = time.monotonic()
            try:
                renewed = self.store.leases.renew(self.lease)
                logged = ""
            except MzplanError as problem:
                if str(problem) != logged:  # log an outage once, not every second
                    log.warning("the lease could not be renewed: %s", problem)
                logged = str(problem)
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
        while not self._ended.is_set():
            reason = self._wait_for_change()
            try:
                if reason is not None:
                    self.on_loss(reason)
                elif not self._ended.is_set():
                    self._change_outage()
            except Exception:
                log.exception("could not stop all queries")

    def _change_outage(self) -> None:
        if self.is_store_away:
            limit = span(self.outages.survive)
            log.warning("the store doesn't answer: queries continue without it, for at most %s", limit)
            threading.Thread(target=self._read_warehouse, name="lease warehouse", daemon=True).start()
        else:
            log.warning("the store answers again: this runner still leads, with epoch %d", self.lease.epoch)
        self.outages.on_change(self.is_store_away)

    def _read_warehouse(self) -> None:
        """Look in the warehouse for another runner until the outage ends."""
        self._unread_since, logged = None, ""
        while self.is_store_away:
            self._unread_since = self._unread_since or time.monotonic()
            try:
                successor = self.outages.read_successor()
            except Exception as problem:
                if str(problem) != logged:
                    log.warning("the warehouse doesn't answer: %s", problem)
                logged = str(problem)
            else:
                with self._change:
                    self._successor_epoch, self._unread_since = successor, None
                    self._change.notify_all()
            if self._ended.wait(HEARTBEAT):
                return

    def _wait_for_change(self) -> str | None:
        """Wait until the lease is lost, and return how. Return None if it was released, or at the beginning
        and the end of an outage."""
        allowed = self.lease.ttl * 2 / 3
        with self._change:
            while not self._ended.is_set():
                now, away = time.monotonic(), self.is_store_away
                if (taken_over := self._successor()) is not None:
                    return self._lose(taken_over)
                if away and now < self._renewed_at + allowed:
                    self.is_store_away = False
                    return None
                if away and self._unread_since is not None and now >= self._unread_since + allowed:
                    return self._lose(f"neither the store nor the warehouse has answered for {span(allowed)}")
                limit = max(self.outages.survive, allowed) if away else allowed
                until = self._renewed_at + limit
                if now > until + HEARTBEAT and self._asked_late != (self._renewed_at, away):
                    # This process was suspended. Wait for one more renewal, which shows who holds the lease.
                    self._asked_late, until = (self._renewed_at, away), now + 2 * HEARTBEAT
                elif now >= until and not away and self.outages.survive > allowed:
                    self.is_store_away = True
                    return None
                elif now >= until:
                    return self._lose(f"the store has not answered for {span(limit)}")
                self._change.wait(min(until - now, HEARTBEAT) if away else until - now)
        return None

    def _successor(self) -> str | None:
        if self._is_taken_over:
            return "another runner leads this instance now"
        if self.is_store_away and self._successor_epoch is not None:
            return f"another runner leads this instance now, with epoch {self._successor_epoch}"
        return None

    def _lose(self, reason: str) -> str:
        self._ended.set()
        return reason
