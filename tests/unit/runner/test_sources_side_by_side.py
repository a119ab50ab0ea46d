"""A replaced source serves its former generation until the new one, beside it, has read as much."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mzplan.model.losses import FirstCopy
from mzplan.model.resources import Resource
from mzplan.model.state import State
from mzplan.operations.follower import OutcomeFollower
from mzplan.plan.drift import drift_of_instance
from tests.unit.reporters import SilentReporter
from tests.unit.runner.test_first_copies import Copies, view
from tests.unit.runner.test_runner import ORDERS, HookedExecutor, World, edited
from tests.unit.runner.test_side_by_side import NAMED, WRITTEN, generations, replaced, steps
from tests.unit.small_projects import at, commit, kafka, postgres, project, sink, source

NEW, NEW_NAMED = ORDERS.beside(2), NAMED.beside(2)
BESIDE = {"source.orders": 1, "source.orders@2": 2, "view.named": 1, "view.named@2": 2, "sink.written": 1}


@pytest.fixture
def copies(world: World) -> Copies:
    return Copies(world)


def records(read: int, end: int, **positions: int) -> FirstCopy:
    return FirstCopy(read=(read,), ends=(end,), unit="record", positions=positions)


def make_state(*views: Resource, **lifecycle: Any) -> State:
    """A source that is replaced side by side, views over it, and a sink of the last view."""
    written = sink("written", **{"from": views[-1].address.name if views else "orders"})
    if views:
        written = replace(written, references={**written.references, "from": views[-1].address})
    orders = source("orders", lifecycle={"replace": "side-by-side", **lifecycle})
    state = commit(project(kafka(), postgres(), orders, *views, written, warehouse="w"))
    ids = {a: replace(one, id=a.name, because=None) for a, one in state.resources.items()}
    return replace(state, serial=1, lineage="l", settings=None, resources=ids)


@pytest.fixture
def state(world: World, copies: Copies) -> State:
    """A source and its view, whose new generations run beside the ones in service."""
    first = make_state(view("named", "source.orders"))
    world.commit(first)
    assert copies.seen(NAMED).condition == "running"
    copies.by_place |= {("orders", 1): records(9, 9), ("orders", 2): records(2, 8)}
    copies.by_place |= {("named", 1): steps(7, 7), ("named", 2): steps(1, 2)}
    world.commit(after := replaced(first, ORDERS, NAMED))
    assert copies.seen(ORDERS).held == "generation 2 runs beside it: 2 of 8 records are read"
    return after


def test_readers_move_once_the_new_generation_has_read_its_upstream(
    world: World, copies: Copies, state: State
) -> None:
    assert generations(world) == BESIDE
    copies.by_place["orders", 2] = records(8, 8)
    # Its reader has not read the new rows yet. Both take over at once.
    assert copies.seen(ORDERS).held == "waits to be replaced together with view.named"
    assert copies.seen(NAMED).held == "generation 2 runs beside it: 1 of 2 steps are read"
    assert generations(world) == BESIDE
    copies.by_place["named", 2] = steps(2, 2)
    assert copies.seen(ORDERS).generation == 2
    after = {"source.orders": 2, "view.named": 2, "sink.written": 1}
    assert generations(world) == after
    assert copies.seen(WRITTEN).held is None
    assert not any(address.is_beside for address in world.status().observations)


@pytest.mark.parametrize(
    ("former", "new", "lag", "passes"),
    [
        ({"t/0": 90}, {"t/0": 89}, 0, False),  # both read the topic, and the former one is ahead
        ({"t/0": 90}, {"t/0": 90}, 7, True),
        ({"t/0": 90, "t/1": 5}, {"t/0": 90, "t/1": 4}, 0, False),
        ({"t/0": 90, "u/0": 5}, {"t/0": 90, "v/0": 0}, 7, True),
        ({"t/0": 90}, {"v/0": 3}, 7, False),  # another topic, and there is more to read
        ({"t/0": 90}, {"v/0": 3}, 0, True),
        ({"t/0": 90}, {"v/0": 3}, None, True),  # the engine doesn't know how much there is
    ],
)
def test_the_new_generation_must_have_passed_the_former_one(
    world: World,
    copies: Copies,
    former: dict[str, int],
    new: dict[str, int],
    lag: int | None,
    passes: bool,
) -> None:
    world.commit(first := make_state())
    assert copies.seen(ORDERS).condition == "running"
    copies.by_place |= {("orders", 1): records(9, 9, **former), ("orders", 2): records(1, 8, **new)}
    world.commit(replaced(first, ORDERS))
    assert copies.seen(ORDERS).held == "generation 2 runs beside it: 1 of 8 records are read"
    world.progress(NEW, lag=lag)
    copies.by_place["orders", 2] = records(8, 8, **new)
    assert (copies.seen(ORDERS).generation == 2) == passes


def test_a_source_that_is_known_to_be_behind_waits(world: World, copies: Copies) -> None:
    world.commit(first := make_state())
    assert copies.seen(ORDERS).condition == "running"
    behind = FirstCopy(read=(8,), ends=(8,), unit="file", is_behind=True)
    copies.by_place |= {("orders", 1): FirstCopy(), ("orders", 2): behind}
    world.commit(replaced(first, ORDERS))
    assert copies.seen(ORDERS).held == "generation 2 runs beside it: 8 of 8 files are read"
    copies.by_place["orders", 2] = FirstCopy()
    assert copies.seen(ORDERS).generation == 2


def test_never_do_two_queries_write_one_collection(world: World, copies: Copies, state: State) -> None:
    copies.by_place |= {("orders", 2): records(8, 8), ("named", 2): steps(2, 2)}
    assert copies.seen(ORDERS).generation == 2
    writers = set[str]()
    for action, name in world.executor.log:
        if action == "start" and "source.orders" in name and ":g2:" in name:
            assert not writers, f"{name} starts beside {writers}"
            writers.add(name)
        elif action == "stop":
            writers.discard(name)
    assert writers


def test_a_failed_generation_changes_nothing_in_service(world: World, copies: Copies, state: State) -> None:
    world.executor.fail_start = lambda query: "no topic" if query.address == NEW else None
    world.fail(NEW, "no topic")
    assert copies.seen(NEW).condition == "failed"
    assert copies.seen(ORDERS).condition == "running"
    assert {a: g for a, g in generations(world).items() if "@" not in a} == {
        "source.orders": 1,
        "view.named": 1,
        "sink.written": 1,
    }
    follower = OutcomeFollower(world.store, state, "local", {ORDERS, NAMED, WRITTEN}, others=False)
    outcomes = follower.follow(5.0, SilentReporter(), lambda: None)
    assert (outcomes[ORDERS].status, outcomes[ORDERS].reason) == ("failed", "no topic.")
    drift = drift_of_instance(state, world.status(), world.now)
    assert ("source.orders@2", "failed-query") in [(item.address, item.kind) for item in drift]


def test_a_revert_gives_the_new_generations_up(world: World, copies: Copies, state: State) -> None:
    runs = {a: r.run_id for a, r in world.executor.running().items()}
    world.commit(replaced(replace(state, serial=2), ORDERS, NAMED, generation=1))
    assert copies.seen(ORDERS).held is None
    after = {a: r.run_id for a, r in world.executor.running().items()}
    assert after == {a: run for a, run in runs.items() if not a.is_beside}


def test_the_next_runner_continues_with_both(world: World, copies: Copies, state: State) -> None:
    world.next_runner(HookedExecutor("shop"))
    copies.use(world.executor)
    assert copies.seen(ORDERS).held == "generation 2 runs beside it: 2 of 8 records are read"
    assert generations(world) == BESIDE
    copies.by_place |= {("orders", 2): records(8, 8), ("named", 2): steps(2, 2)}
    assert copies.seen(ORDERS).generation == 2


def test_a_manual_cut_over_waits_for_its_word(world: World, copies: Copies) -> None:
    world.commit(first := make_state(cut_over="manual"))
    assert copies.seen(ORDERS).condition == "running"
    world.commit(after := replaced(first, ORDERS))
    assert copies.seen(ORDERS).held == "generation 2 waits for `mzplan cut-over source.orders`"
    assert copies.seen(WRITTEN).held == "waits for generation 2 of source.orders to start"
    world.commit(edited(replace(after, serial=3), ORDERS, cut_over=2))
    assert copies.seen(ORDERS).generation == 2
    assert copies.seen(WRITTEN).held is None


def test_a_reader_in_place_waits_for_the_source(world: World, copies: Copies) -> None:
    named = view("named", "source.orders")
    named = replace(named, body={**named.body, "lifecycle": {"replace": "in-place"}})
    world.commit(first := make_state(named))
    assert copies.seen(NAMED).condition == "running"
    copies.by_place |= {("orders", 1): records(9, 9), ("orders", 2): records(2, 8)}
    world.commit(replaced(first, ORDERS, NAMED))
    assert copies.seen(NAMED).held == "waits for generation 2 of source.orders to start"
    assert generations(world) == {
        "source.orders": 1,
        "source.orders@2": 2,
        "view.named": 1,
        "sink.written": 1,
    }
    copies.by_place["orders", 2] = records(8, 8)
    assert copies.seen(NAMED).generation == 2
    assert generations(world) == {"source.orders": 2, "view.named": 2, "sink.written": 1}


def test_a_renamed_source_keeps_its_generation_in_service(world: World, copies: Copies, state: State) -> None:
    resources, new = dict(state.resources), at("source.bookings")
    resources[new] = replace(resources.pop(ORDERS), address=new)
    reader = resources[NAMED]
    resources[NAMED] = replace(reader, references={**reader.references, "reads[0]": new})
    world.commit(replace(state, serial=3, resources=resources))
    assert copies.seen(new).held == "generation 2 runs beside it: 2 of 8 records are read"
    assert generations(world)["source.bookings"] == 1
    assert generations(world)["source.bookings@2"] == 2


def test_a_source_replaced_in_place_stops_first(world: World, copies: Copies) -> None:
    world.commit(first := make_state(replace="in-place"))
    assert copies.seen(ORDERS).condition == "running"
    world.commit(replaced(first, ORDERS))
    assert copies.seen(ORDERS).generation == 2
    assert not any("@" in name for _, name in world.executor.log)


def test_a_generation_in_place_waits_for_the_one_beside_to_stop(
    world: World, copies: Copies, state: State
) -> None:
    """It may begin with the rows of that generation, which must not grow meanwhile."""
    body = {**state.resources[ORDERS].body, "lifecycle": {"replace": "from-collection"}}
    running = set(world.executor.running())
    began = len(world.executor.log)
    third = replaced(edited(state, ORDERS, body=body), ORDERS, NAMED, generation=3)
    assert NEW in running
    world.commit(third)
    assert copies.seen(ORDERS).generation == 3
    log = [(action, name.rpartition(":")[0].partition(".")[2]) for action, name in world.executor.log[began:]]
    assert ("start", "orders@3:g3:2") not in log
    assert log.index(("stop", "orders@2:g2:2")) < log.index(("start", "orders:g3:2"))
