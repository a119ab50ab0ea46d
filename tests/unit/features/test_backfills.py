"""Backfills without Spark: plans, refusals, pending tasks, and the records of their steps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyarrow import parquet

from mzplan.connectors.api.queries import resolve
from mzplan.connectors.api.tasks import check_tasks, tasks_to_do
from mzplan.connectors.kafka import positions
from mzplan.connectors.kafka.probe import KafkaProbe
from mzplan.connectors.kafka.source import KafkaSource
from mzplan.controller.executor import QueryName, QueryReport
from mzplan.controller.observations import QueryState
from mzplan.controller.observations import observe as observe_query
from mzplan.controller.reconcile import Desired, Memory, Switch, decide, key_of
from mzplan.features.backfill.backfill_plans import plan_backfill
from mzplan.features.state.edit_plans import plan_rollback
from mzplan.features.steps.steps_text import render_steps
from mzplan.model.diagnostics import ExitCode, MzplanError
from mzplan.model.plan import Plan
from mzplan.model.state import State
from mzplan.model.tasks import Task, TaskOutcome
from mzplan.plan import build_plan
from mzplan.plan.manual_changes import plan_between, plan_pause, plan_restart
from mzplan.plan.tasks import plan_without_tasks
from mzplan.schema.description import describe, digest_of
from mzplan.secrets.references import Secrets
from mzplan.spark.tasks.source_steps import settle_steps, skip_cancelled_step
from mzplan.store.formats import decode_state, encode_state
from mzplan.warehouse.checkpoints import Checkpoint, TaskRecord, TaskRecords
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.step_record import StepTask
from tests.stored_steps import StoredSource, offsets
from tests.stored_steps import commit as seen_through
from tests.tasks import backfill
from tests.unit import cli_runs
from tests.unit.small_projects import (
    actions,
    at,
    change_of,
    commit,
    commit_plan,
    console,
    kafka,
    names,
    observe,
    project,
    shop,
    source,
)

ORDERS = at("source.orders")
HOUR = 3_600_000
NOW = 1_795_420_800_000  # 2026-11-23T08:00:00Z
RANGE = (NOW - 3 * HOUR, NOW - HOUR)
TEXT = "from 2026-11-23T05:00:00Z to 2026-11-23T07:00:00Z"
SEVEN = backfill(7, "2026-11-23T05:00:00Z", "2026-11-23T07:00:00Z")


@pytest.fixture
def state() -> State:
    return commit(shop(out=console("out", "orders")))


def backfilled(state: State, statuses: Any = None, start: int = RANGE[0]) -> tuple[Plan, State]:
    plan = plan_backfill(state, ORDERS, start, RANGE[1], NOW, statuses or {})
    return plan, commit_plan(plan, state)


def done(*serials: int) -> tuple[TaskOutcome, ...]:
    return tuple(TaskOutcome(serial=serial) for serial in serials)


# --- what is planned


def test_a_backfill_is_a_restart_that_the_state_explains(state: State) -> None:
    plan, after = backfilled(state)
    assert actions(plan) == {"source.orders": "restart"}
    assert change_of(plan, "source.orders").reason == f"a backfill {TEXT}"
    assert names(plan.downstream) == ["sink.orders_pg", "sink.out"]
    appends, upserts = plan.diagnostics
    assert (appends.severity, upserts.severity) == ("notice", "warning")
    assert "sink.out:" in appends.detail and "sink.orders_pg:" in upserts.detail
    before, record = state.resources[ORDERS], after.resources[ORDERS]
    assert record.tasks == (replace(SEVEN, serial=2),) and record.restart_token == 1
    assert record.digest != before.digest and record.place == before.place
    assert describe(record, after.resources).tasks == record.tasks
    assert decode_state(encode_state(after), "x").resources == after.resources
    # The files say nothing of it, and take nothing of it back.
    assert build_plan(shop(out=console("out", "orders")), after).is_empty
    shown = change_of(plan_between(state, after), "source.orders")
    assert (shown.action, shown.reason) == ("restart", f"a backfill {TEXT}")


def test_it_is_pending_until_the_query_runs_that_has_done_it(state: State) -> None:
    _, after = backfilled(state)
    old = observe(state)
    (pending,) = build_plan(shop(out=console("out", "orders")), after, old).pending
    assert pending.reason == f"the backfill {TEXT} is not done yet"
    record = after.resources[ORDERS]
    assert record.open_tasks(old["local"].observations[ORDERS]) == record.tasks
    assert build_plan(shop(out=console("out", "orders")), after, observe(after)).pending == ()
    # A later restart that is still to come does not bring it back.
    later = commit_plan(plan_restart(after, [ORDERS]), after)
    seen = observe(after, orders={"tasks_done": done(2)})["local"].observations[ORDERS]
    assert later.resources[ORDERS].open_tasks(seen) == ()


def test_what_a_query_that_does_not_run_has_done(state: State) -> None:
    _, after = backfilled(state)
    record = after.resources[ORDERS]
    wanted = Desired(description=describe(record, after.resources), paused=False)
    for accepted, done in ((state, False), (after, True)):
        memory = Memory(accepted=describe(accepted.resources[ORDERS], accepted.resources))
        seen = observe_query(ORDERS, QueryState(wanted=wanted, memory=memory))
        assert record.has_done(record.tasks[0], seen) is done


def test_the_same_range_again_only_when_it_is_done(state: State) -> None:
    _, after = backfilled(state)
    for statuses in ({}, observe(state)):
        with pytest.raises(MzplanError) as caught:
            backfilled(after, statuses)
        assert caught.value.diagnostics[0].code == "MZ275" and caught.value.exit_code == ExitCode.REFUSED
    _, other = backfilled(after, observe(state), RANGE[0] + HOUR)
    assert [one.serial for one in other.resources[ORDERS].tasks] == [2, 3]
    _, again = backfilled(after, observe(after))
    assert [one.serial for one in again.resources[ORDERS].tasks] == [3]


def test_giving_it_up(state: State) -> None:
    _, after = backfilled(state)
    plan = plan_without_tasks(after, ORDERS, "backfill", observe(state))
    assert change_of(plan, "source.orders").reason == f"the backfill {TEXT} is cancelled"
    assert plan.diagnostics == ()
    given_up = commit_plan(plan, after)
    assert given_up.resources[ORDERS].tasks == ()
    assert given_up.resources[ORDERS].digest not in (after.resources[ORDERS].digest, "")
    for none in (given_up, state):
        with pytest.raises(MzplanError, match="has no open backfill"):
            plan_without_tasks(none, ORDERS, "backfill", {})
    with pytest.raises(MzplanError, match="no open backfill"):
        plan_without_tasks(after, ORDERS, "backfill", observe(after))


def test_a_new_generation_has_none(state: State) -> None:
    _, after = backfilled(state)
    anew = commit(shop(out=console("out", "orders")), after, replace=[ORDERS])
    record = anew.resources[ORDERS]
    assert record.generation == 2 and describe(record, anew.resources).tasks == ()
    assert record.open_tasks(observe(state)["local"].observations[ORDERS]) == ()


# --- after a rollback


def rolled_back(state: State, then: State) -> State:
    return commit_plan(plan_rollback(state, then), state)


def test_another_one_after_a_rollback_is_done_too(state: State) -> None:
    """The runner hasn't started the first backfill, or still runs it, when the second one is committed."""
    _, first = backfilled(state)
    _, second = backfilled(rolled_back(first, state), start=RANGE[0] + HOUR)
    record = second.resources[ORDERS]
    assert record.restart_token == first.resources[ORDERS].restart_token
    assert record.digest != first.resources[ORDERS].digest
    assert record.open_tasks(observe(first)["local"].observations[ORDERS]) == record.tasks
    ran = describe(first.resources[ORDERS], first.resources)
    report = QueryReport(
        name=QueryName.of("shop", ran),
        query_id="q",
        run_id="r",
        active=True,
        triggered=True,
        tasks_done=done(2),
    )
    wanted = Desired(description=describe(record, second.resources), paused=False)
    decision = decide(ORDERS, wanted, [report], Memory(target=key_of(ran), accepted=ran), 0.0)
    assert isinstance(decision.command, Switch) and decision.command.description == wanted.description
    change = change_of(plan_between(first, second), "source.orders")
    assert (change.action, change.effect) == ("restart", "restart")
    assert change.reason == "a backfill from 2026-11-23T06:00:00Z to 2026-11-23T07:00:00Z"


def test_an_older_one_that_a_rollback_brings_back_is_not_done_by_a_newer_one(state: State) -> None:
    _, first = backfilled(state)
    given_up = commit_plan(plan_without_tasks(first, ORDERS, "backfill", observe(state)), first)
    _, second = backfilled(given_up, start=RANGE[0] + HOUR)
    again = rolled_back(second, first)
    record = again.resources[ORDERS]
    assert record.digest == first.resources[ORDERS].digest
    seen = observe(second, orders={"tasks_done": done(second.resources[ORDERS].tasks[0].serial)})
    assert record.open_tasks(seen["local"].observations[ORDERS]) == record.tasks
    _, third = backfilled(again, seen, RANGE[0] + HOUR)
    assert [one.serial for one in third.resources[ORDERS].tasks] == [2, third.serial]


def test_which_of_several_are_done(state: State) -> None:
    _, one = backfilled(state)
    _, two = backfilled(one, observe(state), RANGE[0] + HOUR)
    later = commit_plan(plan_restart(two, [ORDERS]), two).resources[ORDERS]
    for serials, left in (((), [2, 3]), ((2,), [3]), ((2, 3), [])):
        seen = observe(state, orders={"tasks_done": done(*serials)})["local"].observations[ORDERS]
        assert [one.serial for one in later.open_tasks(seen)] == left


def test_the_digest_has_the_backfills_of_the_generation(state: State) -> None:
    _, after = backfilled(state)
    record = after.resources[ORDERS]
    none, anew = replace(record, tasks=()), replace(record, generation=2)
    assert digest_of(none, after.resources) != digest_of(record, after.resources) == record.digest
    assert digest_of(anew, after.resources) == digest_of(replace(none, generation=2), after.resources)


# --- what is refused


@pytest.mark.parametrize(
    ("start", "end", "why"),
    [
        (RANGE[1], RANGE[0], "begins at"),
        (RANGE[0], RANGE[0], "begins at"),
        (RANGE[0], NOW + 1, "may still arrive"),
    ],
)
def test_ranges_that_are_none(state: State, start: int, end: int, why: str) -> None:
    with pytest.raises(MzplanError, match=r"range to backfill for .* is invalid") as caught:
        plan_backfill(state, ORDERS, start, end, NOW)
    assert why in caught.value.diagnostics[0].detail and caught.value.exit_code == ExitCode.USAGE


def test_what_can_not_be_backfilled() -> None:
    keyed = source("latest", envelope={"type": "upsert", "key": ["id"]})
    state = commit(shop(latest=keyed, out=console("out", "orders")))
    state = commit_plan(plan_pause(state, [ORDERS]), state)
    for address, why in (
        ("source.latest", "older records would replace newer ones"),
        ("source.orders", "paused"),
        ("sink.out", "Only a source reads an upstream"),
    ):
        with pytest.raises(MzplanError) as caught:
            plan_backfill(state, at(address), *RANGE, NOW)
        assert caught.value.diagnostics[0].code == "MZ273", address
        assert why in caught.value.diagnostics[0].detail
    with pytest.raises(MzplanError, match=r"There is no source\.order in the state"):
        plan_backfill(state, at("source.order"), *RANGE, NOW)


def test_a_type_without_times() -> None:
    from tests.unit.small_projects import resource

    mine = resource("source.mine", "local", type="local", schema="id BIGINT")
    state = commit(project(kafka(), mine))
    with pytest.raises(MzplanError) as caught:
        plan_backfill(state, at("source.mine"), *RANGE, NOW)
    assert "type local can't look up its records by time" in caught.value.diagnostics[0].detail


# --- the command, on a dry instance


def test_the_command(tmp_path: Path) -> None:
    folder = cli_runs.write(tmp_path / "p")

    def run(*arguments: str) -> cli_runs.Ran:
        return cli_runs.run("-C", str(folder), *arguments)

    assert run("apply", "--auto-approve").code == 0
    asked = (
        "backfill",
        "source.orders",
        "--from",
        "2026-11-01T08:00:00+01:00",
        "--to",
        "2026-11-01T09:00:00Z",
    )
    assert run(*asked).code == 64  # nobody to ask
    done = run(*asked, "--auto-approve", "--json")
    assert done.code == 0, done.err
    assert (
        done.json()["changes"][0]["reason"] == "a backfill from 2026-11-01T07:00:00Z to 2026-11-01T09:00:00Z"
    )
    assert run("plan", "--detailed-exitcode").code == 0
    (shown,) = [q for q in run("status", "--json").json()["queries"] if q["address"] == "source.orders"]
    arguments = {"from": "2026-11-01T07:00:00Z", "to": "2026-11-01T09:00:00Z"}
    assert shown["tasks"] == [
        {"kind": "backfill", "serial": 2, "arguments": arguments, "done": True, "outcome": None}
    ]
    assert "Backfill of source.orders from" in run("history").out
    assert run("drift", "--detailed-exitcode").code == 0
    assert run("backfill", "source.orders", "--cancel").code == 7
    for wrong in (("--from", "yesterday"), ("--to", "2026-11-01T09:00:00Z"), (*asked[2:], "--cancel")):
        assert run("backfill", "source.orders", *wrong).code == 64


# --- its step


def steps_of(source: StoredSource) -> TaskRecords:
    return Checkpoint.of(str(source.warehouse), *source.place).tasks


def record_of(step: int, start: Any, end: Any, task: Task = SEVEN) -> TaskRecord:
    """Return the record of a backfill that has begun as this step."""
    outcome = TaskOutcome(serial=task.serial)
    return TaskRecord(task=task, outcome=outcome, step=step, start=start, end=end)


def write_backfill(source: StoredSource, start: int, end: int) -> TaskRecord:
    """Write the step of a killed backfill: its rows, and an unchanged checkpoint."""
    step = record_of(source.step, {"orders": {"0": start}}, {"orders": {"0": end}})
    steps_of(source).record(step)
    upstream, source.offset = source.offset, source.offset
    offsets(source.checkpoint, source.step, {"orders": {"0": upstream}})
    info = {
        "timestamp": 1795244169143,
        "operation": "WRITE",
        "operationMetrics": {"numOutputRows": str(end - start)},
    }
    source._commit({"commitInfo": info}, {"txn": {"appId": "q", "version": source.step}})
    seen_through(source.checkpoint, source.step)
    source.step += 1
    steps_of(source).record(replace(step, done=True))
    return step


def test_a_backfill_is_a_step_among_the_others(tmp_path: Path) -> None:
    stored = StoredSource(tmp_path)
    stored.run([{"id": 1}, {"id": 2}, {"id": 3}])
    write_backfill(stored, 1, 3)
    stored.run([{"id": 4}])
    found, own = stored.history.read(), StepTask("backfill", 7)
    assert [(r.step, r.rows, r.task) for r in found.records] == [(0, 3, None), (1, 2, own), (2, 1, None)]
    ranges = [(r.start["orders"]["0"], r.end["orders"]["0"]) for r in found.records]
    assert ranges == [(0, 3), (1, 3), (3, 4)]
    # The same with the first two from the index.
    stored.history.index.append(found.records[:2])
    assert stored.history.read() == found
    resource = commit(shop()).resources[ORDERS]
    shown: Any = SimpleNamespace(resource=resource, steps=found, never="")
    assert "0:1..3 once more (backfill)" in render_steps(shown)


def test_one_that_was_passed_over_keeps_its_step(tmp_path: Path) -> None:
    """A frozen runner may still write the skipped step. The query then uses another step."""
    stored = StoredSource(tmp_path)
    checkpoint = Checkpoint.of(str(tmp_path), *stored.place)
    stored.run([{"id": 1}, {"id": 2}])
    (Path(checkpoint.spark) / "metadata").write_text('{"id":"q"}')
    begun = record_of(1, {"orders": {"0": 0}}, {"orders": {"0": 1}})
    checkpoint.tasks.record(begun)
    before = checkpoint.position()
    skip_cancelled_step(query_of(tmp_path, SEVEN), checkpoint)
    assert checkpoint.log.committed() == 0, "it is wanted: it begins again with the same offsets"
    for _ in range(2):  # and again by a runner that was frozen meanwhile
        skip_cancelled_step(query_of(tmp_path), checkpoint)
        assert (checkpoint.log.committed(), checkpoint.position()) == (1, before)
    settle_steps(checkpoint, str(stored.collection), Mock())
    assert checkpoint.tasks.all() == [begun], "nothing of it is there"
    info = {"timestamp": 1795244169143, "operation": "WRITE", "operationMetrics": {"numOutputRows": "1"}}
    stored._commit({"commitInfo": info}, {"txn": {"appId": "q", "version": 1}})
    stored.step = 2
    stored.run([{"id": 3}])
    settle_steps(checkpoint, str(stored.collection), Mock())
    assert checkpoint.tasks.all() == [replace(begun, done=True)] and checkpoint.log.committed() == 2
    checkpoint.log.skip(1)
    assert (checkpoint.log.committed(), checkpoint.log.entry(2)) == (2, '{"orders": {"0": 3}}')
    found, own = stored.history.read().records, StepTask("backfill", 7)
    assert [(r.step, r.rows, r.task) for r in found] == [(0, 2, None), (1, 1, own), (2, 1, None)]
    with pytest.raises(OSError, match="no longer says where step 6 has ended"):
        checkpoint.log.skip(7)


def test_who_has_written_last(tmp_path: Path) -> None:
    stored = StoredSource(tmp_path)
    log = CollectionLog(str(stored.collection))
    assert log.last_transaction("q") is None
    write_backfill(stored, 0, 1)
    write_backfill(stored, 0, 1)
    stored.vacuum()
    assert (log.last_transaction("q"), log.last_transaction("other")) == (1, None)
    # Where the log was cut off, a checkpoint of Delta's knows it.
    folder = stored.collection / "_delta_log"
    for version in range(3):
        (folder / f"{version:020}.json").unlink()
    rows = [{"txn": {"appId": "q", "version": 1}}, {"txn": None}]
    parquet.write_table(pa.Table.from_pylist(rows), folder / f"{2:020}.checkpoint.parquet")
    log = CollectionLog(str(stored.collection))
    assert (log.last_transaction("q"), log.last_transaction("other")) == (1, None)


def test_what_is_kept_of_them(tmp_path: Path) -> None:
    kept = TaskRecords(str(tmp_path))
    assert kept.all() == [] and kept.at(3) is None
    step = record_of(3, {"t": {"0": 1}}, {"t": {"0": 2}})
    kept.record(step)
    kept.record(replace(step, step=11, done=True))
    assert [one.step for one in kept.all()] == [3, 11] and kept.at(3) == step
    (tmp_path / "tasks" / f"{11:020}.json").write_text("{")
    with pytest.raises(OSError, match="is damaged"):
        kept.all()


# --- whether the upstream has it


def query_of(folder: Path, *tasks: Task) -> Any:
    described = describe(commit(shop()).resources[ORDERS], commit(shop()).resources)
    return resolve(replace(described, tasks=tasks), Secrets(".", {}), ".", str(folder))


def test_a_check_looks_for_those_that_are_not_done(tmp_path: Path) -> None:
    query = query_of(tmp_path, SEVEN, replace(SEVEN, serial=8))
    asked: list[tuple[int, int, str | None]] = []

    class Asked(KafkaSource):
        def between_times(self, query: Any, start: int, end: int, position: str | None) -> tuple[Any, Any]:
            asked.append((start, end, position))
            return {}, {}

    (begins,) = check_tasks(query, query.checkpoint, Asked())
    assert begins.code == "MZ278" and not asked
    spark = Path(query.checkpoint.spark)
    offsets(spark, 0, {"orders": {"0": 3}})
    seen_through(spark, 0)
    query.checkpoint.tasks.record(replace(record_of(1, {}, {}), done=True))
    assert tasks_to_do(query, query.checkpoint) == [replace(SEVEN, serial=8)]
    assert check_tasks(query, query.checkpoint, Asked()) == ()
    assert asked == [(*RANGE, '{"orders": {"0": 3}}')]
    # One that has begun has its offsets, and its rows may be there: nothing is looked for.
    query.checkpoint.tasks.record(record_of(2, {}, {}, replace(SEVEN, serial=8)))
    assert check_tasks(query, query.checkpoint, Asked()) == () and len(asked) == 1
    assert check_tasks(query_of(tmp_path), query.checkpoint, Asked()) == ()


@pytest.mark.parametrize(
    ("first", "begins", "ends", "expected"),
    [
        ([0, 0], {0: (3, 0), 1: (1, 0)}, {0: (7, 0)}, ({"0": 3, "1": 1}, {"0": 7, "1": 15})),
        ([0, 0], {0: (3, 0)}, {0: (3, 0)}, "has no records from"),
        ([0, 0], {}, {}, "has no records from"),
        ([3, 0], {0: (3, RANGE[0] + 5), 1: (1, 0)}, {}, "may be gone"),
        ([2, 0], {0: (3, 0)}, {}, ({"0": 3}, {"0": 12})),
        # The oldest that partition 0 has is younger than the range.
        ([9, 0], {0: (9, RANGE[0] + 5), 1: (1, 0)}, {0: (9, 0)}, "may be gone"),
        # What is behind the checkpoint's position comes by itself: 12 and 15.
        ([0, 0], {0: (12, 0), 1: (14, 0)}, {}, ({"1": 14}, {"1": 15})),
        ([0, 0], {0: (12, 0)}, {}, "has not read the records"),
    ],
)
def test_the_offsets_of_a_range(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first: list[int], begins: Any, ends: Any, expected: Any
) -> None:
    """Both partitions end at offset 20."""

    def records(*given: Any) -> dict[int, positions._Record]:
        found = begins if given[-1] == RANGE[0] else ends
        return {partition: positions._Record(*record) for partition, record in found.items()}

    monkeypatch.setattr(KafkaProbe, "client_of", lambda *_: None)
    monkeypatch.setattr(positions, "identify", lambda *_: {"partitions": 2})
    monkeypatch.setattr(positions, "_records_at", records)
    monkeypatch.setattr(
        positions, "_offsets", lambda *given: dict(enumerate(first if given[-1] == "earliest" else [20, 20]))
    )
    position = json.dumps({"orders": {"0": 12, "1": 15}})
    if isinstance(expected, tuple):
        found = positions.KafkaPositions().between_times(query_of(tmp_path), *RANGE, position)
        assert found == tuple({"orders": offsets} for offsets in expected)
        assert json.dumps(found)
        return
    with pytest.raises(MzplanError, match=expected) as caught:
        positions.KafkaPositions().between_times(query_of(tmp_path), *RANGE, position)
    (problem,) = caught.value.diagnostics
    assert problem.code == ("MZ278" if "not read" in expected else "MZ277")
    assert expected != "may be gone" or "--from 2026-11-23T05:00:00.006Z or later" in problem.hint
