"""State: what is committed; and what `status` shows of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

from mzplan.model.address import Address, Place, is_valid_name
from mzplan.model.cause import Cause
from mzplan.model.codec import decode
from mzplan.model.history import CommitRecord
from mzplan.model.observed import Awaited, Condition, Observation, Verdict, Versions
from mzplan.model.resources import DEFAULT_INSTANCE, Body, Instance, Resource, RunnerSettings
from mzplan.model.stored import (
    KEY,
    OPTIONAL,
    SPARSE,
    Id,
    InstanceName,
    Positive,
    stored,
)
from mzplan.model.tasks import Task

DEFAULT_WAIT = 60.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """A query that goes first. Until it has made progress, which it must within `wait` seconds, the queries
    that it `holds` run on as they were last accepted. `serial` is that of the commit it was made with (0: it
    is not committed yet): another one is another attempt."""

    address: Address
    wait: float
    holds: tuple[Address, ...] = ()
    serial: int = field(default=0, metadata=SPARSE)


FORMAT_VERSION = 1


def _is_snapshot(role: str) -> bool:
    """Whether a query that names a collection in this role reads it as a table: `snapshots[0]`."""
    return role.startswith("snapshots[")


def needed_by(references: Mapping[str, Address]) -> tuple[Address, ...]:
    """What a resource with these references depends on, in order."""
    return tuple(sorted(set(references.values())))


def _read_body(value: Any, name: str) -> Body:
    """Any mapping: only what is used without asking its schema is looked at."""
    if type(value) is not dict:
        raise ValueError(f"{name} is not a mapping")
    if "instance" in value and not is_valid_name(value["instance"]):
        raise ValueError("instance is not the name of an instance")
    if type(value.get("lifecycle", {})) is not dict:
        raise ValueError("lifecycle is not a mapping")
    return value


def _read_cause(value: Any, name: str) -> Cause | None:
    """Most queries of a state have one of a few."""
    try:
        return None if value is None else _cause_of(tuple(value.items()), name)
    except (AttributeError, TypeError):
        raise ValueError(f"{name} is no cause") from None


@lru_cache(1024)
def _cause_of(items: tuple[tuple[str, Any], ...], name: str) -> Cause:
    return decode(Cause, dict(items), name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Predecessor:
    """The generation whose rows the next one begins with (`lifecycle: {replace: from-collection}`).

    - `body`: of that generation, because its columns and its key may differ.
    - `predecessor`: set only if the generation was put back before it ran. Its own predecessor may still have
      the rows; the runner takes the newest generation that has begun.
    """

    generation: Positive
    body: Annotated[Body, _read_body]
    predecessor: Predecessor | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceState:
    """A committed resource.

    `id` names it for life: checkpoints and collections live under it, never under its name. `generation`
    counts replacements; a new one has its own checkpoint and collection. `digest` is that of its inlined
    description (see mzplan.schema.description): a running query whose digest differs must restart.
    `override` and `restart_token` come from `pause`, `resume` and `restart`. `tasks`: those that were
    requested, each with a restart, before which it is done; the next request removes those that are done.
    `because`: why the query last had to start, stop or move, as the commit that wanted it says; no part
    of what is wanted. `may_lose`: the generation of a source that may begin although its upstream no
    longer holds all that the one before has read (`apply --allow-loss`); 0: none. `predecessor`: the
    generation whose rows this one begins with; None for one that reads its upstream from the start.
    """

    address: Address = field(metadata=KEY)
    id: Id
    type: str
    body: Annotated[Body, _read_body]
    dependencies: tuple[Address, ...] = field(
        default=(), metadata=stored(derived=lambda known: needed_by(known.get("references", {})))
    )
    references: Mapping[str, Address] = field(default_factory=dict, metadata=OPTIONAL)
    generation: Positive = field(default=1, metadata=OPTIONAL)
    digest: str = field(default="", metadata=OPTIONAL)
    override: Literal["paused", "resumed"] | None = None
    restart_token: int = field(default=0, metadata=OPTIONAL)
    tasks: tuple[Task, ...] = field(default=(), metadata=SPARSE)
    because: Annotated[Cause | None, _read_cause] = field(default=None, compare=False, metadata=SPARSE)
    may_lose: int = field(default=0, metadata=SPARSE)
    predecessor: Predecessor | None = field(default=None, metadata=SPARSE)

    @property
    def own_tasks(self) -> tuple[Task, ...]:
        """The tasks of this generation; those of an earlier one ended with it."""
        return tuple(task for task in self.tasks if task.generation == self.generation)

    def has_done(self, task: Task, seen: Observation | None) -> bool | None:
        """Whether the query has done one of its tasks; None if the observation does not show it."""
        if seen is None or seen.generation != self.generation:
            return None
        done = {outcome.serial for outcome in seen.tasks_done}
        return seen.digest == self.digest or task.serial in done

    def open_tasks(self, seen: Observation | None) -> tuple[Task, ...]:
        """The tasks that are not done yet, according to an observation."""
        return tuple(task for task in self.own_tasks if self.has_done(task, seen) is False)

    @property
    def declared(self) -> Resource:
        """The resource as files would declare it that say what is committed."""
        return Resource(address=self.address, type=self.type, body=self.body, references=self.references)

    @property
    def reads(self) -> dict[str, Address]:
        """The collections that the query reads as streams, by role: `from`, `reads[0]`."""
        return {role: address for role, address in self._inputs.items() if not _is_snapshot(role)}

    @property
    def snapshots(self) -> dict[str, Address]:
        """The collections that the query reads as tables, by role: `snapshots[0]`."""
        return {role: address for role, address in self._inputs.items() if _is_snapshot(role)}

    @property
    def _inputs(self) -> dict[str, Address]:
        return {role: address for role, address in self.references.items() if address.writes_collection}

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
    those that it holds back. `commit` says who has committed this serial, and why. `environment`: which of
    the project's environments has committed it; "" in a project without any. `settings`: how runners work.
    Before the first commit, `commit` and `settings` are None, and a runner takes the settings from its own
    mzplan.yaml.
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
class InstanceStatus:
    """One instance for `status`: its lease and the serial its runner has taken in. `is_dry`: its queries are
    only said to run. `is_embedded`: its runner is started by `up`. `starts`: its runner leads, and is not
    ready. `opening_since`, `opened_in`, `versions`, `replaced`, `cores`, `slowest`: see Status. `ended`: why
    no runner is alive, where that is known."""

    name: str
    epoch: int
    alive: bool
    heartbeat: float | None
    serial: int
    is_dry: bool = False
    is_embedded: bool = True
    starts: bool = False
    opening_since: float | None = None
    opened_in: float | None = None
    versions: Versions | None = None
    replaced: str = ""
    ended: str = ""
    cores: int = 0
    slowest: float | None = None


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
        """The observed condition; `paused` (if so committed) or `stopped` for a query that no runner has
        reported yet."""
        if self.observation is not None:
            return self.observation.health
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
