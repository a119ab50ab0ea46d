"""Queries that move between instances, with two runners in memory."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from mzplan.controller.executor import CheckResult
from mzplan.controller.jobs import Jobs
from mzplan.controller.memory import InMemoryStorage
from mzplan.model.address import Address
from mzplan.model.observed import Observation, Status
from mzplan.model.resources import Instance
from mzplan.model.state import State
from mzplan.runner.loop import Runner
from mzplan.store.backends.local import LocalBackend
from mzplan.store.formats import encode_lease
from mzplan.store.leases import EPOCH_KEY, Sightings, next_epoch
from mzplan.store.store import Store
from tests.runners import runner_in_memory
from tests.unit.runner.test_runner import (
    ORDERS,
    SINK,
    Blocked,
    HookedExecutor,
    lost,
    make_state,
    refusing,
    second_generation,
    with_copies,
    without,
)

BOTH = [str(SINK), str(ORDERS)]
WAITS = "waits for instance local, whose runner has not released it yet"


class Worlds:
    """One store, and a runner for each instance."""

    def __init__(self, folder: Path):
        self.store = Store(LocalBackend(folder), "shop")
        self.jobs = Jobs()
        self.committed = State(project="shop")
        self.runners: dict[str, Runner] = {}
        self.executors: dict[str, HookedExecutor] = {}
        self.now = 0.0

    def runner(self, instance: str, storage: InMemoryStorage | None = None) -> Runner:
        lease = self.store.leases.take(instance, f"test-{instance}-{len(self.executors)}")
        executor = self.executors[instance] = HookedExecutor("shop")
        runner = runner_in_memory(
            self.store, executor, lease, self.jobs, clock=lambda: self.now, storage=storage
        )
        self.runners[instance] = runner
        return runner

    def start(self, **instances: str) -> None:
        """Commit serial 1, which two runners run."""
        self.runner("big")
        self.runner("local")  # a newer runner, with the higher epoch
        self.commit(1, **instances)
        self.settle("big", "local", "big")

    def release(self, instance: str) -> None:
        """Stop the runner of an instance."""
        lease = self.store.leases.read(instance)
        assert lease is not None
        self.store.leases.renew(lease, released=True)

    def commit(self, serial: int, **instances: str) -> None:
        """Commit the source and the sink on these instances (default: local)."""
        state = make_state(serial)
        resources = dict(state.resources)
        for address in (ORDERS, SINK):
            body = {**resources[address].body, "instance": instances.get(address.kind, "local")}
            resources[address] = replace(resources[address], body=body)
        names = {name: Instance(name=name, type="embedded") for name in ("local", "big")}
        self.take(replace(state, resources=resources, instances=names))

    def take(self, state: State) -> None:
        self.store.commit(state, self.committed)
        self.committed = state

    def drop(self, *addresses: Address) -> None:
        self.take(without(replace(self.committed, serial=self.committed.serial + 1), *addresses))

    def settle(self, *instances: str) -> dict[str, Observation]:
        """Settle these instances one after the other. Return the observations of the last."""
        for instance in instances:
            runner, executor = self.runners[instance], self.executors[instance]
            for _ in range(60):
                self.now += 10.0
                runner.tick()
                executor.trigger()
                if not runner.controller.queries.in_flight and not runner.controller.busy:
                    break
                threading.Event().wait(0.002)
            runner.tick()
        status = self.store.read_status(instances[-1])
        assert status is not None
        return {str(address): seen for address, seen in status.observations.items()}

    def runs(self, instance: str) -> list[str]:
        return sorted(map(str, self.executors[instance].running()))

    def reclaimed(self, instance: str) -> list[str]:
        return [name for what, name in self.executors[instance].log if what == "reclaim"]


def test_a_moved_query_waits_for_its_former_runner_and_resumes_under_a_higher_epoch(worlds: Worlds) -> None:
    worlds.start()
    assert worlds.runs("local") == BOTH
    worlds.commit(2, sink="big")
    seen = worlds.settle("big")[str(SINK)]  # the other runner has not read the state yet
    assert (worlds.runs("big"), seen.condition, seen.held) == ([], "starting", WAITS)
    worlds.settle("local")
    assert worlds.runs("local") == [str(ORDERS)]
    worlds.settle("big")
    assert worlds.runs("big") == [str(SINK)]
    before, after = (worlds.executors[instance].epochs[SINK] for instance in ("local", "big"))
    assert after > before
    # The next runners have even higher epochs, and still know it while its storage is claimed.
    for instance in ("big", "local"):
        worlds.release(instance)
        worlds.runner(instance)
        worlds.settle(instance)
        lease = worlds.store.leases.read(instance)
        assert lease is not None and lease.epoch > after
    assert set(worlds.store.read_accepted("local")) == {ORDERS, SINK}
    assert set(worlds.store.read_accepted("big")) == {SINK}
    worlds.drop(SINK)
    for instance in ("local", "big"):
        worlds.settle(instance)
        # Each instance removes the storage in its own warehouse.
        assert [entry.id for entry in worlds.store.read_journal(instance)] == ["o"]
    assert set(worlds.store.read_accepted("local")) == {ORDERS}
    assert worlds.store.read_accepted("big") == {}


def test_a_source_moves_once_its_collection_has_no_writer(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = worlds.runner("local")
    worlds.runner("big")
    begun, end = threading.Event(), threading.Event()

    def optimize(*_: object) -> None:
        begun.set()
        end.wait(10.0)

    monkeypatch.setattr(runner.controller.storage, "maintain", optimize)
    worlds.commit(1)
    worlds.settle("big")
    for _ in range(100):
        worlds.settle("local")
        if begun.is_set():
            break
    assert begun.is_set() and worlds.runs("local") == BOTH
    worlds.commit(2, source="big")
    assert str(ORDERS) in worlds.settle("local") and worlds.runs("local") == [str(SINK)]
    worlds.settle("big")
    assert worlds.runs("big") == []
    end.set()
    while str(ORDERS) in worlds.settle("local"):
        threading.Event().wait(0.01)
    worlds.settle("big")
    assert worlds.runs("big") == [str(ORDERS)]


def test_a_moved_query_without_its_storage_does_not_start_over(worlds: Worlds) -> None:
    """For example, if the other instance has its own warehouse. Each row would be written twice."""
    worlds.start()
    worlds.executors["big"].missing = lost()
    worlds.commit(2, sink="big")
    worlds.settle("local")  # it releases the query, and is about to forget it
    worlds.commit(3, sink="big", source="local")
    seen = worlds.settle("local", "big")[str(SINK)]
    assert (worlds.runs("big"), seen.error_code) == ([], "MZ161")
    assert "ran on instance local before, and both instances must use the same warehouse" in str(seen.error)
    # A query that has never run may start.
    worlds.take(with_copies(replace(worlds.committed, serial=4), SINK, "fresh"))
    worlds.settle("local", "big")
    assert worlds.runs("big") == ["sink.fresh"]


def test_a_collection_that_is_read_on_another_instance_is_not_removed(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both queries are replaced. The sink's instance rejects its change, so the old sink still reads."""
    monkeypatch.setattr("mzplan.controller.claims.RETRY_DELAY", 0.0)
    worlds.start(sink="big")
    worlds.runners["local"].controller.queries.claims.retain = 0.0
    assert (worlds.runs("local"), worlds.runs("big")) == ([str(ORDERS)], [str(SINK)])
    worlds.executors["big"].check_result = refusing("MZ052")
    worlds.take(second_generation(replace(worlds.committed, serial=2)))
    worlds.settle("local", "big", "local", "local")
    assert worlds.settle("big")[str(SINK)].condition == "rejected"
    assert [entry.place for entry in worlds.store.read_journal("local")] == [("s", 1)]
    assert worlds.reclaimed("local") == []
    # If this is unknown, nothing is removed, and the runner continues.
    known = worlds.store.backend.read("status/big.accepted.json")
    assert known is not None
    worlds.store.backend.write("status/big.accepted.json", b"{")
    assert worlds.settle("local")[str(ORDERS)].condition == "running"
    assert worlds.reclaimed("local") == []
    worlds.store.backend.write("status/big.accepted.json", known.data)
    # The new sink runs, so no query reads the old collection any more.
    worlds.executors["big"].check_result = lambda description: CheckResult()
    worlds.now += 1000.0
    worlds.settle("big", "big", "local", "local")
    assert worlds.reclaimed("local") == ["s g1"]
    assert worlds.store.read_journal("local") == []


def test_a_query_dropped_on_another_instance_does_not_start_over_here(worlds: Worlds) -> None:
    """The query is removed on its instance, and a rollback gives it to another instance."""
    worlds.start()
    worlds.runners["local"].controller.queries.claims.retain = 0.0
    worlds.drop(*worlds.committed.resources)
    worlds.settle("local", "local", "big")
    assert worlds.store.read_journal("local") == []
    worlds.executors["big"].missing = lost()
    worlds.commit(3, source="big", sink="big")
    seen = worlds.settle("local", "big")
    assert (worlds.runs("big"), {one.error_code for one in seen.values()}) == ([], {"MZ161"})
    assert "It ran on instance local before" in (seen[str(SINK)].error or "")


def test_a_query_that_another_runner_is_starting_is_waited_for(worlds: Worlds) -> None:
    worlds.runner("local")
    worlds.runner("big")
    worlds.commit(1)
    worlds.settle("big")
    starting = Blocked(worlds.executors["local"], "start")
    worlds.runners["local"].tick()  # the starts are under way
    worlds.commit(2, source="big", sink="big")
    worlds.runners["local"].tick()  # it has released them, except for these starts
    worlds.settle("big")
    assert worlds.runs("big") == []
    starting.let.set()
    worlds.settle("local", "big")
    assert (worlds.runs("local"), worlds.runs("big")) == ([], BOTH)


def test_queries_wait_for_a_live_runner_until_its_queries_are_known(worlds: Worlds) -> None:
    worlds.runner("local")
    worlds.runner("big")
    worlds.commit(1)
    worlds.settle("local")  # `big` has not read any state…
    assert worlds.runs("local") == []  # …so its queries are unknown
    worlds.settle("big", "local")
    assert worlds.runs("local") == BOTH
    # No query waits for a dead runner.
    worlds.release("local")
    worlds.commit(2, source="big", sink="big")
    worlds.settle("big")
    assert worlds.runs("big") == BOTH


def test_epochs_are_one_sequence_that_continues_from_older_leases(worlds: Worlds) -> None:
    store = worlds.store
    first = [store.leases.take(name, "one").epoch for name in ("local", "big")]
    assert first == [1, 2]
    store.backend.delete(EPOCH_KEY)
    assert next_epoch(store.backend) == 3
    assert store.leases.take("local", "two").epoch == 4
    # Without leases, the statuses have the epoch. A damaged status is skipped.
    for key in store.backend.list("leases/"):
        store.backend.delete(key)
    status = Status(instance="big", epoch=9, heartbeat=0.0, serial=1, secrets={}, observations={})
    store.write_status(status)
    store.backend.write("status/local.json", b"{")
    assert next_epoch(store.backend) == 10


def test_a_moved_query_waits_until_a_runner_without_the_store_has_stopped(worlds: Worlds) -> None:
    """That runner reads in the warehouse that it no longer leads."""
    worlds.store.leases._sightings = Sightings(lambda: worlds.now)
    worlds.start(sink="big")
    big = worlds.store.leases.read("big")
    assert big is not None
    worlds.store.backend.write("leases/big.json", encode_lease(replace(big, host="elsewhere")))
    worlds.commit(2)
    storage = worlds.runners["local"].controller.storage

    def fenced_after(seconds: int) -> bool:
        for _ in range(seconds):
            worlds.now += 1.0
            worlds.runners["local"].tick()
        return storage.newest_epoch("l", "big") > big.epoch

    assert not fenced_after(14), "its lease hasn't lapsed"
    assert fenced_after(4)
    assert worlds.runs("local") == [str(ORDERS)], "it may still be stopping"
    assert fenced_after(15)
    worlds.settle("local")
    assert worlds.runs("local") == BOTH


def test_a_runner_gets_a_higher_epoch_than_the_warehouse_has_seen(worlds: Worlds) -> None:
    """A store that was restored from a backup would hand out epochs a second time."""
    storage = InMemoryStorage()
    storage.record_epoch("l", "local", 7)
    runner = worlds.runner("local", storage)
    worlds.commit(1)
    worlds.settle("local")
    assert storage.newest_epoch("l", "local") == 8 == worlds.executors["local"].epochs[ORDERS]
    assert next_epoch(worlds.store.backend) == 9 and runner.epoch < 7
