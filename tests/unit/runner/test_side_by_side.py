"""A replaced view serves its former generation until the new one, beside it, has read as much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from mzplan.model.address import MAX_NAME, Address
from mzplan.model.losses import FirstCopy
from mzplan.model.resources import Resource
from mzplan.model.state import State
from mzplan.model.tasks import ERASURE
from mzplan.operations.follower import OutcomeFollower
from mzplan.plan.drift import drift_of_instance
from mzplan.runner.metrics import RunnerCollector
from mzplan.runner.run_events.watch import RunEvent, RunWatch
from mzplan.schema.description import digest_of
from tests.tasks import task
from tests.unit.reporters import SilentReporter
from tests.unit.runner.test_first_copies import Copies, view
from tests.unit.runner.test_runner import ORDERS, HookedExecutor, World, edited
from tests.unit.small_projects import at, commit, kafka, postgres, project, sink, source

NAMED, COUNTED, WRITTEN = at("view.named"), at("view.counted"), at("sink.written")
NEW, NEW_COUNTED = NAMED.beside(2), COUNTED.beside(2)


@pytest.fixture
def copies(world: World) -> Copies:
    return Copies(world)


def make_state(*views: Resource) -> State:
    """A source, views over it, and a sink of the last view."""
    written = sink("written", **{"from": views[-1].address.name})
    written = replace(written, references={**written.references, "from": views[-1].address})
    resources = [kafka(), postgres(), source("orders"), *views, written]
    state = commit(project(*resources, warehouse="w"))
    ids = {a: replace(one, id=a.name, because=None) for a, one in state.resources.items()}
    return replace(state, serial=1, lineage="l", settings=None, resources=ids)


def replaced(state: State, *views: Address, generation: int = 2) -> State:
    """New generations of the views, and readers that follow them."""
    after = replace(state, serial=state.serial + 1)
    for address in views:
        after = edited(after, address, generation=generation)
    resources = dict(after.resources)
    for address in [a for a in resources if a.reads_collections]:
        resources[address] = replace(resources[address], digest=digest_of(resources[address], resources))
    return replace(after, resources=resources)


def generations(world: World) -> Mapping[str, int]:
    return {str(address): run.name.generation for address, run in world.executor.running().items()}


def steps(read: int, end: int) -> FirstCopy:
    return FirstCopy(read=(read,), ends=(end,), unit="step")


@pytest.fixture
def state(world: World, copies: Copies) -> State:
    """A view that runs, and its new generation that has read 2 of 8 steps; the former one has read 7."""
    first = make_state(view("named", "source.orders"))
    world.commit(first)
    assert copies.seen(NAMED).condition == "running"
    copies.by_place |= {("named", 1): steps(7, 8), ("named", 2): steps(2, 8)}
    world.commit(after := replaced(first, NAMED))
    assert copies.seen(NAMED).held == "generation 2 runs beside it: 2 of 8 steps are read"
    return after


def test_the_former_generation_serves_until_the_new_one_has_read_as_much(
    world: World, copies: Copies, state: State
) -> None:
    assert generations(world) == {"source.orders": 1, "view.named": 1, "view.named@2": 2, "sink.written": 1}
    seen = copies.seen(WRITTEN)
    assert seen.held == "waits for generation 2 of view.named to start"
    assert seen.digest != seen.wanted_digest
    # The new generation has read what was there when it began, but the former one has read more since.
    copies.by_place |= {("named", 1): steps(9, 9), ("named", 2): steps(8, 9)}
    assert copies.seen(NAMED).held == "generation 2 runs beside it: 8 of 9 steps are read"
    copies.by_place["named", 2] = steps(9, 9)
    seen = copies.seen(NAMED)
    assert (seen.condition, seen.generation, seen.held) == ("running", 2, None)
    assert generations(world) == {"source.orders": 1, "view.named": 2, "sink.written": 1}
    seen = copies.seen(WRITTEN)
    assert (seen.condition, seen.held, seen.digest) == ("running", None, seen.wanted_digest)
    assert NEW not in world.status().observations


def test_metrics_and_run_events_show_both_generations(world: World, copies: Copies, state: State) -> None:
    collector = RunnerCollector(world.runner, "/nowhere", drift_of_instance)
    samples = [sample for family in collector.collect() for sample in family.samples]
    running = {
        sample.labels["query"]
        for sample in samples
        if sample.name == "mzplan_query_condition"
        and sample.labels["condition"] == "running"
        and sample.value
    }
    assert running == {"source.orders", "view.named", "view.named@2", "sink.written"}
    events: list[RunEvent] = []
    RunWatch(events.append, 60.0, clock=lambda: world.now).observe(world.runner.overview)
    places = {str(event.description.address): event.description.place for event in events}
    assert places["view.named"] == ("named", 1) and places["view.named@2"] == ("named", 2)


def test_never_do_two_queries_write_one_collection(world: World, copies: Copies, state: State) -> None:
    copies.by_place["named", 2] = steps(8, 8)
    assert copies.seen(NAMED).generation == 2
    writers = set[str]()
    for action, name in world.executor.log:
        if action == "start" and "view.named" in name and ":g2:" in name:
            assert not writers, f"{name} starts beside {writers}"
            writers.add(name)
        elif action == "stop":
            writers.discard(name)
    assert writers


def test_the_next_runner_continues_with_both(world: World, copies: Copies, state: State) -> None:
    world.next_runner(HookedExecutor("shop"))
    copies.use(world.executor)
    assert copies.seen(NAMED).held == "generation 2 runs beside it: 2 of 8 steps are read"
    assert generations(world)["view.named"] == 1
    assert generations(world)["view.named@2"] == 2
    copies.by_place["named", 2] = steps(8, 8)
    assert copies.seen(NAMED).generation == 2


def test_a_new_generation_that_fails_changes_nothing_in_service(
    world: World, copies: Copies, state: State
) -> None:
    world.executor.fail_start = lambda query: "no memory" if query.address == NEW else None
    world.fail(NEW, "no memory")
    seen = copies.seen(NEW)
    assert (seen.condition, seen.error) == ("failed", "no memory.")
    assert copies.seen(NAMED).condition == "running"
    assert generations(world)["view.named"] == 1
    follower = OutcomeFollower(world.store, state, "local", {NAMED, WRITTEN}, others=False)
    outcomes = follower.follow(5.0, SilentReporter(), lambda: None)
    view_, sink_ = outcomes[NAMED], outcomes[WRITTEN]
    assert (view_.status, view_.reason) == ("failed", "no memory.")
    assert (sink_.status, sink_.code) == ("pending", "MZ065")
    assert "view.named@2 is failed: MZ064: no memory" in sink_.reason
    drift = drift_of_instance(state, world.status(), world.now)
    assert [(item.address, item.kind) for item in drift] == [("view.named@2", "failed-query")]


def test_a_rollback_gives_the_new_generation_up(world: World, copies: Copies, state: State) -> None:
    runs = {a: r.run_id for a, r in world.executor.running().items()}
    world.commit(replaced(replace(state, serial=2), NAMED, generation=1))
    assert copies.seen(NAMED).condition == "running"
    after = {a: r.run_id for a, r in world.executor.running().items()}
    assert after == {a: run for a, run in runs.items() if a != NEW}


def test_a_second_replace_gives_the_first_up(world: World, copies: Copies, state: State) -> None:
    copies.by_place["named", 3] = steps(1, 8)
    world.commit(replaced(state, NAMED, generation=3))
    assert copies.seen(NAMED).held == "generation 3 runs beside it: 1 of 8 steps are read"
    expected = {"source.orders": 1, "view.named": 1, "view.named@3": 3, "sink.written": 1}
    assert generations(world) == expected


@pytest.mark.parametrize("beside", [True, False])
def test_a_new_generation_waits_until_an_erasure_is_done(world: World, copies: Copies, beside: bool) -> None:
    """Else it would begin with a version of the collection that still has the rows."""
    named = view("named", "source.orders")
    if not beside:
        named = replace(named, body={**named.body, "lifecycle": {"replace": "in-place"}})
    first = make_state(named)
    world.commit(first)
    assert copies.seen(NAMED).condition == "running"
    copies.by_place |= {("named", 1): steps(7, 8), ("named", 2): steps(2, 8)}
    erasure = task(ERASURE, 2, "erase of rows")
    before = generations(world)
    world.executor.fail_start = lambda query: "no memory" if query.tasks else None
    world.commit(edited(replaced(first, NAMED), ORDERS, tasks=(erasure,)))
    waits = "waits for the erasure of source.orders"
    assert copies.seen(NAMED).held == waits
    assert {**generations(world), "source.orders": 1} == before
    world.next_runner()
    copies.use(world.executor)
    assert copies.seen(NAMED).held == waits
    assert {**generations(world), "source.orders": 1} == before
    world.executor.fail_start = lambda query: None
    world.later(100.0)
    assert copies.seen(ORDERS).condition == "running"
    assert copies.seen(NAMED).held == (
        "generation 2 runs beside it: 2 of 8 steps are read" if beside else None
    )
    assert generations(world)["view.named@2" if beside else "view.named"] == 2


def test_a_query_that_has_never_run_waits_for_an_erasure(world: World, copies: Copies) -> None:
    first = make_state(view("named", "source.orders"))
    erasure = task(ERASURE, 2, "erase of rows")
    world.executor.fail_start = lambda query: "no memory" if query.tasks else None
    world.commit(edited(first, ORDERS, tasks=(erasure,)))
    assert copies.seen(NAMED).held == "waits for the erasure of source.orders"
    assert "view.named" not in generations(world)
    world.executor.fail_start = lambda query: None
    world.later(100.0)
    assert copies.seen(NAMED).condition == "running"


def test_a_pause_stops_both(world: World, copies: Copies, state: State) -> None:
    world.commit(edited(replace(state, serial=3), NAMED, override="paused"))
    assert copies.seen(NAMED).condition == "paused"
    assert generations(world) == {"source.orders": 1, "sink.written": 1}


def test_views_that_read_each_other_take_over_together(world: World, copies: Copies) -> None:
    first = make_state(view("counted", "source.orders"), view("named", "view.counted"))
    world.commit(first)
    assert copies.seen(NAMED).condition == "running"
    copies.by_place |= {("counted", 1): steps(8, 8), ("counted", 2): steps(8, 8)}
    copies.by_place |= {("named", 1): steps(5, 5), ("named", 2): steps(2, 5)}
    world.commit(replaced(first, COUNTED, NAMED))
    assert copies.seen(NAMED).held == "generation 2 runs beside it: 2 of 5 steps are read"
    assert copies.seen(COUNTED).held == "waits to be replaced together with view.named"
    both = {"view.counted": 1, "view.counted@2": 2, "view.named": 1, "view.named@2": 2}
    assert generations(world) == {"source.orders": 1, "sink.written": 1, **both}
    copies.by_place["named", 2] = steps(5, 5)
    assert copies.seen(NAMED).generation == 2
    assert copies.seen(COUNTED).generation == 2
    after = {"source.orders": 1, "view.counted": 2, "view.named": 2, "sink.written": 1}
    assert generations(world) == after


def test_no_apply_awaits_a_view_that_takes_over_with_a_manual_one(world: World, copies: Copies) -> None:
    named = view("named", "view.counted")
    named = replace(named, body={**named.body, "lifecycle": {"cut_over": "manual"}})
    first = make_state(view("counted", "source.orders"), named)
    world.commit(first)
    assert copies.seen(NAMED).condition == "running"
    copies.by_place |= {("counted", n): steps(8, 8) for n in (1, 2)}
    copies.by_place |= {("named", n): steps(5, 5) for n in (1, 2)}
    world.commit(after := replaced(first, COUNTED, NAMED))
    assert copies.seen(NAMED).held == "generation 2 waits for `mzplan cut-over view.named`"
    assert copies.seen(COUNTED).held == "waits to be replaced together with view.named"
    follower = OutcomeFollower(world.store, after, "local", {COUNTED, NAMED, WRITTEN}, others=False)
    outcomes = follower.follow(60.0, SilentReporter(), lambda: None)
    assert {(o.status, o.code) for o in outcomes.values()} == {("pending", "MZ065")}
    assert all(outcome.seconds < 30 for outcome in outcomes.values())


def test_the_first_generation_has_none_beside_it(world: World, copies: Copies) -> None:
    any_: dict[str, Any] = {"source.orders": 1, "view.named": 2, "sink.written": 1}
    world.commit(replaced(make_state(view("named", "source.orders")), NAMED))
    assert copies.seen(NAMED).condition == "running"
    assert generations(world) == any_


def test_a_reader_of_a_snapshot_moves_with_the_others(world: World, copies: Copies) -> None:
    first = make_state(view("named", "source.orders"), view("counted", "source.orders", NAMED))
    world.commit(first)
    assert copies.seen(COUNTED).condition == "running"
    copies.by_place |= {("named", 1): steps(8, 8), ("named", 2): steps(2, 8)}
    world.commit(replaced(first, NAMED))
    seen = copies.seen(COUNTED)
    assert (seen.condition, seen.held) == ("running", "waits for generation 2 of view.named to start")
    copies.by_place["named", 2] = steps(8, 8)
    seen = copies.seen(COUNTED)
    assert (seen.condition, seen.held, seen.digest) == ("running", None, seen.wanted_digest)


def test_a_renamed_view_keeps_its_generation_in_service(world: World, copies: Copies, state: State) -> None:
    resources = dict(state.resources)
    record = resources.pop(NAMED)
    new = at("view.called")
    resources[new] = replace(record, address=new)
    reader = resources[WRITTEN]
    resources[WRITTEN] = replace(reader, references={**reader.references, "from": new})
    world.commit(replace(state, serial=3, resources=resources))
    assert copies.seen(new).held == "generation 2 runs beside it: 2 of 8 steps are read"
    expected = {"source.orders": 1, "view.called": 1, "view.called@2": 2, "sink.written": 1}
    assert generations(world) == expected


def test_a_paused_view_holds_no_other_back(world: World, copies: Copies) -> None:
    first = make_state(view("counted", "source.orders"), view("named", "view.counted"))
    world.commit(first)
    assert copies.seen(NAMED).condition == "running"
    copies.by_place |= {("counted", 1): steps(8, 8), ("counted", 2): steps(8, 8)}
    copies.by_place |= {("named", 1): steps(5, 5), ("named", 2): steps(2, 5)}
    world.commit(edited(replaced(first, COUNTED, NAMED), NAMED, override="paused"))
    assert copies.seen(COUNTED).generation == 2
    assert copies.seen(NAMED).condition == "paused"


def test_a_failed_former_generation_is_still_the_one_in_service(
    world: World, copies: Copies, state: State
) -> None:
    world.executor.fail_start = lambda query: "no memory" if query.address == NAMED else None
    world.fail(NAMED, "no memory")
    seen = copies.seen(NAMED)
    assert (seen.condition, seen.generation, seen.wanted_generation) == ("failed", 1, 2)


def test_a_long_name_has_room_for_a_generation() -> None:
    longest = Address("view", "v" * MAX_NAME)
    assert Address.parse(str(longest.beside(12))) == longest.beside(12)
    with pytest.raises(ValueError, match="is not an address"):
        Address.parse(f"view.{'v' * (MAX_NAME + 1)}@2")
