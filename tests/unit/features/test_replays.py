"""Replays without Spark: plans, refusals, pending tasks, and the tasks that a runner does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mzplan.cli.apply import applied_to_json
from mzplan.connectors.api.queries import resolve
from mzplan.connectors.api.tasks import check_tasks, tasks_to_do
from mzplan.features.replay.replay_plans import plan_replay
from mzplan.model.diagnostics import ExitCode, MzplanError
from mzplan.model.plan import Plan
from mzplan.model.state import State
from mzplan.model.tasks import TaskOutcome
from mzplan.operations.apply import ApplyResult
from mzplan.operations.project import Outcome
from mzplan.plan import build_plan
from mzplan.plan.manual_changes import plan_between, plan_pause
from mzplan.plan.tasks import plan_without_tasks
from mzplan.schema.description import describe
from mzplan.secrets.references import Secrets
from mzplan.store.formats import decode_state, encode_state
from mzplan.warehouse.checkpoints import Checkpoint, TaskRecord
from tests.stored_steps import commit as seen_through
from tests.stored_steps import offsets
from tests.tasks import backfill, task
from tests.unit import cli_runs
from tests.unit.small_projects import (
    actions,
    at,
    change_of,
    commit,
    commit_plan,
    console,
    observe,
    shop,
    sink,
)

SINK = at("sink.orders_pg")
TEXT = "replay of steps 3 to 5, only missing rows"
ASKED = task("replay", 2, TEXT, first=3, last=5, missing=True)
OUTCOME = TaskOutcome(serial=2, text="101 rows were written again", facts={"rows": 101})


@pytest.fixture
def state() -> State:
    return commit(shop(out=console("out", "orders")))


def replayed(state: State, statuses: Any = None, **given: Any) -> tuple[Plan, State]:
    plan = plan_replay(state, SINK, (3, 5), missing=True, statuses=statuses or {}, **given)
    return plan, commit_plan(plan, state)


def test_a_replay_is_a_restart_of_the_sink_alone(state: State) -> None:
    plan, after = replayed(state)
    assert actions(plan) == {"sink.orders_pg": "restart"} and plan.downstream == ()
    reason = f"a {TEXT}"
    assert change_of(plan, "sink.orders_pg").reason == reason
    before, record = state.resources[SINK], after.resources[SINK]
    assert record.tasks == (ASKED,) and record.place == before.place
    assert record.digest != before.digest
    assert describe(record, after.resources).tasks == (ASKED,)
    assert decode_state(encode_state(after), "x").resources == after.resources
    assert build_plan(shop(out=console("out", "orders")), after).is_empty
    shown = change_of(plan_between(state, after), "sink.orders_pg")
    assert (shown.action, shown.reason) == ("restart", reason)
    (pending,) = build_plan(shop(out=console("out", "orders")), after, observe(state)).pending
    assert pending.reason == f"the {TEXT} is not done yet"
    assert build_plan(shop(out=console("out", "orders")), after, observe(after)).pending == ()


@pytest.mark.parametrize(
    ("steps", "missing", "text"),
    [
        (None, True, "of all steps, only missing rows"),
        ((3, 3), False, "of step 3"),
        ((3, None), False, "of the steps from 3 on"),
        ((0, None), False, "of all steps"),
    ],
)
def test_in_words(state: State, steps: Any, missing: bool, text: str) -> None:
    plan = plan_replay(state, SINK, steps, missing=missing)
    assert change_of(plan, "sink.orders_pg").reason == f"a replay {text}"


def test_the_same_again_only_when_it_is_done_and_giving_it_up(state: State) -> None:
    _, after = replayed(state)
    for statuses in ({}, observe(state)):
        with pytest.raises(MzplanError, match="was already requested") as caught:
            replayed(after, statuses)
        assert caught.value.diagnostics[0].code == "MZ275" and caught.value.exit_code == ExitCode.REFUSED
    _, again = replayed(after, observe(after))
    assert [one.serial for one in again.resources[SINK].tasks] == [3]
    plan = plan_without_tasks(after, SINK, "replay", observe(state))
    assert change_of(plan, "sink.orders_pg").reason.endswith("is cancelled")
    assert commit_plan(plan, after).resources[SINK].tasks == ()
    with pytest.raises(MzplanError, match="has no open replay"):
        plan_without_tasks(after, SINK, "replay", observe(after))


def test_what_can_not_be_replayed() -> None:
    appended = sink("appended", mode="append", key=None)
    state = commit(shop(appended=appended, out=console("out", "orders")))
    state = commit_plan(plan_pause(state, [SINK]), state)
    for address, why in (
        ("sink.out", "type console"),
        ("sink.appended", "would have each row twice"),
        ("sink.orders_pg", "paused"),
        ("source.orders", "Only a sink has a target"),
    ):
        with pytest.raises(MzplanError) as caught:
            plan_replay(state, at(address), (0, 1), missing=False)
        (found,) = caught.value.diagnostics
        assert (found.code, caught.value.exit_code) == ("MZ273", ExitCode.REFUSED), address
        assert why in found.detail
    assert plan_replay(state, at("sink.appended"), None, missing=True).changes


def test_which_steps_a_runner_finds(state: State, tmp_path: Path) -> None:
    described = replace(describe(state.resources[SINK], state.resources), tasks=(ASKED,))
    secrets = Secrets(".", {"PG_PASSWORD": "x"})
    query = resolve(described, secrets, ".", str(tmp_path))
    checkpoint = Checkpoint.of(str(tmp_path), *described.place)
    (none,) = check_tasks(query, checkpoint)
    assert none.code == "MZ273" and "written no step yet" in none.detail
    for step in range(5):
        offsets(Path(checkpoint.spark), step, {"reservoirVersion": step})
        seen_through(Path(checkpoint.spark), step)
    (beyond,) = check_tasks(query, checkpoint)
    assert "Step 5 doesn't exist yet. Its last step is 4." in beyond.detail
    offsets(Path(checkpoint.spark), 5, {"reservoirVersion": 5})
    seen_through(Path(checkpoint.spark), 5)
    assert check_tasks(query, checkpoint) == ()
    # What is done is not looked at again, and not done again.
    assert tasks_to_do(query, checkpoint) == [ASKED]
    checkpoint.tasks.record(TaskRecord(task=ASKED, outcome=OUTCOME, done=True))
    assert tasks_to_do(query, checkpoint) == [] and checkpoint.tasks.done() == (OUTCOME,)
    (Path(checkpoint.folder) / "tasks" / f"{2:020}.json").write_text("{")
    with pytest.raises(OSError, match="is damaged"):
        checkpoint.tasks.done()


def test_json_says_how_many_rows_the_replay_has_written(state: State) -> None:
    plan, _ = replayed(state)
    for serial, there in ((2, True), (3, False)):  # of an earlier replay, nothing is said
        outcome = Outcome(address=SINK, status="applied", seconds=1.0, tasks_done=(OUTCOME,))
        applied = ApplyResult(
            plan=plan, serial=serial, lineage="x", outcomes={SINK: outcome}, former_run_ids={}
        )
        (shown,) = applied_to_json(applied)["changes"]
        assert ("task" in shown) is there
        if there:
            assert (shown["task"]["kind"], shown["task"]["outcome"]) == ("replay", {"rows": 101})


def test_the_command(tmp_path: Path) -> None:
    folder = cli_runs.write(tmp_path / "p")
    (folder / "lake.yaml").write_text(
        "connections:\n  disk: {type: files, path: /lake}\n"
        "sinks:\n  lake: {type: delta, from: orders, connection: disk, path: d}\n"
    )

    def run(*arguments: str) -> cli_runs.Ran:
        return cli_runs.run("-C", str(folder), *arguments)

    assert run("apply", "--auto-approve").code == 0
    asked = ("replay", "sink.lake", "--missing")
    assert run(*asked).code == 64  # nobody to ask
    done = run(*asked, "--auto-approve", "--json")
    assert done.code == 0, done.err
    assert done.json()["changes"][0]["reason"] == "a replay of all steps, only missing rows"
    assert run("plan", "--detailed-exitcode").code == 0
    (shown,) = [q for q in run("status", "--json").json()["queries"] if q["address"] == "sink.lake"]
    arguments = {"first": 0, "last": None, "missing": True}
    assert shown["tasks"] == [
        {"kind": "replay", "serial": 2, "arguments": arguments, "done": True, "outcome": None}
    ]
    assert "Replay of sink.lake" in run("history").out
    assert run("replay", "sink.lake", "--cancel").code == 7
    for wrong in ((), ("--steps", "5..3"), ("--cancel", "--missing"), ("--steps", f"0..{2**63}")):
        assert run("replay", "sink.lake", *wrong, "--auto-approve").code == 64, wrong
    assert run("replay", "sink.lake", "--steps", "0..1", "--auto-approve").code == 7


def test_with_no_runner_alive_it_is_recorded(tmp_path: Path) -> None:
    folder = cli_runs.write(tmp_path / "p", "cluster")
    (folder / "lake.yaml").write_text(
        "connections:\n  disk: {type: files, path: /lake}\n"
        "sinks:\n  lake: {type: delta, from: orders, connection: disk, path: d}\n"
    )

    def run(*arguments: str) -> cli_runs.Ran:
        return cli_runs.run("-C", str(folder), *arguments, "--auto-approve", "--wait", "0s")

    assert run("apply", "--no-live").code == 8
    assert run("replay", "sink.lake", "--missing").code == 7  # nobody validates it
    recorded = run("replay", "sink.lake", "--missing", "--no-live")
    assert recorded.code == 8, recorded.err
    assert "no runner" in (recorded.out + recorded.err).lower()
    state = json.loads((folder / "state" / "mzplan.state.json").read_text())
    assert [one["serial"] for one in state["resources"]["sink.lake"]["tasks"]] == [2]


def test_only_what_is_committed_has_tasks(state: State) -> None:
    """Accepted descriptions beside a Status add no tasks to a description that a query returns to."""
    from mzplan.controller.queries import _as_committed
    from mzplan.controller.reconcile import Decision, Desired, Memory, Switch

    wanted = replace(describe(state.resources[SINK], state.resources), tasks=(ASKED,))
    other = backfill(7, "2026-11-23T05:00:00Z", "2026-11-23T07:00:00Z")
    forged = replace(wanted, digest="1:old", tasks=(replace(ASKED, serial=9), other))
    desired = Desired(description=wanted, paused=False)
    for description, kept in ((wanted, (ASKED,)), (forged, ())):
        switch = Switch(address=SINK, description=description, stop=(), check=True)
        decision = Decision(command=switch, memory=Memory(), condition="starting", run=None)
        command = _as_committed(decision, desired).command
        assert isinstance(command, Switch)
        assert command.description.tasks == kept
