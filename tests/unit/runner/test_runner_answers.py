"""Answers to proposals, which never delay committed queries."""

from __future__ import annotations

import math
import threading
import time

import pytest

from mzplan.connectors.api.queries import Probe
from mzplan.controller.executor import CheckResult
from mzplan.model.diagnostics import MzplanError
from mzplan.runner import proposals as runner_proposals
from mzplan.schema.description import describe
from tests.unit.runner.test_runner import SINK, World, make_state

STATE = make_state(1)
DESCRIPTION = describe(STATE.resources[SINK], STATE.resources)


def test_an_endless_check_is_answered_and_delays_no_commit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_proposals, "TIME_LIMIT", 0.5)
    ended = threading.Event()

    def never(*_: object) -> CheckResult:
        ended.wait(60)
        return CheckResult()

    monkeypatch.setattr(world.runner.controller, "validate", never)
    try:
        proposals = [world.store.proposals.make("local", (DESCRIPTION,) * 8) for _ in range(8)]
        began = time.monotonic()
        world.runner.tick()
        assert {o.condition for o in world.apply(STATE).observations.values()} == {"running"}
        while world.runner.proposals.poll():
            time.sleep(0.01)
        assert time.monotonic() - began < 2.5, "each is answered within the limit, however many there are"
        answered = [world.store.proposals.read_answer(one) for one in proposals]
        assert {d.code for one in answered if one is not None for d in one.diagnostics} == {"MZ290"}
    finally:
        ended.set()


@pytest.mark.parametrize("upstream", [{"id": b"x"}, {"id": math.nan}, {"id": "x" * (1 << 20)}])
def test_an_unstorable_identity_is_refused(upstream: dict[str, object]) -> None:
    with pytest.raises(MzplanError, match="can't be stored"):
        Probe(upstream=upstream)
