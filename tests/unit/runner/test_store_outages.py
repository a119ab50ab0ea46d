"""A runner whose store doesn't answer: its queries continue, and everything that another runner could see
differently waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from mzplan.controller.jobs import Jobs
from mzplan.controller.lease_keeper import LeaseKeeper
from mzplan.controller.memory import InMemoryStorage
from mzplan.controller.outages import RESTART_CAUSE, STOP_CAUSE, is_fenced
from mzplan.controller.terms import NotAttachedError
from mzplan.model.address import Address
from mzplan.model.diagnostics import error
from mzplan.model.state import State
from mzplan.runner.loop import Runner
from mzplan.runner.metrics import health_problem
from mzplan.schema.description import describe
from mzplan.store.backends.backend import Blob
from mzplan.store.backends.local import LocalBackend
from mzplan.store.event_log import EventReader
from mzplan.store.leases import LEASE_TTL
from mzplan.store.store import Store
from tests.runners import runner_in_memory
from tests.support import eventually
from tests.unit.runner.test_runner import (
    ORDERS,
    SINK,
    HookedExecutor,
    World,
    make_state,
    with_copies,
    without,
)

SOON = 20.0


@contextmanager
def outage(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the store refuse every request, as the lease's keeper has noticed."""
    instances = world.runner.controller.instances
    with monkeypatch.context() as away:
        away.setattr(
            instances, "_keeper", SimpleNamespace(is_store_away=True, lease=world.lease, end=mock.Mock())
        )
        for name in ("read", "version", "write", "delete", "list"):
            away.setattr(world.store.backend, name, refuse)
        instances.outages.on_change(True)
        yield
    instances.outages.on_change(False)


def refuse(*_: object, **__: object) -> Any:
    raise error("MZ095", "The state can't be reached")


def test_queries_continue_while_the_store_is_away_and_failed_ones_restart(
    alive: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = alive.executor.running()[ORDERS].run_id
    with outage(alive, monkeypatch):
        alive.rounds()
        assert alive.executor.running()[ORDERS].run_id == run
        alive.executor.fail_query(alive.executor.running()[ORDERS].name, "boom")
        alive.rounds()
        alive.now += 10.0
        alive.until(lambda: ORDERS in alive.executor.running())
        alive.rounds()
        assert health_problem(alive.runner) is None, "a restart of the runner wouldn't help"
    assert alive.settle().observations[ORDERS].run_id != run


def test_a_sink_that_cannot_fence_stops_by_name_and_restarts_after_the_outage(
    alive: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert SINK in alive.executor.running()
    with outage(alive, monkeypatch):
        eventually("the sink has stopped", lambda: SINK not in alive.executor.running(), SOON)
        alive.rounds()
        assert set(alive.executor.running()) == {ORDERS}
    assert [r for r in caplog.records if str(SINK) in r.getMessage() and "stops until" in r.getMessage()]
    seen = alive.settle().observations[SINK]
    assert seen.condition == "running" and seen.started_because is not None
    assert seen.started_because.detail == RESTART_CAUSE.detail
    events = [logged.event for logged in EventReader(alive.store.backend).newest_first(lambda _: True)]
    (stopped,) = (event for event in events if event.kind == "stopped")
    assert (stopped.address, stopped.cause) == (SINK, STOP_CAUSE)


def test_nothing_is_dropped_removed_or_started_anew_during_an_outage(
    alive: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another runner may have read a later serial, which needs that storage or another definition."""
    alive.apply(without(make_state(2), SINK))
    controller = alive.runner.controller
    assert controller.queries is not None and alive.journal()
    before = list(alive.executor.log)
    new = with_copies(alive.committed, ORDERS, "late")
    with outage(alive, monkeypatch):
        controller.queries.claims.retain = 0.0  # its storage is due
        late = describe(new.resources[Address("source", "late")], new.resources)
        known = controller.wanted[ORDERS]
        controller.follow([known, replace(known, description=late)])
        alive.now += 1000.0
        alive.rounds()
        assert alive.executor.log == before and alive.reclaimed() == []
    alive.now += 1000.0
    alive.until(alive.reclaimed)


def test_an_outage_ends_with_a_status_the_events_and_the_commits_made_meanwhile(
    alive: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = Store(LocalBackend(Path(alive.store.backend.describe())), "shop")
    with outage(alive, monkeypatch):
        alive.executor.fail_query(alive.executor.running()[ORDERS].name, "boom in the dark")
        alive.rounds()
        alive.now += 10.0
        alive.until(lambda: ORDERS in alive.executor.running())
        others.commit(make_state(2, broker="b:1"), alive.committed)
        alive.rounds()
        assert alive.runner.serial == 1
    status = alive.settle()
    assert status.serial == 2 and status.observations[ORDERS].condition == "running"
    events = [logged.event.detail for logged in EventReader(alive.store.backend).newest_first(lambda _: True)]
    assert any("boom in the dark" in detail for detail in events)


def test_an_empty_store_is_not_followed(alive: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder whose disk isn't mounted looks like a new project. Its queries must not be dropped."""
    with monkeypatch.context() as unmounted:
        unmounted.setattr(alive.store.backend, "read", lambda key: None)
        unmounted.setattr(alive.store.backend, "version", lambda key: None)
        unmounted.setattr(alive.store.backend, "list", lambda prefix, after="": [])
        alive.rounds()
        assert set(alive.executor.running()) == {ORDERS, SINK}
    assert alive.settle().serial == 1


def test_a_target_that_knows_a_higher_epoch_stops_everything(
    alive: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with outage(alive, monkeypatch):
        name = alive.executor.running()[ORDERS].name
        alive.executor.progress(name, active=False, error="It has taken over.", error_code="MZ068")
        with pytest.raises(NotAttachedError, match=f"the target of {ORDERS} shows that another runner leads"):
            alive.rounds()
        assert alive.executor.running() == {}


def test_a_warehouse_that_does_not_answer_leaves_the_error_to_its_queries(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise `apply` would wait without a reason. If a former runner may still run, nothing starts."""
    storage = world.runner.controller.storage
    refused = mock.Mock(side_effect=OSError("access denied"))
    monkeypatch.setattr(storage, "record_epoch", refused)
    world.apply(make_state(1))
    assert set(world.executor.running()) == {ORDERS, SINK}
    world.executor.close()
    world.store.leases.former = replace(world.lease, host="elsewhere")
    world.later(LEASE_TTL + 1.0)
    assert world.executor.running() == {} and refused.call_count == 2
    monkeypatch.undo()
    world.later(LEASE_TTL + 1.0)
    assert world.executor.running() == {}, "it may still be stopping"
    world.later(LEASE_TTL + 1.0)
    assert set(world.executor.running()) == {ORDERS, SINK}


@pytest.mark.parametrize(
    ("sink", "fenced"),
    [
        ("console", False),
        ("kafka", True),
        ("kafka-at-least-once", False),
        ("postgres", True),
        ("delta", True),
    ],
)
def test_the_delivery_of_a_sink_decides_whether_it_can_fence(sink: str, fenced: bool) -> None:
    state = make_state(1)
    resource = state.resources[SINK]
    type_, _, delivery = sink.partition("-")
    body = {**resource.body, "type": type_, **({"delivery": delivery} if delivery else {})}
    changed = replace(resource, type=type_, body=body)
    described = describe(changed, {**state.resources, SINK: changed})
    assert is_fenced(described) is fenced
    assert is_fenced(describe(state.resources[ORDERS], state.resources))


# --- two runners, one of which can't reach the store

TTL = 1.0  # seconds, instead of 15


class Cuttable(LocalBackend):
    """A store that one runner can lose, while another still reaches it."""

    is_cut = False

    def _ensure(self) -> None:
        if self.is_cut:
            raise error("MZ095", "The state can't be reached", kind="unreachable")

    def read(self, key: str) -> Blob | None:
        self._ensure()
        return super().read(key)

    def version(self, key: str) -> str | None:
        self._ensure()
        return super().version(key)

    def write(self, key: str, data: bytes, **how: Any) -> str:
        self._ensure()
        return super().write(key, data, **how)

    def list(self, prefix: str, after: str = "") -> list[str]:
        self._ensure()
        return super().list(prefix, after)


@dataclass
class Process:
    """A runner on threads of its own, with its own way to the store. Both use the same warehouse."""

    folder: Path
    storage: InMemoryStorage
    executor: HookedExecutor = field(default_factory=lambda: HookedExecutor("shop"))
    lost: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.backend = Cuttable(self.folder)
        self.store = Store(self.backend, "shop")
        self.stopping = threading.Event()
        self.jobs = Jobs()
        self.runner: Runner | None = None

    def lead(self) -> bool:
        """Acquire the lease if it has lapsed, and run its queries."""
        lease = self.store.leases.acquire("local", f"process-{id(self)}")
        if lease is None:
            return False
        lease = replace(lease, ttl=TTL)
        self.runner = runner_in_memory(self.store, self.executor, lease, self.jobs, storage=self.storage)
        instances = self.runner.controller.instances
        instances._keeper = LeaseKeeper(self.store, lease, instances._on_loss, instances.outages)
        instances._keeper.start()
        self.thread = threading.Thread(target=self._serve, args=(self.runner,))
        self.thread.start()
        return True

    def _serve(self, runner: Runner) -> None:
        try:
            runner.serve(self.stopping)
        except NotAttachedError:
            self.lost.append(time.monotonic())

    def end(self) -> None:
        self.backend.is_cut = False
        self.stopping.set()
        if self.runner is not None:
            self.thread.join(SOON)
            self.runner.controller.release()
        self.jobs.shutdown()


@dataclass
class Pair:
    """A leader and a standby of one instance, on two machines."""

    folder: Path
    storage: InMemoryStorage = field(default_factory=InMemoryStorage)

    def __post_init__(self) -> None:
        self.leader, self.standby = Process(self.folder, self.storage), Process(self.folder, self.storage)
        Store(LocalBackend(self.folder), "shop").commit(make_state(1), State(project="shop"))
        assert self.leader.lead()
        eventually("the leader runs both queries", lambda: len(self.leader.executor.running()) == 2, SOON)

    def runs_both(self, process: Process) -> bool:
        return set(process.executor.running()) == {ORDERS, SINK}


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    for module in ("store.leases", "controller.leadership", "runner.handover"):
        monkeypatch.setattr(f"mzplan.{module}.LEASE_TTL", TTL)
    monkeypatch.setattr("mzplan.controller.lease_keeper.HEARTBEAT", TTL / 15)
    monkeypatch.setattr("mzplan.store.leases.has_ended", lambda lease: lease.released)  # another machine's
    monkeypatch.setattr("mzplan.controller.leadership.has_ended", lambda lease: lease.released)
    made = Pair(tmp_path / "state")
    yield made
    made.leader.end()
    made.standby.end()


def test_no_standby_takes_over_when_both_runners_lose_the_store(pair: Pair) -> None:
    runs = {a: report.run_id for a, report in pair.leader.executor.running().items()}
    for process in (pair.leader, pair.standby):
        process.backend.is_cut = True
    eventually("the sink has stopped", lambda: set(pair.leader.executor.running()) == {ORDERS}, SOON)
    time.sleep(2 * TTL)  # longer than the lease's time to live
    for process in (pair.leader, pair.standby):
        process.backend.is_cut = False
    assert not pair.standby.lead()
    eventually("the sink runs again", lambda: pair.runs_both(pair.leader), SOON)
    assert not pair.standby.lead() and not pair.leader.lost
    assert pair.leader.executor.running()[ORDERS].run_id == runs[ORDERS]


def test_a_standby_that_reaches_the_store_starts_queries_only_after_the_leader_has_stopped(
    pair: Pair,
) -> None:
    overlaps: list[Address | str] = []

    def note(action: str, address: Address | str) -> None:
        if action == "start" and pair.leader.executor.running():
            overlaps.append(address)

    pair.standby.executor.before = note
    pair.leader.backend.is_cut = True
    eventually("the standby leads", pair.standby.lead, SOON)
    eventually("the standby runs both queries", lambda: pair.runs_both(pair.standby), SOON)
    eventually("the leader has given up", lambda: bool(pair.leader.lost), SOON)
    assert overlaps == [] and pair.leader.executor.running() == {}
    assert min(pair.standby.executor.epochs.values()) > max(pair.leader.executor.epochs.values())
    pair.leader.backend.is_cut = False
    assert pair.leader.store.leases.leader("local") is not None, "the store has the standby's lease"
