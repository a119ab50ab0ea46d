"""Canaries: which queries restart first and which wait, also if the runner is killed or a canary fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mzplan.controller.executor import CheckResult
from mzplan.features.state.edit_plans import plan_move, plan_rollback
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.observed import CanaryVerdict, Status
from mzplan.model.plan import Plan
from mzplan.model.resources import Configuration, Instance
from mzplan.model.state import State
from mzplan.plan import build_plan
from mzplan.plan.canaries import canaries_after, choose_canaries
from mzplan.plan.file import decode_plan, encode_plan
from mzplan.render.explain import render_stages
from mzplan.render.markdown import render_plan_markdown
from mzplan.render.plan_json import plan_to_json
from mzplan.render.plan_text import render_plan
from tests.unit.cli_runner import following
from tests.unit.cli_runs import PROJECT, Ran, mzplan
from tests.unit.runner.test_runner import HookedExecutor, World
from tests.unit.small_projects import (
    at,
    commit,
    commit_plan,
    console,
    kafka,
    names,
    observe,
    postgres,
    project,
    sink,
    source,
)

# --- who goes first


def three(broker: str = "a:9092", host: str = "h", **more: Any) -> Configuration:
    """Two sources on cluster a, two sinks into pg, and a source on another cluster with a console sink."""
    return project(
        kafka(brokers=[broker]),
        kafka("k2"),
        postgres(host=host),
        source("s1", **more),
        source("s2", **more),
        source("s3", connection="k2"),
        sink("t1", **{"from": "s1"}),
        sink("t2", **{"from": "s2"}),
        console("c3", "s3"),
    )


THREE = commit(three())


def planned(configuration: Configuration, state: State) -> Plan:
    plan = build_plan(configuration, state)
    return replace(plan, canaries=choose_canaries(plan, state, 30.0))


def turns(made: Plan | State) -> dict[str, list[str]]:
    return {str(canary.address): names(canary.holds) for canary in made.canaries}


def test_one_query_of_each_connection_goes_first_and_other_restarts_wait() -> None:
    assert turns(planned(three(), THREE)) == {}
    assert turns(planned(three("b:9092"), THREE)) == {"source.s1": ["source.s2"]}
    both = {"source.s1": ["source.s2"], "sink.t1": ["sink.t2"]}
    assert turns(planned(three("b:9092", host="other"), THREE)) == both
    # New columns: once its source has altered the table, a sink can't keep running, and can't start earlier.
    more = three(format={"type": "json", "schema": "id BIGINT, amount INT, note STRING"})
    assert turns(planned(more, THREE)) == {"source.s1": ["sink.t2", "source.s2"], "sink.t1": ["sink.t2"]}
    # A paused query is no canary, and does not wait.
    paused = commit(three(paused=True))
    assert turns(planned(three("b:9092", paused=True), paused)) == {}


def test_each_instance_has_its_own_canaries() -> None:
    both = {n: Instance(name=n, type="cluster") for n in ("local", "far")}

    def declare(broker: str, s3: str = "far") -> Configuration:
        return project(
            kafka(brokers=[broker]),
            *(source(f"s{i}", instance="far" if i % 2 else "local") for i in range(4)),
            source("s5", instance=s3),
            instances=both,
        )

    state = commit(declare("a:9092"))
    plan = planned(declare("b:9092", s3="local"), state)
    assert turns(plan) == {"source.s0": ["source.s2"], "source.s1": ["source.s3"]}


def test_replaced_queries_never_go_first_and_new_ones_wait_only_for_their_source() -> None:
    configuration = project(
        *(r for r in three("b:9092").resources.values() if r.address.name not in ("s1", "t1", "t2")),
        source("s1", topic="other"),
        source("s4"),
        sink("t1", **{"from": "s1", "on_replace": "append"}),
        sink("t2", **{"from": "s2"}),
        console("c4", "s4"),
        console("c1", "s1"),
    )
    plan = planned(configuration, THREE)
    assert turns(plan) == {"source.s2": ["sink.c1", "sink.t1", "source.s1"]}


def test_each_form_of_a_plan_shows_which_query_goes_first() -> None:
    plan = planned(three("b:9092"), THREE)
    assert decode_plan(encode_plan(plan), "x").canaries == plan.canaries
    assert plan_to_json(plan)["canaries"] == [{"address": "source.s1", "holds": ["source.s2"], "wait": 30.0}]
    text = render_plan(plan)
    assert "⟳ source.s1  restarts from its checkpoint, first" in text
    assert "⟳ source.s2  restarts from its checkpoint, after source.s1" in text
    assert "First: source.s1; 1 query waits for it, 30 s at most" in text
    assert "**1 query goes first**: source.s1; 1 query waits" in render_plan_markdown(plan)
    assert "; once source.s1 has made progress" in render_stages(plan)
    assert "canaries" not in plan_to_json(build_plan(three("b:9092"), THREE))


# --- what is committed


def verdicts(state: State, **passed: bool) -> dict[str, Status]:
    found = {
        Address("source", name): CanaryVerdict(serial=state.serial, passed=ok) for name, ok in passed.items()
    }
    return {"local": replace(observe(state)["local"], canaries=found)}


GOING = commit_plan(planned(three("b:9092"), THREE), THREE)  # s1 is the canary, and s2 waits for it


def test_an_apply_without_changes_resumes_only_after_a_failed_canary() -> None:
    earlier = {
        "local": replace(observe(GOING)["local"], canaries={S1: CanaryVerdict(serial=1, passed=False)})
    }
    for statuses in ({}, observe(GOING), verdicts(GOING, s1=True), earlier):
        assert build_plan(three("b:9092"), GOING, statuses).is_empty
    failed = verdicts(GOING, s1=False)
    plan = build_plan(three("b:9092"), GOING, failed)
    assert names(plan.resuming) == ["source.s1", "source.s2"] and not plan.is_empty and not plan.changes
    assert commit_plan(plan, GOING).canaries == ()
    assert "Resuming after a failed canary: source.s1, source.s2" in render_plan(plan)
    assert "2 to resume" in render_plan(plan)
    assert "resume** after a failed canary" in render_plan_markdown(plan)
    assert decode_plan(encode_plan(plan), "x").resuming == plan.resuming
    # With --canary it is tried again, as another attempt.
    again = replace(plan, canaries=choose_canaries(plan, GOING, 30.0))
    assert turns(again) == {"source.s1": ["source.s2"]}
    assert [c.serial for c in commit_plan(again, GOING).canaries] == [3]
    # With a target only that goes on; who waits for a canary that goes on waits for it anew.
    one = build_plan(three("b:9092"), GOING, failed, targets=[at("source.s1")])
    assert names(one.resuming) == ["source.s1"]
    assert [(c.serial, names(c.holds)) for c in commit_plan(one, GOING).canaries] == [(3, ["source.s2"])]
    other = build_plan(three("b:9092"), GOING, failed, targets=[at("source.s2")])
    assert turns(commit_plan(other, GOING)) == {"source.s1": []}  # which stays as it is


def test_another_commit_keeps_a_canary_unless_it_changes_its_queries() -> None:
    labelled = three("b:9092", labels={"team": "x"})
    assert commit(labelled, GOING).canaries == GOING.canaries
    renamed = commit_plan(plan_move(GOING, at("source.s2"), at("source.z")), GOING)
    assert names(renamed.canaries[0].holds) == ["source.z"]
    # A change that reaches them, without a canary: they go.
    assert commit(three("c:9092"), GOING).canaries == ()
    # The canary alone is changed: it is one again.
    alone = project(
        *(r for r in three("b:9092").resources.values() if r.address.name != "s1"),
        source("s1", trigger={"interval": "7s"}),
    )
    assert [(c.serial, names(c.holds)) for c in commit(alone, GOING).canaries] == [(3, ["source.s2"])]
    # It is deleted: nobody is left to wait for.
    gone = [r for r in three("b:9092").resources.values() if r.address.name not in ("s1", "t1")]
    assert commit(project(*gone), GOING).canaries == ()
    assert canaries_after(GOING, plan_rollback(GOING, THREE), THREE.resources) == ()
    # Another canary of a later change, and the same one again.
    more = planned(three("c:9092"), GOING)
    assert [(str(c.address), c.serial) for c in commit_plan(more, GOING).canaries] == [("source.s1", 3)]


# --- the runner


S1, S2 = at("source.s1"), at("source.s2")


@pytest.fixture
def world(world: World) -> World:
    """A runner with the queries of `three`."""
    world.apply(THREE)
    world.executor.log.clear()
    return world


def go(world: World, configuration: Configuration) -> None:
    plan = build_plan(configuration, world.committed, world.store.read_statuses())
    plan = replace(plan, canaries=choose_canaries(plan, world.committed, 30.0))
    world.commit(commit_plan(plan, world.committed))


def reject(world: World, text: str) -> None:
    """Reject each query whose connections or properties contain the text."""
    problem = CheckResult(diagnostics=(Diagnostic(code="MZ050", summary="no answer"),))
    world.executor.check_result = lambda d: problem if text in f"{d.connections}{d.body}" else CheckResult()


def digests(world: World) -> dict[Address, str]:
    return {address: run.name.digest for address, run in world.executor.running().items()}


def digests_of(state: State) -> dict[Address, str]:
    return {address: record.digest for address, record in state.resources.items() if record.digest}


def log(world: World) -> list[tuple[str, str]]:
    return [(what, name.split(":")[2]) for what, name in world.executor.log]


def test_a_canary_that_progresses_goes_first_and_the_rest_follow(world: World) -> None:
    world.executor.triggers_at_once = False
    go(world, three("b:9092"))
    world.until(lambda: len(log(world)) == 2)
    assert log(world) == [("stop", "source.s1"), ("start", "source.s1")]
    first, held = (world.status().observations[address] for address in (S1, S2))
    assert (first.condition, first.held) == ("starting", None)
    assert (held.condition, held.held) == ("running", "waits for source.s1, which goes first with serial 2")
    assert world.status().canaries == {}
    world.executor.triggers_at_once = True
    world.executor.trigger()
    status = world.settle()
    assert log(world)[2:] == [("stop", "source.s2"), ("start", "source.s2")]
    assert status.canaries == {S1: CanaryVerdict(serial=2, passed=True)}
    assert {(o.condition, o.held) for o in status.observations.values()} == {("running", None)}
    assert digests(world) == digests_of(world.committed)


def test_a_rejected_canary_stops_nothing_and_holds_the_rest(world: World) -> None:
    reject(world, "b:9092")
    go(world, three("b:9092"))
    status = world.settle()
    assert log(world) == []
    seen = status.observations[S1]
    assert (seen.condition, seen.error_code) == ("rejected", "MZ050")
    assert seen.error is not None and "1 query is held back" in seen.error
    assert "failed" in (status.observations[S2].held or "")
    world.executor.check_result = lambda d: CheckResult()
    world.now += 10_000.0
    assert world.settle().observations[S1].condition == "rejected" and log(world) == []
    # What is held is healed as it was.
    world.fail(S2)
    world.settle()
    world.now += 5.0
    world.settle()
    assert digests(world)[S2] == digests_of(THREE)[S2]


def test_a_canary_that_fails_to_start_goes_back_also_under_the_next_runner(world: World) -> None:
    old = world.executor
    old.fail_start = lambda d: "boom" if "b:9092" in str(d.connections) else None
    go(world, three("b:9092"))
    status = world.settle()
    assert log(world) == [("stop", "source.s1"), ("start", "source.s1")]
    assert digests(world) == digests_of(THREE)
    assert status.observations[S1].condition == "failed"
    world.executor = HookedExecutor("shop")  # the runner is killed with its queries
    world.executor.fail_start = old.fail_start
    world.next_runner()
    status = world.settle()
    assert digests(world)[S1] == digests_of(THREE)[S1]
    assert status.observations[S1].condition == "failed"
    assert status.observations[S1].error == world.settle().observations[S1].error
    # Rolled back: all is as it was, and nothing restarts.
    world.executor.log.clear()
    status = world.apply(commit_plan(plan_rollback(world.committed, THREE), world.committed))
    assert log(world) == []
    assert {(o.condition, o.held) for o in status.observations.values()} == {("running", None)}


def test_a_canary_without_progress_goes_back_even_if_its_former_server_is_down(world: World) -> None:
    world.executor.triggers_at_once = False
    go(world, three("b:9092"))
    world.until(lambda: len(log(world)) == 2)
    world.executor.triggers_at_once = True  # what it goes back to
    reject(world, "a:9092")
    world.now += 29.0
    world.runner.tick()
    assert log(world) == [("stop", "source.s1"), ("start", "source.s1")]
    world.now += 2.0
    status = world.settle()
    assert log(world)[2:] == [("stop", "source.s1"), ("start", "source.s1")]
    seen = status.observations[S1]
    assert (seen.condition, seen.error_code) == ("failed", "MZ140")
    assert seen.error is not None and "no progress within 30 s" in seen.error
    assert seen.digest == digests_of(THREE)[S1]


def test_a_paused_canary_is_not_judged_until_it_is_resumed(world: World) -> None:
    world.executor.triggers_at_once = False
    go(world, three("b:9092"))
    paused = replace(world.committed.resources[S1], override="paused")
    world.commit(replace(world.committed, serial=3, resources={**world.committed.resources, S1: paused}))
    world.now += 1000.0
    status = world.settle()
    assert status.canaries == {} and status.observations[S2].held is not None
    resumed = replace(paused, override=None)
    world.executor.triggers_at_once = True
    world.commit(replace(world.committed, serial=4, resources={**world.committed.resources, S1: resumed}))
    status = world.settle()
    assert status.canaries[S1].passed and status.observations[S2].held is None


def test_a_new_query_of_a_held_source_does_not_start(world: World) -> None:
    more = {"type": "json", "schema": "id BIGINT, amount INT, note STRING"}
    new = project(*three(format=more).resources.values(), console("c2", "s2"))
    reject(world, "note STRING")
    go(world, new)
    held = ["sink.c2", "sink.t2", "source.s2"]
    assert turns(world.committed) == {"source.s1": held, "sink.t1": ["sink.t2"]}
    seen = world.settle().observations[at("sink.c2")]
    assert seen.condition == "stopped" and seen.held is not None
    assert at("sink.c2") not in world.executor.running()


# --- the command line


FORMAT = "{type: json, schema: id BIGINT}"


def write(folder: Path, broker: str, instance: str = "cluster") -> None:
    (folder / "mzplan.yaml").write_text(PROJECT % instance)
    sources = "".join(f"  s{i}: {{connection: k, topic: t, format: {FORMAT}}}\n" for i in (1, 2, 3))
    (folder / "pipeline.yaml").write_text(
        f'connections:\n  k: {{type: kafka, brokers: ["{broker}:9092"]}}\nsources:\n{sources}'
    )


def apply(folder: Path, *arguments: str) -> Ran:
    return mzplan(folder, "apply", "--auto-approve", "--json", "--wait", "20s", *arguments)


def test_a_failed_canary_is_exit_8_and_the_next_apply_resumes(tmp_path: Path) -> None:
    queries = ["source.s1", "source.s2", "source.s3"]
    write(tmp_path, "a")
    with following(tmp_path) as executor:
        assert apply(tmp_path).code == 0
        before = {a: r.run_id for a, r in executor.running().items()}
        executor.fail_start = lambda d: "boom" if "b:9092" in str(d.connections) else None
        write(tmp_path, "b")
        shown = mzplan(tmp_path, "plan", "--canary", "--canary-wait", "9s", "--json").json()
        assert shown["canaries"] == [{"address": "source.s1", "holds": queries[1:], "wait": 9.0}]
        failed = apply(tmp_path, "--canary")
        assert failed.code == 8
        ended = {p["address"]: p["condition"] for p in failed.json()["pending"]}
        assert ended == dict(zip(queries, ("failed", "pending", "pending"), strict=True))
        now = {a: r.run_id for a, r in executor.running().items()}
        assert {str(a) for a in now if now[a] != before[a]} == {"source.s1"}
        status = mzplan(tmp_path, "status", "--json").json()
        (canary,) = status["canaries"]
        assert (canary["address"], canary["verdict"], canary["holds"]) == ("source.s1", "failed", queries[1:])
        held = {q["address"]: q["held"] for q in status["queries"]}
        assert held["source.s1"] is None and "source.s1" in held["source.s2"]
        assert "source.s2, source.s3: held: waits because source.s1" in mzplan(tmp_path, "status").out
        assert "source.s2  held: waits because source.s1" in mzplan(tmp_path, "plan").out
        # A saved plan of it, applied once the cause is gone, with a canary again.
        file = str(tmp_path / "on.plan")
        assert mzplan(tmp_path, "plan", "--out", file).code == 0
        executor.fail_start = lambda d: None
        done = mzplan(tmp_path, "apply", file, "--canary", "--json", "--wait", "20s")
        assert done.code == 0 and done.json()["resuming"] == queries, done
        assert all(executor.running()[a].run_id != run for a, run in before.items())
        assert apply(tmp_path).json()["serial"] == 3  # nothing is left to do


def test_a_canary_outlives_its_command_and_the_next_apply_follows_it(tmp_path: Path) -> None:
    write(tmp_path, "a")
    with following(tmp_path) as executor:
        assert apply(tmp_path).code == 0
        executor.triggers_at_once = False
        write(tmp_path, "b")
        left = mzplan(tmp_path, "apply", "--auto-approve", "--canary", "--json", "--wait", "0s")
        statuses = [c["status"] for c in left.json()["changes"]]
        assert left.code == 8 and statuses == ["applied", "pending", "pending", "pending"]
        assert mzplan(tmp_path, "plan", "--json").json()["changes"] == []
        executor.triggers_at_once = True
        executor.trigger()
        again = apply(tmp_path)
        assert again.code == 0 and (again.json()["serial"], again.json()["changes"]) == (2, [])
        assert [c["verdict"] for c in mzplan(tmp_path, "status", "--json").json()["canaries"]] == ["passed"]
        write(tmp_path, "c")  # the next commit has no use for it any more
        assert apply(tmp_path).code == 0
        assert mzplan(tmp_path, "status", "--json").json()["canaries"] == []


def test_a_canary_of_a_dry_instance_passes_at_once(tmp_path: Path) -> None:
    write(tmp_path, "a", "dry")
    assert apply(tmp_path).code == 0
    write(tmp_path, "b", "dry")
    assert apply(tmp_path, "--canary").code == 0
    status = mzplan(tmp_path, "status", "--json").json()
    assert [c["verdict"] for c in status["canaries"]] == ["passed"]
    assert {q["held"] for q in status["queries"]} == {None}
    alter = ("alter", "ALTER CONNECTION k SET BROKER = 'c:9092'", "--canary", "--json")
    shown = mzplan(tmp_path, *alter, "--dry-run").json()
    assert [c["address"] for c in shown["canaries"]] == ["source.s1"]
    assert mzplan(tmp_path, *alter, "--auto-approve").code == 0
    assert [c["serial"] for c in mzplan(tmp_path, "status", "--json").json()["canaries"]] == [3]
