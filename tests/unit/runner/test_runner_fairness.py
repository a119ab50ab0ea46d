"""Neither starts that are long or keep failing nor proposals delay the other queries of a runner."""

from __future__ import annotations

import math
import re
import threading
import time

import pytest

from mzplan.connectors.api.queries import Probe
from mzplan.controller.executor import CheckResult
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError
from mzplan.model.tasks import TaskProgress
from mzplan.runner import proposals as runner_proposals
from mzplan.schema.description import describe
from tests.tasks import backfill
from tests.unit.runner.test_runner import (
    ORDERS,
    SINK,
    Blocked,
    World,
    make_state,
    rename,
    starts,
    with_copies,
)
from tests.unit.runner.test_status import status_text

TASK = backfill(1, "2026-11-23T05:00:00Z", "2026-11-23T07:00:00Z")


@pytest.fixture
def narrow(world: World) -> World:
    """A runner that starts one query at a time."""
    world.jobs.set_threads("start", 1)
    return world


def test_long_backfills_delay_nothing_else(narrow: World) -> None:
    long = ("a", "b", "c")
    slow = Blocked(narrow.executor, "start", *(Address("source", name) for name in long))
    narrow.commit(with_copies(make_state(1), ORDERS, *long, tasks=(TASK,)))
    try:
        narrow.until(lambda: len(starts(narrow)) == len(slow.begun) == 2)
        narrow.rounds()
        assert set(starts(narrow)) == {"source.orders", "sink.orders_out"}
        assert len(slow.begun) == 2  # and no more of them at once
        assert not narrow.jobs.is_full("start")
        stages = [narrow.status().start_stage(Address("source", name)) for name in long]
        waits = "waiting for a thread: as many one-off tasks as allowed are under way"
        assert sorted(stages) == [f"doing its {TASK}", f"doing its {TASK}", waits]
        assert re.search(rf"\nsource\.., source\..: its {TASK} will begin\n", status_text(narrow))
        progress = TaskProgress(title=str(TASK), since=100.0, text="writing step 7")
        narrow.executor.tasks[Address("source", "a")] = progress
        narrow.now += 10.0
        narrow.rounds()
        shown = f"source.a: its {TASK} began at 1970-01-01T00:01:40Z: writing step 7\n"
        assert shown in status_text(narrow)
    finally:
        slow.let.set()
        narrow.executor.tasks.clear()
    assert {seen.task for seen in narrow.settle().observations.values()} == {None}
    assert sorted(starts(narrow)) == ["sink.orders_out", *(f"source.{n}" for n in long), "source.orders"]


def test_dropped_sources_of_a_dead_server_delay_nothing(world: World) -> None:
    """The removal of their slots waits for the server, perhaps for days."""
    dropped = [f"d{number}" for number in range(12)]
    world.apply(with_copies(make_state(1), ORDERS, *dropped))
    blocked = Blocked(world.executor, "release")
    world.commit(make_state(2))
    try:
        world.until(lambda: len(blocked.begun) == 2)
        world.rounds()
        assert len(blocked.begun) == 2
        world.commit(make_state(3, broker="b:1"))
        world.until(lambda: starts(world).count("source.orders") == 2)
        waiting = {("release", True), ("release", False)}  # and, for a moment, a check of the new connection
        world.until(lambda: {(job.kind, job.is_running) for job in world.jobs.reports(0.0)} == waiting)
    finally:
        blocked.let.set()
    world.settle()


def test_one_start_at_a_time_leaves_the_other_jobs_their_threads(narrow: World) -> None:
    """As with `--parallelism 1`."""
    slow = Blocked(narrow.executor, "start", ORDERS)
    narrow.commit(make_state(1))
    try:
        narrow.until(lambda: slow.begun)
        assert narrow.jobs.is_full("start")
        assert narrow.jobs.submit("compaction", SINK, lambda: "done").result(20.0) == "done"
    finally:
        slow.let.set()
    narrow.settle()


def test_failed_queries_start_last(narrow: World) -> None:
    """Even if all queries are due at once, and the failed query has the largest lag."""
    bad = Address("source", "bad")
    narrow.executor.fail_start = lambda d: "no server" if d.address == bad else None
    narrow.apply(with_copies(make_state(1), ORDERS, "bad"))
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
        world.until(lambda: slow.begun and starts(world))
        assert slow.begun == [SINK]
        world.commit(rename(make_state(1), 2, orders_out="new_name"))
        world.rounds()
        assert starts(world) == ["source.orders"]  # two queries would write one checkpoint
        waits = "waiting for sink.orders_out to stop, which uses the same checkpoint"
        assert f"\nStarting: 1 {waits}\n" in status_text(world)
    finally:
        slow.let.set()
    world.settle()
    assert [(what, name.split(":")[2]) for what, name in world.executor.log][1:] == [
        ("start", "sink.orders_out"),
        ("stop", "sink.orders_out"),
        ("start", "sink.new_name"),
    ]


# --- proposals


def test_an_endless_check_is_answered_and_delays_no_commit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_proposals, "TIME_LIMIT", 0.5)
    ended, state = threading.Event(), make_state(1)
    sink = describe(state.resources[SINK], state.resources)

    def never(*_: object) -> CheckResult:
        ended.wait(60)
        return CheckResult()

    monkeypatch.setattr(world.runner.controller, "validate", never)
    try:
        proposals = [world.store.proposals.make("local", (sink,) * 8) for _ in range(8)]
        began = time.monotonic()
        world.runner.tick()
        assert {o.condition for o in world.apply(state).observations.values()} == {"running"}
        while world.runner.proposals.poll():
            time.sleep(0.01)
        assert time.monotonic() - began < 2.5, "each is answered within the limit, however many there are"
        answered = [world.store.proposals.read_answer(one) for one in proposals]
        assert {d.code for one in answered if one is not None for d in one.diagnostics} == {"MZ290"}
    finally:
        ended.set()


@pytest.mark.parametrize("upstream", [{"id": b"x"}, {"id": math.nan}, {"id": "x" * (1 << 20)}])
def test_an_unstorable_identity_is_refused(upstream: dict[str, object]) -> None:
    with pytest.raises(MzplanError, match="can't be stored"):
        Probe(upstream=upstream)
