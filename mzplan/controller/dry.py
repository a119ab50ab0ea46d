"""The executor and the storage of a dry instance, which runs nothing and contacts nothing."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping, Sequence

from mzplan.controller.executor import CheckResult, Measurement, QueryName, QueryReport
from mzplan.controller.storage import Extent
from mzplan.controller.terms import (
    AppendCommand,
    CollectionDescription,
    Diff,
    Row,
    Step,
    StorageError,
)
from mzplan.model.address import Address, Place
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.observed import Counters, Status, Versions
from mzplan.model.tasks import TaskOutcome
from mzplan.schema.description import Description, InlinedConnection
from mzplan.secrets.references import Secrets


class DryExecutor:
    """Hosts queries that exist only as reports. Every command succeeds at once.

    As with Spark, a query's id belongs to its checkpoint (address and generation) and survives a restart,
    while each run has its own id. `status` is the last status of the instance: a new process adopts its
    queries.
    """

    def __init__(self, project: str, status: Status | None = None):
        self.project = project
        self._lock = threading.RLock()
        self._reports: dict[QueryName, QueryReport] = {}
        self._ids: dict[tuple[Address, int], str] = {}
        if status is not None:
            self._adopt(status)

    def _adopt(self, status: Status) -> None:
        for address, observation in status.observations.items():
            if observation.query_id is None or observation.run_id is None:
                continue
            self._ids[address, observation.generation] = observation.query_id
            if observation.condition == "running":
                name = QueryName(self.project, address, observation.generation, observation.digest)
                self._reports[name] = QueryReport(
                    name=name,
                    query_id=observation.query_id,
                    run_id=observation.run_id,
                    active=True,
                    triggered=True,
                    tasks_done=observation.tasks_done,
                    started_because=observation.started_because,
                )

    def open(self) -> None:
        pass

    def is_open(self) -> bool:
        return True

    def failure_reason(self) -> str | None:
        return None

    def kill(self) -> None:
        pass

    def scarce_cores(self) -> int:
        return 0

    def versions(self) -> Versions | None:
        return None

    def replacement(self) -> str | None:
        return None

    def check(self, description: Description, secrets: Secrets) -> CheckResult:
        return CheckResult()

    def prepare(self, description: Description, secrets: Secrets) -> tuple[Diagnostic, ...]:
        return ()

    def start(self, description: Description, secrets: Secrets, epoch: int) -> None:
        name = QueryName.of(self.project, description)
        with self._lock:
            query_id = self._ids.setdefault((name.address, name.generation), str(uuid.uuid4()))
            self._reports[name] = QueryReport(
                name=name,
                query_id=query_id,
                run_id=str(uuid.uuid4()),
                active=True,
                triggered=True,
                tasks_done=tuple(TaskOutcome(serial=task.serial) for task in description.tasks),
            )

    def stop(self, name: QueryName) -> None:
        with self._lock:
            self._reports.pop(name, None)

    def reports(self) -> list[QueryReport]:
        with self._lock:
            return list(self._reports.values())

    def query_counters(self) -> Mapping[Address, Counters]:
        return {}

    def missing_storage(self, description: Description) -> tuple[Diagnostic, ...]:
        return ()

    def measure(self, description: Description, secrets: Secrets) -> Measurement:
        return Measurement()

    def check_connection(self, connection: InlinedConnection, secrets: Secrets) -> tuple[Diagnostic, ...]:
        return ()

    def compact(self, description: Description, secrets: Secrets) -> str | None:
        return None

    def foreign_queries(self) -> list[str]:
        return []

    def release_upstream(self, id_: str, generation: int) -> None:
        pass

    def reclaim(self, id_: str, generation: int) -> None:
        pass

    def close(self) -> None:
        """Forget the queries. The next process adopts them from the instance's status."""
        with self._lock:
            self._reports.clear()


class DryStorage:
    """The storage of collections that never have any step."""

    def extent(self, place: Place) -> Extent:
        return Extent()

    def first_recent(self, place: Place, when: float) -> Step:
        return 0

    def first_unread(self, export: Place, source: Place) -> Step:
        return 0

    def maintain(self, place: Place, since: Step) -> None:
        pass

    def append(self, commands: Sequence[tuple[CollectionDescription, AppendCommand]]) -> None:
        raise StorageError("A dry instance stores no rows.")

    def snapshot(self, place: Place, as_of: Step) -> list[tuple[Row, Diff]]:
        return []

    def migrate(self, places: Sequence[Place]) -> None:
        pass

    def places(self) -> list[Place]:
        return []
