"""`mzplan recompute`: its plan, its refusals before a start, and the view's steps around it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mzplan.config import load_configuration
from mzplan.connectors.api.queries import resolve
from mzplan.connectors.api.tasks import check_tasks
from mzplan.features.recompute import plan_recompute
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError
from mzplan.model.observed import Status
from mzplan.model.state import State
from mzplan.plan.manual_changes import plan_pause
from mzplan.plan.tasks import plan_without_tasks
from mzplan.schema.description import describe
from mzplan.secrets.references import Secrets
from mzplan.warehouse.checkpoint_log import CheckpointLog
from mzplan.warehouse.checkpoints import Checkpoint, DescriptionHistory, StepDescription
from mzplan.warehouse.step_index import ForeignVersion, StepIndex
from mzplan.warehouse.step_record import StepRecord
from tests.support import refusal
from tests.tasks import recompute
from tests.unit.cli_runs import mzplan
from tests.unit.small_projects import actions, at, change_of, commit, commit_plan, observe

TOTALS = "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer"
WHERE = "customer = 'ada'"
BY_CUSTOMER: Mapping[str, Any] = {"output": "update", "key": ["customer"]}
VIEW, TASK = at("view.totals"), recompute(2, WHERE)
SHOP: dict[str, Any] = {
    "sources": {
        "orders": {
            "type": "local",
            "schema": "id BIGINT, customer STRING, amount DECIMAL(10,2), tax DECIMAL(10,2), ts TIMESTAMP",
        },
        "cities": {"type": "local", "schema": "customer STRING, city STRING", "key": ["customer"]},
    },
    "views": {
        "totals": {"query": TOTALS, **BY_CUSTOMER},
        "last": {
            "query": "SELECT customer, max(ts) AS last FROM orders GROUP BY customer",
            "watermarks": {"orders": {"column": "ts", "delay": "1 minute"}},
            **BY_CUSTOMER,
        },
        "large": {"query": "SELECT id, amount FROM orders WHERE amount > 10"},
        "in_bonn": {"query": "SELECT customer FROM cities WHERE city = 'Bonn'"},
    },
    "sinks": {"shown": {"type": "console", "from": "large"}},
}


def write(folder: Path, query: str = TOTALS) -> None:
    settings = "version: 1\nproject: shop\nwarehouse: ./warehouse\ninstances: {local: {type: dry}}\n"
    (folder / "mzplan.yaml").write_text(settings)
    totals = {**SHOP["views"]["totals"], "query": query}
    (folder / "shop.yaml").write_text(json.dumps({**SHOP, "views": {**SHOP["views"], "totals": totals}}))


@pytest.fixture
def state(tmp_path: Path) -> State:
    write(tmp_path)
    return commit(load_configuration(str(tmp_path)))


def refused(state: State, where: str = WHERE, address: str = "view.totals", **seen: Any) -> Diagnostic:
    statuses: Mapping[str, Status] = observe(state, **seen)
    found = refusal(lambda: plan_recompute(state, at(address), where, statuses))
    assert found.code == "MZ401"
    return found


# --- the plan


def test_a_recompute_restarts_the_view_and_is_recorded(state: State) -> None:
    plan = plan_recompute(state, VIEW, WHERE)
    assert actions(plan) == {"view.totals": "restart"} and plan.diagnostics == ()
    assert change_of(plan, "view.totals").reason == f"a recompute of rows where {WHERE}"
    after = commit_plan(plan, state)
    record = after.resources[VIEW]
    assert record.tasks == describe(record, after.resources).tasks == (TASK,)
    assert record.place == state.resources[VIEW].place
    assert refusal(lambda: plan_recompute(after, VIEW, WHERE)).code == "MZ275"
    cancelled = plan_without_tasks(after, VIEW, "recompute", observe(state))
    reason = change_of(cancelled, "view.totals").reason
    assert reason == f"the recompute of rows where {WHERE} is cancelled"


def test_the_plan_says_that_late_rows_count(state: State) -> None:
    (notice,) = plan_recompute(state, at("view.last"), WHERE).diagnostics
    assert (notice.code, notice.severity) == ("MZ045", "notice") and "dropped as late" in notice.summary
    statuses = observe(state, last={"late_rows": 3})
    (notice,) = plan_recompute(state, at("view.last"), WHERE, statuses).diagnostics
    assert notice.detail.startswith("This run has dropped 3 late rows so far.")


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("total > 1", "--where uses total, which isn't part of the key: customer."),
        ("total > 1 OR x = customer", "--where uses total, x, which aren't part of the key"),
        ("customer > CAST(now() AS STRING)", "changes each time"),
        ("customer = (SELECT 'ada')", "a subquery needs other rows"),
        ("reflect('java.lang.System', 'exit', 1) IS NULL", "calls Java code"),
        ("", "it is empty"),
    ],
)
def test_a_condition_names_only_the_key(state: State, where: str, why: str) -> None:
    with pytest.raises(MzplanError) as caught:
        plan_recompute(state, VIEW, where)
    assert caught.value.exit_code == ExitCode.USAGE
    found = refused(state, where)
    assert why in found.detail and found.hint == "write a condition over customer."
    assert plan_recompute(state, VIEW, "Customer = 'ada' OR true").changes


@pytest.mark.parametrize(
    ("address", "why", "hint"),
    [
        ("source.orders", "come from its upstream", "mzplan backfill source.orders"),
        ("sink.shown", "come from the collection", "mzplan replay sink.shown"),
        ("view.large", "Rows are only added", "mzplan apply --replace view.large --allow-replace"),
    ],
)
def test_only_a_view_with_a_key_is_recomputed(state: State, address: str, why: str, hint: str) -> None:
    found = refused(state, address=address)
    assert why in found.detail and hint in found.hint
    assert plan_recompute(state, at("view.in_bonn"), WHERE).changes, "it has the key of its collection"


def test_a_view_is_recomputed_only_while_it_can_be_exact(state: State) -> None:
    paused = commit_plan(plan_pause(state, [VIEW]), state)
    assert "mzplan resume view.totals" in refused(paused).hint
    beside = replace(state.resources[VIEW], generation=2)
    replaced = replace(state, resources={**state.resources, VIEW: beside})
    found = refused(replaced, totals={"generation": 1, "held": "beside"})
    assert (
        "generation 2 will replace its rows" in found.detail and "cut-over view.totals --abort" in found.hint
    )


# --- before a start


class Begun:
    """A view that has run: its query, its checkpoint, and the index of its input."""

    def __init__(self, folder: Path, state: State, query: str = TOTALS):
        record = state.resources[VIEW]
        record = replace(record, body={**record.body, "query": query})
        description = replace(describe(record, state.resources), tasks=(TASK,))
        self.query = resolve(description, Secrets(".", {}), ".", str(folder))
        assert self.query.checkpoint is not None
        self.checkpoint = self.query.checkpoint
        self.input = Checkpoint.of(str(folder), *description.reads["orders"].place)
        self.index = StepIndex(self.input)

    def run(self, *queries: str, first: int = 0) -> None:
        """Record a done step for each query, as Spark and mzplan do."""
        log = Path(self.checkpoint.spark)
        for name in ("offsets", "commits"):
            (log / name).mkdir(parents=True, exist_ok=True)
        for step, _ in enumerate(queries):
            (log / f"offsets/{step}").write_text('v1\n{"batchWatermarkMs":5}\n{"reservoirVersion":1}')
            (log / f"commits/{step}").write_text('v1\n{"nextBatchWatermarkMs":7}')
        entries = [
            StepDescription(step=first + step, digest=f"1:{step}", rows={"query": query})
            for step, query in enumerate(queries)
        ]
        self.checkpoint.record_descriptions(DescriptionHistory(tuple(entries)))

    def problems(self) -> list[str]:
        found = check_tasks(self.query, self.checkpoint)
        assert {one.code for one in found} <= {"MZ401", "MZ278"}
        return [f"{one.summary}: {one.detail}" for one in found]


def test_a_view_without_steps_has_nothing_to_recompute(tmp_path: Path, state: State) -> None:
    view = Begun(tmp_path, state)
    (problem,) = view.problems()
    assert "has read nothing yet, so there is nothing to recompute" in problem
    view.run(TOTALS)
    assert view.problems() == []


HAVING = f"{TOTALS} HAVING sum(amount) > 10"
MIXED = TOTALS.replace("sum(amount)", "sum(tax)")


def test_no_other_query_may_have_computed_the_state(tmp_path: Path, state: State) -> None:
    view = Begun(tmp_path, state, HAVING)
    view.run(TOTALS, TOTALS.replace("SELECT", "select"), HAVING)
    assert view.problems() == [], "a change above the state, and a rewrite"
    view.run(HAVING, MIXED, HAVING)
    (problem,) = view.problems()
    assert "Another query computed its state up to step 1: " in problem and "sum(tax)" in problem
    view.run(HAVING, MIXED)
    assert "Another query computed its state so far: " in view.problems()[0]
    view.run(HAVING, first=3)
    assert "before step 3 is no longer known" in view.problems()[0]


def test_its_input_must_have_all_rows_that_it_has_read(tmp_path: Path, state: State) -> None:
    """The rows of expired steps are still there, and the view never had rows that were gone before."""
    view = Begun(tmp_path, state)
    view.run(TOTALS)
    view.index.append([StepRecord(step=step, version=step) for step in range(4)])
    view.index.expire(2)
    assert view.problems() == []
    view.index.mark_foreign(ForeignVersion(3, "DELETE"))
    assert "Another writer changed rows of source.orders (version 3)" in view.problems()[0]
    view.input.record_collection("t")
    for version, is_changed in ((5, False), (3, True)):
        end = {"reservoirId": "t", "reservoirVersion": version, "index": -1}
        StepIndex(view.checkpoint).append([StepRecord(step=0, end=[end])])
        assert bool(view.problems()) is is_changed


def test_a_step_without_rows_has_the_next_watermark(tmp_path: Path, state: State) -> None:
    """Spark would begin this step with it, too. Of several inputs, each stays at its position."""
    view = Begun(tmp_path, state)
    view.run(TOTALS)
    (Path(view.checkpoint.spark) / "metadata").write_text('{"id":"q"}')
    log: CheckpointLog = view.checkpoint.log
    log.plan_nothing()
    assert log.unfinished() == 1 and not log.is_written(1)
    _, settings, position = log.lines(1)
    assert (json.loads(settings)["batchWatermarkMs"], position) == (7, '{"reservoirVersion":1}')
    offsets = Path(view.checkpoint.spark) / "offsets/0"
    offsets.write_text(offsets.read_text() + '\n{"reservoirVersion":2}')
    log.skip(1)
    assert log.committed() == 1 and log.lines(1)[2:] == ['{"reservoirVersion":1}', '{"reservoirVersion":2}']


# --- the command


def test_the_command_commits_a_task(tmp_path: Path) -> None:
    write(tmp_path)
    assert mzplan(tmp_path, "apply", "--auto-approve").code == 0
    for words in (("--where", WHERE, "--cancel"), ()):
        assert mzplan(tmp_path, "recompute", "view.totals", *words, "--auto-approve").code == 64
    asked = ("recompute", "view.totals", "--where", WHERE, "--auto-approve")
    ran = mzplan(tmp_path, *asked)
    assert ran.code == 0 and f"because a recompute of rows where {WHERE}" in ran.out
    (shown,) = (q for q in mzplan(tmp_path, "status", "--json").json()["queries"] if "tasks" in q)
    facts = {"serial": 2, "arguments": {"where": WHERE}, "done": True, "outcome": None}
    assert shown["tasks"] == [{"kind": "recompute", **facts}]
    assert f"Recompute of view.totals where {WHERE}" in mzplan(tmp_path, "history").out
    assert mzplan(tmp_path, "plan", "--detailed-exitcode").code == 0
    assert mzplan(tmp_path, "recompute", "view.totals", "--cancel").code == 7, "it is done"
