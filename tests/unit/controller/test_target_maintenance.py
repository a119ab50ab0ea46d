"""Compaction of targets: which sinks, when, and what happens after a failure. Without Spark."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Any

import pytest

from mzplan.controller.maintenance import COMPACTION_BACKOFF
from mzplan.model.diagnostics import error
from mzplan.model.resources import Instance
from mzplan.model.state import State
from mzplan.schema.description import Description
from tests.support import eventually
from tests.unit.runner.test_runner import SINK, World
from tests.unit.small_projects import commit, files, kafka, project, resource, source

EVERY = 60.0


def with_delta(serial: int, instance: str = "local", **more: Any) -> State:
    """The sink writes a Delta table."""
    body = {"from": "orders", "connection": "f", "path": "orders", "instance": instance, **more}
    sink = resource(str(SINK), "delta", type="delta", **body)
    instances = {name: Instance(name=name, type="embedded") for name in ("local", instance)}
    return replace(commit(project(kafka(), files(), source(), sink, instances=instances)), serial=serial)


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
    world.apply(with_delta(1))
    pass_time(world, EVERY + 1)
    assert compacted(world) == 0
    runs = world.executor.running()[SINK].run_id
    world.apply(with_delta(2, **asked))
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
    world.apply(with_delta(3, paused=True, **asked))
    pass_time(world, EVERY * 3)
    assert compacted(world) == 2


def test_a_failed_compaction_is_a_warning_and_is_retried_later(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(sink: Description) -> None:
        raise error("MZ280", "They could not be merged now", "Somebody else has.", "nothing to do.")

    world.executor.compaction = fail
    world.apply(with_delta(1, compaction={"min_files": 2}))
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
    world.apply(with_delta(1, compaction={"min_files": 2}))
    world.now += EVERY + 1
    world.settle()
    assert begun.wait(60)
    moved = world.apply(with_delta(2, compaction={"min_files": 2}, instance="other"))
    assert SINK in moved.observations  # so it has not released the query
    go_on.set()
    pass_time(world, 5.0)
    assert SINK not in world.settle().observations
