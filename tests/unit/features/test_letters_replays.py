"""Replays of dead letters without Spark: plans, refusals, the commands' output, and the records of steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from mzplan.cli.apply import applied_to_json
from mzplan.connectors.api.queries import resolve
from mzplan.connectors.api.tasks import check_tasks, tasks_to_do
from mzplan.connectors.kafka.source import KafkaSource
from mzplan.features.backfill.backfill_plans import plan_backfill
from mzplan.features.replay.replay_plans import plan_letters
from mzplan.features.steps.steps_text import render_steps
from mzplan.model.diagnostics import ExitCode, MzplanError
from mzplan.model.plan import Plan
from mzplan.model.state import State
from mzplan.model.tasks import Task
from mzplan.operations.apply import ApplyResult
from mzplan.operations.project import Outcome
from mzplan.plan import build_plan
from mzplan.plan.manual_changes import plan_between, plan_pause
from mzplan.plan.tasks import plan_without_tasks
from mzplan.schema.description import describe
from mzplan.secrets.references import Secrets
from mzplan.spark.tasks.dead_letters import outcome_of
from mzplan.spark.tasks.source_steps import settle_steps, skip_cancelled_step
from mzplan.store.formats import decode_state, encode_state
from mzplan.warehouse.checkpoints import Checkpoint, TaskRecord
from mzplan.warehouse.step_record import StepTask
from tests.stored_steps import StoredSource, offsets
from tests.stored_steps import commit as seen_through
from tests.tasks import task
from tests.unit import cli_runs
from tests.unit.small_projects import (
    actions,
    at,
    change_of,
    commit,
    commit_plan,
    names,
    observe,
    shop,
    source,
)

ORDERS = at("source.orders")
WHERE = "reason LIKE 'id %'"
ASIDE: dict[str, Any] = {"on_error": "dead-letter", "dead_letter": {"path": "dead/orders"}}
KEPT = "on_error: dead-letter, dead_letter: {path: dead/orders},"
TEXT = f"replay of its dead letters where {WHERE}"
ASKED = task("dead-letters", 2, TEXT, where=WHERE)
FOUND = outcome_of(ASKED, rows=3, already_rows=1, remaining=(("id is not a BIGINT", 2), ("no value", 1)))


def keeping(**changed: Any) -> State:
    return commit(shop(orders=source(**{**ASIDE, **changed})))


def test_a_replay_of_letters_is_a_restart_that_the_state_explains() -> None:
    state = keeping()
    plan = plan_letters(state, ORDERS, WHERE)
    after = commit_plan(plan, state)
    assert actions(plan) == {"source.orders": "restart"} and names(plan.downstream) == ["sink.orders_pg"]
    reason = f"a {TEXT}"
    assert change_of(plan, "source.orders").reason == reason
    (upserts,) = plan.diagnostics
    assert (upserts.code, upserts.severity) == ("MZ045", "warning") and "sink.orders_pg:" in upserts.detail
    before, record = state.resources[ORDERS], after.resources[ORDERS]
    assert record.tasks == (ASKED,) and record.place == before.place and record.digest != before.digest
    assert describe(record, after.resources).tasks == (ASKED,)
    assert decode_state(encode_state(after), "x").resources == after.resources
    assert build_plan(shop(orders=source(**ASIDE)), after).is_empty
    assert change_of(plan_between(state, after), "source.orders").reason == reason
    (pending,) = build_plan(shop(orders=source(**ASIDE)), after, observe(state)).pending
    assert pending.reason == f"the {TEXT} is not done yet"
    assert change_of(plan_letters(state, ORDERS, None), "source.orders").reason == (
        "a replay of its dead letters"
    )


def test_the_same_again_only_when_it_is_done_and_giving_it_up() -> None:
    state = keeping()
    after = commit_plan(plan_letters(state, ORDERS, WHERE), state)
    with pytest.raises(MzplanError, match="was already requested") as caught:
        plan_letters(after, ORDERS, WHERE, observe(state))
    assert caught.value.diagnostics[0].code == "MZ275"
    again = commit_plan(plan_letters(after, ORDERS, WHERE, observe(after)), after)
    assert [one.serial for one in again.resources[ORDERS].tasks] == [3]
    # Of a source that is to do both, each command gives up its own.
    hour = 3_600_000
    both = commit_plan(plan_backfill(after, ORDERS, hour, 2 * hour, 3 * hour, observe(state)), after)
    record = commit_plan(plan_without_tasks(both, ORDERS, "backfill", observe(state)), both).resources[ORDERS]
    assert record.tasks == (ASKED,)
    record = commit_plan(plan_without_tasks(both, ORDERS, "replay", observe(state)), both).resources[ORDERS]
    assert [one.kind for one in record.tasks] == ["backfill"]
    for word in ("replay", "backfill"):
        with pytest.raises(MzplanError, match=f"has no open {word}"):
            plan_without_tasks(state, ORDERS, word, {})


@pytest.mark.parametrize(
    ("changed", "why", "hint"),
    [
        (
            {"on_error": "skip", "dead_letter": None},
            "It keeps no dead letters",
            "set on_error and dead_letter",
        ),
        ({"dead_letter": {"topic": "dead"}}, "to the topic dead, and a topic", "declare a source of that"),
        ({"envelope": {"type": "upsert", "key": ["id"]}}, "the latest row of each key", "--replace"),
        ({"include": {"headers": "h"}}, "includes the headers", "mzplan backfill source.orders"),
        ({"paused": True}, "It is paused", "mzplan resume source.orders"),
    ],
)
def test_letters_that_can_not_be_read_again(changed: dict[str, Any], why: str, hint: str) -> None:
    body = {name: value for name, value in {**ASIDE, **changed}.items() if value is not None}
    with pytest.raises(MzplanError) as caught:
        plan_letters(commit(shop(orders=source(**body))), ORDERS, None)
    (found,) = caught.value.diagnostics
    assert (found.code, caught.value.exit_code) == ("MZ273", ExitCode.REFUSED)
    assert why in found.detail and hint in found.hint


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("amount > 1", "--where uses amount, which isn't a column of dead letters"),
        ("offset >", "the syntax is wrong"),
        ("", "it is empty"),
        ("reflect('java.lang.System', 'exit', 1) IS NULL", "calls Java code"),
        ("offset IN (SELECT 1)", "needs other rows"),
    ],
)
def test_conditions_of_what_no_letter_has(where: str, why: str) -> None:
    with pytest.raises(MzplanError) as caught:
        plan_letters(keeping(), ORDERS, where)
    (found,) = caught.value.diagnostics
    assert (found.code, caught.value.exit_code) == ("MZ273", ExitCode.USAGE) and why in found.detail


def test_only_a_source_has_letters_and_a_paused_one_waits() -> None:
    state = keeping()
    with pytest.raises(MzplanError, match="can't be replayed") as caught:
        plan_letters(state, at("sink.orders_pg"), None)
    assert caught.value.diagnostics[0].hint == "name its source: source.orders"
    with pytest.raises(MzplanError, match="can't be replayed"):
        plan_letters(commit_plan(plan_pause(state, [ORDERS]), state), ORDERS, None)


def query_of(folder: Path, *tasks: Task, **changed: Any) -> Any:
    state = keeping(**changed)
    described = replace(describe(state.resources[ORDERS], state.resources), tasks=tasks)
    return resolve(described, Secrets(".", {}), ".", str(folder))


def test_what_a_runner_finds(tmp_path: Path) -> None:
    query = query_of(tmp_path, ASKED)
    (begins,) = check_tasks(query, query.checkpoint, KafkaSource())
    assert begins.code == "MZ278" and "A replay runs as a step after others" in begins.detail
    spark = Path(query.checkpoint.spark)
    offsets(spark, 0, {"orders": {"0": 3}})
    seen_through(spark, 0)
    assert check_tasks(query, query.checkpoint, KafkaSource()) == ()
    # The source may have changed since it was asked for.
    other = query_of(tmp_path, ASKED, dead_letter={"topic": "dead"})
    (refused,) = check_tasks(other, other.checkpoint, KafkaSource())
    assert refused.code == "MZ273" and "and a topic keeps its records" in refused.detail
    step = TaskRecord(step=1, task=ASKED, outcome=FOUND, details={"path": "dead/orders"})
    query.checkpoint.tasks.record(step)
    assert query.checkpoint.tasks.all() == [step]
    assert tasks_to_do(query, query.checkpoint) == [ASKED]
    query.checkpoint.tasks.record(replace(step, done=True))
    assert tasks_to_do(query, query.checkpoint) == []
    assert query.checkpoint.tasks.done() == (FOUND,)


def test_its_step_is_finished_once_its_rows_are_there(tmp_path: Path) -> None:
    """Even if the source was changed since. The letters are deleted before the step is done."""
    stored = StoredSource(tmp_path)
    checkpoint = Checkpoint.of(str(tmp_path), *stored.place)
    stored.run([{"id": 1}, {"id": 2}])
    (Path(checkpoint.spark) / "metadata").write_text('{"id":"q"}')
    step = TaskRecord(step=1, task=ASKED, outcome=FOUND, details={"path": "dead/orders"})
    checkpoint.tasks.record(step)
    clear = Mock()
    settle_steps(checkpoint, str(stored.collection), clear)
    skip_cancelled_step(query_of(tmp_path, ASKED), checkpoint)
    assert checkpoint.log.committed() == 0 and not clear.called
    info = {"timestamp": 1795244169143, "operation": "WRITE", "operationMetrics": {"numOutputRows": "3"}}
    stored._commit({"commitInfo": info}, {"txn": {"appId": "q", "version": 1}})
    clear.side_effect = RuntimeError("as if killed")
    with pytest.raises(RuntimeError):
        settle_steps(checkpoint, str(stored.collection), clear)
    assert checkpoint.tasks.all() == [step] and checkpoint.log.committed() == 0
    clear = Mock()
    settle_steps(checkpoint, str(stored.collection), clear)
    clear.assert_called_once_with(step)
    assert checkpoint.tasks.all() == [replace(step, done=True)] and checkpoint.log.committed() == 1
    stored.step = 2
    stored.run([{"id": 3}])
    found = stored.history.read()
    own = StepTask("dead-letters", 2)
    assert [(r.step, r.rows, r.task) for r in found.records] == [(0, 2, None), (1, 3, own), (2, 1, None)]
    assert found.records[1].start == found.records[1].end == found.records[2].start
    shown: Any = SimpleNamespace(resource=commit(shop()).resources[ORDERS], steps=found, never="")
    assert "once more (dead-letters)" in render_steps(shown)


def test_what_a_command_says_of_them() -> None:
    assert FOUND.text.splitlines() == [
        "7 dead letters were read: 3 became rows, 1 already was one, 3 stay",
        "2: id is not a BIGINT",
        "1: no value",
    ]
    assert outcome_of(ASKED, rows=0, already_rows=0, remaining=()).text == "0 dead letters were read"
    plan: Plan = plan_letters(keeping(), ORDERS, None)
    for serial, there in ((2, True), (3, False)):  # of an earlier replay, nothing is said
        outcome = Outcome(address=ORDERS, status="applied", seconds=1.0, tasks_done=(FOUND,))
        applied = ApplyResult(
            plan=plan, serial=serial, lineage="x", outcomes={ORDERS: outcome}, former_run_ids={}
        )
        (shown,) = applied_to_json(applied)["changes"]
        assert ("task" in shown) is there
        if there:
            stay = [
                {"reason": "id is not a BIGINT", "letters": 2},
                {"reason": "no value", "letters": 1},
            ]
            assert shown["task"]["outcome"] == {"read": 7, "rows": 3, "rows_before": 1, "stay": stay}


def test_the_command(tmp_path: Path) -> None:
    folder = cli_runs.write(tmp_path / "p")
    pipeline = folder / "pipeline.yaml"
    pipeline.write_text(pipeline.read_text().replace("topic: orders,", f"topic: orders, {KEPT}"))

    def run(*arguments: str) -> cli_runs.Ran:
        return cli_runs.run("-C", str(folder), *arguments)

    assert run("apply", "--auto-approve").code == 0
    done = run("replay", "source.orders", "--dead-letters", "--where", WHERE, "--auto-approve", "--json")
    assert done.code == 0, done.err
    assert done.json()["changes"][0]["reason"] == f"a replay of its dead letters where {WHERE}"
    (shown,) = [q for q in run("status", "--json").json()["queries"] if q["address"] == "source.orders"]
    assert shown["tasks"] == [
        {"kind": "dead-letters", "serial": 2, "arguments": {"where": WHERE}, "done": True, "outcome": None}
    ]
    assert "Replay of the dead letters of source.orders" in run("history").out
    assert run("plan", "--detailed-exitcode").code == 0
    for wrong in (("--where", WHERE), ("--dead-letters", "--missing"), ("--dead-letters", "--cancel")):
        assert run("replay", "source.orders", *wrong, "--auto-approve").code == 64, wrong
    nowhere = run("replay", "source.orders", "--dead-letters", "--where", "amount > 1", "--auto-approve")
    assert nowhere.code == 64 and "isn't a column of dead letters" in nowhere.err
    assert run("replay", "source.orders", "--cancel").code == 7


def test_with_no_runner_alive_it_is_recorded(tmp_path: Path) -> None:
    folder = cli_runs.write(tmp_path / "p", "cluster")
    pipeline = folder / "pipeline.yaml"
    pipeline.write_text(pipeline.read_text().replace("topic: orders,", f"topic: orders, {KEPT}"))

    def run(*arguments: str) -> cli_runs.Ran:
        return cli_runs.run("-C", str(folder), *arguments, "--auto-approve", "--wait", "0s")

    assert run("apply", "--no-live").code == 8
    assert run("replay", "source.orders", "--dead-letters").code == 7  # nobody validates it
    recorded = run("replay", "source.orders", "--dead-letters", "--no-live")
    assert recorded.code == 8 and "no runner" in (recorded.out + recorded.err).lower(), recorded.err
    assert '"kind":"dead-letters"' in (folder / "state" / "mzplan.state.json").read_text()
