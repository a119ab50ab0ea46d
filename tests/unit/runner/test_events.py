"""The events that a runner writes: their causes, and their cost."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from mzplan.controller.executor import CheckResult
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, error
from mzplan.model.event import Event
from mzplan.model.state import ResourceState, State
from mzplan.operations.events import EventFilter, explain, read_events
from mzplan.schema.description import digest_of
from mzplan.store.event_log import FOLDER
from mzplan.store.formats import encode_lease
from mzplan.store.proposals import Proposal
from mzplan.store.store import Store
from tests.unit.runner.test_causes import committed
from tests.unit.runner.test_runner import ORDERS, SINK, World, make_state
from tests.unit.runner.test_runner_handover import Worlds


def events(store: Store, *kinds: str, of: Address | None = None) -> list[Event]:
    found = read_events(store, EventFilter(kinds=kinds, addresses=[of] if of else None))  # type: ignore[arg-type]
    assert found.unreadable == 0
    return [one.event for one in found.events]


def told(store: Store, *kinds: str) -> list[tuple[str, str, int]]:
    """The kind, cause and serial of the source's events."""
    found = events(store, *kinds, of=ORDERS)
    return [(e.kind, e.cause.cause if e.cause else e.code, e.cause.serial if e.cause else 0) for e in found]


def test_events_of_starts_stops_failures_and_recoveries_have_causes(world: World) -> None:
    world.commit(committed(1))
    world.settle()
    world.executor.progress(world.executor.running()[ORDERS].name, step=7)
    world.settle()
    world.commit(committed(2, "brokers[0] a:1 → b:1", broker="b:1"))
    world.settle()
    world.executor.fail_query(world.executor.running()[ORDERS].name, "the disk is full")
    world.settle()
    world.now += 5.0
    world.settle()
    explained = explain(world.store, ORDERS)
    assert explained.cause is not None and explained.cause.cause == "retry"
    world.commit(committed(3, "paused by hand", "hand", broker="b:1", paused=True))
    world.settle()
    assert told(world.store, "started", "stopped", "failed", "healed") == [
        ("started", "change", 1),
        ("stopped", "change", 2),
        ("started", "change", 2),
        ("failed", "MZ064", 0),
        ("started", "retry", 2),
        ("healed", "", 0),
        ("stopped", "hand", 3),
    ]
    stopped = events(world.store, "stopped", of=ORDERS)[0]
    assert (stopped.step, stopped.generation, stopped.serial) == (7, 1, 2)
    assert events(world.store, "started", of=ORDERS)[1].step == 7  # the step where it resumes
    (began,) = events(world.store, "runner-began")
    assert began.cause is not None and began.cause.cause == "runner"
    assert [one.generation for one in events(world.store, "generation")] == [1, 1]


def test_a_query_retried_by_an_apply_has_a_healed_event_once_it_runs(world: World) -> None:
    world.commit(committed(1))
    world.settle()
    world.executor.fail_query(world.executor.running()[ORDERS].name, "the disk is full")
    queries = world.runner.controller.queries
    assert queries is not None
    world.settle()
    queries.retry_failed()
    world.settle()
    kinds = [kind for kind, _, _ in told(world.store, "started", "failed", "healed")]
    assert kinds == ["started", "failed", "started", "healed"]


def test_events_of_dropped_and_moved_queries(worlds: Worlds) -> None:
    worlds.runner("big")
    worlds.runner("local")
    worlds.commit(1)
    worlds.settle("big")
    worlds.settle("local")
    worlds.commit(2, sink="big")
    worlds.settle("local")
    worlds.settle("big")
    found = [(e.kind, e.cause.detail) for e in events(worlds.store, "started", "stopped", of=SINK) if e.cause]
    assert found[1:] == [
        ("stopped", "moved to instance big"),
        ("started", "came from instance local"),
    ]
    gone = replace(worlds.committed, serial=3)
    gone = replace(gone, resources={a: r for a, r in gone.resources.items() if a != SINK})
    worlds.take(gone)
    worlds.settle("big")
    last = events(worlds.store, "stopped", of=SINK)[-1]
    assert last.cause is not None and (last.cause.detail, last.cause.serial) == (
        "it is no longer committed",
        3,
    )
    assert [e.detail for e in events(worlds.store, "generation", of=SINK)][-1] == "no query uses it any more"


def test_events_of_refusals_ddl_and_secrets(world: World) -> None:
    world.executor.check_result = lambda one: CheckResult(must_create=True)
    world.commit(committed(1))
    world.settle()
    assert {e.address for e in events(world.store, "ddl")} == {ORDERS, SINK}
    no = Diagnostic(code="MZ052", summary="no such topic", address=ORDERS)
    world.executor.check_result = lambda one: CheckResult(diagnostics=(no,))
    world.commit(committed(2, broker="b:1"))
    world.settle()
    (refused,) = events(world.store, "refused")
    assert (refused.address, refused.code) == (ORDERS, "MZ052")
    proposal = Proposal(
        id="p1",
        instance="local",
        created=0.0,
        descriptions=(world.runner.controller.hosted()[ORDERS].query,),
    )
    world.runner.proposals._answer(proposal, time.monotonic() + 5.0)
    world.settle()
    assert "refused before its commit" in events(world.store, "refused")[-1].detail
    queries = world.runner.controller.queries
    assert queries is not None
    queries.retry_with_secrets({"${env:PW}", "${file:/run/x}"})
    world.settle()
    assert [e.detail for e in events(world.store, "secret")] == ["new value of ${env:PW}, ${file:/run/x}"]


def many(serial: int, broker: str) -> State:
    state = make_state(serial, broker)
    resources: dict[Address, ResourceState] = {}
    for number in range(250):
        source, sink = Address("source", f"s{number}"), Address("sink", f"t{number}")
        resources[source] = replace(state.resources[ORDERS], address=source, id=f"s{number}")
        refers = {"from": source}
        resources[sink] = replace(state.resources[SINK], address=sink, id=f"t{number}", references=refers)
    resources = {**{a: r for a, r in state.resources.items() if a.is_connection}, **resources}
    for address in list(resources):
        if address.is_query:
            resources[address] = replace(resources[address], digest=digest_of(resources[address], resources))
    return replace(state, resources=resources)


def test_five_hundred_starts_take_few_writes_and_an_idle_runner_writes_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[str] = []
    write = world.store.backend.write

    def counted(key: str, *more: Any, **named: Any) -> str:
        if key.startswith(FOLDER):
            writes.append(key)
        return write(key, *more, **named)

    monkeypatch.setattr(world.store.backend, "write", counted)
    monkeypatch.setattr("mzplan.runner.loop.EVENTS_INTERVAL", 60.0)
    world.commit(many(1, "a:1"))
    world.settle()
    assert len(events(world.store, "started")) == 500 and len(writes) == 1
    world.settle()
    assert len(writes) == 1


def test_an_unwritable_log_delays_no_query(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    write = world.store.backend.write
    full = threading.Event()
    full.set()

    def failing(key: str, *more: Any, **named: Any) -> str:
        if key.startswith(FOLDER) and full.is_set():
            raise error("MZ035", "the disk is full")
        return write(key, *more, **named)

    monkeypatch.setattr(world.store.backend, "write", failing)
    world.commit(committed(1))
    assert world.settle().observations[ORDERS].condition == "running"
    full.clear()
    world.settle()
    assert told(world.store, "started") == [("started", "change", 1)]


def test_why_uses_the_status_without_a_log(world: World) -> None:
    world.commit(committed(1))
    world.settle()
    for key in world.store.backend.list("events/"):
        world.store.backend.delete(key)
    found = explain(world.store, ORDERS)
    assert found.event is not None and found.event.event.kind == "started"
    assert found.cause is not None and found.cause.serial == 1
    assert explain(world.store, ORDERS, at=1.0).event is None


def test_why_shows_a_run_before_the_log_has_it(world: World) -> None:
    """The runner writes its log after its Status, which already shows the new run."""
    world.commit(committed(1))
    world.settle()
    log = {key: world.store.backend.read(key) for key in world.store.backend.list("events/")}
    world.commit(committed(2, "brokers[0] a:1 → b:1", broker="b:1"))
    world.settle()
    for key in world.store.backend.list("events/"):
        world.store.backend.delete(key)
    for key, blob in log.items():
        world.store.backend.write(key, blob.data)
    found = explain(world.store, ORDERS)
    assert found.cause is not None and found.cause.serial == 2


def test_the_next_runner_reports_a_killed_runner_and_loses_no_event(
    world: World,
) -> None:
    world.commit(committed(1))
    world.settle()
    world.executor.close()
    world.store.backend.write("leases/local.json", encode_lease(replace(world.lease, heartbeat=0.0)))
    world.new_runner()
    world.settle()
    assert told(world.store, "started") == [("started", "change", 1), ("started", "runner", 0)]
    began = events(world.store, "runner-began")
    assert len(began) == 2 and "was killed" in began[1].detail
    found = explain(world.store, ORDERS)
    assert found.cause is not None and "was killed" in found.cause.detail and found.seconds_before is not None
    assert not found.is_first


def test_why_names_the_end_of_the_runner_as_the_cause_of_a_stop(world: World) -> None:
    world.commit(committed(1))
    world.settle()
    world.runner.controller.events.add("runner-ended", detail="its runner has ended: it was stopped")
    world.runner.write_events(at_once=True)
    found = explain(world.store, ORDERS)
    assert found.event is not None and found.event.event.kind == "runner-ended"
