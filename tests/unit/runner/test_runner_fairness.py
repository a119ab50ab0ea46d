"""Long or repeatedly failing starts don't delay the other queries of a runner."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mzplan.controller.executor import QueryName, QueryReport
from mzplan.controller.queries import has_tasks
from mzplan.controller.reconcile import Memory
from mzplan.controller.work import WorkPool
from mzplan.model.address import Address
from mzplan.model.diagnostics import error
from mzplan.model.state import State
from mzplan.model.tasks import Task, TaskOutcome
from mzplan.schema.description import Description, describe, digest_of
from tests.tasks import backfill
from tests.unit import cli_runs
from tests.unit.runner.test_runner import ORDERS, SINK, World, make_state, rename, starts

SEVEN = backfill(7, "2026-11-23T05:00:00Z", "2026-11-23T07:00:00Z")


def with_sources(state: State, *names: str, tasks: tuple[Task, ...] = ()) -> State:
    """Return the state with these sources added."""
    resources = dict(state.resources)
    for name in names:
        address = Address("source", name)
        made = replace(resources[ORDERS], address=address, id=name, tasks=tasks)
        resources[address] = replace(made, digest=digest_of(made, resources))
    return replace(state, resources=resources)


class Slow:
    """Starts that last until the test releases them."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, *addresses: Address):
        self.let, self.begun = threading.Event(), list[Address]()
        start = world.executor.start

        def slowly(description: Description, *more: Any) -> None:
            if description.address in addresses:
                self.begun.append(description.address)
                self.let.wait(30.0)
            start(description, *more)

        monkeypatch.setattr(world.executor, "start", slowly)


def rounds(world: World, number: int = 20) -> None:
    """Do rounds while some work doesn't end."""
    for _ in range(number):
        world.runner.tick()
        threading.Event().wait(0.005)


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[World]:
    """A runner whose shared pool has one thread."""

    class Narrow(World):
        def new_runner(self) -> None:
            self.pool.shutdown()
            self.pool = WorkPool(1)  # type: ignore[assignment]
            super().new_runner()
            self.runner.controller.queries.short_lane.limit = 1

    made = Narrow(tmp_path / "state")
    yield made
    made.pool.shutdown()
    made.runner.proposals.close()


def test_long_backfills_delay_nothing_else(narrow: World, monkeypatch: pytest.MonkeyPatch) -> None:
    long = ("a", "b", "c")
    slow = Slow(narrow, monkeypatch, *(Address("source", name) for name in long))
    narrow.commit(with_sources(make_state(1), *long, tasks=(replace(SEVEN, serial=1),)))
    try:
        rounds(narrow)
        assert set(starts(narrow)) == {"source.orders", "sink.orders_out"}
        assert len(slow.begun) == 2  # and no more of them at once
        assert narrow.pool.submit(lambda: "free").result(20.0) == "free"
    finally:
        slow.let.set()
    narrow.settle()
    assert sorted(starts(narrow)) == ["sink.orders_out", *(f"source.{n}" for n in long), "source.orders"]


def test_which_starts_may_have_tasks_to_do() -> None:
    state = make_state(1)
    none = describe(state.resources[ORDERS], state.resources)
    both = replace(none, tasks=(SEVEN, replace(SEVEN, serial=9)))
    seven = replace(none, tasks=(SEVEN,))

    def report(*serials: int) -> QueryReport:
        done = tuple(TaskOutcome(serial=serial) for serial in serials)
        name = QueryName.of("shop", none)
        return QueryReport(name=name, query_id="q", run_id="r", active=True, triggered=True, tasks_done=done)

    assert not has_tasks(none, Memory(), [])
    assert has_tasks(seven, Memory(), [])
    assert has_tasks(both, Memory(), [report(7)]) and not has_tasks(both, Memory(), [report(7, 9)])
    assert has_tasks(both, Memory(accepted=seven), [])
    assert has_tasks(seven, Memory(), [report(9)])  # after a rollback to it; it may have been cancelled
    assert not has_tasks(seven, Memory(accepted=both), [])  # a restart, or another runner
    assert has_tasks(seven, Memory(accepted=replace(both, id="another")), [])
    assert has_tasks(replace(seven, generation=2), Memory(accepted=both), [report(9)])


def test_failed_queries_start_last(narrow: World) -> None:
    bad = Address("source", "bad")
    narrow.executor.fail_start = lambda d: "no server" if d.address == bad else None
    narrow.commit(with_sources(make_state(1), "bad"))
    narrow.settle()
    narrow.runner.controller.queries.previous_lags = {bad: 10**6}
    assert starts(narrow) == ["source.orders", "sink.orders_out"]
    # All queries are due at once, and the failed query has the largest lag.
    narrow.executor.log.clear()
    begun: list[Address] = []

    def noted(description: Description) -> str | None:
        begun.append(description.address)
        return "no server" if description.address == bad else None

    narrow.executor.fail_start = noted
    narrow.now += 100.0
    for report in narrow.executor.reports():
        narrow.executor.stop(report.name)
    narrow.settle()
    assert begun == [ORDERS, SINK, bad]
    # It hasn't failed with its current description.
    memory = narrow.runner.controller.queries.memories[bad]
    queries = narrow.runner.controller.queries
    wanted = queries.desired()[bad]
    assert memory.failures and queries._start_order(bad, wanted)[0]
    changed = replace(wanted, description=replace(wanted.description, digest="another"))
    assert not queries._start_order(bad, changed)[0]


def test_a_query_is_renamed_during_a_long_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(world, monkeypatch, SINK)
    world.commit(make_state(1))
    try:
        rounds(world)
        assert slow.begun == [SINK]
        world.commit(rename(make_state(1), 2, orders_out="new_name"))
        rounds(world)
        assert starts(world) == ["source.orders"]  # two queries would write one checkpoint
    finally:
        slow.let.set()
    world.settle()
    assert [(what, name.split(":")[2]) for what, name in world.executor.log][1:] == [
        ("start", "sink.orders_out"),
        ("stop", "sink.orders_out"),
        ("start", "sink.new_name"),
    ]


def test_cancelling_a_backfill_asks_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mzplan.cli import apply

    given: list[bool | None] = []

    def noted(*arguments: Any) -> Any:
        given.append(arguments[-1].options.live)
        raise error("MZ064", "That is enough")

    folder = cli_runs.write(tmp_path / "p")
    monkeypatch.setattr(apply, "carry_out", noted)
    times = ("--from", "2026-11-01T08:00:00Z", "--to", "2026-11-01T09:00:00Z")
    for more in (("--cancel",), times):
        assert "That is enough" in cli_runs.run("-C", str(folder), "backfill", "source.orders", *more).err
    assert given == [False, None]
