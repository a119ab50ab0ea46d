"""Plans for pause, resume, restart and destroy; and the causes of a query's start that a commit records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mzplan.model.cause import Cause
from mzplan.model.codec import encode
from mzplan.model.diagnostics import ExitCode
from mzplan.model.state import State
from mzplan.plan import apply_changes, build_plan
from mzplan.plan.commit import MAX_DETAIL
from mzplan.plan.drift import started_because
from mzplan.plan.file import decode_plan, digest_of_plan, encode_plan
from mzplan.plan.manual_changes import plan_between, plan_destroy, plan_pause, plan_restart, plan_resume
from mzplan.render.plan_json import plan_to_json
from mzplan.store.formats import decode_state, encode_state
from tests.support import refusal
from tests.unit.small_projects import (
    actions,
    at,
    change_of,
    commit,
    commit_plan,
    fields,
    kafka,
    names,
    observe,
    shop,
    source,
)

ORDERS = at("source.orders")
BASE = shop()
STATE = commit(BASE)


def test_pause_is_an_override_that_a_later_plan_leaves_alone() -> None:
    plan = plan_pause(STATE, [ORDERS])
    assert actions(plan) == {"source.orders": "update"}
    assert fields(plan, "source.orders") == {"paused": (False, True, "in-place")}
    change = change_of(plan, "source.orders")
    assert (change.effect, change.reason) == ("in-place", "paused by hand")
    paused = commit_plan(plan, STATE)
    record = paused.resources[ORDERS]
    assert record.override == "paused" and record.paused
    assert record.digest == STATE.resources[ORDERS].digest
    assert build_plan(BASE, paused).is_empty
    assert (paused.serial, paused.lineage, paused.instances) == (2, STATE.lineage, STATE.instances)


def test_resume_undoes_pause_and_either_twice_changes_nothing() -> None:
    paused = commit_plan(plan_pause(STATE, [ORDERS]), STATE)
    assert plan_pause(paused, [ORDERS]).is_empty and plan_resume(STATE, [ORDERS]).is_empty
    assert commit_plan(plan_resume(paused, [ORDERS]), paused).resources == STATE.resources
    (found,) = plan_restart(paused, [ORDERS]).diagnostics  # it says that the query stays paused
    assert (found.severity, found.code) == ("notice", "MZ045")


def test_resume_overrides_a_pause_of_the_configuration() -> None:
    state = commit(shop(orders=source(paused=True)))
    resumed = commit_plan(plan_resume(state, [ORDERS]), state)
    assert resumed.resources[ORDERS].override == "resumed" and not resumed.resources[ORDERS].paused
    again = commit_plan(plan_pause(resumed, [ORDERS]), resumed)
    assert again.resources == state.resources


def test_restart_is_a_token_in_the_digest() -> None:
    plan = plan_restart(STATE, [ORDERS, ORDERS])
    assert actions(plan) == {"source.orders": "restart"}
    assert names(plan.downstream) == ["sink.orders_pg"] and plan.unaffected == 2
    restarted = commit_plan(plan, STATE)
    record = restarted.resources[ORDERS]
    assert record.restart_token == 1 and record.generation == 1
    assert record.digest != STATE.resources[ORDERS].digest
    assert build_plan(BASE, restarted).is_empty
    twice = commit_plan(plan_restart(restarted, [ORDERS]), restarted)
    assert len({s.resources[ORDERS].digest for s in (STATE, restarted, twice)}) == 3


def test_destroy_deletes_everything_dependents_first() -> None:
    plan = plan_destroy(STATE)
    deleted = ["sink.orders_pg", "source.orders", "connection.pg", "connection.k"]
    assert list(actions(plan).items()) == [(address, "delete") for address in deleted]
    assert plan.unaffected == 0
    after = commit_plan(plan, STATE)
    assert after.resources == {} and after.serial == 2 and after.lineage == STATE.lineage
    # A target takes its dependents along.
    plan = plan_destroy(STATE, [ORDERS])
    assert actions(plan) == {"sink.orders_pg": "delete", "source.orders": "delete"}
    assert change_of(plan, "sink.orders_pg").reason == "depends on a destroyed resource"
    assert plan.unaffected == 2


NEAREST, ITS_QUERY = "did you mean source.orders?", "name a query that uses it: source.orders"
FOR_QUERIES = (plan_pause, plan_resume, plan_restart)
OTHERS: tuple[Any, ...] = (
    plan_destroy,
    lambda state, addresses: build_plan(BASE, state, targets=addresses),
    lambda state, addresses: build_plan(BASE, state, replace=addresses),
)


@pytest.mark.parametrize(
    ("plan", "address", "hint"),
    [
        *((plan, "source.order", NEAREST) for plan in (*FOR_QUERIES, *OTHERS)),
        *((plan, "connection.k", ITS_QUERY) for plan in FOR_QUERIES),
        (OTHERS[-1], "connection.k", "name the queries that use it."),
    ],
)
def test_an_unusable_address_is_a_usage_error(plan: Any, address: str, hint: str) -> None:
    found = refusal(lambda: plan(STATE, [at(address)]))
    assert (found.code, found.hint, found.exit_code) == ("MZ070", hint, ExitCode.USAGE)


# --- causes

MOVED = kafka(brokers=["b:9092"])
SASL = {"mechanism": "PLAIN", "username": "app"}


def because(state: State, address: str = "source.orders") -> Cause:
    found = state.resources[at(address)].because
    assert found is not None
    return found


def test_a_commit_records_the_cause_only_of_queries_that_it_reaches() -> None:
    assert because(STATE) == because(STATE, "sink.orders_pg") == Cause(cause="change", serial=1, detail="new")
    assert STATE.resources[at("connection.k")].because is None
    second = commit(shop(k=MOVED), STATE)
    assert because(second) == Cause(
        cause="change",
        serial=2,
        through=at("connection.k"),
        detail="brokers[0] a:9092 → b:9092",
    )
    assert because(second, "sink.orders_pg").serial == 1
    third = commit(shop(k=MOVED, orders=source(topic="other", description="prose")), second)
    assert "topic orders → other" in because(third).detail
    assert because(third).through is None
    fourth = commit(shop(k=MOVED, orders=source(topic="other", description="more prose")), third)
    assert because(fourth) == because(third)  # nothing restarts for a description
    assert decode_state(encode_state(fourth), "it") == fourth
    assert because(decode_state(encode_state(fourth), "it")) == because(third)


def test_restarts_by_hand_and_for_a_secret_have_their_own_causes() -> None:
    by_hand = apply_changes(STATE, plan_restart(STATE, [ORDERS]))
    assert because(by_hand) == Cause(cause="hand", serial=2, detail="restarted by hand")
    rotated = build_plan(BASE, by_hand, rotated={ORDERS: ("${env:PW}",)})
    anew = apply_changes(by_hand, rotated)
    assert (because(anew).cause, because(anew).serial) == ("secret", 3)
    assert because(anew).detail == "the value of ${env:PW} changed"
    for before, after in ((STATE, by_hand), (by_hand, anew)):
        (change,) = plan_between(before, after).changes
        assert change.reason == because(after).detail
    paused = apply_changes(anew, plan_pause(anew, [ORDERS]))
    assert because(paused) == Cause(cause="hand", serial=4, detail="paused by hand")
    resumed = apply_changes(paused, plan_resume(paused, [ORDERS]))
    assert because(resumed) == Cause(cause="hand", serial=5, detail="resumed by hand")


def test_a_cause_is_short_printable_and_shows_no_secret() -> None:
    one, two = (
        shop(k=kafka(security={"protocol": "SASL_SSL", "sasl": {**SASL, "password": f"${{env:{name}}}"}}))
        for name in ("ONE", "TWO")
    )
    assert because(commit(two, commit(one))).detail == "security.sasl.password changed"
    many = commit(shop(k=kafka(brokers=[f"{'x' * 80}{n}:9092" for n in range(40)])), STATE)
    assert len(because(many).detail) <= MAX_DETAIL
    odd = commit(shop(orders=source(topic="a\x1b[2J\nb")), STATE)
    assert because(odd).detail.isprintable()


def test_a_plan_shows_why_each_query_that_it_restarts_runs() -> None:
    plan = build_plan(shop(k=MOVED), STATE)
    because = Cause(cause="retry", serial=1, detail="attempt 2", at="2026-11-24T12:00:00Z")
    statuses = observe(STATE, orders={"started_because": because})
    seen = replace(plan, started=started_because(plan.changes, statuses))
    shown = {change["address"]: change for change in plan_to_json(seen)["changes"]}
    assert shown["source.orders"]["started_because"] == {**encode(because), "through": None}
    assert "started_because" not in shown["connection.k"]
    assert digest_of_plan(seen) == digest_of_plan(plan)
    assert decode_plan(encode_plan(seen)) == seen
