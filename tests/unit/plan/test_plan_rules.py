"""The rules of planning, one by one."""

from __future__ import annotations

import dataclasses
from typing import Any

from mzplan.model.resources import Instance, Resource
from mzplan.model.state import State
from mzplan.plan import apply_changes, build_plan
from mzplan.plan.manual_changes import plan_pause, plan_resume
from tests.unit.small_projects import (
    actions,
    at,
    change_of,
    commit,
    commit_plan,
    effects,
    kafka,
    names,
    observe,
    resource,
    shop,
    source,
)

EMPTY = State(project="shop")
BASE = shop()
STATE = commit(BASE)


# --- create, nothing, delete


def test_applying_gives_ids_a_lineage_and_the_next_serial() -> None:
    first = commit(BASE)
    assert (first.serial, first.lineage, first.warehouse) == (1, "lineage-1", "./warehouse")
    assert len({record.id for record in first.resources.values()}) == 4
    assert first.instances == BASE.instances
    real = apply_changes(EMPTY, build_plan(BASE, EMPTY))
    assert all(len(record.id) == 16 for record in real.resources.values())
    assert len(real.lineage) == 36


# --- changes of a connection


def tunnel(name: str = "t", host: str = "h", **body: Any) -> Resource:
    return resource(f"connection.{name}", "ssh-tunnel", type="ssh-tunnel", host=host, user="u", **body)


# --- changes of a source or a sink


def test_a_change_keeps_overrides_and_restart_tokens() -> None:
    orders = at("source.orders")
    record = dataclasses.replace(STATE.resources[orders], override="paused", restart_token=3)
    state = dataclasses.replace(STATE, resources={**STATE.resources, orders: record})
    for changed in (source(trigger={"interval": "2s"}), source(topic="other"), source(description="x")):
        after = change_of(build_plan(shop(orders=changed), state), "source.orders").after
        assert after is not None
        assert (after.override, after.restart_token) == ("paused", 3)


def test_a_digest_of_an_older_version_restarts_nothing() -> None:
    """An upgrade that computes digests differently restarts nothing."""
    older = {
        address: dataclasses.replace(record, digest=record.digest and f"0:{address.name}")
        for address, record in STATE.resources.items()
    }
    state = dataclasses.replace(STATE, resources=older)
    assert build_plan(BASE, state).is_empty
    plan = build_plan(shop(k=kafka(description="x"), orders=source(description="y")), state)
    assert set(effects(plan).values()) == {"in-place"}
    assert change_of(plan, "source.orders").after.digest == "0:orders"  # type: ignore[union-attr]
    plan = build_plan(shop(k=kafka(brokers=["b:9092"])), state)
    assert actions(plan) == {"connection.k": "update", "source.orders": "restart"}


# --- targets


def test_a_targeted_plan_removes_no_instance() -> None:
    other = {"other": Instance(name="other", type="dry")}
    plan = build_plan(shop(z=kafka("z"), instances=other), STATE, targets=[at("connection.z")])
    assert set(plan.instances) == {"local", "other"} and plan.instances_changed
    both = shop({**BASE.instances, **other})  # changed instances alone are a change
    plan = build_plan(both, STATE)
    assert plan.instances_changed and not plan.is_empty and plan.changes == ()
    assert commit_plan(plan, STATE).instances == both.instances


# --- pending


def test_a_query_that_has_not_converged_is_pending_with_its_reason() -> None:
    statuses = observe(STATE, orders={"digest": "1:old"})
    (pending,) = build_plan(BASE, STATE, statuses).pending
    assert pending.address == at("source.orders")
    assert pending.reason == "the committed description is not running yet"
    waits = "waiting for the removal of former storage"
    for seen in ({"digest": "1:old", "waits": waits}, {"condition": "starting", "waits": waits}):
        (pending,) = build_plan(BASE, STATE, observe(STATE, orders=seen)).pending
        assert pending.reason == waits
    moved = {"other": dataclasses.replace(statuses["local"], instance="other")}
    assert build_plan(BASE, STATE, moved).pending == ()


def test_a_paused_query_is_pending_only_while_it_runs() -> None:
    assert build_plan(BASE, STATE, observe(STATE)).pending == ()
    state = commit(shop(orders=source(paused=True)))
    assert build_plan(BASE, state, observe(state)).pending == ()
    assert build_plan(BASE, state, observe(state, orders={"digest": "1:old"})).pending == ()
    (pending,) = build_plan(BASE, state, observe(state, orders={"condition": "running"})).pending
    assert pending.reason == "to be paused"


def test_every_plan_lists_what_is_paused_or_resumed_by_hand() -> None:
    both = [at("sink.orders_pg"), at("source.orders")]
    for queries in (both[:1], both):
        paused = commit_plan(plan_pause(commit(BASE), queries), commit(BASE))
        plan = build_plan(BASE, paused)
        (found,) = plan.diagnostics
        assert plan.is_empty and (found.severity, found.code) == ("notice", "MZ045")
        assert found.hint == f"mzplan resume {' '.join(names(queries))}"
        assert all(name in f"{found.summary} {found.detail}" for name in names(queries))
    declared = shop(orders=source(paused=True))
    resumed = commit_plan(plan_resume(commit(declared), both[1:]), commit(declared))
    (found,) = build_plan(declared, resumed).diagnostics
    assert found.code == "MZ045" and found.hint == "mzplan pause source.orders"
