"""`trigger: available-now`: a query reads what is there, and stops until the runner starts again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mzplan.controller.memory import InMemoryExecutor
from mzplan.model.state import State
from mzplan.plan.drift import drift_between, find_pending
from mzplan.runner.caught_up import CaughtUp
from mzplan.schema.description import digest_of
from tests.unit.runner.test_caught_up import Caught
from tests.unit.runner.test_runner import (
    ORDERS,
    SINK,
    HookedExecutor,
    World,
    edited,
    make_state,
    pause_all,
    starts,
)

LATER = 1000.0  # seconds since the epoch, after the queries started
ALIVE = {"local": True}


def once(state: State, *queries: Any) -> State:
    """Return the state in which these queries (default: both) read what is there and stop."""
    for address in queries or (ORDERS, SINK):
        body = {**state.resources[address].body, "trigger": "available-now"}
        state = edited(state, address, body=body)
    resources = {
        a: replace(r, digest=digest_of(r, state.resources)) if r.digest else r
        for a, r in state.resources.items()
    }
    return replace(state, resources=resources)


def drift(world: World) -> list[tuple[str, str]]:
    found = drift_between(world.committed, {"local": world.status()}, ALIVE)
    return [(item.address, item.kind) for item in found]


def finish(world: World, query: Any, at: float = LATER) -> None:
    """Let a trigger of the query find nothing more."""
    world.progress(query, lag=0, last_progress_at=at, step=4, run_rows=7)
    world.settle()
    world.settle()


@pytest.fixture
def reading(world: World) -> World:
    """A source and its sink that read what is there; the source has begun."""
    world.commit(once(make_state(1)))
    world.executor.triggers_at_once = False
    world.settle()
    for query in (ORDERS, SINK):
        world.progress(query, lag=3, last_progress_at=LATER - 1, triggered=True)
    world.settle()
    return world


def test_a_query_stops_once_it_has_read_what_was_there(reading: World) -> None:
    world = reading
    assert {o.condition for o in world.status().observations.values()} == {"running"}
    run = world.status().observations[ORDERS].run_id
    finish(world, ORDERS)
    seen = world.status().observations[ORDERS]
    assert (seen.condition, seen.completed, seen.run_id, seen.step, seen.run_rows) == (
        "stopped",
        True,
        run,
        4,
        7,
    )
    assert seen.digest == seen.wanted_digest and seen.error is None
    assert set(world.executor.running()) == {SINK}
    assert not world.later(7200.0).observations[SINK].completed
    # Its sink reads on until it finds nothing in a trigger that began later.
    finish(world, SINK, LATER)
    assert set(world.executor.running()) == {SINK}
    finish(world, SINK, LATER + 1)
    assert world.executor.running() == {}
    # That is no drift, and nothing is pending.
    assert drift(world) == [] and find_pending(world.committed, {"local": world.status()}) == ()
    assert drift_between(world.committed, {"local": world.status()}, {"local": False}) == ()
    assert world.later(7200.0).observations[ORDERS].completed
    assert starts(world) == ["source.orders", "sink.orders_out"]


def test_it_runs_again_with_the_next_runner_after_a_change_and_by_hand(reading: World) -> None:
    world = reading
    finish(world, ORDERS)
    finish(world, SINK, LATER + 1)
    world.executor.log.clear()
    # The next runner
    world.next_runner(HookedExecutor("shop"))
    world.executor.triggers_at_once = False
    world.settle()
    assert sorted(starts(world)) == ["sink.orders_out", "source.orders"]
    for query in (ORDERS, SINK):
        world.progress(query, lag=0, last_progress_at=LATER + 10, triggered=True)
    world.settle()
    world.settle()
    finish(world, SINK, LATER + 20)
    assert world.executor.running() == {}
    # A change of one of them
    world.executor.log.clear()
    state = once(make_state(2, on_error="skip"))
    world.apply(state)
    assert starts(world) == ["source.orders"]
    world.progress(ORDERS, lag=0, last_progress_at=LATER + 30, triggered=True)
    world.settle()
    world.settle()
    assert world.executor.running() == {} and drift(world) == []
    # A change in place starts nothing. `mzplan restart` does, and so does a resume.
    world.executor.log.clear()
    state = edited(replace(state, serial=3), ORDERS, body={**state.resources[ORDERS].body, "max_hold": "1d"})
    world.apply(state)
    assert starts(world) == []
    state = edited(replace(state, serial=4), SINK, restart_token=1)
    world.apply(state)
    assert starts(world) == ["sink.orders_out"]
    world.apply(pause_all(replace(state, serial=5)))
    assert {o.condition for o in world.status().observations.values()} == {"paused"}
    world.executor.log.clear()
    world.apply(replace(state, serial=6))
    assert sorted(starts(world)) == ["sink.orders_out", "source.orders"]


def test_a_failed_query_is_tried_again_and_its_reader_waits(reading: World) -> None:
    world = reading
    world.progress(SINK, lag=0, last_progress_at=LATER + 5)
    world.fail(ORDERS)
    assert set(world.executor.running()) <= {SINK} and drift(world) == [("source.orders", "failed-query")]
    world.later(100.0)
    assert SINK in world.executor.running()
    world.progress(ORDERS, lag=0, last_progress_at=LATER + 10, triggered=True)
    world.settle()
    world.settle()
    finish(world, SINK, LATER + 20)
    assert world.executor.running() == {} and drift(world) == []


def test_a_reader_of_a_query_with_an_interval_stops_alone(world: World) -> None:
    world.commit(once(make_state(1), SINK))
    world.executor.triggers_at_once = False
    world.settle()
    for query in (ORDERS, SINK):
        world.progress(query, lag=3, last_progress_at=LATER, triggered=True)
    world.settle()
    finish(world, SINK)
    assert set(world.executor.running()) == {ORDERS}


def test_queries_end_with_a_runner_that_ends_once_all_have_caught_up(reading: World) -> None:
    world = reading
    caught = Caught(world)
    gates = world.runner.gates
    world.runner.controller.gates = gates._replace(caught_up=caught.caught_up)
    assert isinstance(caught.caught_up, CaughtUp)
    finish(world, ORDERS, LATER + 5)
    assert ORDERS in world.executor.running() and not caught.up()
    finish(world, SINK, LATER + 5)
    assert caught.up() and len(world.executor.running()) == 2


def test_in_a_dry_instance_nothing_is_there(world: World) -> None:
    world.apply(once(make_state(1)))
    world.settle()
    assert isinstance(world.executor, InMemoryExecutor) and world.executor.running() == {}
    assert all(o.completed for o in world.status().observations.values())
