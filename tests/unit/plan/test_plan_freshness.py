"""A saved plan is stale only when something that it touches has changed, and says what."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mzplan.model.diagnostics import ExitCode, MzplanError
from mzplan.model.plan import DriftItem, Plan
from mzplan.model.resources import Configuration, Instance
from mzplan.model.state import State
from mzplan.plan import build_plan, ensure_as_observed, ensure_declared, ensure_fresh
from mzplan.plan.manual_changes import plan_destroy, plan_pause, plan_restart
from tests.unit.small_projects import (
    LOCAL,
    at,
    commit,
    commit_plan,
    console,
    kafka,
    postgres,
    project,
    shop,
    sink,
    source,
)

OTHER = {"k2": kafka("k2"), "other": source("other", connection="k2"), "o": console("o", "other")}
BASE = shop(**OTHER)


@pytest.fixture
def state() -> State:
    return commit(BASE)


def moved_broker(state: State, **options: Any) -> Plan:
    """Touches connection.k and source.orders; sink.orders_pg keeps running."""
    return build_plan(shop(**OTHER, k=kafka(brokers=["b:9092"])), state, **options)


def stale(plan: Plan, state: State, then: State | None = None) -> str:
    with pytest.raises(MzplanError) as caught:
        ensure_fresh(plan, state, then)
    (found,) = caught.value.diagnostics
    assert (found.code, caught.value.exit_code) == ("MZ036", ExitCode.STALE)
    assert "Nothing was changed" in found.detail or "another project" in found.summary
    return found.detail


def test_a_plan_fits_the_state_it_was_made_for(state: State) -> None:
    plan = moved_broker(state)
    assert ensure_fresh(plan, state) == plan
    empty = build_plan(BASE, state)
    assert ensure_fresh(empty, state) == empty


def test_an_unrelated_commit_does_not_invalidate_and_is_kept(state: State) -> None:
    plan = moved_broker(state)
    more = {**OTHER, "other": source("other", connection="k2", trigger={"interval": "9s"})}
    later = commit(shop(**more, extra=console("extra", "other")), state)
    fresh = ensure_fresh(plan, later)
    assert (fresh.serial, fresh.changes) == (later.serial, plan.changes)
    after = commit_plan(fresh, later)
    assert after.serial == 3
    assert after.resources[at("connection.k")].body["brokers"] == ["b:9092"]
    for address in ("source.other", "sink.extra", "sink.orders_pg"):
        assert after.resources[at(address)] == later.resources[at(address)]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"k": kafka(brokers=["c:9092"])},
            "connection.k was changed (brokers[0]); source.orders was changed",
        ),
        ({"k": kafka(description="new")}, "connection.k was changed (description)"),
        ({"orders": source(trigger={"interval": "9s"})}, "source.orders was changed (trigger.interval)"),
        ({"late": source("late")}, "source.late would restart too"),
    ],
)
def test_a_commit_of_what_it_touches_does(state: State, changed: dict[str, Any], told: str) -> None:
    detail = stale(moved_broker(state), commit(shop(**{**OTHER, **changed}), state))
    assert "It was made for serial 1; the state is now at serial 2" in detail and told in detail


def test_what_is_done_by_hand_counts(state: State) -> None:
    plan = moved_broker(state)
    restarted = commit_plan(plan_restart(state, [at("source.orders")]), state)
    assert "source.orders was changed (paused or restarted by hand)" in stale(plan, restarted)
    paused = commit_plan(plan_pause(state, [at("sink.orders_pg")]), state)
    assert ensure_fresh(plan, paused).serial == 2  # the sink only keeps running
    gone = commit_plan(plan_destroy(state, [at("source.orders")]), state)
    assert "source.orders was removed" in stale(plan, gone)


def test_what_a_touched_query_uses_counts(state: State) -> None:
    plan = build_plan(shop(**OTHER, orders=source(trigger={"interval": "9s"})), state)
    assert ensure_fresh(plan, commit(shop(**OTHER, k=kafka(labels={"a": "b"})), state)).serial == 2
    detail = stale(plan, commit(shop(**OTHER, k=kafka(brokers=["c:9092"])), state))
    assert "source.orders was changed (what it uses)" in detail
    creates = build_plan(shop(**OTHER, late=source("late")), state)
    detail = stale(creates, commit(shop(**OTHER, k=kafka(brokers=["c:9092"])), state))
    assert "what source.late uses was changed (connection.k)" in detail


def test_a_plan_to_create_or_delete(state: State) -> None:
    creates = build_plan(shop(**OTHER, late=source("late")), state)
    assert "source.late was added" in stale(
        creates, commit(shop(**OTHER, late=source("late", topic="x")), state)
    )
    without = project(
        *(r for a, r in BASE.resources.items() if a != at("source.other") and a != at("sink.o"))
    )
    deletes = build_plan(without, state)
    later = commit(shop(**OTHER, user=console("user", "other")), state)
    assert "sink.user now refers to source.other, which would not be there" in stale(deletes, later)


def test_a_plan_that_was_applied_already_says_so(state: State) -> None:
    plan = moved_broker(state)
    assert "all that it would do is done already" in stale(plan, commit_plan(plan, state))
    first = build_plan(BASE, State(project="shop"))
    assert "all that it would do is done already" in stale(first, state)


def test_a_first_plan_and_another_first_commit() -> None:
    plan = build_plan(shop(), State(project="shop"))
    others = commit(project(*OTHER.values()))
    assert ensure_fresh(plan, others).lineage == others.lineage
    assert commit_plan(ensure_fresh(plan, others), others).resources.keys() == BASE.resources.keys()
    elsewhere = dataclasses.replace(others, warehouse="./other")
    assert "the warehouse was changed" in stale(plan, elsewhere)


def test_foreign_plans(state: State) -> None:
    plan = moved_broker(state)
    assert "another state" in stale(plan, dataclasses.replace(state, lineage="other"))
    assert "another state" in stale(plan, State(project="shop"))
    assert "project 'shop'" in stale(plan, dataclasses.replace(state, project="other"))


def test_instances(state: State) -> None:
    plan = moved_broker(state)
    two = {**LOCAL, "two": Instance(name="two", type="cluster")}
    more = commit(shop(two, **OTHER), state)
    assert dict(ensure_fresh(plan, more).instances) == two
    dry = commit(shop({"local": Instance(name="local", type="dry")}, **OTHER), state)
    assert "instance local was changed" in stale(plan, dry)
    declares = build_plan(shop(two, **OTHER), state)
    later = commit(shop(**{**OTHER, "other": source("other", connection="k2", paused=True)}), state)
    assert dict(ensure_fresh(declares, later, state).instances) == two
    assert "instance" in stale(declares, later)  # without the history, nobody can tell


def test_an_edited_plan_does_not_fit_the_digests(state: State) -> None:
    plan = moved_broker(state)
    changes = [
        dataclasses.replace(
            c, after=dataclasses.replace(c.after, body={**c.after.body, "topic": "evil"}) if c.after else None
        )
        if str(c.address) == "source.orders"
        else c
        for c in plan.changes
    ]
    detail = stale(dataclasses.replace(plan, changes=tuple(changes)), state)
    assert "It does not fit serial 1, for which it was made" in detail and "source.orders" in detail


# --- the files


def declared(plan: Plan, configuration: Configuration) -> str:
    try:
        ensure_declared(plan, configuration)
    except MzplanError as problem:
        assert problem.exit_code == ExitCode.STALE
        return problem.diagnostics[0].detail
    return ""


def test_the_files_must_still_say_so(state: State) -> None:
    moved = {**OTHER, "k": kafka(brokers=["b:9092"])}
    plan = moved_broker(state)
    assert declared(plan, shop(**moved)) == ""
    assert declared(plan, shop(**moved, pg=postgres(host="elsewhere"), new=console("new", "orders"))) == ""
    assert "connection.k is declared otherwise (brokers[0])" in declared(plan, BASE)
    assert "source.orders is no longer declared" in declared(
        plan,
        project(*(r for a, r in shop(**moved).resources.items() if a.name not in ("orders", "orders_pg"))),
    )
    deletes = build_plan(project(*OTHER.values()), state)
    assert declared(deletes, project(*OTHER.values())) == ""
    assert "sink.orders_pg is declared again" in declared(deletes, BASE)


def test_declared_instances_must_still_be_so(state: State) -> None:
    two = {**LOCAL, "two": Instance(name="two", type="cluster")}
    plan = build_plan(shop(two, **OTHER), state)
    assert declared(plan, shop(two, **OTHER)) == ""
    assert "instance two is declared otherwise" in declared(plan, BASE)


# --- reality


def drifted(plan: Plan, *items: tuple[str, str]) -> str:
    try:
        ensure_as_observed(plan, [DriftItem(address=a, kind=k, detail="boom") for a, k in items])
    except MzplanError as problem:
        assert problem.exit_code == ExitCode.STALE
        return problem.diagnostics[0].detail
    return ""


def test_what_runs_must_still_be_as_the_reviewer_saw_it(state: State) -> None:
    plan = moved_broker(state)
    assert drifted(plan) == ""
    told = drifted(plan, ("source.orders", "failed-query"))
    assert "source.orders has drifted (failed-query: boom)" in told
    assert drifted(plan, ("sink.orders_pg", "failed-query")) == ""  # not touched
    assert drifted(plan, ("source.orders", "missing-query")) == ""  # apply puts it right
    seen = DriftItem(address="source.orders", kind="failed-query", detail="other words")
    assert drifted(dataclasses.replace(plan, drift=(seen,)), ("source.orders", "failed-query")) == ""
    assert drifted(build_plan(shop(**OTHER, p=sink("p")), state), ("sink.p", "foreign-query")) != ""
