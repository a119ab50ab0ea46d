"""The lease of a runner: how it is kept and lost, and when another runner may acquire it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from mzplan.controller.lease_keeper import LeaseKeeper, OutageTerms
from mzplan.host.processes import pid_space
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.observed import Lease
from mzplan.store.backends.backend import Blob
from mzplan.store.backends.local import LocalBackend
from mzplan.store.formats import encode_lease
from mzplan.store.leases import EPOCH_KEY, LEASE_TTL, Sightings, is_live
from mzplan.store.store import Store
from tests.support import eventually

# Seconds by the manual clock. The keeper reads it again at least every TTL * 2 / 3 real seconds.
TTL = 0.3
HEARTBEAT = 0.05
SOON = 20.0
TAKEN, SILENT = "another runner leads this instance now", "the store has not answered for 0 s"


class Trouble(LocalBackend):
    """A store whose reads call `trouble` first, once it is set."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.trouble: Callable[[], object] | None = None
        self.asked = threading.Event()

    def read(self, key: str) -> Blob | None:
        if self.trouble is not None:
            self.asked.set()
            self.trouble()
        return super().read(key)


class Kept:
    """A lease with a short life, and its keeper with a manual clock."""

    def __init__(self, folder: Path):
        self.backend = Trouble(folder)
        self.store = Store(self.backend, "shop")
        self.others = Store(LocalBackend(folder), "shop")
        self.taken = replace(self.store.leases.take("local", "one"), ttl=TTL)
        self.now = 0.0
        self.lost: list[str] = []
        self.is_lost = threading.Event()
        self.outages: list[bool] = []
        self.keepers: list[LeaseKeeper] = []

    def keep(
        self, age: float = 0.0, survive: float = 0.0, successor: Callable[[], int | None] = lambda: None
    ) -> LeaseKeeper:
        """Start to keep the lease, which was taken some seconds ago."""
        taken = replace(self.taken, heartbeat=self.taken.heartbeat - age)
        terms = OutageTerms(survive=survive, read_successor=successor, on_change=self.outages.append)
        keeper = LeaseKeeper(self.store, taken, self._on_lost, terms)
        self.keepers.append(keeper)
        keeper.start()
        return keeper

    def begin_outage(self, keeper: LeaseKeeper) -> None:
        self.break_store(Mock(side_effect=error("MZ095", "away")))
        assert self.backend.asked.wait(SOON)
        self.now = TTL
        eventually("an outage begins", lambda: self.outages == [True], SOON)
        assert keeper.is_store_away and not self.lost

    def _on_lost(self, why: str) -> None:
        self.lost.append(why)
        self.is_lost.set()

    def break_store(self, trouble: Callable[[], object]) -> None:
        """Let the store hang or fail."""
        self.backend.asked.clear()
        self.backend.trouble = trouble

    def is_kept_at(self, now: float) -> bool:
        self.now = now
        return not self.is_lost.wait(TTL)

    def is_lost_at(self, now: float) -> bool:
        self.now = now
        return self.is_lost.wait(SOON)

    def there(self) -> Lease:
        lease = self.others.leases.read("local")
        assert lease is not None
        return lease


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    made = Kept(tmp_path / "state")
    clock = SimpleNamespace(monotonic=lambda: made.now, time=lambda: made.taken.heartbeat + made.now)
    monkeypatch.setattr("mzplan.controller.lease_keeper.time", clock)
    monkeypatch.setattr("mzplan.controller.lease_keeper.HEARTBEAT", HEARTBEAT)
    yield made
    made.backend.trouble = None
    for keeper in made.keepers:
        keeper.release()


def test_a_lease_outlives_short_outages_of_the_store(kept: Kept) -> None:
    keeper = kept.keep()
    kept.break_store(Mock(side_effect=error("MZ095", "away")))
    assert kept.backend.asked.wait(SOON)
    kept.now, before = TTL / 2, keeper.lease
    kept.backend.trouble = None
    eventually("the lease is renewed", lambda: keeper.lease is not before, SOON)
    assert kept.is_kept_at(TTL) and keeper.lease.heartbeat > kept.taken.heartbeat
    kept.break_store(Mock(side_effect=RuntimeError("a defect")))
    assert kept.backend.asked.wait(SOON)
    assert kept.is_lost_at(1.7 * TTL)


def test_a_released_lease_is_not_lost(kept: Kept) -> None:
    kept.keep().release()
    assert kept.there().released and kept.is_kept_at(2 * TTL)


def test_a_hanging_store_costs_the_lease_in_time_and_delays_no_end(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queries end before another runner may start them. A late answer changes nothing."""
    monkeypatch.setattr("mzplan.controller.lease_keeper.RELEASE_TIMEOUT", 0.1)
    go_on = threading.Event()
    kept.break_store(lambda: go_on.wait(2 * SOON))
    keeper = kept.keep(age=TTL / 2)
    held = keeper.lease
    assert kept.backend.asked.wait(SOON)
    assert kept.is_kept_at(TTL * 0.1)
    assert kept.is_lost_at(TTL * 0.2) and kept.lost == [SILENT]
    keeper.release()  # doesn't wait for the store
    assert all(one.daemon for one in threading.enumerate() if one.name.startswith("lease"))
    go_on.set()
    eventually("the lease is released after all", lambda: kept.there().released, SOON)
    assert keeper.lease is held and len(kept.lost) == 1


@pytest.mark.parametrize(
    ("outcome", "age", "lost"),
    [("taken", 0.0, [TAKEN]), ("taken", 100.0, [TAKEN]), ("renewed", 100.0, []), ("hangs", 100.0, [SILENT])],
)
def test_a_lease_that_is_taken_is_lost_and_a_suspended_process_asks_the_store_before_it_gives_up(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, outcome: str, age: float, lost: list[str]
) -> None:
    monkeypatch.setattr("mzplan.controller.lease_keeper.HEARTBEAT", 0.5)  # a busy machine may delay a thread
    go_on = threading.Event()
    if outcome == "taken":
        kept.others.leases.take("local", "two")
    elif outcome == "hangs":
        kept.break_store(lambda: go_on.wait(2 * SOON))
    keeper = kept.keep(age)
    first = keeper.lease
    eventually("it is decided", lambda: kept.is_lost.is_set() or keeper.lease is not first, SOON)
    assert kept.lost == lost
    go_on.set()
    keeper.release()
    assert outcome != "taken" or not kept.there().released  # it belongs to the other runner


# --- an outage of the store that the queries survive


def test_a_lease_survives_an_outage_and_continues_with_its_epoch(kept: Kept) -> None:
    keeper = kept.keep(survive=100 * TTL)
    kept.begin_outage(keeper)
    assert kept.is_kept_at(99 * TTL)
    kept.backend.trouble = None
    eventually("the outage ends", lambda: kept.outages == [True, False], SOON)
    assert not keeper.is_store_away and not kept.lost
    assert (kept.there().epoch, kept.there().owner) == (kept.taken.epoch, kept.taken.owner)


def test_a_lease_is_lost_when_an_outage_is_longer_than_its_limit(kept: Kept) -> None:
    keeper = kept.keep(survive=100 * TTL)
    kept.begin_outage(keeper)
    for step in range(1, 102):  # the clock of a process that isn't suspended
        kept.now = TTL + step * TTL
        time.sleep(0.01)
    assert kept.is_lost_at(102 * TTL) and kept.lost == ["the store has not answered for 30 s"]


def test_the_first_sight_of_a_higher_epoch_in_the_warehouse_costs_the_lease(kept: Kept) -> None:
    seen: list[int] = []
    keeper = kept.keep(survive=100 * TTL, successor=lambda: seen[0] if seen else None)
    kept.begin_outage(keeper)
    assert kept.is_kept_at(TTL + HEARTBEAT)
    seen.append(7)
    assert kept.is_lost.wait(SOON)
    assert kept.lost == ["another runner leads this instance now, with epoch 7"]


def test_a_lease_is_lost_when_neither_the_store_nor_the_warehouse_answers(kept: Kept) -> None:
    """Another runner could have taken over without leaving any sign."""
    keeper = kept.keep(survive=100 * TTL, successor=Mock(side_effect=OSError("not mounted")))
    kept.begin_outage(keeper)
    eventually("the warehouse is asked", lambda: keeper._unread_since is not None, SOON)
    assert kept.is_lost_at(3 * TTL)
    assert kept.lost == ["neither the store nor the warehouse has answered for 0 s"]


def test_a_takeover_during_an_outage_is_noticed_when_the_store_answers(kept: Kept) -> None:
    keeper = kept.keep(survive=100 * TTL)
    kept.begin_outage(keeper)
    kept.others.leases.take("local", "two")
    kept.backend.trouble = None
    assert kept.is_lost.wait(SOON) and kept.lost == [TAKEN]


# --- when another runner may acquire it

NOBODY = 2**22 + 12345  # a pid that no process has


class Watched:
    """A store with a manual clock, and the lease of a runner that is dead."""

    def __init__(self, folder: Path):
        self.now = 0.0
        self.backend = LocalBackend(folder)
        self.store = Store(self.backend, "shop", Sightings(lambda: self.now))
        self.lease = replace(self.store.leases.take("local", "one"), pid=NOBODY)
        self.write(self.lease)

    def write(self, lease: Lease) -> None:
        self.backend.write("leases/local.json", encode_lease(lease))

    def acquired(self) -> bool:
        return self.store.leases.acquire("local", "two") is not None

    def acquired_after(self, seconds: float) -> bool:
        """Look at the lease every second, as a standby does, and acquire it if it has lapsed."""
        for _ in range(int(seconds)):
            self.now += 1.0
            if self.acquired():
                return True
        return False


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "state")


def test_a_dead_runner_on_this_machine_is_replaced_at_once(watched: Watched) -> None:
    assert watched.lease.pid_space == pid_space()
    assert watched.store.leases.leader("local") is None and watched.acquired()


@pytest.mark.parametrize("other", ["another-boot pid:[4026531836]", ""])
def test_a_pid_in_another_container_or_on_a_host_with_this_name_proves_nothing(
    watched: Watched, other: str
) -> None:
    """A StatefulSet's pod on another node, a clone of this machine, an older runner without a pid space."""
    lease = replace(watched.lease, pid_space=other)
    assert lease.host == socket.gethostname() and is_live(lease)
    watched.write(lease)
    assert watched.store.leases.leader("local") == lease and not watched.acquired()
    assert watched.acquired_after(LEASE_TTL + 1.0)


@pytest.mark.parametrize("ahead", [-1e6, 1e6])
def test_no_clock_of_another_machine_decides_whether_a_lease_has_lapsed(
    watched: Watched, ahead: float
) -> None:
    other = replace(watched.lease, host="elsewhere", heartbeat=time.time() + ahead)
    watched.write(other)
    assert not watched.acquired_after(LEASE_TTL - 1.0)
    watched.write(replace(other, heartbeat=other.heartbeat + 1.0))  # it was renewed, so its runner lives
    assert not watched.acquired_after(LEASE_TTL - 1.0)
    assert watched.acquired_after(3.0)


@pytest.mark.parametrize("ahead", [-60.0, 60.0])
def test_a_command_finds_a_leader_whose_clock_differs(watched: Watched, ahead: float) -> None:
    """It watches the lease once, because a runner that has died doesn't renew its lease."""
    lease = replace(watched.lease, host="elsewhere", heartbeat=time.time() + ahead)
    watched.write(lease)
    leases, ended = watched.store.leases, threading.Event()
    assert leases.leader("local") is None
    began = time.monotonic()
    assert leases.leader("local") is None and time.monotonic() - began < 1.0

    def renew() -> None:
        while not ended.wait(0.1):
            watched.write(replace(lease, heartbeat=time.time() + ahead))

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        eventually("the lease is renewed", lambda: leases.leader("local") is not None)
        began = time.monotonic()
        assert leases.leader("local") is not None and time.monotonic() - began < 1.0
    finally:
        ended.set()
        thread.join()


def test_a_standby_gives_the_leader_time_after_an_outage(watched: Watched) -> None:
    """Neither could reach the store, so the unchanged lease proves nothing."""
    watched.write(replace(watched.lease, host="elsewhere"))
    assert not watched.acquired()
    watched.now += 100 * LEASE_TTL  # the standby saw nothing meanwhile
    assert not watched.acquired() and not watched.acquired_after(LEASE_TTL - 1.0)
    assert watched.acquired_after(3.0)


def test_a_leader_writes_a_lease_again_that_the_store_has_lost(watched: Watched) -> None:
    """A failover to an older copy loses the last writes, because heartbeats aren't durable."""
    leases, lease = watched.store.leases, watched.lease
    for content in (None, b"", encode_lease(replace(lease, epoch=lease.epoch - 1, owner="former"))):
        watched.backend.delete("leases/local.json")
        if content is not None:
            watched.backend.write("leases/local.json", content)
        renewed = leases.renew(lease)
        assert renewed is not None and leases.read("local") == renewed
    watched.backend.delete("leases/local.json")
    watched.backend.delete(EPOCH_KEY)
    with pytest.raises(MzplanError, match="has lost the lease") as raised:
        leases.renew(lease)  # the folder is empty, as without its disk: another runner may get this epoch
    assert raised.value.diagnostics[0].code == "MZ330" and watched.backend.list("leases/") == []


@pytest.mark.parametrize("content", [b"", b"\0" * 300])
def test_files_emptied_by_a_power_failure_count_as_missing(watched: Watched, content: bytes) -> None:
    watched.backend.write("status/local.json", content)
    assert watched.store.read_status("local") is None and watched.store.read_statuses() == {}
    watched.backend.write("leases/local.json", content)
    assert watched.store.leases.read("local") is None and watched.store.leases.leader("local") is None
    assert not watched.acquired(), "on another host, the runner that had it may not have found out yet"
    assert watched.acquired_after(LEASE_TTL + 1.0)
