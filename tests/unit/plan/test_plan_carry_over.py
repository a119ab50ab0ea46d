"""Plans of a source that begins with the rows of its collection: `lifecycle: {replace: from-collection}`."""

from __future__ import annotations

from typing import Any

import pytest

from mzplan.model.plan import Change, Plan
from mzplan.model.resources import Instance, Resource
from mzplan.model.state import MOST_PREDECESSORS, State
from mzplan.plan import build_plan
from tests.unit.small_projects import (
    LOCAL,
    at,
    change_of,
    commit,
    commit_plan,
    files,
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


def planned(before: Resource, after: Resource) -> tuple[State, Plan, Change, Change]:
    state = commit(shop(orders=before))
    plan = build_plan(shop(orders=after), state)
    return state, plan, change_of(plan, "source.orders"), change_of(plan, "sink.orders_pg")


def notices(plan: Plan) -> list[str]:
    return [f"{one.code} {one.summary}" for one in plan.diagnostics]


@pytest.mark.parametrize(
    "columns",
    ["id BIGINT, amount BIGINT", "id BIGINT, amount STRING", "id BIGINT", "id BIGINT, amount DATE, more INT"],
)
def test_columns_replace_the_source_and_its_sinks_go_on(columns: str) -> None:
    state, plan, of_source, of_sink = planned(orders(), orders(columns))
    assert (of_source.action, of_source.effect, of_source.carries_over) == ("replace", "replace", True)
    after = of_source.after
    assert after is not None and after.predecessor is not None and after.generation == 2
    assert after.predecessor.generation == 1
    assert after.predecessor.body == state.resources[at("source.orders")].body
    assert (of_sink.action, of_sink.fate) == ("restart", "restart")
    assert of_sink.after is not None and of_sink.after.generation == 1
    assert [one.partition(":")[0] for one in notices(plan)] == [
        "MZ045 source.orders",
        "MZ045 sink.orders_pg",
    ]
    again = commit_plan(plan, state)
    assert build_plan(shop(orders=orders(columns)), again).is_empty
    assert again.resources[at("source.orders")].predecessor == after.predecessor


def test_another_key_replaces_the_sinks() -> None:
    keyed, other = orders(envelope=UPSERT), orders(envelope={"type": "upsert", "key": ["amount"]})
    _, plan, of_source, of_sink = planned(keyed, other)
    assert of_source.carries_over
    assert (of_sink.action, of_sink.carries_over) == ("replace", False)
    assert "its sinks read all of these rows" in plan.diagnostics[0].detail


def test_what_decides_which_records_there_are_reads_them_again() -> None:
    for after in (orders("id BIGINT", topic="another"), orders("id BIGINT", envelope=UPSERT)):
        _, plan, of_source, of_sink = planned(orders(), after)
        assert of_source.action == "replace" and not of_source.carries_over
        assert of_sink.action == "replace"
        assert not any("rows of generation" in one or "only its columns" in one for one in notices(plan))


def test_it_is_proposed_where_the_source_says_nothing() -> None:
    plan = build_plan(shop(orders=source(columns="id BIGINT")), commit(shop(orders=source())))
    assert notices(plan) == [
        "MZ045 source.orders: only its columns or its key change, and it would read everything again"
    ]
    assert not change_of(plan, "source.orders").carries_over
    says_so = source(columns="id BIGINT", lifecycle={"replace": "in-place"})
    assert notices(build_plan(shop(orders=says_so), commit(shop(orders=source())))) == []


def test_replaced_by_hand_it_reads_everything_again() -> None:
    state = commit(shop(orders=orders()))
    plan = build_plan(shop(orders=orders("id BIGINT")), state, replace=[at("source.orders")])
    assert not change_of(plan, "source.orders").carries_over


def test_a_connection_that_leads_elsewhere_reads_from_the_start() -> None:
    def read(path: str, columns: str) -> Any:
        format_ = {"type": "json", "schema": columns}
        given = {"connection": "f", "path": "in", "format": format_, "lifecycle": KEPT}
        return project(files(path=path), resource("source.s", "files", **given))

    state = commit(read("/data", "id INT"))
    assert change_of(build_plan(read("/data", "id BIGINT"), state), "source.s").carries_over
    elsewhere = build_plan(read("/other", "id BIGINT"), state)
    assert change_of(elsewhere, "source.s").action == "replace"
    assert not change_of(elsewhere, "source.s").carries_over


def test_a_delta_table_is_gone_on_with_unless_its_key_comes_or_goes() -> None:
    def read(columns: str, **body: Any) -> Any:
        given = {"connection": "f", "path": "in", "schema": columns, "lifecycle": KEPT, **body}
        return project(files(), resource("source.s", "delta", **given))

    state = commit(read("id INT, n INT"))
    assert change_of(build_plan(read("id BIGINT, n INT"), state), "source.s").carries_over
    keyed = build_plan(read("id INT, n INT", key=["id"]), state)
    assert change_of(keyed, "source.s").action == "replace"
    assert not change_of(keyed, "source.s").carries_over
    state = commit(read("id INT, n INT", key=["id"]))
    assert change_of(build_plan(read("id INT, n INT", key=["n"]), state), "source.s").carries_over
    assert not change_of(build_plan(read("id INT, n INT"), state), "source.s").carries_over


def test_a_slot_is_gone_on_with_unless_the_source_moves_to_another_instance() -> None:
    both = {**LOCAL, "other": Instance(name="other", type="embedded")}

    def read(columns: str, **body: Any) -> Any:
        given = {"connection": "pg", "tables": ["public.t"], "key": ["id"], "lifecycle": KEPT}
        made = resource("source.s", "postgres", **given, schema=columns, **body)
        return project(postgres(), made, instances=both)

    state = commit(read("id INT, n INT"))
    assert change_of(build_plan(read("id INT, n STRING"), state), "source.s").carries_over
    elsewhere = change_of(build_plan(read("id INT, n STRING", instance="other"), state), "source.s")
    assert elsewhere.action == "replace" and not elsewhere.carries_over
    of_kafka = commit(shop(both, orders=orders()))
    moved = build_plan(shop(both, orders=orders("id BIGINT", instance="other")), of_kafka)
    assert change_of(moved, "source.orders").carries_over


def test_what_a_generation_began_with_stays_known_for_a_while() -> None:
    state = commit(shop(orders=orders("id BIGINT, c0 INT")))
    for number in range(1, MOST_PREDECESSORS + 3):
        state = commit_plan(build_plan(shop(orders=orders(f"id BIGINT, c{number} INT")), state), state)
    predecessor, depth = state.resources[at("source.orders")].predecessor, 0
    while predecessor is not None:
        predecessor, depth = predecessor.predecessor, depth + 1
    assert depth == MOST_PREDECESSORS
    replaced = build_plan(shop(orders=orders(topic="another")), state)
    after = change_of(replaced, "source.orders").after
    assert after is not None and after.predecessor is None
