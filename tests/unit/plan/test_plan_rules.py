"""The rules of planning, one by one."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mzplan.model.diagnostics import ExitCode, MzplanError
from mzplan.model.plan import Plan
from mzplan.model.resources import Instance
from mzplan.model.state import State
from mzplan.plan import apply_changes, build_plan
from tests.unit.small_projects import (
    actions,
    at,
    change_of,
    commit,
    commit_plan,
    console,
    effects,
    fields,
    files,
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


@pytest.fixture
def state() -> State:
    return commit(BASE)


# --- create, nothing, delete


def test_everything_is_new_in_dependency_order() -> None:
    plan = build_plan(BASE, EMPTY)
    assert actions(plan) == {
        "connection.k": "create",
        "connection.pg": "create",
        "source.orders": "create",
        "sink.orders_pg": "create",
    }
    assert [change.after.generation for change in plan.changes if change.after] == [1, 1, 1, 1]
    assert all(change.after and change.after.id == "" and change.effect == "none" for change in plan.changes)
    assert (plan.unaffected, plan.downstream, plan.diagnostics) == (0, (), ())
    assert (plan.serial, plan.lineage) == (0, "")


def test_applying_gives_ids_a_lineage_and_the_next_serial() -> None:
    first = commit(BASE)
    assert (first.serial, first.lineage, first.warehouse) == (1, "lineage-1", "./warehouse")
    assert len({record.id for record in first.resources.values()}) == 4
    assert first.instances == BASE.instances
    real = apply_changes(EMPTY, build_plan(BASE, EMPTY))
    assert all(len(record.id) == 16 for record in real.resources.values())
    assert len(real.lineage) == 36


def test_nothing_changed_is_an_empty_plan(state: State) -> None:
    plan = build_plan(BASE, state)
    assert plan.is_empty and plan.changes == () and plan.unaffected == 4


def test_what_is_not_changed_keeps_its_very_record(state: State) -> None:
    after = commit(shop(k=kafka(brokers=["b:9092"])), state)
    for address in ("connection.pg", "sink.orders_pg"):
        assert after.resources[at(address)] is state.resources[at(address)]
    assert after.resources[at("source.orders")].id == state.resources[at("source.orders")].id


def test_deletes_come_last_and_dependents_first(state: State) -> None:
    plan = build_plan(project(postgres(host="other"), kafka("z")), state)
    assert list(actions(plan).items()) == [
        ("connection.pg", "update"),
        ("connection.z", "create"),
        ("sink.orders_pg", "delete"),
        ("source.orders", "delete"),
        ("connection.k", "delete"),
    ]
    change = change_of(plan, "connection.k")
    assert (change.effect, change.after, change.reason) == ("none", None, "no longer declared")
    assert set(names(commit_plan(plan, state).resources)) == {"connection.pg", "connection.z"}


# --- changes of a connection


def test_a_connection_restarts_exactly_those_who_use_it(state: State) -> None:
    plan = build_plan(shop(k=kafka(brokers=["b:9092"])), state)
    assert actions(plan) == {"connection.k": "update", "source.orders": "restart"}
    assert fields(plan, "connection.k") == {"brokers[0]": ("a:9092", "b:9092", "restart")}
    connection, restarted = plan.changes
    assert (connection.effect, connection.reason, connection.triggered_by) == (
        "restart",
        "brokers changed",
        (),
    )
    assert (restarted.effect, restarted.fields) == ("restart", ())
    assert restarted.reason == "connection.k changed"
    assert names(restarted.triggered_by) == ["connection.k"]
    assert names(plan.downstream) == ["sink.orders_pg"]
    assert plan.unaffected == 1
    assert restarted.after is not None and restarted.before is not None
    assert restarted.after.generation == 1 and restarted.after.digest != restarted.before.digest


@pytest.mark.parametrize(
    "connection",
    [
        kafka(description="for the shop"),
        kafka(labels={"team": "x"}),
        kafka(lifecycle={"prevent_destroy": True}),
    ],
)
def test_an_edit_in_place_of_a_connection_reaches_nobody(state: State, connection: Any) -> None:
    plan = build_plan(shop(k=connection), state)
    assert actions(plan) == {"connection.k": "update"}
    assert effects(plan) == {"connection.k": "in-place"}
    assert (plan.downstream, plan.unaffected) == ((), 3)


@pytest.mark.parametrize(
    "connection",
    [
        kafka(security={"protocol": "PLAINTEXT"}),
        kafka(security={}, options={}),
        kafka(security={"ssl": {"verify_hostname": True}}),
        resource("connection.k", "kafka", brokers=["a:9092"], type="kafka"),
    ],
)
def test_defaults_written_out_and_reordered_keys_are_no_change(state: State, connection: Any) -> None:
    assert build_plan(shop(k=connection), state).is_empty


def test_a_connection_that_nobody_uses_restarts_nobody() -> None:
    state = commit(project(kafka(), kafka("alone")))
    plan = build_plan(project(kafka(), kafka("alone", brokers=["b:9092"])), state)
    assert effects(plan) == {"connection.alone": "in-place"}


def test_a_field_that_replaces_begins_a_new_generation_of_the_users(state: State) -> None:
    plan = build_plan(shop(pg=postgres(database="other")), state)
    assert actions(plan) == {"connection.pg": "update", "sink.orders_pg": "replace"}
    assert effects(plan) == {"connection.pg": "replace", "sink.orders_pg": "replace"}
    replaced = change_of(plan, "sink.orders_pg")
    assert replaced.after is not None and replaced.after.generation == 2
    assert replaced.reason == "connection.pg changed"
    assert replaced.after.id == state.resources[at("sink.orders_pg")].id


def test_the_effect_of_a_connection_is_what_it_does_not_what_else_happens_to_its_users(state: State) -> None:
    plan = build_plan(shop(k=kafka(brokers=["b:9092"]), orders=source(topic="other")), state)
    assert effects(plan)["connection.k"] == "restart"
    assert effects(plan)["source.orders"] == "replace"
    assert names(change_of(plan, "source.orders").triggered_by) == ["connection.k"]
    assert change_of(plan, "source.orders").reason == "topic changed; connection.k changed"


def test_a_renamed_connection_with_the_same_description_restarts_nothing(state: State) -> None:
    plan = build_plan(project(kafka("k2"), postgres(), source(connection="k2"), sink()), state)
    assert actions(plan) == {"connection.k2": "create", "source.orders": "update", "connection.k": "delete"}
    assert effects(plan)["source.orders"] == "in-place"
    assert fields(plan, "source.orders") == {"connection": ("k", "k2", "in-place")}
    before, after = change_of(plan, "source.orders").before, change_of(plan, "source.orders").after
    assert before is not None and after is not None and before.digest == after.digest
    assert plan.downstream == ()
    assert build_plan(
        project(kafka("k2"), postgres(), source(connection="k2"), sink()), commit_plan(plan, state)
    ).is_empty


def test_another_connection_restarts_and_is_its_own_reason(state: State) -> None:
    plan = build_plan(
        project(kafka(), kafka("k2", brokers=["b:9092"]), postgres(), source(connection="k2"), sink()), state
    )
    assert actions(plan) == {"connection.k2": "create", "source.orders": "update"}
    assert fields(plan, "source.orders") == {"connection": ("k", "k2", "restart")}
    assert change_of(plan, "source.orders").triggered_by == ()
    assert names(plan.downstream) == ["sink.orders_pg"]


def test_another_connection_to_another_database_is_another_target(state: State) -> None:
    plan = build_plan(shop(pg2=postgres("pg2", database="other"), orders_pg=sink(connection="pg2")), state)
    assert effects(plan)["sink.orders_pg"] == "replace"
    assert fields(plan, "sink.orders_pg") == {"connection": ("pg", "pg2", "replace")}


def test_a_change_without_effect_on_the_query_is_no_reason_for_a_replace(state: State) -> None:
    wanted = shop(
        pg=postgres(database="other"), orders_pg=sink(description="All orders", on_replace="append")
    )
    change = change_of(build_plan(wanted, state), "sink.orders_pg")
    assert change.action == "replace" and {field.effect for field in change.fields} == {"in-place"}
    assert change.reason == "connection.pg changed"


def test_two_connections_that_swap_names_restart_both() -> None:
    a, b = kafka("a", brokers=["a:1"]), kafka("b", brokers=["b:1"])
    before = project(a, b, source("s", connection="a"), source("t", connection="b"))
    after = project(
        kafka("a", brokers=["b:1"]),
        kafka("b", brokers=["a:1"]),
        source("s", connection="b"),
        source("t", connection="b"),
    )
    plan = build_plan(after, commit(before))
    # s: another name, the same brokers; t: the same name, other brokers.
    assert effects(plan)["source.s"] == "in-place"
    assert actions(plan)["source.t"] == "restart"
    assert names(change_of(plan, "source.t").triggered_by) == ["connection.b"]


# --- changes of a source or a sink


@pytest.mark.parametrize(
    ("changed", "effect"),
    [
        (source(description="x"), "in-place"),
        (source(paused=True), "in-place"),
        (source(trigger={"interval": "2s"}), "restart"),
        (source(instance="other"), "restart"),
        (source(topic="other"), "replace"),
    ],
)
def test_the_effect_of_a_source_is_its_heaviest_field(state: State, changed: Any, effect: str) -> None:
    instances = {**BASE.instances, "other": Instance(name="other", type="dry")}
    plan = build_plan(dataclasses.replace(shop(orders=changed), instances=instances), state)
    assert effects(plan)["source.orders"] == effect
    assert actions(plan)["source.orders"] == ("replace" if effect == "replace" else "update")


def test_what_is_downstream_of_a_restart_keeps_running(state: State) -> None:
    plan = build_plan(shop(orders=source(trigger={"interval": "2s"})), state)
    assert actions(plan) == {"source.orders": "update"}
    assert names(plan.downstream) == ["sink.orders_pg"]
    assert plan.unaffected == 2


def test_a_change_in_place_has_nothing_downstream(state: State) -> None:
    plan = build_plan(shop(orders=source(description="x")), state)
    assert (plan.downstream, plan.unaffected) == ((), 3)


def test_an_added_column_restarts_the_source_and_its_sinks(state: State) -> None:
    plan = build_plan(shop(orders=source(columns="id BIGINT, amount INT, more INT")), state)
    assert actions(plan) == {"source.orders": "update", "sink.orders_pg": "restart"}
    assert fields(plan, "source.orders") == {"format.schema.more": (None, "INT", "restart")}
    restarted = change_of(plan, "sink.orders_pg")
    assert names(restarted.triggered_by) == ["source.orders"]
    assert restarted.reason == "source.orders changed"
    assert plan.downstream == ()


@pytest.mark.parametrize("columns", ["id BIGINT", "id STRING, amount INT"])
def test_a_removed_or_retyped_column_replaces_the_source_and_its_sinks(state: State, columns: str) -> None:
    plan = build_plan(shop(orders=source(columns=columns)), state)
    assert actions(plan) == {"source.orders": "replace", "sink.orders_pg": "replace"}
    after = change_of(plan, "sink.orders_pg").after
    assert after is not None and after.generation == 2
    assert change_of(plan, "sink.orders_pg").reason == "source.orders replaced"


def test_a_sink_reads_from_another_source_as_a_new_generation() -> None:
    state = commit(project(kafka(), postgres(), source(), source("other"), sink()))
    plan = build_plan(
        project(kafka(), postgres(), source(), source("other"), sink(**{"from": "other"})), state
    )
    assert actions(plan) == {"sink.orders_pg": "replace"}
    assert plan.unaffected == 4


def test_another_type_is_a_new_generation() -> None:
    state = commit(project(kafka(), postgres(), source(), console("s", "orders")))
    after = project(kafka(), postgres(), source(), sink("s"))
    plan = build_plan(after, state)
    assert actions(plan) == {"sink.s": "replace"}
    assert fields(plan, "sink.s")["type"] == ("console", "postgres", "replace")
    assert build_plan(after, commit_plan(plan, state)).is_empty


def test_a_source_of_another_type_replaces_its_sinks(state: State) -> None:
    read = resource(
        "source.orders",
        "files",
        connection="f",
        path="p",
        format={"type": "json", "schema": "id BIGINT, amount INT"},
    )
    plan = build_plan(project(files(), postgres(), read, sink()), state)
    assert actions(plan) == {
        "connection.f": "create",
        "source.orders": "replace",
        "sink.orders_pg": "replace",
        "connection.k": "delete",
    }


def test_replace_by_hand_takes_the_sinks_of_a_source_along(state: State) -> None:
    plan = build_plan(BASE, state, replace=[at("source.orders")])
    assert actions(plan) == {"source.orders": "replace", "sink.orders_pg": "replace"}
    assert change_of(plan, "source.orders").reason == "requested with --replace"
    after = commit_plan(plan, state)
    assert after.resources[at("source.orders")].generation == 2
    assert build_plan(BASE, after).is_empty


def test_replacing_what_is_only_about_to_be_created_is_creating_it() -> None:
    assert actions(build_plan(BASE, EMPTY, replace=[at("source.orders")]))["source.orders"] == "create"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"replace": ["source.nowhere"]}, "MZ070"),
        ({"targets": ["sink.nowhere"]}, "MZ070"),
        ({"replace": ["connection.k"]}, "MZ070"),
    ],
)
def test_addresses_that_make_no_sense_are_usage_errors(
    state: State, options: dict[str, list[str]], code: str
) -> None:
    given = {name: [at(text) for text in texts] for name, texts in options.items()}
    with pytest.raises(MzplanError) as caught:
        build_plan(BASE, state, **given)  # type: ignore[arg-type]
    assert caught.value.exit_code == ExitCode.USAGE
    assert caught.value.diagnostics[0].code == code


def test_an_unknown_target_gets_a_suggestion(state: State) -> None:
    with pytest.raises(MzplanError) as caught:
        build_plan(BASE, state, targets=[at("source.order")])
    assert caught.value.diagnostics[0].hint == "did you mean source.orders?"


def test_overrides_and_tokens_are_carried_over(state: State) -> None:
    orders = at("source.orders")
    record = dataclasses.replace(state.resources[orders], override="paused", restart_token=3)
    state = dataclasses.replace(state, resources={**state.resources, orders: record})
    for changed in (source(trigger={"interval": "2s"}), source(topic="other"), source(description="x")):
        after = change_of(build_plan(shop(orders=changed), state), "source.orders").after
        assert after is not None
        assert (after.override, after.restart_token) == ("paused", 3)


def test_a_digest_of_an_older_version_restarts_nothing(state: State) -> None:
    """An upgrade that computes digests differently restarts nothing."""
    older = {
        address: dataclasses.replace(record, digest=record.digest and f"0:{address.name}")
        for address, record in state.resources.items()
    }
    state = dataclasses.replace(state, resources=older)
    assert build_plan(BASE, state).is_empty
    plan = build_plan(shop(k=kafka(description="x"), orders=source(description="y")), state)
    assert set(effects(plan).values()) == {"in-place"}
    assert change_of(plan, "source.orders").after.digest == "0:orders"  # type: ignore[union-attr]
    plan = build_plan(shop(k=kafka(brokers=["b:9092"])), state)
    assert actions(plan) == {"connection.k": "update", "source.orders": "restart"}


# --- targets


def test_targets_take_their_dependents_along_and_what_they_need(state: State) -> None:
    wanted = project(
        kafka(brokers=["b:9092"]),
        postgres(host="other"),
        postgres("new"),
        source(description="x"),
        sink(description="y"),
        sink("more", connection="new"),
        kafka("unrelated"),
    )
    plan = build_plan(wanted, state, targets=[at("sink.more")])
    # sink.more needs connection.new and source.orders (changed), whose dependents come along.
    assert actions(plan) == {
        "connection.k": "update",
        "connection.new": "create",
        "connection.pg": "update",
        "source.orders": "update",
        "sink.more": "create",
        "sink.orders_pg": "update",
    }
    plan = build_plan(wanted, state, targets=[at("connection.unrelated")])
    assert actions(plan) == {"connection.unrelated": "create"}


def test_what_is_only_needed_does_not_bring_all_of_its_users() -> None:
    wanted = shop(more=source("more"), more_pg=sink("more_pg", **{"from": "more"}), z=kafka("z"))
    plan = build_plan(wanted, EMPTY, targets=[at("source.orders")])
    assert set(actions(plan)) == {"connection.k", "connection.pg", "source.orders", "sink.orders_pg"}


def test_what_is_not_targeted_stays_as_committed(state: State) -> None:
    wanted = shop(k=kafka(brokers=["b:9092"]), pg=postgres(host="other"))
    plan = build_plan(wanted, state, targets=[at("connection.pg")])
    assert actions(plan) == {"connection.pg": "update", "sink.orders_pg": "restart"}
    after = commit_plan(plan, state)
    assert after.resources[at("connection.k")] is state.resources[at("connection.k")]
    assert actions(build_plan(wanted, after)) == {"connection.k": "update", "source.orders": "restart"}


def test_a_targeted_delete_takes_those_along_who_still_use_it(state: State) -> None:
    wanted = project(kafka("k2"), postgres(), source(connection="k2"), sink())
    plan = build_plan(wanted, state, targets=[at("connection.k")])
    assert actions(plan) == {"connection.k2": "create", "source.orders": "update", "connection.k": "delete"}


def test_a_target_brings_along_what_changes_below_it(state: State) -> None:
    wanted = shop(k=kafka(brokers=["b:9092"]), pg=postgres(description="x"), z=kafka("z"))
    plan = build_plan(wanted, state, targets=[at("sink.orders_pg")])
    assert actions(plan) == {"connection.k": "update", "connection.pg": "update", "source.orders": "restart"}


def test_what_is_new_and_not_targeted_is_not_replaced_either(state: State) -> None:
    wanted = shop(more=source("more"), z=kafka("z"))
    plan = build_plan(wanted, state, targets=[at("connection.z")], replace=[at("source.more")])
    assert actions(plan) == {"connection.z": "create"}


def test_a_targeted_plan_takes_no_instance_away(state: State) -> None:
    other = {"other": Instance(name="other", type="dry")}
    plan = build_plan(shop(z=kafka("z"), instances=other), state, targets=[at("connection.z")])
    assert set(plan.instances) == {"local", "other"} and plan.instances_changed


def test_another_type_with_the_same_body_is_a_change(state: State) -> None:
    orders = dataclasses.replace(source(), type="files")
    assert fields(build_plan(shop(orders=orders), state), "source.orders") == {
        "type": ("kafka", "files", "replace")
    }


# --- the project, guards and notices


def test_instances_that_changed_are_a_change(state: State) -> None:
    instances = {**BASE.instances, "other": Instance(name="other", type="dry")}
    plan = build_plan(dataclasses.replace(BASE, instances=instances), state)
    assert plan.instances_changed and not plan.is_empty and plan.changes == ()
    assert commit_plan(plan, state).instances == instances


def test_a_project_that_is_empty_and_new_has_nothing_to_apply() -> None:
    assert build_plan(project(), EMPTY).is_empty


@pytest.mark.parametrize("settings", [{"warehouse": "s3://elsewhere"}, {"project": "other"}])
def test_project_and_warehouse_are_fixed_while_resources_exist(
    state: State, settings: dict[str, str]
) -> None:
    (found,) = build_plan(dataclasses.replace(BASE, **settings), state).diagnostics
    assert (found.code, found.severity, found.exit_code) == ("MZ044", "error", ExitCode.REFUSED)
    empty = commit(project(), state)
    assert build_plan(dataclasses.replace(BASE, **settings), empty).diagnostics == ()


@pytest.mark.parametrize("warehouse", ["warehouse", "./warehouse/", "./x/../warehouse"])
def test_another_spelling_of_the_warehouse_is_the_same(state: State, warehouse: str) -> None:
    plan = build_plan(dataclasses.replace(BASE, warehouse=warehouse), state)
    assert plan.is_empty and plan.diagnostics == () and plan.warehouse == "./warehouse"


KEPT = {"prevent_destroy": True}


def test_prevent_destroy_refuses_a_delete_and_a_replace() -> None:
    state = commit(shop(orders=source(lifecycle=KEPT)))
    for plan in (
        build_plan(project(kafka(), postgres()), state),
        build_plan(shop(orders=source(lifecycle=KEPT, topic="other")), state),
        build_plan(shop(orders=source(lifecycle=KEPT)), state, replace=[at("source.orders")]),
    ):
        (found,) = plan.diagnostics
        assert (found.code, found.exit_code, found.address) == (
            "MZ041",
            ExitCode.REFUSED,
            at("source.orders"),
        )
    assert build_plan(shop(orders=source(topic="other")), state).diagnostics == ()
    assert build_plan(shop(orders=source(lifecycle=KEPT, description="x")), state).diagnostics == ()


def test_prevent_destroy_protects_a_sink_that_its_source_would_replace() -> None:
    state = commit(shop(orders_pg=sink(lifecycle=KEPT)))
    (found,) = build_plan(
        shop(orders_pg=sink(lifecycle=KEPT), orders=source(topic="other")), state
    ).diagnostics
    assert found.address == at("sink.orders_pg")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"orders": source(start_offsets="latest")}, ["source.orders: the change to `start_offsets`"]),
        ({"orders_pg": sink(where="id > 1")}, ["sink.orders_pg: the change to `where`"]),
        ({"orders_pg": sink(select=["id", "amount"])}, ["sink.orders_pg: the change to `select`"]),
        ({"orders": source(start_offsets="latest", topic="other")}, []),
        ({"orders": source(trigger={"interval": "2s"})}, []),
    ],
)
def test_notices_of_what_a_change_does_not_do(state: State, changed: dict[str, Any], told: list[str]) -> None:
    found = build_plan(shop(**changed), state).diagnostics
    assert [d.severity for d in found] == ["notice"] * len(told)
    for diagnostic, start in zip(found, told, strict=True):
        assert diagnostic.summary.startswith(start)


def test_a_notice_that_what_was_done_by_hand_holds(state: State) -> None:
    orders = at("source.orders")
    record = dataclasses.replace(state.resources[orders], override="resumed")
    state = dataclasses.replace(state, resources={**state.resources, orders: record})
    (found,) = build_plan(shop(orders=source(paused=True)), state).diagnostics
    assert found.code == "MZ045" and found.hint == "mzplan pause source.orders"


def test_every_plan_lists_what_is_paused_by_hand(state: State) -> None:
    queries = [address for address, record in state.resources.items() if record.digest]
    held = {a: dataclasses.replace(state.resources[a], override="paused") for a in queries}
    for number in (1, len(queries)):
        paused = dict(sorted(held.items())[:number])
        plan = build_plan(shop(), dataclasses.replace(state, resources={**state.resources, **paused}))
        (found,) = plan.diagnostics
        assert plan.is_empty and (found.severity, found.code) == ("notice", "MZ045")
        assert found.hint == f"mzplan resume {' '.join(map(str, paused))}"
        assert all(str(address) in f"{found.summary} {found.detail}" for address in paused)


# --- pending


def test_what_runs_as_committed_is_not_pending(state: State) -> None:
    assert build_plan(BASE, state, observe(state)).pending == ()


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        ({"condition": "rejected", "error": "no route", "error_code": "MZ050"}, "MZ050: no route"),
        ({"condition": "failed", "error": "boom"}, "boom"),
        ({"condition": "starting"}, "starting"),
        ({"condition": "stopped"}, "stopped"),
        ({"digest": "1:old"}, "the committed description is not running yet"),
        ({"generation": 0}, "the committed description is not running yet"),
    ],
)
def test_what_has_not_converged_is_pending_with_its_reason(
    state: State, seen: dict[str, Any], reason: str
) -> None:
    (pending,) = build_plan(BASE, state, observe(state, orders=seen)).pending
    assert pending.address == at("source.orders")
    assert pending.reason == reason


def test_a_paused_query_is_pending_only_while_it_runs() -> None:
    state = commit(shop(orders=source(paused=True)))
    assert build_plan(BASE, state, observe(state)).pending == ()
    assert build_plan(BASE, state, observe(state, orders={"digest": "1:old"})).pending == ()
    (pending,) = build_plan(BASE, state, observe(state, orders={"condition": "running"})).pending
    assert pending.reason == "to be paused"


def test_what_an_old_instance_says_of_a_query_is_not_heard(state: State) -> None:
    statuses = observe(state, orders={"condition": "failed", "error": "old"})
    moved = {"other": dataclasses.replace(statuses["local"], instance="other")}
    assert build_plan(BASE, state, moved).pending == ()


def test_a_plan_says_what_a_sink_will_make_in_its_target() -> None:
    making = sink(create=True, table="public.orders")

    def announced(plan: Plan) -> list[str]:
        return [d.summary for d in plan.diagnostics if d.code == "MZ045"]

    first = build_plan(shop(orders_pg=making), State(project="shop"))
    said = "sink.orders_pg: mzplan will create its table, or missing columns, after the commit"
    assert announced(first) == [said]
    before = commit(shop(orders_pg=making))
    more = source(columns="id BIGINT, amount INT, note STRING")
    assert announced(build_plan(shop(orders_pg=making, orders=more), before)) == [said]
    # Another server is no news, nor is the word itself on a sink that runs.
    assert announced(build_plan(shop(orders_pg=making, pg=postgres(host="other")), before)) == []
    turned_on = build_plan(shop(orders_pg=making), commit(shop(orders_pg=sink(table="public.orders"))))
    assert (announced(turned_on), effects(turned_on)) == ([], {"sink.orders_pg": "in-place"})
