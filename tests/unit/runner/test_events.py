"""The causes of starts in the Status, the events that a runner writes, and how `why` explains them."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from mzplan.controller.executor import CheckResult
from mzplan.controller.runs import takeover
from mzplan.model.address import Address
from mzplan.model.cause import Cause
from mzplan.model.diagnostics import error
from mzplan.model.event import Event
from mzplan.model.observed import Status, Versions
from mzplan.model.state import Canary, ProjectStatus, QueryStatus, State
from mzplan.model.times import instant
from mzplan.operations.events import EventFilter, explain, read_events
from mzplan.render.status import render_status
from mzplan.render.status_json import status_to_json
from mzplan.store.event_log import FOLDER
from mzplan.store.formats import encode_lease
from mzplan.store.leases import new_lease
from mzplan.store.store import Store
from tests.unit.runner.test_runner import ORDERS, SINK, World, edited, make_state, refusing
from tests.unit.runner.test_runner_handover import Worlds


def committed(serial: int, detail: str = "new", cause: str = "change", **more: Any) -> State:
    """A state whose source has a cause."""
    because = Cause(cause=cause, serial=serial, detail=detail)  # type: ignore[arg-type]
    return edited(make_state(serial, **more), ORDERS, SINK, because=because)


def cause_of(status: Status) -> Cause:
    found = status.observations[ORDERS].started_because
    assert found is not None
    return found


def brief(status: Status) -> tuple[str, int, str]:
    found = cause_of(status)
    return found.cause, found.serial, found.detail


def events(store: Store, *kinds: str, of: Address | None = None) -> list[Event]:
    found = read_events(store, EventFilter(kinds=kinds, addresses={of} if of else None))  # type: ignore[arg-type]
    assert found.unreadable == 0
    return [one.event for one in found.events]


def causes(store: Store, *kinds: str) -> list[tuple[str, str, int]]:
    """Return the kind, cause and serial of the source's events."""
    found = events(store, *kinds, of=ORDERS)
    return [(e.kind, e.cause.cause if e.cause else e.code, e.cause.serial if e.cause else 0) for e in found]


def forget_events(store: Store) -> None:
    for key in store.backend.list(FOLDER):
        store.backend.delete(key)


def test_starts_stops_failures_and_recoveries_have_causes(world: World) -> None:
    first = world.apply(committed(1))
    assert brief(first) == ("change", 1, "new") and instant(cause_of(first).at or "")
    world.progress(ORDERS, step=7)
    world.settle()
    moved = world.apply(committed(2, "brokers[0] a:1 → b:1", broker="b:1"))
    assert brief(moved) == ("change", 2, "brokers[0] a:1 → b:1")
    world.fail(ORDERS, "the disk is full")
    assert brief(world.later(5.0)) == ("retry", 2, "attempt 2, 1 s after [MZ064] the disk is full")
    explained = explain(world.store, ORDERS)
    assert explained.cause is not None and explained.cause.cause == "retry"
    world.apply(committed(3, "paused by hand", "hand", broker="b:1", paused=True))
    status = world.apply(committed(4, "resumed by hand", "hand", broker="b:1"))
    assert brief(status) == ("hand", 4, "resumed by hand")
    assert causes(world.store, "started", "stopped", "failed", "healed") == [
        ("started", "change", 1),
        ("stopped", "change", 2),
        ("started", "change", 2),
        ("failed", "MZ064", 0),
        ("started", "retry", 2),
        ("healed", "", 0),
        ("stopped", "hand", 3),
        ("started", "hand", 4),
    ]
    stopped = events(world.store, "stopped", of=ORDERS)[0]
    assert (stopped.step, stopped.generation, stopped.serial) == (7, 1, 2)
    assert events(world.store, "started", of=ORDERS)[1].step == 7  # the step where it resumes
    (began,) = events(world.store, "runner-began")
    assert began.cause is not None and began.cause.cause == "runner"
    assert [one.generation for one in events(world.store, "generation")] == [1, 1]
    query = QueryStatus(resource=world.committed.resources[ORDERS], observation=status.observations[ORDERS])
    shown = ProjectStatus(serial=4, instances=(), queries=(query,))
    (found,) = status_to_json(shown)["queries"]
    because = found["started_because"]
    assert (because["cause"], because["serial"], because["detail"]) == ("hand", 4, "resumed by hand")
    assert found["starts"] == {"change": 2, "hand": 1, "retry": 1}
    assert "source.orders: started for serial 4: resumed by hand" in render_status(shown)


def test_the_cause_of_a_fallback_names_the_failure(world: World) -> None:
    world.apply(committed(1))
    failing = make_state(2, "b:1").resources[ORDERS].digest
    world.executor.fail_start = lambda one: "no" if one.digest == failing else None
    world.commit(committed(2, broker="b:1"))
    for passed in (0.0, 70.0, 5.0):
        status = world.later(passed)
    assert brief(status) == ("retry", 2, "fallback after [MZ064] no.")


def test_the_change_of_runner_is_the_cause_for_queries_that_ran_before(world: World) -> None:
    world.apply(committed(1))
    for released, how in ((True, "was stopped"), (False, "was killed")):
        former = world.lease
        world.executor.close()
        stale = replace(former, pid=2**22 + 12345, released=released)  # no process has this pid
        world.store.backend.write("leases/local.json", encode_lease(stale))
        world.new_runner()
        cause, serial, detail = brief(world.settle())
        assert (cause, serial) == ("runner", 0) and how in detail
        assert f"epoch {world.lease.epoch}" in detail and f"epoch {former.epoch}" in detail
    assert causes(world.store, "started")[1:] == [("started", "runner", 0)] * 2
    assert "was killed" in events(world.store, "runner-began")[-1].detail
    found = explain(world.store, ORDERS)
    assert found.cause is not None and "was killed" in found.cause.detail
    assert found.seconds_before is not None and not found.is_first


def test_a_commit_made_without_a_runner_is_the_cause(world: World) -> None:
    world.apply(committed(1))
    world.apply(committed(2, paused=True))
    for state in (committed(3, "resumed by hand", "hand"), committed(4, "brokers", broker="b:1")):
        world.executor.close()
        world.commit(state)
        world.next_runner()
        because = state.resources[ORDERS].because
        assert because is not None and brief(world.settle())[:2] == (because.cause, because.serial)


def test_an_upgrade_of_the_runner_is_the_cause() -> None:
    old = Versions(mzplan="1", spark="4.0", delta="4", kafka="4")
    before = Status(instance="local", epoch=1, heartbeat=0.0, serial=1, versions=old)
    now = replace(old, mzplan="2", spark="4.1")
    found = takeover(None, before, 3, now)
    assert found.cause == "upgrade" and found.detail.endswith("mzplan 1 → 2, Spark 4.0 → 4.1")
    assert takeover(None, before, 3, old).cause == "runner"
    elsewhere = replace(new_lease("local", "o", 2), host="other")
    assert "it was killed, or it stopped" in takeover(elsewhere, None, 3, None).detail
    ended = replace(before, epoch=2, ended="Spark has ended.")
    assert takeover(elsewhere, ended, 3, None).detail.endswith("stopped itself: Spark has ended")


def test_the_causes_of_a_canary_and_of_its_fallback(world: World) -> None:
    world.apply(committed(1))
    canary = Canary(address=ORDERS, serial=2, holds=(SINK,), wait=60.0)
    world.executor.triggers_at_once = False
    world.commit(replace(committed(2, broker="b:1"), canaries=(canary,)))
    world.until(lambda: brief(world.status()) == ("canary", 2, "goes first, before 1 other query"))
    world.fail(ORDERS)
    for _ in range(100):
        world.runner.tick()
        world.now += 0.5
    world.executor.trigger()
    back = cause_of(world.settle())
    assert back.cause == "canary" and back.detail.startswith("back: boom")


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
    world.answer(first, ORDERS)
    assert "refused before its commit" in events(world.store, "refused")[-1].detail
    world.runner.controller.queries.retry_with_secrets({"${env:PW}", "${file:/run/x}"})
    world.settle()
    assert [e.detail for e in events(world.store, "secret")] == ["new value of ${env:PW}, ${file:/run/x}"]


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


def test_why_shows_a_run_without_an_event_of_it(world: World) -> None:
    """The runner writes its log after its Status, which already shows the new run."""
    world.apply(committed(1))
    log = {key: world.store.backend.read(key) for key in world.store.backend.list(FOLDER)}
    world.apply(committed(2, "brokers[0] a:1 → b:1", broker="b:1"))
    forget_events(world.store)
    for key, blob in log.items():
        world.store.backend.write(key, blob.data)  # type: ignore[union-attr]
    found = explain(world.store, ORDERS)
    assert found.cause is not None and found.cause.serial == 2
    # Without a log, `why` uses the status.
    forget_events(world.store)
    found = explain(world.store, ORDERS)
    assert found.event is not None and found.event.event.kind == "started"
    assert found.cause is not None and found.cause.serial == 2
    assert explain(world.store, ORDERS, at=1.0).event is None
