"""Compaction of targets: which sinks, when, and what happens after a failure. Without Spark."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Any

import pytest

from mzplan.controller.maintenance import COMPACTION_BACKOFF
from mzplan.model.address import Address
from mzplan.model.diagnostics import error
from mzplan.model.state import ResourceState, State
from mzplan.schema.description import Description, digest_of
from tests.support import eventually
from tests.unit.runner.test_runner import ORDERS, SINK, World, make_state

LAKE = Address("connection", "lake")
EVERY = 60.0


def with_delta(serial: int, **more: Any) -> State:
    """The sink writes a Delta table."""
    state = make_state(serial)
    body = {"type": "delta", "from": "orders", "connection": "lake", "path": "orders", **more}
    sink = replace(
        state.resources[SINK],
        type="delta",
        body=body,
        references={"from": ORDERS, "connection": LAKE},
    )
    lake = ResourceState(address=LAKE, id="lake", type="files", body={"type": "files", "path": "lake"})
    resources = {**state.resources, SINK: sink, LAKE: lake}
    resources[SINK] = replace(sink, digest=digest_of(sink, resources))
    return replace(state, resources=resources)


def compacted(world: World) -> int:
    return sum(what == "compact" for what, _ in world.executor.log)


def pass_time(world: World, seconds: float) -> None:
    """Let some time pass, and process the work that is then due."""
    world.now += seconds
    world.settle()
    schedule = world.runner.controller.targets.schedule  # type: ignore[attr-defined]
    eventually("it has ended", lambda: schedule._work is None or schedule._work[1].done())
    world.settle()


def test_only_running_sinks_with_compaction_are_compacted_each_minute(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mzplan.storage")
    asked: dict[str, Any] = {"compaction": {"min_files": 10}}
    world.commit(with_delta(1))
    world.settle()
    pass_time(world, EVERY + 1)
    assert compacted(world) == 0
    runs = world.executor.running()[SINK].run_id
    world.commit(with_delta(2, **asked))
    world.settle()
    assert world.executor.running()[SINK].run_id == runs  # it is the same query
    assert compacted(world) == 0
    world.executor.compaction = lambda sink: f"{sink.body['compaction']['min_files']} files merged"
    pass_time(world, EVERY + 1)
    pass_time(world, EVERY / 2)
    assert compacted(world) == 1
    assert caplog.messages == ["sink.orders_out: 10 files merged"]
    world.executor.compaction = lambda sink: None
    pass_time(world, EVERY)
    assert (compacted(world), len(caplog.messages)) == (2, 1)
    world.commit(with_delta(3, paused=True, **asked))
    world.settle()
    pass_time(world, EVERY * 3)
    assert compacted(world) == 2


def test_a_failed_compaction_is_a_warning_and_is_retried_later(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(sink: Description) -> None:
        raise error("MZ280", "They could not be merged now", "Somebody else has.", "nothing to do.")

    world.executor.compaction = fail
    world.commit(with_delta(1, compaction={"min_files": 2}))
    world.settle()
    with caplog.at_level(logging.WARNING, "mzplan.storage"):
        pass_time(world, EVERY + 1)
        pass_time(world, EVERY * 2)
    warning = "[MZ280] They could not be merged now. Somebody else has. Fix: nothing to do."
    assert caplog.messages == [f"sink.orders_out: {warning}"]
    seen = world.settle().observations[SINK]
    assert (seen.condition, seen.error, seen.warning, compacted(world)) == ("running", None, None, 1)
    pass_time(world, EVERY * COMPACTION_BACKOFF)
    assert compacted(world) == 2


def test_the_next_runner_of_a_moved_sink_waits_for_the_compaction(world: World) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(sink: Description) -> None:
        begun.set()
        assert go_on.wait(60)

    world.executor.compaction = slow
    world.commit(with_delta(1, compaction={"min_files": 2}))
    world.settle()
    world.now += EVERY + 1
    world.settle()
    assert begun.wait(60)
    moved = with_delta(2, compaction={"min_files": 2}, instance="other")
    other = replace(moved.instances["local"], name="other")
    world.commit(replace(moved, instances={**moved.instances, "other": other}))
    assert SINK in world.settle().observations  # so it has not released the query
    go_on.set()
    pass_time(world, 5.0)
    assert SINK not in world.settle().observations
