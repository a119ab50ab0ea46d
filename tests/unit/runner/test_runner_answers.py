"""Answers to proposals: what they ask for holds up nothing that is committed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mzplan.controller.executor import CheckResult
from mzplan.runner import answers
from mzplan.schema.description import describe
from tests.unit.runner.test_runner import ORDERS, SINK, World, make_state


def test_a_check_that_does_not_end_is_answered_and_holds_up_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "LIMIT", 0.3)
    world, ended = World(tmp_path), threading.Event()

    def never(*_: object) -> CheckResult:
        ended.wait(60)
        return CheckResult()

    monkeypatch.setattr(world.runner.controller, "validate", never)
    state = make_state(1)
    asked = (describe(state.resources[SINK], state.resources),) * 8
    try:
        proposals = [world.store.proposals.make("local", asked) for _ in range(4)]
        world.runner.tick()
        world.commit(state)
        status = world.settle()
        assert {a: o.condition for a, o in status.observations.items()} == {
            ORDERS: "running",
            SINK: "running",
        }
        answered = [world.store.proposals.read_answer(one) for one in proposals]
        assert {d.code for one in answered if one is not None for d in one.diagnostics} == {"MZ290"}
    finally:
        ended.set()
        world.runner.answering.close()
