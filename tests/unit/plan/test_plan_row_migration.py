"""Plans that migrate a source's rows: `lifecycle: {replace: from-collection}`."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mzplan.model.plan import Change, Plan
from mzplan.model.resources import Instance, Resource
from mzplan.model.state import State
from mzplan.plan import build_plan
from tests.tasks import backfill
from tests.unit.small_projects import (
    at,
    change_of,
    commit,
    commit_plan,
    observe,
    shop,
    source,
)

KEPT = {"replace": "from-collection"}


def orders(columns: str = "id BIGINT, amount INT", **body: Any) -> Resource:
    return source(columns=columns, lifecycle=KEPT, **body)


STATE = commit(shop(orders=orders()))


def planned(before: Resource, after: Resource) -> tuple[State, Plan, Change, Change]:
    state = commit(shop(orders=before))
    plan = build_plan(shop(orders=after), state)
    return state, plan, change_of(plan, "source.orders"), change_of(plan, "sink.orders_pg")


def errors(plan: Plan) -> list[str]:
    return [one.code for one in plan.diagnostics if one.severity == "error"]


def former_generations(plan: Plan) -> list[int]:
    """Return the generations whose rows the source may begin with. The runner takes the newest that has
    begun."""
    after = change_of(plan, "source.orders").after
    generations, former = list[int](), after and after.predecessor
    while former:
        generations.append(former.generation)
        former = former.predecessor
    return generations


def notices(plan: Plan) -> list[str]:
    return [f"{one.code} {one.summary}" for one in plan.diagnostics]


@pytest.mark.parametrize(
    "columns",
    ["id BIGINT, amount BIGINT", "amount DECIMAL(10,0), id BIGINT", "id BIGINT", "id DECIMAL(20,1)"],
)
def test_other_columns_replace_the_source_and_its_sinks_continue(columns: str) -> None:
    state, plan, of_source, of_sink = planned(orders(), orders(columns))
    assert (of_source.action, of_source.effect, of_source.migrates_rows) == ("replace", "replace", True)
    after = of_source.after
    assert after is not None and after.predecessor is not None and after.generation == 2
    assert former_generations(plan) == [1]
    assert after.predecessor.body == state.resources[at("source.orders")].body
    assert (of_sink.action, of_sink.fate) == ("restart", "restart")
    assert of_sink.after is not None and of_sink.after.generation == 1
    told = [one.partition(":")[0] for one in notices(plan) if "MZ306" not in one]
    assert told == ["MZ045 source.orders", "MZ045 sink.orders_pg"]
    again = commit_plan(plan, state)
    assert build_plan(shop(orders=orders(columns)), again).is_empty
    assert again.resources[at("source.orders")].predecessor == after.predecessor


def replaced(columns: str, state: State, **seen: Any) -> Plan:
    """`seen`: the runner's observation of the source; empty if it hasn't reported it."""
    return build_plan(shop(orders=orders(columns)), state, observe(state, orders=seen) if seen else {})


NOT_BEGUN: dict[str, Any] = {"generation": 1, "digest": "1:former", "condition": "rejected"}


def test_a_second_migration_is_refused_until_the_first_has_run() -> None:
    state = commit_plan(replaced("id BIGINT, amount BIGINT", STATE), STATE)
    wider = "id BIGINT, amount DECIMAL(20,0)"
    stopped: dict[str, Any] = {"generation": 2, "digest": "", "condition": "starting"}
    for seen in (dict[str, Any](), NOT_BEGUN, stopped):
        (error,) = [one for one in replaced(wider, state, **seen).diagnostics if one.severity == "error"]
        assert error.code == "MZ275" and "generation 1 yet" in error.summary
    for seen in ({"condition": "running"}, {**stopped, "step": 0}):
        plan = replaced(wider, state, **seen)
        assert errors(plan) == [] and former_generations(plan) == [2]
    # Everything that replaces it is refused: whatever the upstream has lost meanwhile, only generation 1 has.
    for other in (orders(wider, topic="another"), source(columns=wider, topic="another")):
        assert errors(build_plan(shop(orders=other), state, observe(state, orders=NOT_BEGUN))) == ["MZ275"]


def test_the_columns_can_be_put_back_before_the_migration_has_run() -> None:
    narrow, wide = "id BIGINT, amount INT", "id BIGINT, amount BIGINT"
    state = commit_plan(replaced(wide, STATE), STATE)
    for seen in ({}, NOT_BEGUN):
        plan = replaced(narrow, state, **seen)
        assert not [one for one in plan.diagnostics if one.severity != "notice" and one.code != "MZ306"]
        after = change_of(plan, "source.orders").after
        assert after is not None and after.generation == 3 and former_generations(plan) == [2, 1]
        assert change_of(plan, "sink.orders_pg").action == "restart"
    back = commit_plan(replaced(narrow, state, **NOT_BEGUN), state)
    # Generation 2 has begun after all, before its runner has seen the third one.
    begun = {"generation": 2, "digest": "1:second", "condition": "rejected"}
    plan = replaced(wide, back, **begun)
    assert not [one for one in plan.diagnostics if one.severity != "notice"]
    assert former_generations(plan) == [3, 2]
    assert errors(replaced("id BIGINT", back, **begun)) == ["MZ275"]


def test_a_migration_on_a_dry_instance_does_not_block_the_next() -> None:
    dry = {"local": Instance(name="local", type="dry")}
    state = commit(shop(dry, orders=orders("id BIGINT, amount INT")))
    for columns in ("id BIGINT, amount BIGINT", "id BIGINT"):
        plan = build_plan(shop(dry, orders=orders(columns)), state)
        assert change_of(plan, "source.orders").migrates_rows and errors(plan) == []
        state = commit_plan(plan, state)


def test_a_plan_says_which_open_tasks_a_replace_cancels() -> None:
    asked = backfill(1, "2026-11-01T08:00:00Z", "2026-11-01T09:00:00Z")
    record = dataclasses.replace(STATE.resources[at("source.orders")], tasks=(asked,))
    state = dataclasses.replace(STATE, resources={**STATE.resources, record.address: record})
    given_up = f"MZ045 source.orders: cancels the {asked}"
    for columns, lifecycle in (("id BIGINT", KEPT), ("id STRING", {"replace": "in-place"})):
        wanted = shop(orders=source(columns=columns, lifecycle=lifecycle))
        open_ = observe(state, orders={"digest": "1:before"})
        assert given_up in notices(build_plan(wanted, state, open_))
        assert given_up not in notices(build_plan(wanted, state, observe(state)))
