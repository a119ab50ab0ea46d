"""A controller that runs nothing, for dry instances and for tests of the runner without Spark."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from mzplan.controller.core import Controller, ControllerOptions
from mzplan.controller.executor import CheckResult, Measurement, QueryName, QueryReport
from mzplan.controller.jobs import Jobs
from mzplan.controller.storage import Extent, appended_columns, consolidated, planned_steps, to_table
from mzplan.controller.terms import (
    AppendCommand,
    Diff,
    InstanceId,
    Row,
    Step,
    StorageError,
)
from mzplan.model.address import Address, Place
from mzplan.model.diagnostics import Diagnostic, error
from mzplan.model.losses import FirstCopy
from mzplan.model.observed import Counters, Status, Versions
from mzplan.model.tasks import TaskOutcome, TaskProgress
from mzplan.schema.columns import CHANGE, DELETE
from mzplan.schema.description import Description, InlinedConnection
from mzplan.schema.source_columns import keys_of
from mzplan.secrets.references import Secrets
from mzplan.store.store import Store


class InMemoryExecutor:
    """Hosts queries that exist only as reports.

    As with Spark, a query's id belongs to its checkpoint (address and generation) and survives a restart,
    while each run has its own id. Tests simulate events: they set `check_result`, `fail_start`, `missing`,
    `failure`, `cores`, `stall_reason`, `foreign`, `first_copies`, `measurement`, `faults`, `tasks`,
    `counters` and `compaction`, and call `fail_query` and `progress`.
    """

    def __init__(self, project: str, status: Status | None = None):
        self.project = project
        self.check_result: Callable[[Description], CheckResult] = lambda description: CheckResult()
        self.fail_start: Callable[[Description], str | None] = lambda description: None
        self.triggers_at_once = True
        self.log: list[tuple[str, str]] = []
        self.missing: Callable[[Description], tuple[Diagnostic, ...]] = lambda description: ()
        self.failure: str | None = None
        self.cores = 0
        self.stall_reason: str | None = None
        self.foreign: list[str] = []
        self.replaced_by: str | None = None
        self.first_copies: Callable[[Description], FirstCopy] = lambda description: FirstCopy()
        self.measurement: Callable[[Description], Measurement] = lambda description: Measurement()
        self.faults: Callable[[InlinedConnection], tuple[Diagnostic, ...]] = lambda connection: ()
        self.tasks: dict[Address, TaskProgress] = {}
        self.counters: dict[Address, Counters] = {}
        self.compaction: Callable[[Description], str | None] = lambda description: None
        self._lock = threading.Lock()
        self._reports: dict[QueryName, QueryReport] = {}
        self._ids: dict[tuple[Address, int], str] = {}
        if status is not None:
            self._restore(status)

    def _restore(self, status: Status) -> None:
        """Adopt the queries of an earlier process from its status, the only memory of a dry instance."""
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
        return self.failure

    def kill(self) -> None:
        self.log.append(("kill", ""))

    def scarce_cores(self) -> int:
        return self.cores

    def stall(self) -> str | None:
        return self.stall_reason

    def versions(self) -> Versions | None:
        return None

    def replacement(self) -> str | None:
        return self.replaced_by

    def check(self, description: Description, secrets: Secrets) -> CheckResult:
        return self.check_result(description)

    def prepare(self, description: Description, secrets: Secrets) -> tuple[Diagnostic, ...]:
        with self._lock:
            self.log.append(("prepare", str(QueryName.of(self.project, description))))
        return ()

    def start(self, description: Description, secrets: Secrets, epoch: int) -> None:
        problem = self.fail_start(description)
        if problem is not None:
            raise error("MZ064.defect", problem=problem)
        name = QueryName.of(self.project, description)
        with self._lock:
            self.log.append(("start", str(name)))
            query_id = self._ids.setdefault((name.address, name.generation), str(uuid.uuid4()))
            self._reports[name] = QueryReport(
                name=name,
                query_id=query_id,
                run_id=str(uuid.uuid4()),
                active=True,
                triggered=self.triggers_at_once,
                tasks_done=tuple(TaskOutcome(serial=task.serial) for task in description.tasks),
            )

    def tasks_under_way(self) -> Mapping[Address, TaskProgress]:
        return self.tasks

    def stop(self, name: QueryName) -> None:
        with self._lock:
            if self._reports.pop(name, None) is not None:
                self.log.append(("stop", str(name)))

    def fail_query(self, name: QueryName, problem: str) -> None:
        """Let the query fail with this error."""
        with self._lock:
            report = self._reports[name]
            self._reports[name] = replace(report, active=False, error=problem, error_code="MZ064")

    def progress(self, name: QueryName, **seen: Any) -> None:
        """Set these fields of the query's QueryReport."""
        with self._lock:
            self._reports[name] = replace(self._reports[name], **seen)

    def trigger(self) -> None:
        """Let every query finish its first trigger."""
        with self._lock:
            for name, report in self._reports.items():
                self._reports[name] = replace(report, triggered=True)

    def reports(self) -> list[QueryReport]:
        with self._lock:
            return list(self._reports.values())

    def query_counters(self) -> Mapping[Address, Counters]:
        return dict(self.counters)

    def missing_storage(self, description: Description) -> tuple[Diagnostic, ...]:
        return self.missing(description)

    def measure(self, description: Description, secrets: Secrets) -> Measurement:
        return self.measurement(description)

    def first_copy(self, description: Description) -> FirstCopy:
        return self.first_copies(description)

    def check_connection(self, connection: InlinedConnection, secrets: Secrets) -> tuple[Diagnostic, ...]:
        return self.faults(connection)

    def compact(self, description: Description, secrets: Secrets) -> str | None:
        with self._lock:
            self.log.append(("compact", str(description.address)))
        return self.compaction(description)

    def foreign_queries(self) -> list[str]:
        return list(self.foreign)

    def running(self) -> Mapping[Address, QueryReport]:
        """Return the active queries by address (for tests)."""
        return {r.name.address: r for r in self.reports() if r.active}

    def release_upstream(self, id_: str, generation: int) -> None:
        pass

    def reclaim(self, id_: str, generation: int) -> None:
        self.log.append(("reclaim", f"{id_} g{generation}"))

    def close(self) -> None:
        """Forget the queries. The next process adopts them from the instance's status."""
        with self._lock:
            self._reports.clear()


class InMemoryStorage:
    """Keeps collections as lists of rows by step. It outlives its controllers, as a disk does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: dict[Place, list[list[Row]]] = {}
        self._since: dict[Place, Step] = {}
        self._row_keys: dict[Place, tuple[str, ...]] = {}
        self._keys: dict[Place, dict[str, Step]] = {}
        self._times: dict[Place, list[tuple[Step, float]]] = {}
        self.first_unread_steps: dict[Place, Step] = {}
        self._epochs: dict[tuple[str, InstanceId], int] = {}

    def extent(self, place: Place) -> Extent:
        with self._lock:
            return Extent(
                since=self._since.get(place, 0),
                upper=len(self._steps.get(place, ())),
            )

    def first_recent(self, place: Place, when: float) -> Step:
        with self._lock:
            times = self._times.get(place, [])
            return next((step for step, time_ in times if time_ >= when), times[-1][0] if times else 0)

    def first_after_erasure(self, place: Place) -> Step:
        return 0

    def first_unread(self, export: Place, source: Place) -> Step:
        """Return the step that a test has set in `first_unread_steps`, or else the upper."""
        return self.first_unread_steps.get(export, self.extent(source).upper)

    def maintain(self, place: Place, since: Step) -> None:
        with self._lock:
            self._since[place] = max(self._since.get(place, 0), since)

    def append(self, commands: Sequence[tuple[Description, AppendCommand]]) -> None:
        with self._lock:
            planned: dict[Place, dict[str, list[list[Row]]]] = {}
            for description, command in commands:
                place = description.place
                keys = keys_of(description.type, description.body)
                given = planned.setdefault(place, {})
                known = self._keys.setdefault(place, {}).get(command.key)
                if known is not None:
                    self._ensure_same(place, known, planned_steps(command, known, bool(keys)))
                if known is not None or command.key in given:
                    continue
                upper = len(self._steps.setdefault(place, [])) + sum(map(len, given.values()))
                steps = planned_steps(command, upper, bool(keys))
                for rows in steps:
                    to_table(appended_columns(description), rows)  # raises if the rows don't fit
                self._row_keys[place] = keys
                given[command.key] = steps
            for place, given in planned.items():
                self._write(place, given)

    def _ensure_same(self, place: Place, first: Step, steps: Sequence[list[Row]]) -> None:
        if any(rows != stored for rows, stored in zip(steps, self._steps[place][first:], strict=False)):
            raise StorageError(f"The append of this key was made as step {first}, and had other rows.")

    def _write(self, place: Place, given: Mapping[str, list[list[Row]]]) -> None:
        written = self._steps[place]
        for key, steps in given.items():
            self._keys[place][key] = len(written)
            for rows in steps:
                self._times.setdefault(place, []).append((len(written), time.time()))
                written.append(list(rows))

    def snapshot(self, place: Place, as_of: Step) -> list[tuple[Row, Diff]]:
        with self._lock:
            rows = [row for rows in self._steps[place][: as_of + 1] for row in rows]
            keys = self._row_keys.get(place, ())
        return consolidated(_latest(rows, keys) if keys else rows)

    def migrate(self, places: Sequence[Place]) -> None:
        """Do nothing, because there is only one layout."""

    def places(self) -> list[Place]:
        with self._lock:
            return sorted(self._steps)

    def newest_epoch(self, lineage: str, instance: InstanceId) -> int:
        return self._epochs.get((lineage, instance), 0)

    def record_epoch(self, lineage: str, instance: InstanceId, epoch: int) -> None:
        self._epochs[lineage, instance] = max(epoch, self.newest_epoch(lineage, instance))


def _latest(changes: Iterable[Row], keys: Sequence[str]) -> list[Row]:
    """Return the rows that remain after these changes; the last change of each key counts."""
    rows: dict[tuple[Any, ...], Row] = {}
    for change in changes:
        key = tuple(change[name] for name in keys)
        rows.pop(key, None)
        if change[CHANGE] != DELETE:
            rows[key] = {name: value for name, value in change.items() if name != CHANGE}
    return list(rows.values())


class InMemoryController(Controller):
    """A controller that runs no queries and stores collections in memory."""

    def __init__(
        self,
        store: Store,
        secrets: Secrets,
        jobs: Jobs,
        executor: InMemoryExecutor | None = None,
        storage: InMemoryStorage | None = None,
        **options: Unpack[ControllerOptions],
    ):
        executor, storage = executor or InMemoryExecutor(store.project), storage or InMemoryStorage()
        super().__init__(store, executor, storage, secrets, jobs, **options)
