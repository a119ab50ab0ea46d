"""Long or repeatedly failing starts don't delay the other queries of a runner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mzplan.controller.work import WorkPool
from mzplan.model.address import Address
from mzplan.model.state import State
from mzplan.model.tasks import Task
from mzplan.schema.description import digest_of
from tests.tasks import backfill
from tests.unit.runner.test_runner import ORDERS, SINK, Blocked, World, make_state, rename, starts

SEVEN = backfill(7, "2026-11-23T05:00:00Z", "2026-11-23T07:00:00Z")


def with_sources(state: State, *names: str, tasks: tuple[Task, ...] = ()) -> State:
    """Return the state with these sources added."""
    resources = dict(state.resources)
    for name in names:
        address = Address("source", name)
        made = replace(resources[ORDERS], address=address, id=name, tasks=tasks)
        resources[address] = replace(made, digest=digest_of(made, resources))
    return replace(state, resources=resources)


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[World]:
    """A runner whose shared pool has one thread."""

    class Narrow(World):
        def new_runner(self) -> None:
            self.pool.shutdown()
            self.pool = WorkPool(1)
            super().new_runner()
            self.runner.controller.queries.short_lane.limit = 1

    made = Narrow(tmp_path / "state")
    yield made
    made.pool.shutdown()
    made.runner.proposals.close()


def test_long_backfills_delay_nothing_else(narrow: World) -> None:
    long = ("a", "b", "c")
    slow = Blocked(narrow.executor, "start", *(Address("source", name) for name in long))
    narrow.commit(with_sources(make_state(1), *long, tasks=(replace(SEVEN, serial=1),)))
    try:
        narrow.rounds()
        assert set(starts(narrow)) == {"source.orders", "sink.orders_out"}
        assert len(slow.begun) == 2  # and no more of them at once
        assert narrow.pool.submit(lambda: "free").result(20.0) == "free"
    finally:
        slow.let.set()
    narrow.settle()
    assert sorted(starts(narrow)) == ["sink.orders_out", *(f"source.{n}" for n in long), "source.orders"]


def test_failed_queries_start_last(narrow: World) -> None:
    """Even if all queries are due at once, and the failed query has the largest lag."""
    bad = Address("source", "bad")
    narrow.executor.fail_start = lambda d: "no server" if d.address == bad else None
    narrow.apply(with_sources(make_state(1), "bad"))
    narrow.runner.controller.queries.previous_lags = {bad: 10**6}
    assert starts(narrow) == ["source.orders", "sink.orders_out"]
    begun: list[Address | str] = []
    narrow.executor.before = lambda action, subject: begun.append(subject) if action == "start" else None
    narrow.now += 100.0
    for report in narrow.executor.reports():
        narrow.executor.stop(report.name)
    narrow.settle()
    assert begun == [ORDERS, SINK, bad]


def test_a_query_is_renamed_during_a_long_start(world: World) -> None:
    slow = Blocked(world.executor, "start", SINK)
    world.commit(make_state(1))
    try:
        world.rounds()
        assert slow.begun == [SINK]
        world.commit(rename(make_state(1), 2, orders_out="new_name"))
        world.rounds()
        assert starts(world) == ["source.orders"]  # two queries would write one checkpoint
    finally:
        slow.let.set()
    world.settle()
    assert [(what, name.split(":")[2]) for what, name in world.executor.log][1:] == [
        ("start", "sink.orders_out"),
        ("stop", "sink.orders_out"),
        ("start", "sink.new_name"),
    ]
