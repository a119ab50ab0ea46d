"""Which queries have caught up, for `mzplan run --until-caught-up`."""

from __future__ import annotations

from pathlib import Path

import pytest

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.runner.caught_up import MOST_FAILURES, PATIENCE, CaughtUp
from mzplan.schema.description import describe
from tests.unit.cli_runs import PROJECT, mzplan
from tests.unit.runner.test_first_copies import CUSTOMERS, NAMED, view
from tests.unit.runner.test_first_copies import make_state as with_views
from tests.unit.runner.test_runner import (
    ORDERS,
    SINK,
    World,
    edited,
    emptied,
    make_state,
    pause_all,
    refusing,
)

AFTER = 1000.0  # seconds since the epoch, after the runner started


class Caught:
    """Asks whether all queries have caught up, at a time that the test sets."""

    def __init__(self, world: World):
        self.world, self.now = world, 100.0
        self.caught_up = CaughtUp(True, lambda: self.now)

    def up(self) -> bool:
        self.world.settle()
        runner = self.world.runner
        return self.caught_up.poll(runner.overview.queries, runner.watches.connections.fault)

    def report(self, query: Address, lag: int | None, at: float, batch: float = 0.0) -> None:
        self.world.progress(query, lag=lag, last_progress_at=at, batch_seconds=batch)


@pytest.fixture
def caught(world: World) -> Caught:
    return Caught(world)


def test_a_reader_catches_up_after_its_input(world: World, caught: Caught) -> None:
    world.apply(make_state(1))
    caught.report(ORDERS, None, 90.0)
    caught.report(SINK, 0, 90.0)
    assert not caught.up()
    caught.report(ORDERS, 7, 120.0)  # read, but not all
    caught.now = 130.0
    assert not caught.up()
    caught.report(ORDERS, 0, 140.0)
    caught.report(SINK, 0, 140.0)  # before its input had caught up
    caught.now = 150.0
    assert not caught.up()
    caught.report(SINK, 0, 152.0, batch=5.0)  # the trigger began before that
    assert not caught.up()
    caught.report(SINK, 0, 160.0, batch=5.0)
    caught.report(ORDERS, 3, 170.0)  # more has arrived since
    assert caught.up() and caught.caught_up.is_complete
    # A new generation reads all of it again.
    world.apply(edited(make_state(2), ORDERS, generation=2))
    caught.report(ORDERS, None, 171.0)
    assert not caught.up() and not caught.caught_up.is_complete


def test_a_view_starts_once_its_snapshots_have_caught_up(world: World, caught: Caught) -> None:
    state = with_views(view("named", "source.orders", CUSTOMERS))
    named = describe(state.resources[NAMED], state.resources)
    world.apply(state)
    caught.report(ORDERS, 7, AFTER)
    caught.report(CUSTOMERS, 7, AFTER)
    assert not caught.up() and not caught.caught_up.releases
    held = caught.caught_up.hold(named, None)
    assert held is not None and held.reason == "waits until its snapshots have caught up: source.customers"
    caught.report(CUSTOMERS, 0, AFTER + 1)
    assert not caught.up() and caught.caught_up.releases
    assert caught.caught_up.hold(named, None) is None
    caught.report(CUSTOMERS, 5, AFTER + 2)  # more has arrived since
    assert not caught.up() and not caught.caught_up.releases
    assert caught.caught_up.hold(named, None) is None
    assert CaughtUp(ends=False).hold(named, None) is None


def test_nobody_waits_for_a_paused_query(world: World, caught: Caught) -> None:
    world.apply(pause_all(make_state(1)))
    assert caught.up()
    world.apply(emptied(2))
    assert caught.up()


def test_a_query_that_cannot_catch_up_is_named(world: World, caught: Caught) -> None:
    world.executor.check_result = refusing("MZ053", lambda query: query.address == SINK)
    world.apply(make_state(1))
    caught.report(ORDERS, 0, AFTER)
    for _ in range(MOST_FAILURES - 1):
        assert not caught.up()
        world.later(3600.0)
    assert caught.up() and not caught.caught_up.is_complete
    assert caught.caught_up.problems == {SINK: "[MZ053] no."}


def test_a_server_that_does_not_answer_has_some_time(world: World, caught: Caught) -> None:
    gone = (Diagnostic(code="MZ050", summary="It doesn't answer", detail="Refused.", kind="unreachable"),)
    world.executor.faults = lambda connection: gone
    world.apply(make_state(1))
    world.until(lambda: world.runner.watches.connections.fault(ORDERS))
    caught.report(ORDERS, None, 90.0)
    assert not caught.up()
    caught.now += PATIENCE
    assert caught.up() and not caught.caught_up.is_complete  # the sink has read what is there
    assert caught.caught_up.problems == {ORDERS: "[MZ050] connection.k: It doesn't answer. Refused."}


def test_a_dry_instance_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "mzplan.yaml").write_text(PROJECT % "dry")
    (tmp_path / "pipeline.yaml").write_text("sources:\n  made: {type: local, schema: id BIGINT}\n")
    assert mzplan(tmp_path, "apply", "--auto-approve").code == 0
    assert mzplan(tmp_path, "run", "--instance", "local", "--until-caught-up").code == 0
