"""Renames keep the query's storage. Forgetting, adopting and rolling back are ordinary plans."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mzplan.features.state.edit_plans import plan_adopt, plan_forget, plan_move, plan_rollback
from mzplan.model.diagnostics import ExitCode
from mzplan.model.resources import Configuration
from mzplan.model.state import Forgotten, State
from mzplan.plan import apply_changes, build_plan
from tests.support import refusal
from tests.unit.small_projects import (
    actions,
    at,
    change_of,
    commit,
    commit_plan,
    console,
    effects,
    fields,
    kafka,
    postgres,
    project,
    shop,
    sink,
    source,
)

STATE = commit(shop())
MOVED = {"lifecycle": {"moved_from": "orders"}}


def renamed_source(**more: Any) -> Configuration:
    body = {"topic": "orders", **MOVED, **more}
    return project(kafka(), postgres(), source("sales", **body), sink(**{"from": "sales"}))


def test_a_renamed_source_keeps_its_id_and_its_sinks_run_on() -> None:
    plan = build_plan(renamed_source(), STATE)
    assert actions(plan) == {"source.sales": "move", "sink.orders_pg": "update"}
    assert effects(plan) == {"source.sales": "restart", "sink.orders_pg": "in-place"}
    assert fields(plan, "sink.orders_pg") == {"from": ("orders", "sales", "in-place")}
    before, after = STATE.resources[at("source.orders")], change_of(plan, "source.sales").after
    assert after is not None and after.digest == before.digest
    assert (after.id, after.generation) == (before.id, before.generation)
    new = commit_plan(plan, STATE)
    assert at("source.orders") not in new.resources
    assert new.resources[at("sink.orders_pg")].digest == STATE.resources[at("sink.orders_pg")].digest
    assert build_plan(renamed_source(), new).is_empty
    # Without a resource of the former name, it has no effect.
    assert set(actions(build_plan(renamed_source(), State(project="shop"))).values()) == {"create"}


@pytest.mark.parametrize(
    ("former", "to"),
    [("source.no", "source.x"), ("source.orders", "sink.x"), ("source.orders", "source.orders")],
)
def test_an_impossible_move_by_hand_is_a_usage_error(former: str, to: str) -> None:
    assert refusal(lambda: plan_move(STATE, at(former), at(to))).exit_code == ExitCode.USAGE


def test_a_forgotten_query_can_be_adopted_and_continues() -> None:
    both = [at("source.orders"), at("sink.orders_pg")]
    old = STATE.resources[both[0]]
    empty = commit_plan(plan_forget(STATE, both, {}), STATE)
    found = refusal(lambda: plan_adopt(shop(), empty, both[1], "x", 1))
    assert "import or apply source.orders first" in found.hint
    new = commit_plan(plan_adopt(shop(), empty, both[0], old.id, old.generation), empty)
    assert new.resources[both[0]] == old
    again = plan_adopt(shop(), new, both[1], STATE.resources[both[1]].id, 1)
    assert build_plan(shop(), commit_plan(again, new)).is_empty
    assert refusal(lambda: plan_adopt(shop(), new, both[1], old.id, 1)).code == "MZ038"


def test_adopting_brings_connections_along() -> None:
    plan = plan_adopt(shop(), State(project="shop"), at("source.orders"), "abc", 3)
    assert actions(plan) == {"connection.k": "create", "source.orders": "create"}
    new = apply_changes(State(project="shop"), plan)
    assert new.resources[at("source.orders")].id == "abc" and new.instances


def test_a_rollback_restores_the_former_resources() -> None:
    later = commit(
        shop(k=kafka(brokers=["b:9092"]), orders=source(description="d"), new=console("new", "orders")), STATE
    )
    plan = plan_rollback(later, STATE)
    assert effects(plan) == {"connection.k": "restart", "source.orders": "restart", "sink.new": "none"}
    back = commit_plan(plan, later)
    assert (back.serial, back.resources) == (3, STATE.resources)
    assert plan_rollback(back, STATE).is_empty
    without = commit(project(kafka(), source()), STATE)
    assert commit_plan(plan_rollback(without, STATE), without).resources == STATE.resources
    # A replaced generation never comes back.
    replaced = commit(shop(orders=source(topic="other")), STATE)
    found = refusal(lambda: plan_rollback(replaced, STATE))
    assert (found.exit_code, found.code) == (ExitCode.REFUSED, "MZ038")


def test_forgotten_storage_survives_commits() -> None:
    place = Forgotten(at("source.x"), 2)
    kept = dataclasses.replace(STATE, forgotten={"abc": place})
    assert commit(shop(new=console("new", "orders")), kept).forgotten == {"abc": place}
