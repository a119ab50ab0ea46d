"""History: what is between two serials, read as a plan; and what each commit has recorded of itself."""

from __future__ import annotations

import dataclasses

import pytest

from mzplan.model.address import Address
from mzplan.model.plan import Plan
from mzplan.model.state import State
from mzplan.plan import apply_changes, build_plan
from mzplan.plan.between import plan_between
from mzplan.plan.manual_changes import plan_destroy, plan_pause, plan_restart, plan_resume
from mzplan.plan.state_edits import plan_move
from tests.unit.small_projects import commit, kafka, shop, sink, source

ORDERS, SINK = Address.parse("source.orders"), Address.parse("sink.orders_pg")


def same_view(plan: Plan, before: State) -> None:
    """What was planned is what is read back from the two states."""
    found = plan_between(before, apply_changes(before, plan))
    for one, other in zip(plan.changes, found.changes, strict=True):
        for name in ("address", "action", "effect", "fields", "triggered_by", "ways", "reason"):
            assert getattr(one, name) == getattr(other, name), (one.address, name)
    assert (found.downstream, found.unaffected) == (plan.downstream, plan.unaffected)
    assert found.serial == before.serial and not found.diagnostics


@pytest.mark.parametrize(
    "after",
    [
        shop(k=kafka(brokers=["b:9092"])),
        shop(orders=source(topic="other")),
        shop(orders_pg=sink(where="amount > 0")),
        shop(orders=source(description="x"), more=source("more")),
    ],
)
def test_what_was_planned_of_files_is_read_back(after: object) -> None:
    before = commit(shop())
    same_view(build_plan(after, before), before)  # type: ignore[arg-type]


def test_what_was_done_by_hand_is_read_back() -> None:
    before = commit(shop())
    paused = apply_changes(before, plan_pause(before, [ORDERS]))
    same_view(plan_pause(before, [ORDERS]), before)
    same_view(plan_resume(paused, [ORDERS]), paused)
    same_view(plan_restart(before, [ORDERS]), before)
    moved = plan_move(before, ORDERS, Address.parse("source.renamed"))
    found = plan_between(before, apply_changes(before, moved)).changes
    assert [(c.address, c.action, c.effect) for c in found] == [
        (c.address, c.action, c.effect) for c in moved.changes
    ]
    same_view(build_plan(shop(), before, replace=[ORDERS]), before)
    gone = plan_between(before, apply_changes(before, plan_destroy(before)))
    assert {c.action for c in gone.changes} == {"delete"}
    first = plan_between(State(project="shop"), before)
    assert {c.action for c in first.changes} == {"create"}


def test_what_was_deleted_and_created_again_begins_anew() -> None:
    before = commit(shop())
    record = before.resources[SINK]
    after = dataclasses.replace(
        before, serial=9, resources={**before.resources, SINK: dataclasses.replace(record, id="ff")}
    )
    (change,) = plan_between(before, after).changes
    assert (change.address, change.action) == (SINK, "replace")
