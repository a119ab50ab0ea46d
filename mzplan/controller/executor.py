"""The executor: the interface to the engine that hosts the streaming queries.

Two implementations pass one contract suite: SparkExecutor (mzplan.spark) and InMemoryExecutor (dry
instances and tests). The executor decides nothing: it carries out commands and reports the queries.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from mzplan.connectors.api.queries import Probe
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, ProblemKind
from mzplan.model.losses import FirstCopy, Loss
from mzplan.model.observed import Counters, RunFacts, Versions
from mzplan.model.tasks import TaskProgress
from mzplan.schema.description import Description, InlinedConnection
from mzplan.secrets.references import Secrets
from mzplan.warehouse.step_record import StepRecord

_NAME = re.compile(r"mzplan:(?P<project>[^:]+):(?P<address>[^:]+):g(?P<generation>\d+):(?P<digest>.+)\Z")


@dataclass(frozen=True, slots=True, order=True)
class QueryName:
    """A streaming query's name in the engine, such as `mzplan:shop:source.orders:g1:1:9f86…`.

    It has all that is needed to compare the desired query with the engine's report, without other state.
    """

    project: str
    address: Address
    generation: int
    digest: str

    def __str__(self) -> str:
        return f"mzplan:{self.project}:{self.address}:g{self.generation}:{self.digest}"

    @classmethod
    def of(cls, project: str, description: Description) -> QueryName:
        return cls(project, description.address, description.generation, description.digest)

    @classmethod
    def parse(cls, name: str | None) -> QueryName | None:
        """Parse the text that `str` returns; None if the query isn't mzplan's."""
        match = _NAME.match(name or "")
        if match is None:
            return None
        try:
            address = Address.parse(match["address"])
        except ValueError:
            return None
        return cls(match["project"], address, int(match["generation"]), match["digest"])


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryReport(RunFacts):
    """One streaming query as the engine reports it, with the facts of its run (RunFacts).

    - `active`: False once the query has ended; `error` then has the reason (None: it was stopped).
    - `triggered`: whether this run has finished its first trigger, with or without rows.
    - `lag`: unread records as of `last_progress_at`; None if the engine doesn't report it.
    - `recent`: the last recorded steps, the newest first.
    - `warning`: the last warning of this run.
    - `last_progress_at`: when the query last finished a trigger or found nothing to do, in seconds since the
      epoch. If it has done neither, when it started. None if unknown.
    """

    name: QueryName
    query_id: str
    run_id: str
    active: bool
    triggered: bool
    lag: int | None = None
    recent: tuple[StepRecord, ...] = ()
    warning: str | None = None
    last_progress_at: float | None = None
    error: str | None = None
    error_code: str | None = None
    error_kind: ProblemKind = ""

    def found_nothing_after(self, moment: float) -> bool:
        """Whether a trigger that began after this moment found nothing more to read.

        `moment`: in seconds since the epoch. A dry instance reads nothing.
        """
        if self.last_progress_at is None:
            return self.triggered
        return self.lag == 0 and self.last_progress_at - (self.batch_seconds or 0.0) > moment


CheckResult: TypeAlias = Probe
"""The result of a live check: what the connector's probe and Spark's analysis of the query have found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Measurements of a query that don't depend on its run, which may have ended.

    - `backlog`: the work that waits for it (see Observation); None if unknown.
    - `loss`: the data that its source couldn't read again if it started over now.
    - `recent`: its last recorded steps, the newest first.
    - `since`: the oldest step of its collection that hasn't expired, and when it was written.
    - `foreign_change`: how another writer last changed rows of its collection; None if it didn't.
    - `at`: the time of the measurement, in seconds since the epoch.
    """

    backlog: Mapping[str, int] | None = None
    loss: Loss | None = None
    recent: tuple[StepRecord, ...] = ()
    since: tuple[int, float | None] | None = None
    foreign_change: str | None = None
    at: float = 0.0


class ExecutorGoneError(Exception):
    """The engine has exited, and this process can't start another one.

    The process also exits, so that its supervisor restarts it or a standby runner leads. The message is a
    sentence for people.
    """


class Executor(Protocol):
    """Hosts the streaming queries of one project on one instance. Called from several threads."""

    def open(self) -> None:
        """Start the engine (a Spark session takes 5–20 s). Idempotent.

        Raises MzplanError: MZ061 without Java, MZ062 for any other problem, each with its fix.
        """

    def is_open(self) -> bool:
        """Whether `start` may be called."""

    def failure_reason(self) -> str | None:
        """Return why the engine can't run queries any more, as a sentence.

        Returns None if the engine can run queries, or isn't open. Called once a second. Returns at once, even
        if the engine hangs.
        """

    def kill(self) -> None:
        """Kill the engine without stopping its queries, so that hanging calls return. Idempotent."""

    def scarce_cores(self) -> int:
        """Return the number of cores if jobs wait seconds for a free core; 0 if there are enough cores."""

    def stall(self) -> str | None:
        """Return why no query makes progress although the engine answers, as a sentence; None if queries do.

        The cause may go away without a restart, unlike a `failure_reason`.
        """

    def versions(self) -> Versions | None:
        """Return the versions of the software that writes checkpoints.

        None before `open`, and for an engine without checkpoints.
        """

    def replacement(self) -> str | None:
        """Return the release that was installed over the running engine's release; None if none was."""

    def check(self, description: Description, secrets: Secrets) -> CheckResult:
        """Check that the query can start: access, the topic or table, and the upstream's identity.

        The identity is compared with the one that is recorded beside the checkpoint. Changes nothing. Works
        before `open`. Takes a few seconds at most, because every request has a time limit. Doesn't raise if a
        server fails.
        """

    def prepare(self, description: Description, secrets: Secrets) -> tuple[Diagnostic, ...]:
        """Create missing parts of a sink's target, such as a table, if its declaration allows that.

        Returns the problems, empty after success. Idempotent; drops nothing. Doesn't raise if a server fails.
        """

    def start(self, description: Description, secrets: Secrets, epoch: int) -> None:
        """Start the query from its checkpoint, under its QueryName.

        Creates the collection and the checkpoint of a new generation. Returns once the query is submitted;
        it may not have done anything yet. Does the description's tasks first, each once, however often this
        is called. `epoch` is the lease's: targets refuse writes of a lower epoch. Raises MzplanError if the
        query can't be started.
        """

    def stop(self, name: QueryName) -> None:
        """Stop a query and forget it. Returns when it has ended. No error if it doesn't exist."""

    def tasks_under_way(self) -> Mapping[Address, TaskProgress]:
        """Return the work that calls of `start` do now, before they submit their queries."""

    def reports(self) -> list[QueryReport]:
        """Return every query of this project, including queries that ended without a call of `stop`.

        Raises ExecutorGoneError.
        """

    def query_counters(self) -> Mapping[Address, Counters]:
        """Return the `rows` and `batches` of every query hosted here, over all of its runs.

        They never decrease.
        """

    def missing_storage(self, description: Description) -> tuple[Diagnostic, ...]:
        """Return the missing storage (MZ161) of a query that has run before.

        Its storage is its checkpoint, and the collections that it writes or reads. Never raises: storage
        that can't be read doesn't count as missing.
        """

    def measure(self, description: Description, secrets: Secrets) -> Measurement:
        """Measure the backlog of a query, whether it runs or not. May take a few seconds.

        Doesn't raise if a server or the storage fails: the measurement is unknown instead.
        """

    def first_copy(self, description: Description) -> FirstCopy:
        """Return how much of the first copy of the query's collection is read, whether the query runs or not.

        Reads only the warehouse. For a view, the parts are the steps of its input streams. Raises OSError.
        """

    def check_connection(self, connection: InlinedConnection, secrets: Secrets) -> tuple[Diagnostic, ...]:
        """Return the problems of a connection; empty if it works, or has no server of its own.

        Takes a few seconds at most.
        """

    def compact(self, description: Description, secrets: Secrets) -> str | None:
        """Compact the target of a sink, if its declaration asks for that and compaction is due.

        Returns a description of the work, or None. May take minutes; called for one sink at a time. Raises
        MzplanError if the target can't be compacted now; the query continues.
        """

    def foreign_queries(self) -> list[str]:
        """Return the names (or else ids) of queries in the engine that this executor didn't start."""

    def release_upstream(self, id_: str, generation: int) -> None:
        """Remove the upstream objects of an unclaimed generation, such as a replication slot. Idempotent.

        Raises MzplanError if they can't be removed now.
        """

    def reclaim(self, id_: str, generation: int) -> None:
        """Remove the collection and the checkpoint of an unclaimed generation. Idempotent.

        Raises MzplanError if they can't be removed.
        """

    def close(self) -> None:
        """Stop every query of this project and release the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorContext:
    """The settings of an executor.

    - `directory`: the project's folder.
    - `warehouse`: an absolute path or a URI.
    - `former_place`: where the queries' storage is, if it isn't in this warehouse; else "".
    - `packages`: additional Spark packages (see schema.description.packages_of).
    - `secrets`: used to release upstream objects before any query has started.
    - `until_caught_up`: whether each query only reads what is there: it does its triggers one after another,
      and reports each one without input.
    """

    project: str
    directory: str
    warehouse: str
    former_place: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    secrets: Secrets | None = field(default=None, repr=False)
    until_caught_up: bool = False
