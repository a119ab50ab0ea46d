"""State (committed) and Status (observed)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

from mzplan.model.address import Address, Place, is_valid_name
from mzplan.model.canary import Canary, Verdict
from mzplan.model.history import CommitRecord
from mzplan.model.instants import instant
from mzplan.model.resources import DEFAULT_INSTANCE, Body, Instance, Resource, RunnerSettings
from mzplan.model.run_facts import RunFacts, Versions
from mzplan.model.stored import (
    KEY,
    OPTIONAL,
    SPARSE,
    FromMinusOne,
    Id,
    InstanceName,
    Positive,
    stored,
    text_like,
)

FORMAT_VERSION = 1

Condition = Literal["running", "starting", "paused", "rejected", "failed", "stopped"]
LagUnit = Literal["records", "rows", "steps", "bytes"]
PastStep = tuple[int, int | None, int | None]  # its number, when (seconds since the epoch), and its rows
Time = Annotated[str, text_like(lambda text: instant(text) is not None, "time with its zone")]
Awaited = Literal["waiting for Spark", "to be started", "in the first batch"]


def needed_by(references: Mapping[str, Address]) -> tuple[Address, ...]:
    """What a resource with these references depends on, in order."""
    return tuple(sorted(set(references.values())))


def _read_body(value: Any, name: str) -> Body:
    """Any mapping: only what is used without asking its schema is looked at."""
    if type(value) is not dict:
        raise ValueError(f"{name} is no mapping")
    if "instance" in value and not is_valid_name(value["instance"]):
        raise ValueError("instance is no name of an instance")
    if type(value.get("lifecycle", {})) is not dict:
        raise ValueError("lifecycle is no mapping")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """A range of a source's upstream that is to be in its collection once more: the records from `start` to
    `end`, without that, which are times (`2026-11-01T08:00:00Z`). `serial` is the one that asked for it, and
    tells it from all others; `generation` that of the source, for which alone it counts."""

    serial: Positive
    start: Time = field(metadata=stored("from"))
    end: Time = field(metadata=stored("to"))
    generation: Positive

    def __str__(self) -> str:
        return f"from {self.start} to {self.end}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceState:
    """A committed resource.

    `id` names it for life: checkpoints and collections live under it, never under its name. `generation`
    counts replacements; a new one has its own checkpoint and collection. `digest` is that of its inlined
    description (see mzplan.schema.description): a running query whose digest differs must restart. `override`
    and `restart_token` come from `pause`, `resume` and `restart`. `backfills`: what was asked for, each
    with a restart, before which it is done; the next one takes those out that are done.
    """

    address: Address = field(metadata=KEY)
    id: Id
    type: str
    body: Annotated[Body, _read_body]
    dependencies: tuple[Address, ...] = field(
        default=(), metadata=stored(derived=lambda found: needed_by(found.get("references", {})))
    )
    references: Mapping[str, Address] = field(default_factory=dict, metadata=OPTIONAL)
    generation: Positive = field(default=1, metadata=OPTIONAL)
    digest: str = field(default="", metadata=OPTIONAL)
    override: Literal["paused", "resumed"] | None = None
    restart_token: int = field(default=0, metadata=OPTIONAL)
    backfills: tuple[Backfill, ...] = field(default=(), metadata=SPARSE)

    @property
    def own_backfills(self) -> tuple[Backfill, ...]:
        """Those of this generation; an earlier one has taken its own with it."""
        return tuple(one for one in self.backfills if one.generation == self.generation)

    def has_backfilled(self, backfill: Backfill, seen: Observation | None) -> bool | None:
        """Whether one of its backfills is done, as far as an observation shows it; None where it does not."""
        if seen is None or seen.generation != self.generation:
            return None
        if seen.digest == self.digest:
            return True
        # They are done in the order of their serials. That says nothing where the newest one that is done
        # is none of them: a rollback has brought back older ones, which may have been given up.
        own = {one.serial for one in self.own_backfills}
        return seen.backfilled in own and backfill.serial <= seen.backfilled

    def open_backfills(self, seen: Observation | None) -> tuple[Backfill, ...]:
        """Those that are not done yet, by an observation."""
        return tuple(one for one in self.own_backfills if self.has_backfilled(one, seen) is False)

    @property
    def declared(self) -> Resource:
        """As files that say what is committed would declare it."""
        return Resource(address=self.address, type=self.type, body=self.body, references=self.references)

    @property
    def place(self) -> Place:
        return (self.id, self.generation)

    @property
    def instance(self) -> str:
        return str(self.body.get("instance", DEFAULT_INSTANCE))

    @property
    def paused(self) -> bool:
        if self.override is not None:
            return self.override == "paused"
        return bool(self.body.get("paused", False))


class Forgotten(NamedTuple):
    """Storage that `state rm` left behind: what it was called, and its generation."""

    address: Address
    generation: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What is committed: one serial of the project. Serial 0 with an empty lineage is 'nothing yet'.

    `forgotten`, by id, is kept until it is imported again. `canaries` are queries that go first, each with
    those that it holds back. `commit` says who has committed this serial, and why; None in states of an
    older mzplan. `environment`: which of the project's environments has committed it; "" in a project without
    any, and in states of before it had some. `settings`: how runners work; None in states of an older mzplan,
    whose runners take that from their own mzplan.yaml.
    """

    format_version: Positive = FORMAT_VERSION
    project: str
    lineage: str = ""
    serial: int = 0
    warehouse: str = ""
    instances: Mapping[InstanceName, Instance] = field(default_factory=dict)
    resources: Mapping[Address, ResourceState] = field(default_factory=dict)
    forgotten: Mapping[Id, Forgotten] = field(default_factory=dict, metadata=SPARSE)
    canaries: tuple[Canary, ...] = field(default=(), metadata=SPARSE)
    commit: CommitRecord | None = field(default=None, metadata=SPARSE)
    environment: str = field(default="", metadata=SPARSE)
    settings: RunnerSettings | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What a runner has counted of a query since it began to lead, over all of its runs: they never go back,
    and another runner begins at 0. `batches`: micro-batches that have ended. `rows`: those that they have
    written to the collection (source) or the target (sink), where that is known. `restarts`: starts but for
    the first. `retries`: attempts after one that has failed."""

    rows: int = field(default=0, metadata=OPTIONAL)
    batches: int = field(default=0, metadata=OPTIONAL)
    restarts: int = field(default=0, metadata=OPTIONAL)
    retries: int = field(default=0, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation(RunFacts):
    """One streaming query, as its runner observes it: what is known of its run (RunFacts), and besides:

    - `digest`, `generation`: of the description that runs, or ran last. `wanted_digest`, `wanted_generation`:
      of the committed one that the runner last tried to reach. They differ while a change is pending, was
      rejected, or has failed.
    - `query_id`, `run_id`: Spark's ids of the query and of this run; None before the first start.
    - `lag`: what of the upstream is not read yet, as a number of `lag_unit`; None where that is unknown. Of a
      query that does not run: what waits for it.
    - `backlog`: what the upstream says of what waits, by name: `records`; `steps` that are durable, and the
      `rows` in them; of a log that it keeps for the query `lag_bytes` still to be read and `retained_bytes`
      kept. None for an upstream that says nothing.
    - `total_rows`: of all its steps: written to the collection (source) or the target (sink). `last_rows`,
      `last_batch_at` (seconds since the epoch): of the last step that was recorded.
    - `last_steps`: that one and a few before it, the newest first.
    - `warning`: why a running query needs attention.
    - `error`, `error_code`: why the last attempt failed or was rejected. `failures`: how many attempts have
      failed in a row; `retry_at` (seconds since the epoch) when the next one is due, None for none.
    - `at_fault`: the connection that does not answer, or refuses, while the query needs it; `fault` says how;
      `fault_fix` what mends it, where a server has answered.
    - `quiet_since`: seconds since the Unix epoch. Set while one micro-batch takes longer than a minute: the
      time when the one before it ended.
    - `upstream`: the identity of what the query reads (for Kafka: cluster, topic and number of partitions).
    - `held`: what the query waits for, in words: a canary (meanwhile its last accepted description runs), or
      the runner of another instance (it starts here once that one has stopped it).
    """

    address: Address = field(metadata=KEY)
    generation: int
    digest: str
    wanted_digest: str
    wanted_generation: int
    condition: Condition
    query_id: str | None = None
    run_id: str | None = None
    lag: int | None = None
    lag_unit: LagUnit | None = None
    backlog: Mapping[str, int] | None = None
    warning: str | None = None
    quiet_since: float | None = None
    error: str | None = None
    error_code: str | None = None
    failures: int = field(default=0, metadata=OPTIONAL)
    upstream: Mapping[str, Any] | None = None
    held: str | None = None
    total_rows: int | None = None
    last_rows: int | None = None
    last_batch_at: float | None = None
    last_steps: tuple[PastStep, ...] = field(default=(), metadata=SPARSE)
    retry_at: float | None = None
    at_fault: Address | None = None
    fault: str | None = None
    fault_fix: str | None = field(default=None, metadata=SPARSE)
    counters: Counters | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What the runner of an instance observes. `serial` is the newest state serial it has taken in;
    `heartbeat` is seconds since the Unix epoch, UTC; `secrets` are digests of the values that queries run
    with, by reference, and `rotated` the references that had another value at the runner's last look;
    `canaries` are verdicts on those that went first;
    `foreign` are queries in its application that it has not started, by name. `handed` counts the values that
    commands have handed to this runner, and that it uses. `opening_since`: since when its Spark starts
    (seconds since the epoch), None once it runs; `opened_in`: how many seconds that has taken. `versions`:
    of the runner, None until its Spark runs, and of one that has none."""

    instance: InstanceName
    epoch: int
    heartbeat: float
    serial: FromMinusOne
    observations: Mapping[Address, Observation] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, metadata=OPTIONAL)
    rotated: tuple[str, ...] = field(default=(), metadata=SPARSE)
    canaries: Mapping[Address, Verdict] = field(default_factory=dict, metadata=SPARSE)
    foreign: tuple[str, ...] = field(default=(), metadata=SPARSE)
    handed: int = field(default=0, metadata=SPARSE)
    opening_since: float | None = field(default=None, metadata=SPARSE)
    opened_in: float | None = field(default=None, metadata=SPARSE)
    versions: Versions | None = field(default=None, metadata=SPARSE)

    def awaits(self, address: Address) -> Awaited:
        """What a query that is starting has come to."""
        if self.opening_since is not None:
            return "waiting for Spark"
        seen = self.observations.get(address)
        if seen is None or seen.run_id is None:
            return "to be started"
        runs = (seen.generation, seen.digest) == (seen.wanted_generation, seen.wanted_digest)
        return "in the first batch" if runs else "to be started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Which runner leads an instance. `heartbeat` in seconds since the epoch, `ttl` in seconds.

    A lease has lapsed when `heartbeat + ttl` is past, when it was released, or when its owner is known
    to be dead (same host and `pid_space`, no such process). `pid_space` says where the pid means something:
    a boot of a machine and a namespace of pids; "" in older files, and where the system has none.
    Whoever takes it over has a higher `epoch`, the fencing token: one sequence for all instances of the
    project.
    """

    instance: InstanceName
    epoch: int
    owner: str
    host: str
    pid: int
    pid_started: float
    heartbeat: float
    ttl: float
    released: bool = field(default=False, metadata=OPTIONAL)
    pid_space: str = field(default="", metadata=OPTIONAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceStatus:
    """One instance for `status`: its lease and the serial its runner has taken in. `is_dry`: its queries are
    only said to run. `opening_since`, `opened_in`, `versions`: see Status."""

    name: str
    epoch: int
    alive: bool
    heartbeat: float | None
    serial: int
    is_dry: bool = False
    opening_since: float | None = None
    opened_in: float | None = None
    versions: Versions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStatus:
    """A committed query and what its runner observes of it (None: nothing yet). `as_of`: when its runner was
    last there, in seconds since the epoch, where none is there now. `repair`: the ALTER statement that moves
    the connection at fault. `awaits`: what one that is starting has come to."""

    resource: ResourceState
    observation: Observation | None
    as_of: float | None = None
    repair: str | None = None
    awaits: Awaited | None = None

    @property
    def condition(self) -> Condition:
        """What no runner has reported yet is paused (if so committed) or stopped."""
        if self.observation is not None:
            return self.observation.condition
        return "paused" if self.resource.paused else "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedStorage:
    """A collection or checkpoint that no resource claims: of what was destroyed, or of an earlier
    generation. It is removed `retain_dropped` after `dropped_at` (seconds since the epoch)."""

    address: str
    id: str
    generation: int
    dropped_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectStatus:
    """What `status` shows. Queries without a live runner are shown as stopped. `environment`: "" in a project
    without environments."""

    serial: int
    instances: tuple[InstanceStatus, ...]
    queries: tuple[QueryStatus, ...]
    dropped: tuple[DroppedStorage, ...] = ()
    canaries: tuple[tuple[Canary, Verdict | None], ...] = ()
    environment: str = ""
