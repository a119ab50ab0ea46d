"""How a controller uses its gates, and which commands the runner sends it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mzplan.controller.executor import CheckResult
from mzplan.controller.memory import InMemoryExecutor, InMemoryStorageController
from mzplan.controller.terms import (
    CollectionDescription,
    CreateExportToken,
    ExportDescription,
    GlobalId,
    HeldQuery,
    LagDuration,
    LagSteps,
    ReadPolicy,
    StorageError,
)
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.runner.commands import WantedQueries, apply_wanted
from mzplan.schema.description import Description
from mzplan.secrets.references import Secrets
from mzplan.store.backends.local import LocalBackend
from mzplan.store.store import Store
from tests.contract.controllers import altered, create, local_source, running, settle, sink_of
from tests.unit.runner.test_runner import ORDERS, World, make_state


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


def test_the_first_gate_that_holds_a_query_decides_what_it_runs(tmp_path: Path) -> None:
    first, second = Gate(), Gate()
    store = Store(LocalBackend(tmp_path), "shop")
    executor = InMemoryExecutor("shop")
    lease = store.leases.take("local", "test")
    source = local_source("a")
    with ThreadPoolExecutor(2) as pool:
        made = InMemoryStorageController(store, Secrets("."), pool, executor, gates=(first, second))
        made.create_instance("local")
        made.attach(lease)
        made.initialization_complete()
        second.held = HeldQuery(condition="stopped")
        create(made, source)
        settle(made)
        (decision,) = made.decisions.values()
        assert (running(made), decision.condition) == (set(), "stopped")
        second.held = None
        settle(made)
        assert running(made) == {"source.s_a"} and first.seen == second.seen == [source.query.address]
        # The change waits, and the running query continues.
        first.held, second.held = HeldQuery(), HeldQuery(condition="stopped")
        create(made, altered(source, "1:b"))
        settle(made)
        (decision,) = made.decisions.values()
        assert decision.condition == "running" and decision.run is not None
        assert decision.run.name.digest == "1:a"
        # The gate releases the query, and then makes it fall back, whatever the check says.
        first.held = second.held = None
        settle(made)
        assert {name.digest for name in executor._reports} == {"1:b"}
        executor.check_result = lambda _: CheckResult(diagnostics=(Diagnostic(code="MZ040", summary="away"),))
        first.held = HeldQuery(description=source.query, check=False)
        settle(made)
        assert {name.digest for name in executor._reports} == {"1:a"}


class Recording(InMemoryStorageController):
    """Records the commands that change the hosted queries, and carries them out."""

    def __init__(self, store: Store, pool: ThreadPoolExecutor):
        super().__init__(store, Secrets("."), pool)
        self.commands: list[tuple[object, ...]] = []

    def given(self, wanted: WantedQueries) -> list[tuple[object, ...]]:
        self.commands = []
        apply_wanted(wanted, self)
        return self.commands

    def drop_sinks(self, ids: Sequence[GlobalId]) -> None:
        self.commands.append(("drop_sinks", ids))
        super().drop_sinks(ids)

    def drop_sources(self, ids: Sequence[GlobalId]) -> None:
        self.commands.append(("drop_sources", ids))
        super().drop_sources(ids)

    def create_collections(self, collections: Sequence[tuple[GlobalId, CollectionDescription]]) -> None:
        self.commands.append(("create_collections", collections))
        super().create_collections(collections)

    def set_read_policy(self, policies: Sequence[tuple[GlobalId, ReadPolicy]]) -> None:
        self.commands.append(("set_read_policy", policies))
        super().set_read_policy(policies)

    def create_exports(self, exports: Sequence[tuple[CreateExportToken, ExportDescription]]) -> None:
        self.commands.append(("create_exports", [export for _, export in exports]))
        super().create_exports(exports)


def test_only_differences_from_the_hosted_queries_become_commands(tmp_path: Path) -> None:
    a, b = local_source("a", retention={"steps": 5}), local_source("b")
    sink = sink_of(a, "k")
    wanted = WantedQueries(collections={"a": a, "b": b}, exports={"k": sink})
    week, five = LagDuration(seconds=7 * 86_400.0), LagSteps(steps=5)
    store = Store(LocalBackend(tmp_path), "shop")
    with ThreadPoolExecutor(2) as pool:
        made = Recording(store, pool)
        made.create_instance("local")
        made.attach(store.leases.take("local", "test"))
        assert made.given(wanted) == [
            ("create_collections", [("a", a), ("b", b)]),
            ("set_read_policy", [("a", five), ("b", week)]),
            ("create_exports", [sink]),
        ]
        assert made.given(wanted) == []
        # The failed command is repeated, and no completed command is.
        made.set_read_policy([("b", five)])
        made.drop_sinks(["k"])
        assert made.given(wanted) == [("set_read_policy", [("b", week)]), ("create_exports", [sink])]
        assert made.given(WantedQueries(collections={"a": a}, exports={})) == [
            ("drop_sinks", ["k"]),
            ("drop_sources", ["b"]),
        ]


def test_a_failed_command_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
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
    world.runner.proposals.close()
    world.pool.shutdown()
