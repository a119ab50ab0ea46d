"""Reports of runners in a plan: losses of a replace, which come first and which apply refuses, and inputs."""

from __future__ import annotations

from typing import Any

import pytest

from mzplan.model.diagnostics import ExitCode, MzplanError
from mzplan.model.losses import Loss
from mzplan.model.plan import InputExtent, Plan
from mzplan.model.resources import Configuration, Resource
from mzplan.operations.apply import refuse
from mzplan.plan import apply_changes, build_plan
from mzplan.plan.file import decode_plan, digest_of_plan, encode_plan
from mzplan.render.markdown import render_plan_markdown
from mzplan.render.plan_page import render_plan_page
from mzplan.render.plan_text import render_plan
from mzplan.schema.description import describe
from tests.unit.small_projects import (
    at,
    change_of,
    commit,
    console,
    kafka,
    observe,
    project,
    resource,
    shop,
    source,
)

ORDERS = at("source.orders")
LOSS = Loss(
    lost=1200, read=3000, unit="records", where="connection.k (a:9092), topic orders: partition 0: 0–1,199"
)
LOST = "1,200 of 3,000 records of source.orders can't be read again"
STATE = commit(shop())


def planned(loss: Loss | None, *, generation: int = 1) -> Plan:
    seen = observe(STATE, orders={"generation": generation, "loss": loss})
    return build_plan(shop(orders=source(columns="id STRING, amount INT")), STATE, seen)


def test_a_loss_comes_first_in_text_comment_and_page() -> None:
    plan = planned(LOSS)
    assert render_plan(plan).startswith(f"! {LOST}: {LOSS.where}\n! 2 queries begin again")
    comment = render_plan_markdown(plan)
    above = comment.partition("<details>")[0]
    assert f"> **{LOST}** (apply needs `--allow-loss`): `{LOSS.where}`" in above
    page = render_plan_page(plan)
    assert page.index("1,200 of 3,000 records") < page.index("begin again and will read everything again")
    (found,) = (one for one in plan.diagnostics if one.code == "MZ292")
    assert (found.severity, found.address, found.summary) == ("warning", ORDERS, LOST)
    assert "plan --live checks" in found.detail

    plan = planned(Loss(lost=None, read=None, unit="changes", where="a snapshot of today"))
    assert render_plan(plan).startswith(
        "! Changes of source.orders can't be read again: a snapshot of today\n"
    )
    for plan in (planned(None), planned(LOSS, generation=2)):  # without one, or for another generation
        assert "MZ292" not in [one.code for one in plan.diagnostics]


@pytest.mark.parametrize(
    ("allowed", "codes"),
    [
        ((False, False), ["MZ292", "MZ040", "MZ040"]),
        ((True, False), ["MZ292"]),
        ((False, True), ["MZ040", "MZ040"]),
    ],
)
def test_a_replace_and_a_loss_are_allowed_separately(allowed: tuple[bool, bool], codes: list[str]) -> None:
    with pytest.raises(MzplanError) as caught:
        refuse(planned(LOSS), *allowed)
    assert [one.code for one in caught.value.diagnostics] == codes
    assert caught.value.exit_code == ExitCode.REFUSED
    refuse(planned(LOSS), allow_replace=True, allow_loss=True)


def test_an_allowed_loss_counts_only_for_its_generation() -> None:
    plan = planned(LOSS)
    allowed, not_ = (apply_changes(STATE, plan, allow_loss=one) for one in (True, False))
    assert describe(allowed.resources[ORDERS], allowed.resources).may_lose
    assert not describe(not_.resources[ORDERS], not_.resources).may_lose
    assert allowed.resources[ORDERS].digest == not_.resources[ORDERS].digest
    again = commit(shop(), allowed)  # back to the first columns: another replacement
    assert again.resources[ORDERS].generation == 3
    assert not describe(again.resources[ORDERS], again.resources).may_lose


# --- inputs


def view(read: str = "orders", above: int = 0) -> Resource:
    query = f"SELECT id FROM {read} WHERE amount > {above}"
    return resource("view.v", "sql", type="sql", query=query, schema="id BIGINT", **{"from": read})


SEEN = {"total_rows": 1200, "last_steps": ((12, 1795183200, 7),), "since": (0, 1794578400)}
VIEWED = shop(v=view())


def viewed(wanted: Configuration = VIEWED, *replace: str, **seen: Any) -> Plan:
    state = commit(VIEWED)
    return build_plan(wanted, state, observe(state, orders=seen), replace=[at(one) for one in replace])


def told(plan: Plan) -> list[str]:
    return [line.strip() for line in render_plan(plan).splitlines() if line.strip().startswith("reads ")]


def test_a_replaced_view_reads_all_that_its_input_holds() -> None:
    plan = viewed(VIEWED, "view.v", **SEEN)
    assert change_of(plan, "view.v").inputs == (
        InputExtent(address=ORDERS, last_step=12, rows=1200, since=0, since_time=1794578400),
    )
    what = "1,200 rows in steps 0 to 12, since 2026-11-13T14:00:00Z"
    line = f"reads all of source.orders: {what}"
    assert told(plan) == [line] and line in render_plan_page(plan)
    assert decode_plan(encode_plan(plan)) == plan
    # It is shown, and no part of what is committed: the source runs on.
    assert digest_of_plan(plan) == digest_of_plan(viewed(VIEWED, "view.v", **{**SEEN, "total_rows": 1300}))
    renamed = source("bought", topic="orders", lifecycle={"moved_from": "orders"})
    plan = viewed(project(kafka(), renamed, view("bought")), "view.v", **SEEN)
    assert told(plan) == [f"reads all of source.bought: {what}"]
    in_part = {"last_steps": ((0, None, 7),), "total_rows": None}
    assert told(viewed(VIEWED, "view.v", **in_part)) == ["reads all of source.orders: step 0"]


@pytest.mark.parametrize(
    ("replace", "seen"),
    [
        (["view.v"], {}),
        (["view.v"], {**SEEN, "generation": 2}),
        (["view.v"], {"last_steps": (), "total_rows": 3}),
        (["source.orders"], SEEN),
        ([], SEEN),
    ],
    ids=["no report", "another generation", "no step", "the input begins again too", "a restart"],
)
def test_no_input_is_shown(replace: list[str], seen: dict[str, Any]) -> None:
    plan = viewed(shop(v=view(above=9)), *replace, **seen)
    assert change_of(plan, "view.v").action == ("replace" if replace else "update") and told(plan) == []


def test_a_new_sink_shows_its_input_unless_that_is_new() -> None:
    late = {"late": source("late"), "of_late": console("of_late", "late")}
    plan = viewed(shop(v=view(), new=console("new", "orders"), **late), **SEEN)
    assert [one.address for one in change_of(plan, "sink.new").inputs] == [ORDERS]
    assert change_of(plan, "sink.of_late").inputs == ()
