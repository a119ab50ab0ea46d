"""Losses of a replace, as reported by a runner: the plan shows them first, and apply refuses them."""

from __future__ import annotations

import pytest

from mzplan.model.diagnostics import ExitCode, MzplanError
from mzplan.model.losses import Loss
from mzplan.model.plan import Plan
from mzplan.operations.apply import refuse
from mzplan.plan import apply_changes, build_plan
from mzplan.render.markdown import render_plan_markdown
from mzplan.render.plan_page import render_plan_page
from mzplan.render.plan_text import render_plan
from mzplan.schema.description import describe
from tests.unit.small_projects import at, commit, observe, shop, source

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


@pytest.mark.parametrize(("loss", "generation"), [(None, 1), (LOSS, 2)])
def test_no_loss_is_shown_without_one_or_for_another_generation(loss: Loss | None, generation: int) -> None:
    assert not [one for one in planned(loss, generation=generation).diagnostics if one.code == "MZ292"]


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
