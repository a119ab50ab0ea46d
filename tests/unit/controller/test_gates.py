"""How a controller uses its gates, and how it follows the wanted queries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mzplan.controller.executor import CheckResult
from mzplan.controller.memory import InMemoryExecutor, InMemoryStorageController
from mzplan.controller.terms import HeldQuery, LagDuration, LagSteps, StorageError
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.runner.commands import WantedQueries, apply_wanted
from mzplan.schema.description import Description
from mzplan.secrets.references import Secrets
from tests.contract.controllers import (
    World,
    altered,
    create,
    in_memory,
    local_source,
    run_ids,
    running,
    settle,
    sink_of,
)
from tests.unit.runner import test_runner
from tests.unit.runner.test_runner import ORDERS, make_state


class Gate:
    """Holds every query with `held`."""

    def __init__(self) -> None:
        self.held: HeldQuery | None = None
        self.seen: list[Address] = []

    def hold(self, wanted: Description, accepted: Description | None) -> HeldQuery | None:
        return self.held

    def cause(self, wanted: Description, accepted: Description | None) -> None:
        """Never lets a query start."""

    def started(self, address: Address) -> None:
        self.seen.append(address)


@pytest.fixture
def hosting(tmp_path: Path) -> Iterator[World]:
    yield from in_memory(tmp_path)


def test_the_first_gate_that_holds_a_query_decides_what_it_runs(hosting: World) -> None:
    first, second, executor = Gate(), Gate(), InMemoryExecutor("shop")
    source, gates = local_source("a"), (first, second)
    hosting.make = lambda store, pool: InMemoryStorageController(
        store, Secrets("."), pool, executor, gates=gates
    )
    controller = hosting.controller()

    def digests() -> set[str]:
        return {report.name.digest for report in executor.reports() if report.active}

    second.held = HeldQuery(condition="stopped")
    create(controller, source)
    settle(controller)
    (decision,) = controller.decisions.values()
    assert (running(controller), decision.condition) == (set(), "stopped")
    second.held = None
    settle(controller)
    assert running(controller) == {"source.s_a"} and first.seen == second.seen == [source.query.address]
    # The change waits, and the running query continues.
    first.held, second.held = HeldQuery(), HeldQuery(condition="stopped")
    create(controller, altered(source, "1:b"))
    settle(controller)
    (decision,) = controller.decisions.values()
    assert (decision.condition, digests()) == ("running", {"1:a"})
    # The gate releases the query, and then makes it fall back, whatever the check says.
    first.held = second.held = None
    settle(controller)
    assert digests() == {"1:b"}
    executor.check_result = lambda _: CheckResult(diagnostics=(Diagnostic(code="MZ040", summary="away"),))
    first.held = HeldQuery(description=source.query, check=False)
    settle(controller)
    assert digests() == {"1:a"}


def test_a_serial_changes_only_queries_and_policies_that_differ(hosting: World) -> None:
    a, b = local_source("a", retention={"steps": 5}), local_source("b")
    wanted = WantedQueries(collections={"a": a, "b": b}, exports={"k": sink_of(a, "k")})
    policies = {"a": LagSteps(steps=5), "b": LagDuration(seconds=7 * 86_400.0)}
    controller = hosting.controller()
    for _ in range(2):
        apply_wanted(wanted, controller)
        assert {id_: state.policy for id_, state in controller.collections()} == policies
    settle(controller)
    before = run_ids(controller.executor)
    assert before.keys() == {"source.s_a", "source.s_b", "sink.k_k"}
    # What is missing is repeated, and running queries aren't restarted.
    controller.set_read_policy([("b", LagSteps(steps=5))])
    controller.drop_sinks(["k"])
    settle(controller, lambda: "sink.k_k" not in running(controller))
    apply_wanted(wanted, controller)
    settle(controller)
    assert {id_: state.policy for id_, state in controller.collections()} == policies
    after = run_ids(controller.executor)
    assert after.keys() == before.keys()
    assert {a for a in before if before[a] != after[a]} == {"sink.k_k"}
    apply_wanted(WantedQueries(collections={"a": a}, exports={}), controller)
    settle(controller)
    assert running(controller) == {"source.s_a"}


def test_a_failed_command_is_repeated(world: test_runner.World, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = world.runner.controller
    with monkeypatch.context() as broken:

        def refused(*_: object) -> None:
            raise StorageError("not now")

        broken.setattr(controller, "set_read_policy", refused)
        world.commit(make_state(1))
        world.runner.tick()
        assert (world.runner.serial, world.executor.running()) == (-1, {})
    assert world.settle().serial == 1
    assert ORDERS in world.executor.running()
    assert {type(state.policy) for _, state in controller.collections()} == {LagDuration}
