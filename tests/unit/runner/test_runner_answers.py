"""Answers to proposals, which never delay committed queries."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path

import pytest

from mzplan.connectors.api.queries import Probe
from mzplan.connectors.postgres.identity import identify
from mzplan.controller.executor import CheckResult
from mzplan.model.diagnostics import MzplanError
from mzplan.runner import proposals as runner_proposals
from mzplan.schema.description import describe
from mzplan.secrets.policy import SecretValues
from tests.unit.runner.test_runner import ORDERS, SINK, World, make_state


def test_an_endless_check_is_answered_and_delays_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_proposals, "TIME_LIMIT", 2.0)
    world, ended = World(tmp_path), threading.Event()

    def never(*_: object) -> CheckResult:
        ended.wait(60)
        return CheckResult()

    monkeypatch.setattr(world.runner.controller, "validate", never)
    state = make_state(1)
    asked = (describe(state.resources[SINK], state.resources),) * 8
    try:
        proposals = [world.store.proposals.make("local", asked) for _ in range(4)]
        began = time.monotonic()
        world.runner.tick()
        world.commit(state)
        status = world.settle()
        assert {a: o.condition for a, o in status.observations.items()} == {
            ORDERS: "running",
            SINK: "running",
        }
        while world.runner.proposals.poll():
            time.sleep(0.01)
        assert time.monotonic() - began < 3.5, "each is answered within the limit, however many there are"
        answered = [world.store.proposals.read_answer(one) for one in proposals]
        assert {d.code for one in answered if one is not None for d in one.diagnostics} == {"MZ290"}
    finally:
        ended.set()
        world.runner.proposals.close()


def test_a_proposal_with_unstorable_text_is_still_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each round would check the proposal again, and its secret values would stay in memory."""
    world = World(tmp_path)
    unfit = CheckResult()
    object.__setattr__(unfit, "upstream", {"system_identifier": b"\x00"})  # the constructor refuses it
    monkeypatch.setattr(world.runner.controller, "validate", lambda *_: unfit)
    state = make_state(1)
    proposal = world.store.proposals.make("local", (describe(state.resources[SINK], state.resources),))
    world.runner.secret_values.receive(SecretValues(values={"PW": "secret"}, proposal=proposal.id))
    world.runner.proposals._answer(proposal, time.monotonic() + 5.0)
    answer = world.store.proposals.read_answer(proposal)
    assert answer is not None and [d.code for d in answer.diagnostics] == ["MZ064"]
    assert world.runner.secret_values.proposed(proposal.id) == {}


@pytest.mark.parametrize("upstream", [{"id": b"x"}, {"id": math.nan}, {"id": "x" * (1 << 20)}])
def test_an_unstorable_identity_is_refused(upstream: dict[str, object]) -> None:
    with pytest.raises(MzplanError, match="can't be stored"):
        Probe(upstream=upstream)


def test_an_impossible_postgresql_identity_is_unknown() -> None:
    class Lying:
        def __init__(self, *row: object):
            self.row = row

        def execute(self, statement: bytes) -> Lying:
            return self

        def fetchone(self) -> tuple[object, ...]:
            return self.row

    assert identify(Lying("1", 2, "shop", 3)) == {  # type: ignore[arg-type]
        "type": "postgres",
        "system_identifier": "1",
        "timeline": 2,
        "database": "shop",
        "database_oid": 3,
    }
    assert identify(Lying(b"1", 2, "shop", 3)) is None  # type: ignore[arg-type]
    assert identify(Lying("1", 2, "shop")) is None  # type: ignore[arg-type]
