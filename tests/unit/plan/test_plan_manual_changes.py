"""Plans for pause, resume, restart and destroy."""

from __future__ import annotations

from typing import Any

import pytest

from mzplan.model.diagnostics import ExitCode
from mzplan.model.state import State
from mzplan.plan import build_plan
from mzplan.plan.manual_changes import plan_destroy, plan_pause, plan_restart, plan_resume
from tests.support import refusal
from tests.unit.small_projects import (
    actions,
    at,
    change_of,
    commit,
    commit_plan,
    fields,
    names,
    shop,
    source,
)

ORDERS = at("source.orders")
BASE = shop()


def test_pause_is_an_override_that_a_later_plan_leaves_alone(state: State) -> None:
    plan = plan_pause(state, [ORDERS])
    assert actions(plan) == {"source.orders": "update"}
    assert fields(plan, "source.orders") == {"paused": (False, True, "in-place")}
    change = change_of(plan, "source.orders")
    assert (change.effect, change.reason) == ("in-place", "paused by hand")
    paused = commit_plan(plan, state)
    record = paused.resources[ORDERS]
    assert record.override == "paused" and record.paused
    assert record.digest == state.resources[ORDERS].digest
    assert build_plan(BASE, paused).is_empty
    assert (paused.serial, paused.lineage, paused.instances) == (2, state.lineage, state.instances)


def test_resume_undoes_pause_and_either_twice_changes_nothing(state: State) -> None:
    paused = commit_plan(plan_pause(state, [ORDERS]), state)
    assert plan_pause(paused, [ORDERS]).is_empty and plan_resume(state, [ORDERS]).is_empty
    assert commit_plan(plan_resume(paused, [ORDERS]), paused).resources == state.resources


def test_resume_overrides_a_pause_of_the_configuration() -> None:
    state = commit(shop(orders=source(paused=True)))
    resumed = commit_plan(plan_resume(state, [ORDERS]), state)
    assert resumed.resources[ORDERS].override == "resumed" and not resumed.resources[ORDERS].paused
    again = commit_plan(plan_pause(resumed, [ORDERS]), resumed)
    assert again.resources == state.resources


def test_restart_is_a_token_in_the_digest(state: State) -> None:
    plan = plan_restart(state, [ORDERS, ORDERS])
    assert actions(plan) == {"source.orders": "restart"}
    assert names(plan.downstream) == ["sink.orders_pg"] and plan.unaffected == 2
    restarted = commit_plan(plan, state)
    record = restarted.resources[ORDERS]
    assert record.restart_token == 1 and record.generation == 1
    assert record.digest != state.resources[ORDERS].digest
    assert build_plan(BASE, restarted).is_empty
    twice = commit_plan(plan_restart(restarted, [ORDERS]), restarted)
    assert len({s.resources[ORDERS].digest for s in (state, restarted, twice)}) == 3


def test_restarting_a_paused_query_says_that_it_stays_paused(state: State) -> None:
    paused = commit_plan(plan_pause(state, [ORDERS]), state)
    (found,) = plan_restart(paused, [ORDERS]).diagnostics
    assert (found.severity, found.code) == ("notice", "MZ045")


def test_destroy_deletes_everything_dependents_first(state: State) -> None:
    plan = plan_destroy(state)
    deleted = ["sink.orders_pg", "source.orders", "connection.pg", "connection.k"]
    assert list(actions(plan).items()) == [(address, "delete") for address in deleted]
    assert plan.unaffected == 0
    after = commit_plan(plan, state)
    assert after.resources == {} and after.serial == 2 and after.lineage == state.lineage


def test_destroying_a_target_takes_its_dependents_along(state: State) -> None:
    plan = plan_destroy(state, [ORDERS])
    assert actions(plan) == {"sink.orders_pg": "delete", "source.orders": "delete"}
    assert change_of(plan, "sink.orders_pg").reason == "depends on a destroyed resource"
    assert plan.unaffected == 2


NEAREST, ITS_QUERY = "did you mean source.orders?", "name a query that uses it: source.orders"
FOR_QUERIES = (plan_pause, plan_resume, plan_restart)


@pytest.mark.parametrize(
    ("plan", "address", "hint"),
    [
        *((plan, "source.order", NEAREST) for plan in (*FOR_QUERIES, plan_destroy)),
        *((plan, "connection.k", ITS_QUERY) for plan in FOR_QUERIES),
    ],
)
def test_an_unusable_address_is_a_usage_error(state: State, plan: Any, address: str, hint: str) -> None:
    found = refusal(lambda: plan(state, [at(address)]))
    assert (found.code, found.hint, found.exit_code) == ("MZ070", hint, ExitCode.USAGE)
