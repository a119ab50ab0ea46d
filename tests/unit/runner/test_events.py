"""The events that a runner writes, and how `why` explains them."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from mzplan.controller.executor import CheckResult
from mzplan.model.address import Address
from mzplan.model.diagnostics import error
from mzplan.model.event import Event
from mzplan.operations.events import EventFilter, explain, read_events
from mzplan.schema.description import describe
from mzplan.store.event_log import FOLDER
from mzplan.store.formats import encode_lease
from mzplan.store.store import Store
from tests.unit.runner.test_causes import committed
from tests.unit.runner.test_runner import ORDERS, SINK, World, refusing
from tests.unit.runner.test_runner_handover import Worlds


def events(store: Store, *kinds: str, of: Address | None = None) -> list[Event]:
    found = read_events(store, EventFilter(kinds=kinds, addresses=[of] if of else None))  # type: ignore[arg-type]
    assert found.unreadable == 0
    return [one.event for one in found.events]


def causes(store: Store, *kinds: str) -> list[tuple[str, str, int]]:
    """Return the kind, cause and serial of the source's events."""
    found = events(store, *kinds, of=ORDERS)
    return [(e.kind, e.cause.cause if e.cause else e.code, e.cause.serial if e.cause else 0) for e in found]


def forget_events(store: Store) -> None:
    for key in store.backend.list(FOLDER):
        store.backend.delete(key)


def test_events_of_starts_stops_failures_and_recoveries_have_causes(world: World) -> None:
    world.apply(committed(1))
    world.progress(ORDERS, step=7)
    world.settle()
    world.apply(committed(2, "brokers[0] a:1 → b:1", broker="b:1"))
    world.fail(ORDERS, "the disk is full")
    world.settle()
    world.now += 5.0
    world.settle()
    explained = explain(world.store, ORDERS)
    assert explained.cause is not None and explained.cause.cause == "retry"
    world.apply(committed(3, "paused by hand", "hand", broker="b:1", paused=True))
    assert causes(world.store, "started", "stopped", "failed", "healed") == [
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


def test_events_of_dropped_and_moved_queries(worlds: Worlds) -> None:
    worlds.start()
    worlds.commit(2, sink="big")
    worlds.settle("local", "big")
    found = [(e.kind, e.cause) for e in events(worlds.store, "started", "stopped", of=SINK) if e.cause]
    assert [(kind, why.cause, why.serial, why.detail) for kind, why in found[1:]] == [
        ("stopped", "hand-over", 2, "moved to instance big"),
        ("started", "hand-over", 2, "came from instance local"),
    ]
    worlds.drop(SINK)
    worlds.settle("big")
    last = events(worlds.store, "stopped", of=SINK)[-1].cause
    assert last is not None and (last.detail, last.serial) == ("it is no longer committed", 3)
    assert [e.detail for e in events(worlds.store, "generation", of=SINK)][-1] == "no query uses it any more"


def test_events_of_refusals_ddl_and_secrets(world: World) -> None:
    world.executor.check_result = lambda one: CheckResult(must_create=True)
    first = committed(1)
    world.apply(first)
    assert {e.address for e in events(world.store, "ddl")} == {ORDERS, SINK}
    world.executor.check_result = refusing("MZ052", address=ORDERS)
    world.apply(committed(2, broker="b:1"))
    (refused,) = events(world.store, "refused")
    assert (refused.address, refused.code) == (ORDERS, "MZ052")
    world.store.proposals.make("local", (describe(first.resources[ORDERS], first.resources),))
    world.settle()
    assert "refused before its commit" in events(world.store, "refused")[-1].detail
    world.runner.controller.queries.retry_with_secrets({"${env:PW}", "${file:/run/x}"})
    world.settle()
    assert [e.detail for e in events(world.store, "secret")] == ["new value of ${env:PW}, ${file:/run/x}"]


def test_starts_are_one_write_of_the_log_and_an_idle_runner_writes_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[str] = []
    write = world.store.backend.write

    def counted(key: str, *more: Any, **named: Any) -> str:
        writes.append(key)
        return write(key, *more, **named)

    monkeypatch.setattr(world.store.backend, "write", counted)
    monkeypatch.setattr("mzplan.runner.loop.EVENTS_INTERVAL", 60.0)
    world.apply(committed(1))
    world.settle()
    assert len(events(world.store, "started")) == 2
    assert len([key for key in writes if key.startswith(FOLDER)]) == 1


def test_an_unwritable_log_delays_no_query(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    write = world.store.backend.write
    full = threading.Event()
    full.set()

    def failing(key: str, *more: Any, **named: Any) -> str:
        if key.startswith(FOLDER) and full.is_set():
            raise error("MZ035", "the disk is full")
        return write(key, *more, **named)

    monkeypatch.setattr(world.store.backend, "write", failing)
    assert world.apply(committed(1)).observations[ORDERS].condition == "running"
    full.clear()
    world.settle()
    assert causes(world.store, "started") == [("started", "change", 1)]


def test_why_uses_the_status_without_a_log(world: World) -> None:
    world.apply(committed(1))
    forget_events(world.store)
    found = explain(world.store, ORDERS)
    assert found.event is not None and found.event.event.kind == "started"
    assert found.cause is not None and found.cause.serial == 1
    assert explain(world.store, ORDERS, at=1.0).event is None


def test_why_shows_a_run_before_the_log_has_it(world: World) -> None:
    """The runner writes its log after its Status, which already shows the new run."""
    world.apply(committed(1))
    log = {key: world.store.backend.read(key) for key in world.store.backend.list(FOLDER)}
    world.apply(committed(2, "brokers[0] a:1 → b:1", broker="b:1"))
    forget_events(world.store)
    for key, blob in log.items():
        world.store.backend.write(key, blob.data)  # type: ignore[union-attr]
    found = explain(world.store, ORDERS)
    assert found.cause is not None and found.cause.serial == 2


def test_the_next_runner_reports_a_killed_runner_and_loses_no_event(world: World) -> None:
    world.apply(committed(1))
    world.executor.close()
    world.store.backend.write("leases/local.json", encode_lease(replace(world.lease, heartbeat=0.0)))
    world.new_runner()
    world.settle()
    assert causes(world.store, "started") == [("started", "change", 1), ("started", "runner", 0)]
    began = events(world.store, "runner-began")
    assert len(began) == 2 and "was killed" in began[1].detail
    found = explain(world.store, ORDERS)
    assert found.cause is not None and "was killed" in found.cause.detail and found.seconds_before is not None
    assert not found.is_first
