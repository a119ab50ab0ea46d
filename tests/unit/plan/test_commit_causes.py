"""The causes that a commit records for the starts of queries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mzplan.model.cause import Cause
from mzplan.model.codec import encode
from mzplan.model.resources import Configuration
from mzplan.model.state import State
from mzplan.plan import apply_changes, build_plan
from mzplan.plan.commit_causes import MAX_DETAIL
from mzplan.plan.drift import started_because
from mzplan.plan.file import decode_plan, digest_of_plan, encode_plan
from mzplan.plan.manual_changes import plan_between, plan_pause, plan_restart, plan_resume
from mzplan.render.plan_json import plan_to_json
from mzplan.store.formats import decode_state, encode_state
from tests.unit.small_projects import at, commit, kafka, observe, postgres, project, sink, source

ORDERS, SINK = at("source.orders"), at("sink.orders_pg")


def declared(**more: Any) -> Configuration:
    body = {name: more.pop(name) for name in ("brokers", "security") if name in more}
    return project(kafka(**body), postgres(), source(**more), sink())


def because(state: State, address: str = "source.orders") -> Cause:
    found = state.resources[at(address)].because
    assert found is not None
    return found


def test_a_commit_records_the_cause_only_of_queries_that_it_reaches() -> None:
    first = commit(declared())
    assert because(first) == because(first, "sink.orders_pg") == Cause(cause="change", serial=1, detail="new")
    assert first.resources[at("connection.k")].because is None
    second = commit(declared(brokers=["b:9092"]), first)
    assert because(second) == Cause(
        cause="change",
        serial=2,
        through=at("connection.k"),
        detail="brokers[0] a:9092 → b:9092",
    )
    assert because(second, "sink.orders_pg").serial == 1
    third = commit(declared(brokers=["b:9092"], topic="other", description="prose"), second)
    assert "topic orders → other" in because(third).detail
    assert because(third).through is None
    fourth = commit(declared(brokers=["b:9092"], topic="other", description="more prose"), third)
    assert because(fourth) == because(third)  # nothing restarts for a description
    assert decode_state(encode_state(fourth), "it") == fourth
    assert because(decode_state(encode_state(fourth), "it")) == because(third)


def test_restarts_by_hand_and_for_a_secret_have_their_own_causes() -> None:
    state = commit(declared())
    by_hand = apply_changes(state, plan_restart(state, [ORDERS]))
    assert because(by_hand) == Cause(cause="hand", serial=2, detail="restarted by hand")
    rotated = build_plan(declared(), by_hand, rotated={ORDERS: ("${env:PW}",)})
    anew = apply_changes(by_hand, rotated)
    assert (because(anew).cause, because(anew).serial) == ("secret", 3)
    assert because(anew).detail == "the value of ${env:PW} changed"
    for before, after in ((state, by_hand), (by_hand, anew)):
        (change,) = plan_between(before, after).changes
        assert change.reason == because(after).detail
    paused = apply_changes(anew, plan_pause(anew, [ORDERS]))
    assert because(paused) == Cause(cause="hand", serial=4, detail="paused by hand")
    resumed = apply_changes(paused, plan_resume(paused, [ORDERS]))
    assert because(resumed) == Cause(cause="hand", serial=5, detail="resumed by hand")


def test_a_cause_is_short_printable_and_shows_no_secret() -> None:
    secured: dict[str, Any] = {
        "protocol": "SASL_SSL",
        "sasl": {"mechanism": "PLAIN", "username": "app", "password": "${env:ONE}"},
    }
    state = commit(declared(security=secured))
    changed = {**secured, "sasl": {**secured["sasl"], "password": "${env:TWO}"}}
    detail = because(commit(declared(security=changed), state)).detail
    assert detail == "security.sasl.password changed"
    many = commit(declared(brokers=[f"{'x' * 80}{n}:9092" for n in range(40)]), commit(declared()))
    assert len(because(many).detail) <= MAX_DETAIL
    odd = commit(declared(topic="a\x1b[2J\nb"), commit(declared()))
    assert because(odd).detail.isprintable()


def test_a_plan_shows_why_each_query_that_it_restarts_runs() -> None:
    state = commit(declared())
    plan = build_plan(declared(brokers=["b:9092"]), state)
    because = Cause(cause="retry", serial=1, detail="attempt 2", at="2026-11-24T12:00:00Z")
    statuses = observe(state, orders={"started_because": because})
    seen = replace(plan, started=started_because(plan.changes, statuses))
    shown = {change["address"]: change for change in plan_to_json(seen)["changes"]}
    assert shown["source.orders"]["started_because"] == {**encode(because), "through": None}
    assert "started_because" not in shown["connection.k"]
    assert digest_of_plan(seen) == digest_of_plan(plan)
    assert decode_plan(encode_plan(seen)) == seen
