"""The causes that a commit records for the starts of queries."""

from __future__ import annotations

from dataclasses import replace

from mzplan.model.cause import Cause
from mzplan.model.observed import Observation, Status
from mzplan.model.state import State
from mzplan.plan import apply_changes, build_plan
from mzplan.plan.commit_causes import MAX_DETAIL
from mzplan.plan.drift import started_because
from mzplan.plan.file import decode_plan, digest_of_plan, encode_plan
from mzplan.plan.manual_changes import plan_between, plan_pause, plan_restart, plan_resume
from mzplan.render.plan_json import plan_to_json
from mzplan.store.formats import decode_state, encode_state
from tests.unit.small_projects import at, commit, kafka, postgres, project, sink, source

ORDERS, SINK = at("source.orders"), at("sink.orders_pg")


def declared(**more: object):  # type: ignore[no-untyped-def]
    body = {name: more.pop(name) for name in ("brokers", "security") if name in more}
    return project(kafka(**body), postgres(), source(**more), sink())


def because(state: State, address: str = "source.orders") -> Cause:
    found = state.resources[at(address)].because
    assert found is not None
    return found


def test_each_commit_says_why_and_what_it_does_not_reach_keeps_what_was_said() -> None:
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


def test_a_hand_and_a_secret_are_told_from_each_other_now_and_in_the_history() -> None:
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


def test_no_value_that_is_sensitive_and_no_more_than_fits() -> None:
    secured = {
        "protocol": "SASL_SSL",
        "sasl": {"mechanism": "PLAIN", "username": "app", "password": "${env:ONE}"},
    }
    state = commit(declared(security=secured))
    changed = {**secured, "sasl": {**secured["sasl"], "password": "${env:TWO}"}}  # type: ignore[dict-item]
    detail = because(commit(declared(security=changed), state)).detail
    assert detail == "security.sasl.password changed"
    many = commit(declared(brokers=[f"{'x' * 80}{n}:9092" for n in range(40)]), commit(declared()))
    assert len(because(many).detail) <= MAX_DETAIL
    odd = commit(declared(topic="a\x1b[2J\nb"), commit(declared()))
    assert because(odd).detail.isprintable()


def test_a_plan_shows_why_that_runs_which_it_stops_and_its_digest_does_not_depend_on_it() -> None:
    state = commit(declared())
    plan = build_plan(declared(brokers=["b:9092"]), state)
    runs = Observation(
        address=ORDERS,
        generation=1,
        digest=state.resources[ORDERS].digest,
        wanted_digest="",
        wanted_generation=1,
        condition="running",
        started_because=Cause(cause="retry", serial=1, detail="attempt 2", at="2026-11-24T12:00:00Z"),
    )
    status = Status(instance="local", epoch=1, heartbeat=0.0, serial=1, observations={ORDERS: runs})
    seen = replace(plan, started=started_because(plan.changes, {"local": status}))
    shown = {change["address"]: change for change in plan_to_json(seen)["changes"]}
    assert shown["source.orders"]["started_because"] == {
        "cause": "retry",
        "serial": 1,
        "through": None,
        "detail": "attempt 2",
        "at": "2026-11-24T12:00:00Z",
    }
    assert "started_because" not in shown["connection.k"]
    assert digest_of_plan(seen) == digest_of_plan(plan)
    assert decode_plan(encode_plan(seen)) == seen


def test_a_saved_plan_has_none_of_it_and_what_is_committed_is_kept() -> None:
    state = commit(declared())
    plan = build_plan(declared(description="prose"), state)
    read = decode_plan(encode_plan(plan))
    assert b"because" not in encode_plan(plan)
    assert because(apply_changes(state, read)) == because(state)
