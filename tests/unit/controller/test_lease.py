"""The lease of a runner: how it is kept and lost, and when another runner may acquire it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from mzplan.controller.instances import LeaseKeeper
from mzplan.host.processes import pid_space
from mzplan.model.diagnostics import error
from mzplan.model.observed import Lease
from mzplan.store.backends.backend import Blob
from mzplan.store.backends.local import LocalBackend
from mzplan.store.formats import encode_lease
from mzplan.store.leases import LEASE_TTL, Sightings, is_live
from mzplan.store.store import Store

# Seconds. A machine that stalls for half a second must not change the result.
TTL = 2.4
HEARTBEAT = 0.05
SOON = 20.0


class Trouble(LocalBackend):
    """A store whose reads call `trouble` first, once it is set."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.trouble: Callable[[], None] | None = None
        self.asked = threading.Event()

    def read(self, key: str) -> Blob | None:
        if self.trouble is not None:
            self.asked.set()
            self.trouble()
        return super().read(key)


class Kept:
    """A lease with a short life, and its keeper."""

    def __init__(self, folder: Path):
        self.backend = Trouble(folder)
        self.store = Store(self.backend, "shop")
        self.others = Store(LocalBackend(folder), "shop")
        taken = self.store.leases.take("local", "one")
        self.lost: list[str] = []
        self.lost_at = 0.0
        self.is_lost = threading.Event()
        self.keeper = LeaseKeeper(self.store, replace(taken, ttl=TTL), self._on_lost)

    def _on_lost(self, why: str) -> None:
        self.lost_at = time.time()
        self.lost.append(why)
        self.is_lost.set()

    def hang(self, until: threading.Event) -> None:
        """Let the store hang until the event."""

        def wait() -> None:
            until.wait(2 * SOON)

        self.backend.trouble = wait

    def fail(self, problem: Exception) -> None:
        """Let the store fail."""

        def fail() -> None:
            raise problem

        self.backend.trouble = fail

    def there(self) -> Lease:
        lease = self.others.leases.read("local")
        assert lease is not None
        return lease


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    monkeypatch.setattr("mzplan.controller.instances.HEARTBEAT", HEARTBEAT)
    monkeypatch.setattr("mzplan.controller.instances.RELEASE_TIMEOUT", SOON)
    made = Kept(tmp_path / "state")
    yield made
    made.backend.trouble = None


def test_a_lease_is_renewed_and_released(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock advances only with each renewal, because a busy machine delays all renewals."""
    before, now, enough = kept.there().heartbeat, 0.0, threading.Event()

    def passes() -> None:
        nonlocal now
        now += TTL / 5
        if now > 1.5 * TTL:
            enough.set()

    clock = SimpleNamespace(monotonic=lambda: now, time=time.time)
    monkeypatch.setattr("mzplan.controller.instances.time", clock)
    kept.keeper._renewed_at, kept.backend.trouble = now, passes
    kept.keeper.start()
    assert enough.wait(SOON)
    assert kept.keeper.lease.heartbeat > before and not kept.is_lost.is_set()
    kept.keeper.release()
    assert kept.there().released and kept.lost == []


def test_a_hanging_store_costs_the_lease_in_time_and_a_late_answer_changes_nothing(kept: Kept) -> None:
    go_on = threading.Event()
    kept.keeper.start()
    kept.hang(go_on)
    assert kept.backend.asked.wait(SOON)
    assert kept.is_lost.wait(SOON), "it hangs with the store"
    held = kept.keeper.lease
    assert kept.lost_at < held.heartbeat + TTL, "the queries end only when another may start them"
    assert kept.lost == ["the store has not answered for 2 s"]
    go_on.set()  # that renewal succeeds in the end
    kept.keeper._renewal_thread.join(SOON)
    assert kept.there().heartbeat > held.heartbeat
    assert kept.keeper.lease is held and len(kept.lost) == 1
    kept.keeper.release()
    assert kept.there().released


def test_a_hanging_store_does_not_delay_the_end_of_the_process(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mzplan.controller.instances.RELEASE_TIMEOUT", 0.2)
    go_on = threading.Event()
    kept.hang(go_on)
    kept.keeper.start()
    assert kept.is_lost.wait(SOON)
    began = time.monotonic()
    kept.keeper.release()
    assert time.monotonic() - began < SOON
    left = [one for one in threading.enumerate() if one.name.startswith("lease")]
    assert left and all(one.daemon for one in left)
    go_on.set()


@pytest.mark.parametrize("problem", [error("MZ095", "away"), RuntimeError("a defect")])
def test_a_failed_renewal_is_retried_until_the_lease_is_lost(kept: Kept, problem: Exception) -> None:
    kept.keeper.start()
    kept.fail(problem)
    assert kept.backend.asked.wait(SOON)
    kept.backend.trouble = None
    assert not kept.is_lost.wait(1.5 * TTL)  # one failure
    kept.fail(problem)
    assert kept.is_lost.wait(SOON)


def test_a_lease_that_another_runner_takes_is_lost_at_once(kept: Kept) -> None:
    kept.others.leases.take("local", "two")
    kept.keeper.start()
    assert kept.is_lost.wait(SOON)
    assert kept.lost == ["another runner leads this instance now"]
    kept.keeper.release()
    assert not kept.there().released  # it belongs to the other runner


def test_the_age_of_a_lease_counts_towards_its_loss(kept: Kept) -> None:
    ttl = 5 * TTL  # a busy machine may run the thread a second late
    lease = replace(kept.keeper.lease, heartbeat=time.time() - ttl / 2, ttl=ttl)
    keeper = LeaseKeeper(kept.store, lease, kept._on_lost)
    kept.fail(error("MZ095", "away"))
    keeper.start()
    assert kept.is_lost.wait(SOON)
    assert kept.lost_at < lease.heartbeat + ttl


@pytest.mark.parametrize("taken", [False, True])
def test_a_process_that_was_suspended_asks_the_store_before_it_gives_up(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    monkeypatch.setattr("mzplan.controller.instances.HEARTBEAT", 1.0)
    kept.keeper.lease = replace(kept.keeper.lease, ttl=30.0)
    kept.keeper._renewed_at -= 100.0
    if taken:
        kept.others.leases.take("local", "two")
    kept.keeper.start()
    assert kept.is_lost.wait(SOON if taken else 3.0) == taken
    kept.keeper.release()
    assert kept.lost == (["another runner leads this instance now"] if taken else [])


def test_a_process_that_was_suspended_does_not_wait_for_a_hanging_store(kept: Kept) -> None:
    go_on = threading.Event()
    kept.hang(go_on)
    kept.keeper._renewed_at -= 100.0
    kept.keeper.start()
    assert kept.is_lost.wait(SOON)
    go_on.set()


# --- when another runner may acquire it

NOBODY = 2**22 + 12345  # a pid that no process has


class Watched:
    """A store with a manual clock, and the lease of a runner that is dead."""

    def __init__(self, folder: Path):
        self.now = 0.0
        self.backend = LocalBackend(folder)
        self.store = Store(self.backend, "shop", Sightings(lambda: self.now))
        taken = self.store.leases.acquire("local", "one")
        assert taken is not None
        self.lease = replace(taken, pid=NOBODY)
        self.write(self.lease)

    def write(self, lease: Lease) -> None:
        self.backend.write("leases/local.json", encode_lease(lease))

    def acquired(self) -> bool:
        return self.store.leases.acquire("local", "two") is not None


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "state")


def test_a_dead_runner_on_this_machine_is_replaced_at_once(watched: Watched) -> None:
    assert watched.lease.pid_space == pid_space()
    assert watched.store.leases.leader("local") is None and watched.acquired()


@pytest.mark.parametrize("other", ["another-boot pid:[4026531836]", "another namespace", ""])
def test_a_pid_in_another_container_or_on_a_host_with_this_name_proves_nothing(
    watched: Watched, other: str
) -> None:
    """A StatefulSet's pod on another node, a clone of this machine, an older runner without a pid space."""
    lease = replace(watched.lease, pid_space=other)
    assert lease.host == socket.gethostname() and is_live(lease)
    watched.write(lease)
    assert watched.store.leases.leader("local") == lease and not watched.acquired()
    watched.write(replace(lease, heartbeat=time.time() - LEASE_TTL - 1.0))
    assert watched.acquired()


def test_without_a_pid_space_the_host_and_the_pid_decide(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mzplan.store.leases.pid_space", lambda: "")
    dead = replace(watched.lease, pid_space="")
    assert not is_live(dead) and is_live(replace(dead, host="elsewhere"))
    watched.write(dead)
    assert watched.acquired()


def test_a_clock_that_is_ahead_does_not_keep_a_lease_alive(watched: Watched) -> None:
    ahead = replace(watched.lease, host="elsewhere", heartbeat=time.time() + 1e6)
    watched.write(ahead)
    assert not watched.acquired()
    watched.now += LEASE_TTL - 1.0
    assert not watched.acquired() and watched.store.leases.may_be_led("local")
    watched.write(replace(ahead, heartbeat=ahead.heartbeat + 1.0))  # it was renewed, so its runner lives
    watched.now += 2.0
    assert not watched.acquired()
    watched.now += LEASE_TTL + 1.0
    assert not watched.store.leases.may_be_led("local") and watched.acquired()


@pytest.mark.parametrize("content", [b"", b"\n", b"\0" * 300])
def test_a_lease_emptied_by_a_power_failure_can_be_acquired_later(watched: Watched, content: bytes) -> None:
    watched.backend.write("leases/local.json", content)
    assert watched.store.leases.read("local") is None and watched.store.leases.leader("local") is None
    assert not watched.acquired(), "on another host, the runner that had it may not have found out yet"
    watched.now += LEASE_TTL + 1.0
    assert watched.acquired()


@pytest.mark.parametrize("content", [b"", b"\0" * 300])
def test_a_status_emptied_by_a_power_failure_counts_as_missing(watched: Watched, content: bytes) -> None:
    watched.backend.write("status/local.json", content)
    assert watched.store.read_status("local") is None
    assert watched.store.read_statuses() == {}
