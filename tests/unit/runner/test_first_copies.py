"""Queries wait for the first copy of the collections that they need as a whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mzplan.model.address import Address, Place
from mzplan.model.losses import NO_STEPS, NOT_BEGUN, FirstCopy
from mzplan.model.observed import Observation
from mzplan.model.resources import Resource
from mzplan.model.state import State
from mzplan.schema.description import digest_of
from tests.unit.runner.test_runner import ORDERS, HookedExecutor, World, edited
from tests.unit.small_projects import at, commit, kafka, postgres, project, sink, source

CUSTOMERS, NAMED, COUNTED = at("source.customers"), at("view.named"), at("view.counted")
COPYING = FirstCopy(read=(1200,), ends=(5000,), unit="record")
WAITS = "waits for the first copy of source.customers"


def view(name: str, stream: str, *tables: Address) -> Resource:
    references = {"reads[0]": at(stream)} | {f"snapshots[{i}]": table for i, table in enumerate(tables)}
    body: dict[str, Any] = {"query": f"SELECT id FROM {at(stream).name}", "schema": "id BIGINT"}
    return Resource(address=Address("view", name), type="sql", body=body, references=references)


def make_state(*views: Resource) -> State:
    """Two sources, and views over them."""
    sources = [source("orders"), source("customers")]
    state = commit(project(kafka(), *sources, *views, warehouse="w"))
    ids = {a: replace(one, id=a.name, because=None) for a, one in state.resources.items()}
    return replace(state, serial=1, lineage="l", settings=None, resources=ids)


def replaced(state: State) -> State:
    """A new generation of the customers, for which the view restarts."""
    after = edited(replace(state, serial=state.serial + 1), CUSTOMERS, generation=2)
    resources = dict(after.resources)
    resources[NAMED] = replace(resources[NAMED], digest=digest_of(resources[NAMED], resources))
    return replace(after, resources=resources)


class Copies:
    """The first copies by place; others are complete."""

    def __init__(self, world: World):
        self.by_place: dict[Place, FirstCopy] = {}
        self.world = world
        self.use(world.executor)

    def use(self, executor: HookedExecutor) -> None:
        executor.first_copies = lambda query: self.by_place.get(query.place, FirstCopy())

    def seen(self, address: Address) -> Observation:
        """Measure again, and return the observation."""
        for _ in range(3):
            self.world.later(2.0)
            self.world.rounds(3)  # the measurement runs on another thread
        return self.world.status().observations[address]


@pytest.fixture
def copies(world: World) -> Copies:
    return Copies(world)


@pytest.mark.parametrize(
    ("copy", "progress"),
    [
        (NOT_BEGUN, "it hasn't begun"),
        (FirstCopy(read=(0,), ends=(1,)), "it is being read"),
        (COPYING, "1,200 of 5,000 records are read"),
    ],
)
def test_a_view_waits_for_the_first_copy_of_its_snapshot(
    world: World, copies: Copies, copy: FirstCopy, progress: str
) -> None:
    copies.by_place["customers", 1] = copy
    world.commit(make_state(view("named", "source.orders", CUSTOMERS)))
    seen = copies.seen(NAMED)
    assert (seen.condition, seen.held) == ("starting", f"{WAITS}: {progress}")
    assert not world.runner.controller.busy
    # The next runner knows it, too.
    world.next_runner(HookedExecutor("shop"))
    copies.use(world.executor)
    assert copies.seen(NAMED).held == f"{WAITS}: {progress}"
    assert copies.seen(ORDERS).condition == "running"
    copies.by_place.clear()
    seen = copies.seen(NAMED)
    assert (seen.condition, seen.held) == ("running", None)
    # It has run with this generation, and doesn't wait for further rows.
    copies.by_place["customers", 1] = copy
    assert copies.seen(NAMED).condition == "running"


def test_a_copy_of_an_empty_upstream_is_complete_once_its_source_has_looked(
    world: World, copies: Copies
) -> None:
    copies.by_place["customers", 1] = NO_STEPS
    world.executor.triggers_at_once = False
    world.commit(make_state(view("named", "source.orders", CUSTOMERS)))
    world.until(lambda: CUSTOMERS in world.executor.running())
    world.now += 2.0
    world.until(lambda: world.status().observations[NAMED].held == f"{WAITS}: it is being read")
    world.executor.trigger()
    world.executor.triggers_at_once = True
    assert copies.seen(NAMED).condition == "running"


def test_a_limited_source_that_has_caught_up_has_its_first_copy(world: World, copies: Copies) -> None:
    copies.by_place["customers", 1] = COPYING
    world.commit(make_state(view("named", "source.orders", CUSTOMERS)))
    assert copies.seen(NAMED).held
    world.progress(CUSTOMERS, lag=0)
    assert copies.seen(NAMED).condition == "running"


def test_a_view_of_a_view_waits_for_the_innermost_source_first(world: World, copies: Copies) -> None:
    copies.by_place["customers", 1] = COPYING
    copies.by_place["counted", 1] = FirstCopy(read=(2,), ends=(3,), unit="step")
    views = view("counted", "source.customers"), view("named", "source.orders", COUNTED)
    world.commit(make_state(*views))
    waits = "waits for the first copy of view.counted"
    through = "which needs source.customers first: 1,200 of 5,000 records are read"
    assert copies.seen(NAMED).held == f"{waits}, {through}"
    del copies.by_place["customers", 1]
    assert copies.seen(NAMED).held == f"{waits}: 2 of 3 steps are read"
    # The input grows meanwhile: the view has to read what was there.
    copies.by_place["counted", 1] = FirstCopy(read=(3,), ends=(4,), unit="step")
    assert copies.seen(NAMED).condition == "running"


def test_a_view_stops_while_a_replaced_source_copies_again(world: World, copies: Copies) -> None:
    first = make_state(view("named", "source.orders", CUSTOMERS))
    world.commit(first)
    assert copies.seen(NAMED).condition == "running"
    copies.by_place["customers", 2] = NOT_BEGUN
    world.commit(replaced(first))
    seen = copies.seen(NAMED)
    assert (seen.condition, seen.digest) == ("running", first.resources[NAMED].digest)
    assert seen.held == f"{WAITS}: it hasn't begun"
    copies.by_place["customers", 2] = COPYING
    assert (copies.seen(NAMED).condition, NAMED in world.executor.running()) == ("starting", False)
    del copies.by_place["customers", 2]
    seen = copies.seen(NAMED)
    assert (seen.condition, seen.digest) == ("running", world.committed.resources[NAMED].digest)


def test_a_held_view_can_be_paused(world: World, copies: Copies) -> None:
    copies.by_place["customers", 1] = COPYING
    first = make_state(view("named", "source.orders", CUSTOMERS))
    world.commit(edited(first, NAMED, override="paused"))
    assert copies.seen(NAMED).condition == "paused"


CORRECTED = at("sink.corrected")


def corrected(state: State, generation: int) -> State:
    """New generations of the customers and of the sink that reads them."""
    return edited(
        replace(state, serial=state.serial + 1), CUSTOMERS, CORRECTED, generation=generation, because=None
    )


def test_a_sink_that_writes_a_difference_runs_its_former_generation_meanwhile(
    world: World, copies: Copies
) -> None:
    sinks = [
        sink("corrected", **{"from": "customers", "on_replace": "difference"}),
        sink("upserted", **{"from": "customers"}),
    ]
    state = commit(project(kafka(), postgres(), source("orders"), source("customers"), *sinks, warehouse="w"))
    ids = {a: replace(one, id=a.name, because=None) for a, one in state.resources.items()}
    first = replace(state, serial=1, lineage="l", settings=None, resources=ids)
    copies.by_place["customers", 1] = COPYING  # the first generation finds no rows of another one
    world.commit(first)
    assert copies.seen(CORRECTED).condition == "running"
    # Two replaces in a row: it waits for the newest one.
    for generation in (2, 3):
        copies.by_place["corrected", generation] = NOT_BEGUN
    copies.by_place["customers", 2] = COPYING
    second = corrected(first, 2)
    world.commit(second)
    seen = copies.seen(CORRECTED)
    assert (seen.condition, seen.generation) == ("running", 1)
    assert seen.held == f"{WAITS}: 1,200 of 5,000 records are read"
    copies.by_place["customers", 3] = COPYING
    third = corrected(second, 3)
    world.commit(third)
    del copies.by_place["customers", 2]
    assert (copies.seen(CORRECTED).generation, copies.seen(CUSTOMERS).generation) == (1, 3)
    # The next runner finds the same in the warehouse.
    world.next_runner(HookedExecutor("shop"))
    copies.use(world.executor)
    assert copies.seen(CORRECTED).generation == 1
    del copies.by_place["customers", 3]
    seen = copies.seen(CORRECTED)
    assert (seen.condition, seen.generation, seen.held) == ("running", 3, None)


def test_a_generation_that_has_begun_to_write_is_not_held_again(world: World, copies: Copies) -> None:
    sinks = sink("corrected", **{"from": "customers", "on_replace": "difference"})
    state = commit(project(kafka(), postgres(), source("customers"), sinks, warehouse="w"))
    ids = {a: replace(one, id=a.name, because=None) for a, one in state.resources.items()}
    first = replace(state, serial=1, lineage="l", settings=None, resources=ids)
    world.commit(first)
    assert copies.seen(CORRECTED).condition == "running"
    copies.by_place["customers", 2] = COPYING
    copies.by_place["corrected", 2] = NOT_BEGUN
    world.commit(corrected(first, 2))
    assert copies.seen(CORRECTED).generation == 1
    # Its former generation would write rows that nobody deletes any more.
    copies.by_place["corrected", 2] = FirstCopy(read=(0,), ends=(9,), unit="step")
    world.next_runner(HookedExecutor("shop"))
    copies.use(world.executor)
    seen = copies.seen(CORRECTED)
    assert (seen.condition, seen.generation, seen.held) == ("running", 2, None)
