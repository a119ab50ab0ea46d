"""The controllers for the contract tests: in memory, and on Spark."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from mzplan.controller.adapter import StorageController
from mzplan.controller.core import Controller
from mzplan.controller.decision import WantedQuery
from mzplan.controller.executor import Executor, ExecutorContext
from mzplan.controller.jobs import Jobs
from mzplan.controller.memory import InMemoryController, InMemoryExecutor, InMemoryStorage
from mzplan.controller.terms import (
    AppendCommand,
    Diff,
    ReplicaLocation,
    Row,
    Step,
    Update,
)
from mzplan.model.address import Address
from mzplan.schema.description import CollectionRead, Description, packages_of
from mzplan.secrets.references import Secrets
from mzplan.store.backends.local import LocalBackend
from mzplan.store.store import Store
from tests.support import Stopwatch

SECONDS = 120.0
TRIGGER = {"interval": "250ms"}  # idle queries at 100 ms take 9 % of a core each
_numbers = itertools.count(1)


class Make(Protocol):
    """Makes the kernel of a project's controller."""

    def __call__(self, store: Store, jobs: Jobs) -> Controller: ...


class World:
    """A project's store and its successive controllers. `crash` leaves the same as kill -9."""

    def __init__(self, folder: Path, make: Make):
        self.store = Store(LocalBackend(folder / "state"), "shop")
        self.jobs = Jobs()
        self.make = make
        self.controllers: list[StorageController] = []

    def controller(self, *, complete: bool = True) -> StorageController:
        """Return a new controller that leads the instance `local`."""
        made = StorageController(self.make(self.store, self.jobs))
        made.create_instance("local")
        made.connect_replica("local", ReplicaLocation(owner=f"test {next(_numbers)}"))
        if complete:
            made.initialization_complete()
        self.controllers.append(made)
        return made

    def hosting(self, *ids: str, **body: Any) -> StorageController:
        """Return a new controller that leads the instance and hosts these local sources."""
        controller = self.controller()
        create(controller, *(local_source(id_, **body) for id_ in ids))
        return controller

    def crash(self) -> None:
        """End the last controller and its queries without cleanup: its lease and its files stay."""
        controller = self.controllers[-1]
        controller.kernel.executor.close()
        controller.kernel.instances._keeper = None

    def close(self) -> None:
        for controller in self.controllers:
            controller.kernel.executor.close()
            controller.kernel.release()
        self.jobs.shutdown()


def in_memory(folder: Path) -> Iterator[World]:
    storage = InMemoryStorage()

    def make(store: Store, jobs: Jobs) -> Controller:
        return InMemoryController(store, Secrets("."), jobs, storage=storage)

    world = World(folder, make)
    yield world
    world.close()


def on_spark(folder: Path) -> Iterator[World]:
    from mzplan.spark.delta_storage import SparkController
    from mzplan.spark.executor import SparkExecutor
    from tests.integration.spark_lab import LAKE

    class Shared(SparkExecutor):
        """Uses the session of all tests, which stays open when this executor closes."""

        def close(self) -> None:
            self._spark = None
            super().close()

    context = ExecutorContext(
        project="shop",
        directory=str(folder),
        warehouse=str(folder / "warehouse"),
        options={"spark.master": "local[2,2]"},
        packages=packages_of({LAKE.address: LAKE}),  # the session is the lab's, whichever test creates it
    )

    def make(store: Store, jobs: Jobs) -> Controller:
        executor = Shared(context)
        executor.open()
        return SparkController(context, store, Secrets(str(folder)), jobs, executor=executor)

    world = World(folder, make)
    yield world
    world.close()


# ── descriptions


def local_source(id_: str, **body: Any) -> WantedQuery:
    """Return a local source with the columns `id` and `name`."""
    query = Description(
        address=Address("source", f"s_{id_}"),
        id=id_,
        generation=1,
        digest="1:a",
        type="local",
        body={"type": "local", "schema": "id BIGINT NOT NULL, name STRING", "trigger": TRIGGER, **body},
    )
    return WantedQuery(description=query, instance="local")


def sink_of(source: WantedQuery, id_: str) -> WantedQuery:
    """Return a sink that only counts rows."""
    of = source.description
    read = CollectionRead(address=of.address, id=of.id, generation=of.generation, type=of.type, body=of.body)
    query = Description(
        address=Address("sink", f"k_{id_}"),
        id=id_,
        generation=1,
        digest="1:a",
        type="console",
        body={"type": "console", "from": of.address.name, "trigger": TRIGGER},
        reads={of.address.name: read},
    )
    return WantedQuery(description=query, instance="local")


def altered(description: WantedQuery, digest: str, **other: Any) -> WantedQuery:
    """Return the description with another digest, as after a change of its connection."""
    return replace(description, description=replace(description.description, digest=digest, **other))


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": number, "name": f"n{number}"} for number in range(first, first + count)]


def appending(id_: str, step: Step, *given: dict[str, Any], key: str | None = None) -> AppendCommand:
    """Return an append of rows at one step, which becomes the last step."""
    updates = tuple(Update(row=row, step=step) for row in given)
    return AppendCommand(id=id_, updates=updates, upper=step + 1, key=key or f"append {next(_numbers)}")


# ── actions


def append(controller: StorageController, *commands: AppendCommand) -> None:
    """Append, and wait until the rows are durable."""
    controller.append(commands).result(20)


def create(controller: StorageController, *descriptions: WantedQuery) -> None:
    controller.create_collections([(one.description.id, one) for one in descriptions])


def create_sink(controller: StorageController, *descriptions: WantedQuery) -> None:
    hosted = dict(controller.collections())  # a query of another instance may also read other collections
    sinks = [(one, from_id) for one in descriptions for from_id in one.from_ids if from_id in hosted]
    tokens = [(controller.prepare_export(one.description.id, from_id), one) for one, from_id in sinks]
    controller.create_exports(tokens)


def settle(controller: StorageController, until: Callable[[], bool] | None = None) -> None:
    """Process until no work is under way, and `until` holds."""

    waited = Stopwatch()
    while True:
        controller.process()
        if not controller.kernel.busy and (until is None or until()):
            return
        assert waited.seconds < SECONDS, {
            str(a): (d.condition, d.run and d.run.step, d.memory.error)
            for a, d in controller.kernel.decisions.items()
        }
        controller.ready()


def running(controller: StorageController) -> set[str]:
    """Return the addresses of the running queries."""
    return {str(report.name.address) for report in controller.kernel.executor.reports() if report.active}


def run_ids(executor: Executor) -> dict[str, str]:
    return {str(report.name.address): report.run_id for report in executor.reports() if report.active}


def snapshot(controller: StorageController, id_: str, as_of: Step) -> list[tuple[Row, Diff]]:
    """Return a collection as of a step, sorted by `id`."""
    return sorted(controller.snapshot(id_, as_of), key=lambda one: one[0]["id"])


def play(controller: StorageController, id_: str, upper: Step) -> None:
    """Wait until a collection has this upper. In memory, where no query reads, set it."""
    if isinstance(controller.kernel.executor, InMemoryExecutor):
        controller.update_write_frontiers([(id_, upper)])
        settle(controller)
    else:
        settle(controller, lambda: controller.collection(id_).upper >= upper)
