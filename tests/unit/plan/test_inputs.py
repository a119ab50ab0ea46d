"""The inputs of a query that begins, as reported by the runners."""

from __future__ import annotations

from typing import Any

import pytest

from mzplan.model.plan import InputExtent, Plan
from mzplan.plan import build_plan
from mzplan.plan.file import decode_plan, digest_of_plan, encode_plan
from mzplan.render.plan_page import render_plan_page
from mzplan.render.plan_text import render_plan
from tests.unit.small_projects import (
    at,
    change_of,
    commit,
    console,
    kafka,
    observe,
    project,
    resource,
    source,
)

ORDERS = source()
PEOPLE = resource("source.people", "local", type="local", schema="id BIGINT, name STRING", key=["id"])
SEEN = {"total_rows": 1200, "last_steps": ((12, 1795183200, 7),), "since": (0, 1794578400)}


def view(sql: str = "SELECT id FROM orders WHERE amount > 0", columns: str = "id BIGINT", **body: Any) -> Any:
    return resource("view.v", "sql", type="sql", query=sql, schema=columns, **body)


BEFORE = project(kafka(), ORDERS, PEOPLE, view(**{"from": "orders"}))
STATE = commit(BEFORE)


def planned(wanted: Any = BEFORE, replace: tuple[str, ...] = ("view.v",), **seen: Any) -> Plan:
    return build_plan(wanted, STATE, observe(STATE, **seen), replace=[at(one) for one in replace])


def told(plan: Plan) -> list[str]:
    return [line.strip() for line in render_plan(plan).splitlines() if line.strip().startswith("reads ")]


def test_a_replaced_view_reads_all_that_its_input_holds() -> None:
    plan = planned(orders=SEEN)
    assert change_of(plan, "view.v").inputs == (
        InputExtent(address=at("source.orders"), last_step=12, rows=1200, since=0, since_time=1794578400),
    )
    line = "reads all of source.orders: 1,200 rows in steps 0 to 12, since 2026-11-13T14:00:00Z"
    assert told(plan) == [line] and line in render_plan_page(plan)
    assert decode_plan(encode_plan(plan)) == plan
    # It is shown, and no part of what is committed: the source runs on.
    assert digest_of_plan(plan) == digest_of_plan(planned(orders={**SEEN, "total_rows": 1300}))


@pytest.mark.parametrize(
    ("replace", "seen"),
    [
        (("view.v",), {}),
        (("view.v",), {**SEEN, "generation": 2}),
        (("view.v",), {"last_steps": (), "total_rows": 3}),
        (("source.orders",), SEEN),
        ((), SEEN),
    ],
    ids=["no report", "another generation", "no step", "the input begins again too", "a restart"],
)
def test_no_input_is_shown(replace: tuple[str, ...], seen: dict[str, Any]) -> None:
    changed = view("SELECT id FROM orders WHERE amount > 9", **{"from": "orders"})
    plan = planned(project(kafka(), ORDERS, PEOPLE, changed), replace, orders=seen)
    assert change_of(plan, "view.v").action == ("replace" if replace else "update") and told(plan) == []


def test_an_input_that_is_known_in_part_is_shown_without_rows() -> None:
    seen = {"last_steps": ((0, None, 7),), "total_rows": None}
    assert told(planned(orders=seen)) == ["reads all of source.orders: step 0"]


def test_a_new_sink_shows_its_input_unless_that_is_new() -> None:
    wanted = project(kafka(), ORDERS, PEOPLE, *BEFORE.resources.values(), console("new", "orders"))
    plan = planned(wanted, replace=(), orders=SEEN)
    assert [one.address for one in change_of(plan, "sink.new").inputs] == [at("source.orders")]
    other = source("others")
    wanted = project(*BEFORE.resources.values(), other, console("new", "others"))
    assert change_of(planned(wanted, replace=()), "sink.new").inputs == ()


def test_a_renamed_input_is_shown() -> None:
    renamed = source("bought", topic="orders", lifecycle={"moved_from": "orders"})
    wanted = project(
        kafka(), renamed, PEOPLE, view("SELECT id FROM bought WHERE amount > 0", **{"from": "bought"})
    )
    assert told(planned(wanted, orders=SEEN)) == [
        "reads all of source.bought: 1,200 rows in steps 0 to 12, since 2026-11-13T14:00:00Z"
    ]
