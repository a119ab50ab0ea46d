"""Views wait for the first copy of the collections that they read as tables."""

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
from tests.unit.small_projects import at, commit, kafka, project, source

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
