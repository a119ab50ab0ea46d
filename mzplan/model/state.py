"""State: what is committed, and what `status` shows of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

from mzplan.model.address import Address, Place, is_valid_name
from mzplan.model.cause import Cause
from mzplan.model.codec import decode
from mzplan.model.diagnostics import Diagnostic, MzplanError, usage_error
from mzplan.model.history import CommitRecord
from mzplan.model.observed import CanaryVerdict, Condition, JobReport, Observation, Status, Versions
from mzplan.model.resources import DEFAULT_INSTANCE, Body, Instance, Resource, RunnerSettings
from mzplan.model.stored import KEY, OPTIONAL, SPARSE, Id, InstanceName, Positive, stored
from mzplan.model.tasks import Task
from mzplan.model.words import count, did_you_mean

DEFAULT_WAIT = 60.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """A query that runs a change first.

    Until it has made progress, the queries in `holds` keep running their last accepted descriptions. It must
    make progress within `wait` seconds. `serial` is the commit that created the canary (0: not committed
    yet). A canary of another serial is another attempt.
    """

    address: Address
    wait: float
    holds: tuple[Address, ...] = ()
    serial: int = field(default=0, metadata=SPARSE)


FORMAT_VERSION = 1
SIDE_BY_SIDE = "side-by-side"
"""The value of `lifecycle.replace` with which a new generation runs beside the one in service."""


def _is_snapshot(role: str) -> bool:
    """Whether a query reads the collection in this role as a table: `snapshots[0]`."""
    return role.startswith("snapshots[")


def needed_by(references: Mapping[str, Address]) -> tuple[Address, ...]:
    """Return the resources that a resource with these references depends on, sorted."""
    return tuple(sorted(set(references.values())))


def _read_body(value: Any, name: str) -> Body:
    """Return any mapping. Checks only the properties that mzplan uses without a schema."""
    if type(value) is not dict:
        raise ValueError(f"{name} is not a mapping")
    if "instance" in value and not is_valid_name(value["instance"]):
        raise ValueError("instance is not the name of an instance")
    if type(value.get("lifecycle", {})) is not dict:
        raise ValueError("lifecycle is not a mapping")
    return value


def _read_cause(value: Any, name: str) -> Cause | None:
    """Return a cause from its JSON. Cached, because most queries of a state share a few causes."""
    try:
        return None if value is None else _cause_of(tuple(value.items()), name)
    except (AttributeError, TypeError):
        raise ValueError(f"{name} is not a cause") from None


@lru_cache(1024)
def _cause_of(items: tuple[tuple[str, Any], ...], name: str) -> Cause:
    return decode(Cause, dict(items), name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Predecessor:
    """A generation whose rows the next one begins with (`lifecycle: {replace: from-collection}`).

    - `body`: of that generation, because its columns and its key may differ.
    - `predecessor`: set only if the generation was replaced before it ran. Its own predecessor may still have
      the rows; the runner takes the newest generation that has begun.
    """

    generation: Positive
    body: Annotated[Body, _read_body]
    predecessor: Predecessor | None = field(default=None, metadata=SPARSE)


def runs_beside(address: Address, body: Mapping[str, Any]) -> bool:
    """Whether a new generation of the query runs beside the former one, which stays in service meanwhile.

    By default, views do. Sources do with `lifecycle: {replace: side-by-side}`.
    """
    default = SIDE_BY_SIDE if address.is_view else ""
    return bool(body.get("lifecycle", {}).get("replace", default) == SIDE_BY_SIDE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceState:
    """A committed resource.

    - `id`: identifies the resource for life. Checkpoints and collections are stored under it, never under its
      name.
    - `generation`: counts replacements. Each generation has its own checkpoint and collection.
    - `digest`: of the inlined description (see mzplan.schema.description). A query that runs with another
      digest must restart.
    - `override`, `restart_token`: set by `pause`, `resume` and `restart`.
    - `tasks`: the requested tasks. Each request also restarts the query, which runs the task first. The next
      request removes finished tasks.
    - `because`: why the query last had to start, stop or move, from the commit that caused it. It isn't part
      of the desired state.
    - `cut_over`: the newest generation that `mzplan cut-over` has put into service; 0: none. `given_up`: the
      newest generation that it has given up, whose number isn't used again.
    - `may_lose`: the generation of a source that may begin although its upstream no longer holds all records
      that the previous one read (`apply --allow-loss`); 0: none.
    - `predecessor`: the generation whose rows this one begins with; None if it reads its upstream from the
      start.
    - `later_columns`: the columns that this generation of a collection has got after it began, as DDL. Its
      table keeps them if they are removed.
    - `analysis`: the digest of the input and the result of analysing a view's SQL (see
      mzplan.config.checks.recorded_analyses); "" for none. It isn't part of the desired state.
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
    cut_over: int = field(default=0, metadata=SPARSE)
    given_up: int = field(default=0, metadata=SPARSE)
    may_lose: int = field(default=0, metadata=SPARSE)
    predecessor: Predecessor | None = field(default=None, metadata=SPARSE)
    later_columns: str = field(default="", metadata=SPARSE)
    analysis: str = field(default="", compare=False, metadata=SPARSE)

    @property
    def own_tasks(self) -> tuple[Task, ...]:
        """The tasks of this generation. Tasks of an earlier generation ended with it."""
        return tuple(task for task in self.tasks if task.generation == self.generation)

    def observed_in(self, statuses: Mapping[str, Status]) -> Observation | None:
        """Return the runner's last observation of the query; None if there is none."""
        status = statuses.get(self.instance)
        return status.observations.get(self.address) if status is not None else None

    def has_done(self, task: Task, seen: Observation | None) -> bool | None:
        """Whether the query has done a task; None if the observation doesn't show it."""
        if seen is None or seen.generation != self.generation:
            return None
        done = {outcome.serial for outcome in seen.tasks_done}
        return seen.digest == self.digest or task.serial in done

    def open_tasks(self, seen: Observation | None) -> tuple[Task, ...]:
        """Return the tasks that aren't done yet, according to an observation."""
        return tuple(task for task in self.own_tasks if self.has_done(task, seen) is False)

    @property
    def declared(self) -> Resource:
        """The resource as a file would declare it to get this committed state."""
        return Resource(address=self.address, type=self.type, body=self.body, references=self.references)

    @property
    def reads(self) -> dict[str, Address]:
        """The collections that the query reads as streams, by role, such as `from` or `reads[0]`."""
        return {role: address for role, address in self._inputs.items() if not _is_snapshot(role)}

    @property
    def snapshots(self) -> dict[str, Address]:
        """The collections that each micro-batch reads whole, by role, such as `snapshots[0]`."""
        return {role: address for role, address in self._inputs.items() if _is_snapshot(role)}

    @property
    def _inputs(self) -> dict[str, Address]:
        return {role: address for role, address in self.references.items() if address.writes_collection}

    @property
    def place(self) -> Place:
        return (self.id, self.generation)

    @property
    def next_generation(self) -> int:
        """The number of the generation that replaces this one."""
        return max(self.generation, self.given_up) + 1

    @property
    def is_replaced_beside(self) -> bool:
        """See runs_beside."""
        return runs_beside(self.address, self.body)

    def former_in_service(self, statuses: Mapping[str, Status]) -> int:
        """Return the former generation in service, while this one runs beside it; 0 if there is none."""
        seen = self.observed_in(statuses)
        if seen is None or not (self.is_replaced_beside and seen.held):
            return 0
        return seen.generation if seen.generation < self.generation else 0

    @property
    def waits_for_cut_over(self) -> bool:
        """Whether the generation waits for `mzplan cut-over` before it comes into service."""
        is_manual = self.is_replaced_beside and self.body.get("lifecycle", {}).get("cut_over") == "manual"
        return is_manual and self.generation > max(1, self.cut_over)

    @property
    def instance(self) -> str:
        return str(self.body.get("instance", DEFAULT_INSTANCE))

    @property
    def paused(self) -> bool:
        if self.override is not None:
            return self.override == "paused"
        return bool(self.body.get("paused", False))


class Forgotten(NamedTuple):
    """Storage that `state rm` left behind: the query's address and its generation."""

    address: Address
    generation: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One committed serial of the project. Serial 0 with an empty lineage: nothing is committed.

    - `forgotten`: by id, storage that stays until it is imported again.
    - `canaries`: queries that run a change first, each with the queries it holds.
    - `commit`: who committed this serial, and why; None before the first commit.
    - `environment`: the environment that committed it; "" in a project without any.
    - `settings`: the runners' settings. None before the first commit: a runner then uses its own mzplan.yaml.
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

    def instance(self, name: str) -> Instance:
        """Return the declared instance of this name; without one, an embedded instance."""
        return self.instances.get(name) or Instance(name=name, type="embedded")


def committed_record(state: State, address: Address) -> ResourceState:
    """Return the record of an address. Raises MzplanError MZ070 (usage) if there is none."""
    if address not in state.resources:
        raise unknown_address(address, state)
    return state.resources[address]


def unknown_address(address: Address, state: State) -> MzplanError:
    """Return usage error MZ070: the address isn't in the state."""
    return usage_error(
        f"There is no {address} in the state",
        f"The state has {count(len(state.resources), 'resource')}.",
        did_you_mean(str(address), sorted(map(str, state.resources)))
        or "`mzplan status` lists the queries, `mzplan show` all resources.",
        address=address,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceStatus:
    """One instance for `status`: its lease, and the serial that its runner has read.

    - `is_dry`: it only pretends to run queries.
    - `is_embedded`: `up` starts its runner.
    - `is_starting`: its runner leads, but isn't ready yet.
    - `opening_since`, `opened_in`, `versions`, `replaced`, `cores`, `slowest`, `jobs`: see Status.
    - `ended`: why no runner is alive, if known; else "".
    - `caught_up_at`: see Status; None while a runner is alive.
    - `elsewhere`: MZ341, if the data of its queries is in another warehouse than this project's folder names.
    """

    name: str
    epoch: int
    alive: bool
    heartbeat: float | None
    serial: int
    is_dry: bool = False
    is_embedded: bool = True
    is_starting: bool = False
    opening_since: float | None = None
    opened_in: float | None = None
    versions: Versions | None = None
    replaced: str = ""
    ended: str = ""
    caught_up_at: float | None = None
    cores: int = 0
    slowest: float | None = None
    jobs: tuple[JobReport, ...] = ()
    elsewhere: Diagnostic | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleInput:
    """A query upstream of a running query that delivers no rows now.

    - `address`, `condition`: of the query upstream.
    - `as_of`: when it last wrote rows (seconds since the epoch); None if unknown.
    - `through`: the collection that the running query reads, if the two aren't neighbours.
    """

    address: Address
    condition: Condition
    as_of: float | None = None
    through: Address | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStatus:
    """A committed query and what its runner observes of it.

    - `observation`: None if no runner has reported the query.
    - `as_of`: if its runner is gone, when it last reported (seconds since the epoch).
    - `repair`: the ALTER statement that moves the connection at fault.
    - `start_stage`: the stage that a starting query has reached.
    - `stale_inputs`: the queries upstream of a running query that have failed or can't reach their server.
    """

    resource: ResourceState
    observation: Observation | None
    as_of: float | None = None
    repair: str | None = None
    start_stage: str | None = None
    stale_inputs: tuple[StaleInput, ...] = ()

    @property
    def condition(self) -> Condition:
        """The observed condition. Without a report from a runner, `paused` or `stopped`."""
        if self.observation is not None:
            return self.observation.health
        return "paused" if self.resource.paused else "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedStorage:
    """Storage of a destroyed query or of an earlier generation.

    It is removed `retain_dropped` after `dropped_at` (seconds since the epoch).
    """

    address: str
    id: str
    generation: int
    dropped_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectStatus:
    """What `status` shows. Queries without a live runner are shown as stopped.

    `environment` is "" in a project without environments.
    """

    serial: int
    instances: tuple[InstanceStatus, ...]
    queries: tuple[QueryStatus, ...]
    dropped: tuple[DroppedStorage, ...] = ()
    canaries: tuple[tuple[Canary, CanaryVerdict | None], ...] = ()
    environment: str = ""
