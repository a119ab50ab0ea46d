"""Another number of partitions of a view's state restarts the view, if its runner's Spark can repartition."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mzplan.model.observed import Versions
from mzplan.model.plan import Plan
from mzplan.plan import build_plan
from mzplan.render.plan_text import render_plan
from tests.unit.plan.test_query_change import PROJECT, load
from tests.unit.small_projects import at, change_of, commit, observe

FORMER = PROJECT.replace("    on_query_change: resume\n", "")
MORE = FORMER.replace("    key: [customer]\nsinks", "    key: [customer]\n    partitions: 8\nsinks")


def planned(folder: Path, text: str, spark: str | None, former: str = FORMER) -> Plan:
    state = commit(load(folder, former))
    statuses = observe(state)
    if spark is not None:
        versions = Versions(mzplan="1", spark=spark, delta="4.4.0", kafka="4.2.0")
        statuses = {name: replace(status, versions=versions) for name, status in statuses.items()}
    return build_plan(load(folder, text), state, statuses)


def test_a_newer_spark_repartitions_the_state(tmp_path: Path) -> None:
    plan = planned(tmp_path, MORE, "4.2.0")
    assert [(change.address, change.effect) for change in plan.changes] == [(at("view.totals"), "restart")]
    text = render_plan(plan)
    assert "the change to `partitions` repartitions its state before it starts again" in text
    assert change_of(planned(tmp_path, FORMER, "4.2.0", MORE), "view.totals").effect == "restart"


@pytest.mark.parametrize("spark", ["4.0.5", "4.1.4", "5.0.0", None])
def test_another_spark_begins_with_an_empty_state(tmp_path: Path, spark: str | None) -> None:
    """As does a runner that has never reported its Spark."""
    assert change_of(planned(tmp_path, MORE, spark), "view.totals").effect == "replace"


def test_a_changed_query_has_its_own_verdict(tmp_path: Path) -> None:
    kept, mixed, lost = (
        change_of(planned(tmp_path, MORE.replace("sum(amount) AS", f"{other} AS"), "4.2.0"), "view.totals")
        for other in ("-sum(amount)", "sum(tax)", "avg(amount)")
    )
    assert (kept.effect, mixed.effect, lost.effect) == ("restart", "replace", "replace")
