"""Plans that migrate a source's rows: `lifecycle: {replace: from-collection}`."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mzplan.model.plan import Change, Plan
from mzplan.model.resources import Configuration, Instance, Resource
from mzplan.model.state import State
from mzplan.plan import build_plan
from tests.tasks import backfill
from tests.unit.small_projects import (
    LOCAL,
    at,
    change_of,
    commit,
    commit_plan,
    files,
    observe,
    postgres,
    project,
    resource,
    shop,
    source,
)

KEPT = {"replace": "from-collection"}
UPSERT = {"type": "upsert", "key": ["id"]}


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
    told = [one.partition(":")[0] for one in notices(plan)]
    assert told == ["MZ045 source.orders", "MZ045 sink.orders_pg"]
    again = commit_plan(plan, state)
    assert build_plan(shop(orders=orders(columns)), again).is_empty
    assert again.resources[at("source.orders")].predecessor == after.predecessor


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("id BIGINT, n INT", "id BIGINT, n STRING", "column n changes from INT to STRING"),
        ("id BIGINT, n BIGINT", "id BIGINT, n INT", "column n changes from BIGINT to INT"),
        ("id BIGINT, n DECIMAL(9,2)", "id BIGINT, n DECIMAL(9,3)", "column n changes from DECIMAL(9,2)"),
        ("id BIGINT, n INT, gone INT", "id BIGINT, more INT, n INT", "column more is new"),
        ("id BIGINT, n INT", "id BIGINT, n INT NOT NULL", "column n gets NOT NULL"),
        ("id BIGINT, s STRUCT<a: INT>", "id BIGINT, s STRUCT<a: BIGINT>", "column s changes"),
    ],
)
def test_an_inexact_migration_rereads_everything(before: str, after: str, why: str) -> None:
    _, plan, of_source, of_sink = planned(orders(before), orders(after))
    assert of_source.action == of_sink.action == "replace" and not of_source.migrates_rows
    (warning,) = [one for one in plan.diagnostics if one.severity == "warning"]
    assert warning.code == "MZ294" and why in warning.detail


def test_a_column_from_another_place_of_the_record_is_reread() -> None:
    of_record = orders("id BIGINT, k STRING, n INT")
    _, plan, of_source, _ = planned(of_record, orders("id BIGINT, n INT", include={"key": "k"}))
    assert not of_source.migrates_rows
    assert "column k is read from another place of the record" in plan.diagnostics[0].detail
    both = {"key": "k", "timestamp": "t"}
    _, _, of_source, _ = planned(orders(include=both), orders(include={"key": "k"}))
    assert of_source.migrates_rows


def test_another_key_replaces_the_sinks() -> None:
    keyed, other = orders(envelope=UPSERT), orders(envelope={"type": "upsert", "key": ["amount"]})
    _, plan, of_source, of_sink = planned(keyed, other)
    assert of_source.migrates_rows
    assert (of_sink.action, of_sink.migrates_rows) == ("replace", False)
    assert "its sinks read all of these rows" in plan.diagnostics[0].detail


def test_another_topic_or_envelope_and_a_replace_by_hand_reread_everything() -> None:
    for after in (orders("id BIGINT", topic="another"), orders("id BIGINT", envelope=UPSERT)):
        _, plan, of_source, of_sink = planned(orders(), after)
        assert of_source.action == "replace" and not of_source.migrates_rows
        assert of_sink.action == "replace" and former_generations(plan) == []
        assert [one.partition(" ")[0] for one in notices(plan)] == ["MZ294"]
    by_hand = build_plan(shop(orders=orders("id BIGINT")), STATE, replace=[at("source.orders")])
    assert not change_of(by_hand, "source.orders").migrates_rows


def test_a_plan_proposes_a_migration_unless_the_source_decides() -> None:
    plan = build_plan(shop(orders=source(columns="id BIGINT")), commit(shop(orders=source())))
    (told,) = notices(plan)
    assert "would reread everything, but could reuse the rows it already has" in told
    assert not change_of(plan, "source.orders").migrates_rows
    says_so = source(columns="id BIGINT", lifecycle={"replace": "in-place"})
    assert notices(build_plan(shop(orders=says_so), commit(shop(orders=source())))) == []


BOTH = {**LOCAL, "other": Instance(name="other", type="embedded")}


def of_files(columns: str, path: str = "/data") -> Configuration:
    format_ = {"type": "json", "schema": columns}
    body = {"connection": "f", "path": "in", "format": format_, "lifecycle": KEPT}
    return project(files(path=path), resource("source.s", "files", **body))


def of_delta(columns: str, **body: Any) -> Configuration:
    given = {"connection": "f", "path": "in", "schema": columns, "lifecycle": KEPT, **body}
    return project(files(), resource("source.s", "delta", **given))


def of_slot(columns: str, **body: Any) -> Configuration:
    given = {"connection": "pg", "tables": ["public.t"], "key": ["id"], "schema": columns, "lifecycle": KEPT}
    return project(postgres(), resource("source.s", "postgres", **given, **body), instances=BOTH)


@pytest.mark.parametrize(
    ("before", "after", "migrates"),
    [
        (of_files("id INT"), of_files("id BIGINT"), True),
        (of_files("id INT"), of_files("id BIGINT", path="/other"), False),
        (of_delta("id INT, n INT"), of_delta("id BIGINT, n INT"), True),
        (of_delta("id INT, n INT"), of_delta("id INT, n INT", key=["id"]), False),
        (of_delta("id INT, n INT", key=["id"]), of_delta("id INT, n INT", key=["n"]), True),
        (of_delta("id INT, n INT", key=["id"]), of_delta("id INT, n INT"), False),
        (of_slot("id INT, n INT"), of_slot("id INT, n BIGINT"), True),
        (of_slot("id INT, n INT"), of_slot("id INT, n BIGINT", instance="other"), False),
    ],
)
def test_a_migration_needs_the_same_upstream_and_kind_of_collection(
    before: Configuration, after: Configuration, migrates: bool
) -> None:
    change = change_of(build_plan(after, commit(before)), "source.s")
    assert (change.action, change.migrates_rows) == ("replace", migrates)


def test_a_kafka_source_migrates_its_rows_to_another_instance() -> None:
    plan = build_plan(
        shop(BOTH, orders=orders("id BIGINT", instance="other")), commit(shop(BOTH, orders=orders()))
    )
    assert change_of(plan, "source.orders").migrates_rows


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
        assert not [one for one in plan.diagnostics if one.severity != "notice"]
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
