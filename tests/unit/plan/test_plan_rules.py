"""The rules of planning, one by one."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mzplan.model.diagnostics import ExitCode
from mzplan.model.plan import Plan
from mzplan.model.resources import Configuration, Instance, Resource
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
    fields,
    kafka,
    names,
    observe,
    postgres,
    project,
    resource,
    shop,
    sink,
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


def test_a_connection_that_nobody_uses_restarts_nobody() -> None:
    state = commit(project(kafka(), kafka("alone")))
    plan = build_plan(project(kafka(), kafka("alone", brokers=["b:9092"])), state)
    assert effects(plan) == {"connection.alone": "in-place"}


def test_the_effect_of_a_connection_does_not_depend_on_other_changes_of_its_users() -> None:
    plan = build_plan(shop(k=kafka(brokers=["b:9092"]), orders=source(topic="other")), STATE)
    assert effects(plan)["connection.k"] == "restart"
    assert effects(plan)["source.orders"] == "replace"
    assert names(change_of(plan, "source.orders").triggered_by) == ["connection.k"]
    assert change_of(plan, "source.orders").reason == "topic changed; connection.k changed"


def tunnel(name: str = "t", host: str = "h", **body: Any) -> Resource:
    return resource(f"connection.{name}", "ssh-tunnel", type="ssh-tunnel", host=host, user="u", **body)


def nested(first: Resource, second: Resource | None = None, through: str = "t") -> Configuration:
    """sink → postgres `pg` → tunnel `t` → tunnel `u`."""
    parts = [first, second or tunnel("u"), kafka(), postgres(ssh_tunnel=through), source(), sink()]
    return project(*parts)


NESTED = commit(nested(tunnel(ssh_tunnel="u")))
THROUGH_T = "connection.t changed, through connection.pg"
THROUGH_U = "connection.u changed, through connection.pg and connection.t"


@pytest.mark.parametrize(
    ("t", "u", "reason"),
    [("x", "h", THROUGH_T), ("h", "x", THROUGH_U), ("x", "y", f"{THROUGH_T}; {THROUGH_U}")],
)
def test_a_nested_connection_restarts_the_queries_behind_it(t: str, u: str, reason: str) -> None:
    plan = build_plan(nested(tunnel(ssh_tunnel="u", host=t), tunnel("u", host=u)), NESTED)
    *causes, restarted = plan.changes
    assert {(cause.action, cause.effect) for cause in causes} == {("update", "restart")}
    assert (str(restarted.address), restarted.action) == ("sink.orders_pg", "restart")
    assert restarted.reason == reason
    assert set(restarted.triggered_by) == {cause.address for cause in causes}
    assert plan.unaffected == 5 - len(causes)


@pytest.mark.parametrize(
    ("host", "effect", "users"), [("h", "in-place", {}), ("x", "restart", {"sink.orders_pg": "restart"})]
)
def test_another_nested_connection_restarts_only_if_it_leads_elsewhere(
    host: str, effect: str, users: dict[str, str]
) -> None:
    state = commit(nested(tunnel(), tunnel("u", host=host)))
    plan = build_plan(nested(tunnel(), tunnel("u", host=host), through="u"), state)
    assert effects(plan) == {"connection.pg": effect, **users}
    assert fields(plan, "connection.pg") == {"ssh_tunnel": ("t", "u", effect)}


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


def test_a_target_brings_its_dependents_and_what_it_needs() -> None:
    wanted = project(
        kafka(brokers=["b:9092"]),
        postgres(host="other"),
        postgres("new"),
        source(description="x"),
        sink(description="y"),
        sink("more", connection="new"),
        kafka("unrelated"),
    )
    plan = build_plan(wanted, STATE, targets=[at("sink.more")])
    # sink.more needs source.orders, which changed. So the dependents of source.orders come too.
    assert actions(plan) == {
        "connection.k": "update",
        "connection.new": "create",
        "connection.pg": "update",
        "source.orders": "update",
        "sink.more": "create",
        "sink.orders_pg": "update",
    }
    plan = build_plan(wanted, STATE, targets=[at("connection.unrelated")], replace=[at("sink.more")])
    assert actions(plan) == {"connection.unrelated": "create"}


def test_a_need_of_a_target_does_not_bring_its_other_users() -> None:
    wanted = shop(more=source("more"), more_pg=sink("more_pg", **{"from": "more"}), z=kafka("z"))
    plan = build_plan(wanted, EMPTY, targets=[at("source.orders")])
    assert set(actions(plan)) == {"connection.k", "connection.pg", "source.orders", "sink.orders_pg"}


def test_a_targeted_plan_removes_no_instance() -> None:
    other = {"other": Instance(name="other", type="dry")}
    plan = build_plan(shop(z=kafka("z"), instances=other), STATE, targets=[at("connection.z")])
    assert set(plan.instances) == {"local", "other"} and plan.instances_changed
    both = shop({**BASE.instances, **other})  # changed instances alone are a change
    plan = build_plan(both, STATE)
    assert plan.instances_changed and not plan.is_empty and plan.changes == ()
    assert commit_plan(plan, STATE).instances == both.instances


# --- the project, guards and notices


@pytest.mark.parametrize("settings", [{"warehouse": "s3://elsewhere"}, {"project": "other"}])
def test_project_and_warehouse_are_fixed_while_resources_exist(settings: dict[str, str]) -> None:
    (found,) = build_plan(dataclasses.replace(BASE, **settings), STATE).diagnostics
    assert (found.code, found.severity, found.exit_code) == ("MZ044", "error", ExitCode.REFUSED)
    empty = commit(project(), STATE)
    assert build_plan(dataclasses.replace(BASE, **settings), empty).diagnostics == ()


def test_another_spelling_of_the_warehouse_is_the_same() -> None:
    plan = build_plan(dataclasses.replace(BASE, warehouse="x/../warehouse/"), STATE)
    assert plan.is_empty and plan.diagnostics == () and plan.warehouse == "./warehouse"


KEPT = {"prevent_destroy": True}


def test_prevent_destroy_refuses_a_delete_and_a_replace() -> None:
    kept, kept_sink = source(lifecycle=KEPT), sink(lifecycle=KEPT)
    state = commit(shop(orders=kept))
    of_sink = commit(shop(orders_pg=kept_sink))
    for address, plan in (
        ("source.orders", build_plan(project(kafka(), postgres()), state)),
        ("source.orders", build_plan(shop(orders=source(lifecycle=KEPT, topic="other")), state)),
        ("source.orders", build_plan(shop(orders=kept), state, replace=[at("source.orders")])),
        ("sink.orders_pg", build_plan(shop(orders_pg=kept_sink, orders=source(topic="other")), of_sink)),
    ):
        (found,) = plan.diagnostics
        assert (found.code, found.exit_code, found.address) == ("MZ041", ExitCode.REFUSED, at(address))
    assert build_plan(shop(orders=source(topic="other")), state).diagnostics == ()
    assert build_plan(shop(orders=source(lifecycle=KEPT, description="x")), state).diagnostics == ()


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


def test_a_plan_announces_the_tables_that_a_sink_creates() -> None:
    making = sink(create=True, table="public.orders")

    def announced(plan: Plan) -> list[str]:
        return [d.summary for d in plan.diagnostics if "its table" in d.summary]

    first = build_plan(shop(orders_pg=making), State(project="shop"))
    said = "sink.orders_pg: mzplan will create its table, or add and widen columns, after the commit"
    assert announced(first) == [said]
    before = commit(shop(orders_pg=making))
    more = source(columns="id BIGINT, amount INT, note STRING")
    assert announced(build_plan(shop(orders_pg=making, orders=more), before)) == [said]
    fewer = source(columns="id BIGINT")
    elsewhere = sink(create=True, table="public.other")
    assert announced(build_plan(shop(orders_pg=elsewhere), before)) == [said]
    wider = source(columns="id BIGINT, amount BIGINT")
    assert announced(build_plan(shop(orders_pg=making, orders=wider), before)) == [said]
    # No restart without new columns is news, nor another server, nor the word itself on a sink that runs.
    for restarted in (
        shop(orders_pg=making, orders=fewer),
        shop(orders_pg=making, orders=source(topic="other")),
        shop(orders_pg=sink(create=True, table="public.orders", max_files_per_trigger=5)),
    ):
        plan = build_plan(restarted, before)
        assert "sink.orders_pg" in effects(plan) and announced(plan) == []
    assert announced(build_plan(shop(orders_pg=making, pg=postgres(host="other")), before)) == []
    turned_on = build_plan(shop(orders_pg=making), commit(shop(orders_pg=sink(table="public.orders"))))
    assert (announced(turned_on), effects(turned_on)) == ([], {"sink.orders_pg": "in-place"})


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


def test_a_sink_that_gets_the_table_of_another_sink_is_a_warning() -> None:
    one, same = sink(table="public.orders"), sink("second", table='"orders"')

    def warned(plan: Plan) -> list[str]:
        return [str(d.address) for d in plan.diagnostics if d.code == "MZ311"]

    state = commit(shop(orders_pg=one))
    assert warned(build_plan(shop(orders_pg=one, second=same), state)) == ["sink.second"]
    assert warned(build_plan(shop(orders_pg=one, second=sink("second", table="public.Orders")), state)) == []
    both = commit(shop(orders_pg=one, second=same))
    assert warned(build_plan(shop(orders_pg=one, second=same, orders=source(topic="other")), both)) == []
