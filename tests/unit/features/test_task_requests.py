"""Backfills, replays and replays of dead letters as commands request them: plans, refusals, cancelling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mzplan.cli.apply import applied_to_json
from mzplan.controller.decision import Memory, Switch, WantedQuery, key_of
from mzplan.controller.executor import QueryName, QueryReport
from mzplan.controller.observations import QueryState
from mzplan.controller.observations import observe as observe_query
from mzplan.controller.reconcile import next_step
from mzplan.features.backfill import plan_backfill
from mzplan.features.replay import plan_letters, plan_replay
from mzplan.features.state.edit_plans import plan_rollback
from mzplan.model.address import Address
from mzplan.model.diagnostics import ExitCode, MzplanError
from mzplan.model.observed import Observation
from mzplan.model.plan import Plan
from mzplan.model.state import State
from mzplan.model.tasks import Task, TaskOutcome
from mzplan.operations.apply import ApplyResult
from mzplan.operations.project import Outcome
from mzplan.plan import build_plan
from mzplan.plan.manual_changes import plan_between, plan_pause, plan_restart
from mzplan.plan.tasks import plan_without_tasks
from mzplan.schema.description import describe, digest_of
from mzplan.spark.tasks.dead_letters import outcome_of
from mzplan.store.formats import decode_state, encode_state
from tests.tasks import task
from tests.unit import cli_runs
from tests.unit.small_projects import (
    actions,
    at,
    change_of,
    commit,
    commit_plan,
    console,
    observe,
    resource,
    shop,
    sink,
    source,
)

ORDERS, SINK = at("source.orders"), at("sink.orders_pg")
HOUR = 3_600_000
NOW = 1_795_420_800_000  # 2026-11-23T08:00:00Z
START, END = NOW - 3 * HOUR, NOW - HOUR
WHERE = "reason LIKE 'id %'"
LETTERS: dict[str, Any] = {"on_error": "dead-letter", "dead_letter": {"path": "dead/orders"}}
PROJECT = shop(orders=source(**LETTERS), out=console("out", "orders"))


@dataclass(frozen=True)
class Request:
    """A command's request for a task of one kind, and what it asks for."""

    plan: Callable[..., Plan]
    task: Task
    command: tuple[str, ...]
    address: Address = ORDERS
    notices: tuple[tuple[str, str], ...] = ()

    def commit(self, state: State, *statuses: Any) -> State:
        return commit_plan(self.plan(state, *statuses), state)


def plan_range(state: State, statuses: Any = None, start: int = START) -> Plan:
    return plan_backfill(state, ORDERS, start, END, NOW, statuses or {})


RANGE = {"from": "2026-11-23T05:00:00Z", "to": "2026-11-23T07:00:00Z"}
BACKFILL = Request(
    plan_range,
    task("backfill", 2, "backfill from {from} to {to}".format_map(RANGE), **RANGE),
    ("backfill", "source.orders", "--from", "2026-11-23T06:00:00+01:00", "--to", RANGE["to"]),
    notices=(("notice", "sink.out:"), ("warning", "sink.orders_pg:")),
)
REPLAY = Request(
    lambda state, statuses=None: plan_replay(state, SINK, (3, 5), missing=True, statuses=statuses or {}),
    task("replay", 2, "replay of steps 3 to 5, only missing rows", first=3, last=5, missing=True),
    ("replay", "sink.lake", "--missing"),
    SINK,
)
REREAD = Request(
    lambda state, statuses=None: plan_letters(state, ORDERS, WHERE, statuses or {}),
    task("dead-letters", 2, f"replay of its dead letters where {WHERE}", where=WHERE),
    ("replay", "source.orders", "--dead-letters", "--where", WHERE),
    notices=(("warning", "sink.orders_pg:"),),
)
each_kind = pytest.mark.parametrize("request_", [BACKFILL, REPLAY, REREAD], ids=lambda one: one.task.kind)


@pytest.fixture
def state() -> State:
    return commit(PROJECT)


def done(*serials: int) -> tuple[TaskOutcome, ...]:
    return tuple(TaskOutcome(serial=serial) for serial in serials)


def seen(state: State, address: Address, **more: Any) -> Observation:
    """Return the observation of a query that runs as this state says."""
    return observe(state, **{address.name: more})["local"].observations[address]


def refused(call: Callable[..., Any], *arguments: Any, **more: Any) -> tuple[str, ExitCode, str]:
    """Return code, exit code and detail with fix of a refusal."""
    with pytest.raises(MzplanError) as caught:
        call(*arguments, **more)
    (found,) = caught.value.diagnostics
    return found.code or "", caught.value.exit_code, f"{found.summary} {found.detail} {found.hint}"


# --- every kind


@each_kind
def test_a_task_restarts_its_query_and_is_recorded_in_the_state(state: State, request_: Request) -> None:
    plan, address = request_.plan(state), request_.address
    after = commit_plan(plan, state)
    reason = f"a {request_.task.title}"
    assert actions(plan) == {str(address): "restart"} and change_of(plan, str(address)).reason == reason
    found = [(one.severity, one.detail.partition(" ")[0]) for one in plan.diagnostics]
    assert found == list(request_.notices)
    assert [str(one) for one in plan.downstream] == (["sink.orders_pg", "sink.out"] * (address == ORDERS))
    before, record = state.resources[address], after.resources[address]
    assert record.tasks == describe(record, after.resources).tasks == (request_.task,)
    assert record.digest != before.digest and record.place == before.place
    assert decode_state(encode_state(after), "x").resources == after.resources
    assert build_plan(PROJECT, after).is_empty, "the files don't mention it, and don't undo it"
    shown = change_of(plan_between(state, after), str(address))
    assert (shown.action, shown.effect, shown.reason) == ("restart", "restart", reason)


@each_kind
def test_a_task_is_pending_until_it_is_done_or_cancelled(state: State, request_: Request) -> None:
    after, address, command = request_.commit(state), request_.address, request_.task.command
    (pending,) = build_plan(PROJECT, after, observe(state)).pending
    assert pending.reason == f"the {request_.task.title} is not done yet"
    assert build_plan(PROJECT, after, observe(after)).pending == ()
    for statuses in ({}, observe(state)):
        assert refused(request_.plan, after, statuses)[:2] == ("MZ275", ExitCode.REFUSED)
    again = request_.commit(after, observe(after))
    assert [one.serial for one in again.resources[address].tasks] == [3]
    # A restart that is still to come doesn't bring it back.
    later = commit_plan(plan_restart(after, [address]), after).resources[address]
    assert later.open_tasks(seen(after, address, tasks_done=done(2))) == ()
    plan = plan_without_tasks(after, address, command, observe(state))
    assert change_of(plan, str(address)).reason == f"the {request_.task.title} is cancelled"
    cancelled = commit_plan(plan, after)
    record = cancelled.resources[address]
    assert record.tasks == () and record.digest != after.resources[address].digest
    for nothing, statuses in ((cancelled, {}), (state, {}), (after, observe(after))):
        code, _, text = refused(plan_without_tasks, nothing, address, command, statuses)
        assert code == "MZ275" and f"has no open {command}" in text


def test_a_query_that_does_not_run_has_done_the_tasks_that_it_ran_with(state: State) -> None:
    after = BACKFILL.commit(state)
    record = after.resources[ORDERS]
    wanted = WantedQuery(description=describe(record, after.resources), paused=False)
    for ran, is_done in ((state, False), (after, True)):
        memory = Memory(accepted=describe(ran.resources[ORDERS], ran.resources))
        stopped = observe_query(ORDERS, QueryState(wanted=wanted, memory=memory))
        assert record.has_done(record.tasks[0], stopped) is is_done


def test_apply_reports_the_outcome_of_this_task_alone(state: State) -> None:
    plan, done_ = BACKFILL.plan(state), TaskOutcome(serial=2, text="101 rows", facts={"rows": 101})
    outcomes = {ORDERS: Outcome(address=ORDERS, status="applied", seconds=1.0, tasks_done=(done_,))}
    for serial, said in ((2, {"rows": 101}), (3, None)):
        applied = ApplyResult(plan=plan, serial=serial, lineage="x", outcomes=outcomes, former_run_ids={})
        (shown,) = applied_to_json(applied)["changes"]
        assert shown.get("task", {}).get("outcome") == said


def project(folder: Path, instance: str) -> Path:
    """A project whose source keeps dead letters, with a Delta sink."""
    cli_runs.write(folder, instance)
    letters = "topic: orders, on_error: dead-letter, dead_letter: {path: dead/orders},"
    cli_runs.edit(folder, "topic: orders,", letters)
    (folder / "lake.yaml").write_text(
        "connections: {disk: {type: files, path: /lake}}\n"
        "sinks: {lake: {type: delta, from: orders, connection: disk, path: d}}\n"
    )
    return folder


@each_kind
def test_the_command_commits_a_task_that_status_and_history_show(tmp_path: Path, request_: Request) -> None:
    run, command = partial(cli_runs.mzplan, project(tmp_path, "dry")), request_.command
    assert run("apply", "--auto-approve").code == 0
    assert run(*command).code == 64, "there is no terminal on which to approve it"
    document = run(*command, "--auto-approve", "--json").json()
    assert run("plan", "--detailed-exitcode").code == run("drift", "--detailed-exitcode").code == 0
    (shown,) = (q for q in run("status", "--json").json()["queries"] if q["address"] == command[1])
    arguments = {**request_.task.arguments, **({"first": 0, "last": None} if request_ is REPLAY else {})}
    facts = {"serial": 2, "arguments": arguments, "done": True, "outcome": None}
    assert shown["tasks"] == [{"kind": request_.task.kind, **facts}]
    title = "replay of all steps, only missing rows" if request_ is REPLAY else request_.task.title
    assert document["changes"][0]["reason"] == f"a {title}"
    named = f"dead letters of {command[1]}" if request_ is REREAD else f"of {command[1]}"
    assert f"{command[0].title()} of" in run("history").out and named in run("history").out
    assert run(command[0], command[1], "--cancel").code == 7, "it is done"


@each_kind
def test_without_a_runner_a_task_is_committed_only_unvalidated(tmp_path: Path, request_: Request) -> None:
    run, command = partial(cli_runs.mzplan, project(tmp_path, "cluster")), request_.command
    at_once = ("--auto-approve", "--wait", "0s")
    assert run("apply", "--no-live", *at_once).code == 8
    assert run(*command, *at_once).code == 7
    recorded = run(*command, "--no-live", *at_once)
    assert recorded.code == 8 and "no runner" in (recorded.out + recorded.err).lower(), recorded
    shown = run("state", "show", command[1]).json()
    assert [one["serial"] for one in shown["tasks"]] == [2]


def test_wrong_arguments_commit_nothing(tmp_path: Path) -> None:
    folder = project(tmp_path, "dry")
    cli_runs.apply(folder)
    for words, code in (
        ("backfill source.orders --to 2026-11-01T09:00:00Z", 64),
        ("backfill source.orders --from 2026-11-01 --to 2026-11-02 --cancel", 64),
        ("backfill source.order --from 2026-11-01T00Z --to 2026-11-02T00Z", 64),
        ("replay sink.lake", 64),
        ("replay sink.lake --cancel --missing", 64),
        (f"replay sink.lake --steps 0..{2**63}", 64),
        ("replay sink.lake --steps 0..1", 7),  # it would append them twice
        ("replay source.orders --where offset=1", 64),
        ("replay source.orders --dead-letters --missing", 64),
    ):
        assert cli_runs.mzplan(folder, *words.split(), "--auto-approve").code == code, words
    for end, why in (("2026-11-02T00Z", "begins at"), ("2999-11-02T00Z", "may still arrive")):
        range_ = ("--from", "2026-11-02T00Z", "--to", end)
        ran = cli_runs.mzplan(folder, "backfill", "source.orders", *range_, "--auto-approve", "--json")
        assert (ran.code, ran.error()["code"]) == (64, "MZ277") and why in ran.error()["detail"]
    assert cli_runs.mzplan(folder, "state", "list", "--json").json()["serial"] == 1


# --- several tasks of one query, other generations, rollbacks


def test_each_task_of_a_query_is_open_until_it_is_done(state: State) -> None:
    first = BACKFILL.commit(state)
    record = commit_plan(plan_range(first, observe(state), START + HOUR), first).resources[ORDERS]
    for serials, left in (((), [2, 3]), ((2,), [3]), ((2, 3), [])):
        found = record.open_tasks(seen(state, ORDERS, tasks_done=done(*serials)))
        assert [one.serial for one in found] == left


def test_each_command_cancels_its_own_tasks(state: State) -> None:
    both = BACKFILL.commit(REREAD.commit(state), observe(state))
    for command, kind in (("backfill", "dead-letters"), ("replay", "backfill")):
        left = commit_plan(plan_without_tasks(both, ORDERS, command, observe(state)), both)
        assert [one.kind for one in left.resources[ORDERS].tasks] == [kind]


def test_a_new_generation_has_no_tasks(state: State) -> None:
    after = commit(PROJECT, BACKFILL.commit(state), replace=[ORDERS])
    record = after.resources[ORDERS]
    assert record.generation == 2
    assert record.digest == digest_of(replace(record, tasks=()), after.resources)
    assert record.open_tasks(seen(state, ORDERS)) == describe(record, after.resources).tasks == ()


def test_a_backfill_after_a_rollback_of_another_one_is_done(state: State) -> None:
    """The runner hasn't started the first backfill, or still runs it, when the second one is committed."""
    first = BACKFILL.commit(state)
    back = commit_plan(plan_rollback(first, state), first)
    second = commit_plan(plan_range(back, start=START + HOUR), back)
    old, record = first.resources[ORDERS], second.resources[ORDERS]
    assert record.restart_token == old.restart_token and record.digest != old.digest
    assert record.open_tasks(seen(first, ORDERS)) == record.tasks
    ran = describe(old, first.resources)
    facts: dict[str, Any] = {"query_id": "q", "run_id": "r", "active": True, "triggered": True}
    report = QueryReport(name=QueryName.of("shop", ran), **facts, tasks_done=done(2))
    wanted = WantedQuery(description=describe(record, second.resources), paused=False)
    decision = next_step(ORDERS, wanted, [report], Memory(target=key_of(ran), accepted=ran), 0.0)
    assert isinstance(decision.command, Switch) and decision.command.description == wanted.description
    reason = change_of(plan_between(first, second), "source.orders").reason
    assert reason == "a backfill from 2026-11-23T06:00:00Z to 2026-11-23T07:00:00Z"


def test_a_backfill_that_a_rollback_brings_back_is_not_done_by_a_newer_one(state: State) -> None:
    first = BACKFILL.commit(state)
    cancelled = commit_plan(plan_without_tasks(first, ORDERS, "backfill", observe(state)), first)
    second = commit_plan(plan_range(cancelled, start=START + HOUR), cancelled)
    again = commit_plan(plan_rollback(second, first), second)
    record, newer = again.resources[ORDERS], second.resources[ORDERS].tasks[0].serial
    assert record.digest == first.resources[ORDERS].digest
    assert record.open_tasks(seen(second, ORDERS, tasks_done=done(newer))) == record.tasks


# --- what is refused


def backfill_of(state: State, address: str) -> Plan:
    return plan_backfill(state, at(address), START, END, NOW)


def steps_of(state: State, address: str) -> Plan:
    return plan_replay(state, at(address), (0, 1), missing=False)


def letters_of(state: State, address: str) -> Plan:
    return plan_letters(state, at(address), None)


@pytest.mark.parametrize(
    ("plan", "address", "why", "hint"),
    [
        (backfill_of, "source.keyed", "older records would replace newer ones", "--replace source.keyed"),
        (backfill_of, "source.local", "local can't look up its records by time", "--replace source.local"),
        (backfill_of, "source.orders", "paused", "mzplan resume source.orders"),
        (backfill_of, "sink.out", "Only a source reads an upstream", "source.orders"),
        (steps_of, "sink.out", "type console", "--replace sink.out"),
        (steps_of, "sink.appended", "would have each row twice", "--missing"),
        (steps_of, "sink.orders_pg", "paused", "mzplan resume sink.orders_pg"),
        (steps_of, "source.orders", "Only a sink has a target", "--dead-letters"),
        (letters_of, "source.orders", "paused", "mzplan resume source.orders"),
        (letters_of, "sink.orders_pg", "Only a source has records", "source.orders"),
        (letters_of, "source.skipping", "It keeps no dead letters", "set on_error and dead_letter"),
        (letters_of, "source.topic", "to the topic dead, and a topic", "declare a source of that"),
        (letters_of, "source.keyed", "the latest row of each key", "--replace"),
        (letters_of, "source.headers", "includes the headers", "mzplan backfill source.headers"),
    ],
)
def test_a_task_that_would_do_damage_is_refused(
    plan: Callable[[State, str], Plan], address: str, why: str, hint: str
) -> None:
    sources: Mapping[str, Any] = {
        "keyed": {**LETTERS, "envelope": {"type": "upsert", "key": ["id"]}},
        "skipping": {"on_error": "skip"},
        "topic": {**LETTERS, "dead_letter": {"topic": "dead"}},
        "headers": {**LETTERS, "include": {"headers": "h"}},
    }
    state = commit(
        shop(
            orders=source(**LETTERS),
            out=console("out", "orders"),
            appended=sink("appended", mode="append", key=None),
            local=resource("source.local", "local", type="local", schema="id BIGINT"),
            **{name: source(name, **body) for name, body in sources.items()},
        )
    )
    state = commit_plan(plan_pause(state, [ORDERS, SINK]), state)
    code, exit_code, text = refused(plan, state, address)
    assert (code, exit_code) == ("MZ273", ExitCode.REFUSED) and why in text and hint in text
    assert plan_replay(state, at("sink.appended"), None, missing=True).changes, "the hint works"


def test_only_a_condition_over_dead_letters_selects_them(state: State) -> None:
    for where, why in (
        ("amount > 1", "--where uses amount, which isn't a column of dead letters"),
        ("reflect('java.lang.System', 'exit', 1) IS NULL", "calls Java code"),
        ("", "it is empty"),
    ):
        code, exit_code, text = refused(plan_letters, state, ORDERS, where)
        assert (code, exit_code) == ("MZ273", ExitCode.USAGE) and why in text


def test_a_replay_of_dead_letters_says_what_became_of_them() -> None:
    remaining = (("id is not a BIGINT", 2), ("no value", 1))
    outcome = outcome_of(REREAD.task, rows=3, already_rows=1, remaining=remaining)
    assert outcome.text.splitlines() == [
        "7 dead letters were read: 3 became rows, 1 already was one, 3 stay",
        "2: id is not a BIGINT",
        "1: no value",
    ]
    stay = [{"reason": reason, "letters": letters} for reason, letters in remaining]
    assert outcome.facts == {"read": 7, "rows": 3, "rows_before": 1, "stay": stay}
    nothing = outcome_of(REREAD.task, rows=0, already_rows=0, remaining=())
    assert nothing.text == "0 dead letters were read"
