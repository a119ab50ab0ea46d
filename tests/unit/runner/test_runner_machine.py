"""A state machine of events: whatever happens, each target has one writer, and the queries converge.

It plays the events of the traces (see test_traces) in any order.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mzplan.model.address import Address
from mzplan.model.state import ResourceState
from tests.unit.runner.stage import Stage

BACKGROUND = ["lag", "connection", "upstream", "survey", "compaction", "secret", "proposal"]
SLOW = ["start source.orders", "start sink.out", "start", "task", "release", "removal", "maintenance"]
NAMES = ["source.orders", "source.items", "sink.out", "sink.second", "sink.result"]
LONG = 86_400.0  # seconds after which no backoff and no lease counts any more
some_names = st.lists(st.sampled_from(NAMES), max_size=2, unique=True)


class Machine(RuleBasedStateMachine):
    """Runners of the instances `local` and `big`, and what happens to them."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.stage = Stage(Path(self.folder.name))
        self.stage.__enter__()
        self.stage.runner("big")
        self.stage.start({"source.items": {"like": "source.orders"}})

    # --- commits

    @rule(broker=st.sampled_from(["a:1", "b:1", "c:1"]), canary=st.booleans())
    def change_connection(self, broker: str, canary: bool) -> None:
        holds = {"source.items": {"holds": ["source.orders"], "wait": 30}}
        is_canary = canary and self.has("source.items") and self.has("source.orders")
        self.commit({"connection.k": {"brokers": [broker]}, **({"canaries": holds} if is_canary else {})})

    @rule(name=st.sampled_from(NAMES), override=st.sampled_from(["paused", None]))
    def pause_or_resume(self, name: str, override: str | None) -> None:
        self.alter(name, override=override)

    @rule(name=st.sampled_from(NAMES), instance=st.sampled_from(["local", "big"]))
    def move(self, name: str, instance: str) -> None:
        self.alter(name, instance=instance)

    @rule(name=st.sampled_from(NAMES), task=st.booleans())
    def restart_or_replay(self, name: str, task: bool) -> None:
        if self.has(name):
            token = self.resource(name).restart_token + 1
            self.alter(name, restart_token=token, **({"tasks": ["replay of step 3"]} if task else {}))

    @rule(name=st.sampled_from(NAMES))
    def replace(self, name: str) -> None:
        if self.has(name):
            self.alter(name, generation=self.resource(name).generation + 1)

    @rule()
    def rename_sink(self) -> None:
        old, new = ("sink.out", "sink.result") if self.has("sink.out") else ("sink.result", "sink.out")
        if self.has(old) and not self.has(new):
            self.commit({new: {"rename": old}})

    @rule()
    def add_or_remove_sink(self) -> None:
        has_out = self.has("sink.out")
        if self.has("sink.second"):
            self.commit({"sink.second": None})
        elif has_out:
            self.commit({"sink.second": {"like": "sink.out"}})

    # --- faults

    @rule(kinds=st.lists(st.sampled_from(BACKGROUND + SLOW), max_size=3, unique=True))
    def hang(self, kinds: list[str]) -> None:
        self.stage.play("hang", kinds)

    @rule(names=some_names, how=st.sampled_from(["refuse", "break_starts"]))
    def break_queries(self, names: list[str], how: str) -> None:
        self.stage.play(how, names)

    @rule(name=st.sampled_from(NAMES))
    def fail(self, name: str) -> None:
        if any(Address.parse(name) in executor.running() for executor in self.stage.executors.values()):
            self.stage.play("fail", {name: "MZ064 boom"})

    @rule(is_down=st.booleans())
    def servers(self, is_down: bool) -> None:
        self.stage.play("servers_down", ["connection.k"] if is_down else [])

    @rule(is_away=st.booleans())
    def store(self, is_away: bool) -> None:
        if set(self.stage.runners) == {"local", "big"}:
            self.stage.play("store_away", is_away)

    @precondition(lambda self: not self.stage.is_cut)
    @rule(instance=st.sampled_from(["local", "big"]))
    def kill_or_start(self, instance: str) -> None:
        self.stage.play("kill" if instance in self.stage.runners else "runner", instance)

    @precondition(lambda self: not self.stage.is_cut)
    @rule(instance=st.sampled_from(["local", "big"]))
    def lose_lease(self, instance: str) -> None:
        if instance in self.stage.runners:
            self.stage.play("lose_lease", instance)

    @rule(seconds=st.sampled_from([1, 6, 20, 70]))
    def wait(self, seconds: float) -> None:
        self.stage.play("wait", seconds)

    @rule(seconds=st.sampled_from([-3600, 3600]))
    def set_clock(self, seconds: float) -> None:
        self.stage.play("set_clock", seconds)

    @rule(at_once=st.booleans())
    def triggers(self, at_once: bool) -> None:
        self.stage.play("triggers", at_once)

    # --- what always holds

    @invariant()
    def each_target_has_one_writer(self) -> None:
        writers = [
            (executor.ids[report.name], instance, str(report.name))
            for instance, executor in self.stage.executors.items()
            for report in executor.reports()
            if report.active
        ]
        ids = [id_ for id_, _, _ in writers]
        assert len(ids) == len(set(ids)), sorted(writers)

    @invariant()
    def background_work_delays_no_start(self) -> None:
        """A job that starts a query waits only for other starts, whatever else hangs."""
        hangs_itself = not self.stage.hanging.isdisjoint(SLOW)
        for instance, jobs in self.stage.jobs.items():
            waiting = [job.kind for job in jobs.waiting if job.kind in ("start", "task")]
            assert hangs_itself or not waiting, (instance, waiting)

    @invariant()
    def a_query_that_does_not_run_says_why(self) -> None:
        if self.stage.is_cut or not self.stage.hanging.isdisjoint(SLOW):
            return
        for address, seen in self.stage.observations().items():
            works = seen.condition in ("running", "paused") or seen.run_id is not None
            assert works or seen.held or seen.waits or seen.error, (address, seen.condition)

    def teardown(self) -> None:
        if not hasattr(self, "stage"):
            return
        try:
            self.converge()
        finally:
            self.stage.__exit__()
            self.folder.cleanup()

    def converge(self) -> None:
        """End all faults, and check that exactly the committed queries run, as committed."""
        stage = self.stage
        for event, argument in (
            ("store_away", False),
            ("hang", []),
            ("refuse", []),
            ("break_starts", []),
            ("servers_down", []),
            ("triggers", True),
        ):
            stage.play(event, argument)
        for instance in {"local", "big"} - stage.runners.keys():
            stage.play("runner", instance)
        self.commit({})  # without canaries: a verdict holds for its serial
        for seconds in (1, 6, 6, 6, 6, 6, 6, LONG, 1, 1, LONG, 1, 1):
            stage.play("wait", seconds)
            self.each_target_has_one_writer()
        wanted = {
            (resource.instance, str(address), resource.generation, resource.digest)
            for address, resource in stage.committed.resources.items()
            if address.is_query and not resource.paused
        }
        runs = {
            (instance, str(name.address), name.generation, name.digest)
            for instance, executor in stage.executors.items()
            for name in (report.name for report in executor.reports() if report.active)
        }
        assert runs == wanted

    # --- helpers

    def resource(self, name: str) -> ResourceState:
        return self.stage.committed.resources[Address.parse(name)]

    def has(self, name: str) -> bool:
        return Address.parse(name) in self.stage.committed.resources

    def alter(self, name: str, **fields: Any) -> None:
        if self.has(name):
            self.commit({name: fields})

    def commit(self, edits: dict[str, Any]) -> None:
        self.stage.play("commit", edits)


def test_each_target_has_one_writer_and_the_queries_converge() -> None:
    run_state_machine_as_test(Machine, settings=settings(max_examples=8, stateful_step_count=12))


@pytest.mark.nightly
def test_each_target_has_one_writer_and_the_queries_converge_after_many_events() -> None:
    run_state_machine_as_test(Machine, settings=settings(max_examples=100, stateful_step_count=25))
