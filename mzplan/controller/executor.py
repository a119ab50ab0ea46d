"""The executor: what the runner asks of the engine that hosts the streaming queries.

Two implementations pass one contract suite: SparkExecutor (mzplan.spark) and InMemoryExecutor (dry
instances and tests). The executor decides nothing: it does what it is commanded, and reports what is there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from mzplan.connectors.api.queries import Probe
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, ProblemKind
from mzplan.model.losses import Loss
from mzplan.model.observed import Counters, RunFacts, Versions
from mzplan.schema.description import Description, InlinedConnection
from mzplan.secrets.references import Secrets
from mzplan.warehouse.step_record import StepRecord

_NAME = re.compile(r"mzplan:(?P<project>[^:]+):(?P<address>[^:]+):g(?P<generation>\d+):(?P<digest>.+)\Z")


@dataclass(frozen=True, slots=True, order=True)
class QueryName:
    """`mzplan:shop:source.orders:g1:1:9f86…`: a streaming query's name carries all that is needed to
    compare what is wanted with what Spark reports, without remembering what was done."""

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
        """The inverse of `str`; None for the name of a query that is not mzplan's."""
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
    """One streaming query as the engine reports it: what is known of its run (RunFacts), and besides:

    `active` is False once it has ended; then `error` says of what (None: it was stopped).
    `triggered` is whether this run has finished a first trigger, with or without rows.
    `warning` is the last thing that this run warned of.
    `lag`: records that are not read yet, as of `heard_at`; None where the engine does not say.
    `heard_at` (seconds since the epoch) is when it last ended a trigger, or found nothing to do, or else was
    started; None where that is not known.
    `recent`: the last steps that were recorded, the newest first.
    """

    name: QueryName
    query_id: str
    run_id: str
    active: bool
    triggered: bool
    lag: int | None = None
    recent: tuple[StepRecord, ...] = ()
    warning: str | None = None
    heard_at: float | None = None
    error: str | None = None
    error_code: str | None = None
    error_kind: ProblemKind = ""


CheckResult: TypeAlias = Probe
"""What a live check found: what the connector's probe did, and what Spark says of the query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was found out about a query aside from its run, which may have ended: `backlog`, what waits for it
    (see Observation), None where nobody says; `recent`, its last steps that were recorded, the newest first.
    `since`: the oldest step of its collection that was not expired, and when it was written.
    `loss`: what its source could not read again, if it began anew now. `at` is when, in seconds since the
    epoch."""

    backlog: Mapping[str, int] | None = None
    loss: Loss | None = None
    recent: tuple[StepRecord, ...] = ()
    since: tuple[int, float | None] | None = None
    at: float = 0.0


class ExecutorGoneError(Exception):
    """The engine has ended, and this process can't have another one: it ends as well, so that whoever
    supervises it starts anew, or a standby leads. The message is a sentence for people."""


class Executor(Protocol):
    """Hosts the streaming queries of one project on one instance. Called from several threads."""

    def open(self) -> None:
        """Make the engine ready (a Spark session: 5–20 s). Idempotent. Raises MzplanError (MZ061 no Java,
        MZ062 anything else) with how to fix it."""

    def is_open(self) -> bool:
        """Whether `start` may be called."""

    def why_dead(self) -> str | None:
        """Why the engine can't run queries any more, as a sentence for people; None while it can, or was not
        opened. Called once a second, and returns at once, even if the engine hangs."""

    def kill(self) -> None:
        """End the engine without stopping its queries: calls that hang in it return. No error if it ended."""

    def short_of_cores(self) -> int:
        """How many cores the engine has, if jobs of its queries wait seconds for one; 0 if they suffice."""

    def versions(self) -> Versions | None:
        """What writes the checkpoints; None before `open`, and where nothing does."""

    def replaced(self) -> str | None:
        """The release of what was installed in the place of what this runs on; None as long as that is
        there."""

    def check(self, description: Description, secrets: Secrets) -> CheckResult:
        """Reach, authenticate, authorise, find the topic or table, and compare the upstream's identity
        with the one recorded beside the checkpoint. Changes nothing. Works before `open`. Takes at most
        some seconds: every server is asked with a time limit. Never raises for what a server did."""

    def prepare(self, description: Description, secrets: Secrets) -> tuple[Diagnostic, ...]:
        """Make what a sink's target lacks, where the sink says so (a table); why that can't be done, nothing
        if it is. Idempotent, and nothing that is there is dropped. Never raises for what a server did."""

    def start(self, description: Description, secrets: Secrets, epoch: int) -> None:
        """Start the query from its checkpoint (creating collection and checkpoint for a new generation),
        under its QueryName. Returns when the query has been submitted, not when it has done anything, but for
        the description's tasks: they are done before, each once, however often this is called.
        Raises MzplanError when it can't be started. `epoch` is the lease's: targets fence older ones."""

    def stop(self, name: QueryName) -> None:
        """Stop a query and forget it; no error when it isn't there. Returns when it has ended."""

    def reports(self) -> list[QueryReport]:
        """Every query of this project, those included that ended and were not stopped by `stop`.
        Raises ExecutorGoneError."""

    def counted(self) -> Mapping[Address, Counters]:
        """The `rows` and `batches` of every query that was hosted here, over all of its runs; they never go
        back."""

    def missing(self, description: Description) -> tuple[Diagnostic, ...]:
        """Return what is gone of the storage of a query that has run before (MZ161): its checkpoint, or the
        collection that it writes or reads. Never raises: what can't be looked at is not gone."""

    def measure(self, description: Description, secrets: Secrets) -> Measured:
        """What waits for a query, whether it runs or not. May take some seconds. Never raises for what a
        server or the storage did: then that is not known."""

    def reach(self, connection: InlinedConnection, secrets: Secrets) -> tuple[Diagnostic, ...]:
        """What stands in the way of a connection; nothing for one that has nothing to reach by itself. Takes
        at most some seconds."""

    def compact(self, description: Description, secrets: Secrets) -> str | None:
        """Put the target of a sink in order, if that is due and its declaration asks for it: what was done,
        in words. May take minutes; for one sink at a time. Raises MzplanError when that can't be done now:
        the query goes on all the same."""

    def foreign(self) -> list[str]:
        """What runs in this engine and was not started here, for people: names, or ids without one."""

    def release(self, id_: str, generation: int) -> None:
        """Remove from its upstream what a generation that nothing claims has made there (a replication slot);
        no error when there is nothing. Raises MzplanError when that can't be done now."""

    def reclaim(self, id_: str, generation: int) -> None:
        """Remove the collection and the checkpoint of a generation that nothing claims; no error when they
        are gone. Raises MzplanError when they can't be removed."""

    def close(self) -> None:
        """Stop every query of this project and release the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorContext:
    """Where an executor works: the project, its folder, the warehouse as an absolute path or URI. `packages`:
    what Spark needs beyond what it always has (see schema.description.packages_of). `secrets`: with which to
    release what is left before anything has been started."""

    project: str
    directory: str
    warehouse: str
    options: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    secrets: Secrets | None = field(default=None, repr=False)
