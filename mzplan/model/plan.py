"""Plan: the difference, as immutable data that people, machines and apply read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mzplan.model.address import Address
from mzplan.model.cause import Cause, CauseKind
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.query_changes import QueryChange
from mzplan.model.resources import Instance, RunnerSettings
from mzplan.model.state import Canary, ResourceState
from mzplan.model.stored import SPARSE, InstanceName, stored

PLAN_FORMAT_VERSION = "1.0"

Action = Literal["create", "update", "restart", "replace", "delete", "move"]
ACTIONS: tuple[Action, ...] = ("create", "update", "restart", "replace", "delete", "move")

# From the lightest to the heaviest. `none`: the resource runs nothing itself and affects no query.
Effect = Literal["none", "in-place", "restart", "replace", "forbidden"]
EFFECTS: tuple[Effect, ...] = ("none", "in-place", "restart", "replace", "forbidden")

Fate = Literal["create", "update", "restart", "replace", "delete", "move", "pause", "resume"]
FATES: tuple[Fate, ...] = ("create", "update", "restart", "replace", "delete", "move", "pause", "resume")


def heaviest(effects: list[Effect]) -> Effect:
    """Return the heaviest of several effects; `none` for an empty list."""
    return max(effects, key=EFFECTS.index, default="none")


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """One changed leaf in a resource's body.

    `path` is `security.sasl.username` or `brokers[0]`. `before` and `after` are None if the leaf is absent,
    and always None if it is `sensitive`.
    """

    path: str
    before: Any
    after: Any
    sensitive: bool
    effect: Effect

    @property
    def property_name(self) -> str:
        """The top-level property that holds the leaf: `security` for `security.sasl.username`."""
        return self.path.partition(".")[0].partition("[")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputExtent:
    """A collection that a new generation reads from its first row, as its runner last saw it.

    - `rows`: how many rows all steps up to `last_step` have written; None if unknown.
    - `is_keyed`: whether the rows are changes: the collection keeps the latest row of each key.
    - `is_table`: whether each micro-batch of the reader reads the whole collection (`snapshots`).
    - `since`, `since_time` (seconds since the epoch): the oldest step that has not expired, and when it was
      written. The rows of expired steps stay in the collection.
    """

    address: Address
    last_step: int
    rows: int | None = None
    is_keyed: bool = False
    is_table: bool = False
    since: int | None = None
    since_time: float | None = None


TargetEffectKind = Literal["empties", "appends", "upserts", "compares", "rewrites", "corrects", "records"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetEffect:
    """What the new generation of a replaced sink does to the rows in its target.

    - `kind`: whether it empties the target, writes all rows again beside the former rows, or by key, so that
      keys that it doesn't write stay. Or it writes only a difference, with deletes: it compares the rows of
      both generations, or corrects the target. `rewrites`: all rows, with the deletes of the difference.
    - `name`, `former_name`: the target's name and its name before; "" if the schema doesn't say it.
    - `is_moved`: whether the sink writes elsewhere from now on, so that its former target stays as it is.
    - `rows`: how many rows the sink has written so far; None if unknown.
    """

    kind: TargetEffectKind
    name: str = ""
    former_name: str = ""
    is_moved: bool = False
    rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One planned change of a resource.

    - `before`: the committed record; None for a create.
    - `after`: the record to commit; None for a delete. A create gets its id at commit.
    - `ways`: for each indirect cause, the connections between the resource and the cause, beginning with the
      connection that the resource names.
    - `cause`: why the query starts or stops, unless a configuration change is the reason.
    - `inputs`: the collections that a new generation is computed from.
    - `target`: what a new generation does to the target; None for a query without a target.
    - `query`: what becomes of a view's state; None if its query doesn't change.
    """

    address: Address
    action: Action
    effect: Effect
    fields: tuple[FieldChange, ...] = ()
    reason: str
    triggered_by: tuple[Address, ...] = ()
    ways: Mapping[Address, tuple[Address, ...]] = field(
        default_factory=dict, metadata=stored("through", sparse=True)
    )
    before: ResourceState | None = None
    after: ResourceState | None = None
    cause: CauseKind | None = field(default=None, metadata=SPARSE)
    inputs: tuple[InputExtent, ...] = field(default=(), metadata=SPARSE)
    target: TargetEffect | None = field(default=None, metadata=SPARSE)
    query: QueryChange | None = field(default=None, metadata=SPARSE)

    @property
    def fate(self) -> Fate:
        """What happens to the resource, whichever kind of edit causes it.

        A renamed query restarts. A query whose `paused` changes pauses or resumes. A paused query doesn't
        restart.
        """
        before, after = self.before, self.after
        if self.address.is_connection or before is None or after is None:
            return self.action
        if self.action == "replace" or self.effect == "forbidden":
            return self.action
        if before.paused != after.paused:
            return "pause" if after.paused else "resume"
        if self.effect == "restart" and not after.paused:
            return "restart"
        return "move" if self.action == "move" else "update"

    @property
    def migrates_rows(self) -> bool:
        """Whether the next generation begins with the existing rows, so that none is read again."""
        return self.action == "replace" and self.after is not None and self.after.predecessor is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A query that is committed but hasn't converged, with its condition and the reason."""

    address: Address
    condition: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftItem:
    """One difference between reality and the state. interface.md lists the kinds."""

    address: str
    kind: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The difference between a Configuration (or an operation on the state) and the State.

    - `variables`: the variables that the configuration was read with (see Configuration.variables).
    - `feeds`: which changed resources the queries downstream use, as (used, user).
    - `canaries`: the queries that run first, if requested.
    - `resuming`: a failed canary of an earlier serial and the queries it holds. Applying the plan releases
      them.
    - `environment`: the environment that the plan is for; no other accepts it. "" in a project without any.
    - `settings`: the runners' settings; None if the state already has them.
    - `settings_changes`: the changes of the runners' settings and of the declared instances in mzplan.yaml.
    - `started`: why each query that the plan stops was started, if a runner reported it.
    - `targets`, `replacing`: the addresses of `--target` and `--replace`, to make the same plan again.
    - `losing`: queries whose new generation can't read all rows again, according to the runners' statuses.
    - `analyses`: the analyses of the declared views, for the commit (see ResourceState). A plan file doesn't
      have them.
    """

    format_version: str = PLAN_FORMAT_VERSION
    project: str
    lineage: str
    serial: int
    warehouse: str
    variables: Mapping[str, Any] = field(default_factory=dict)
    instances: Mapping[InstanceName, Instance] = field(default_factory=dict)
    instances_changed: bool = False
    changes: tuple[Change, ...] = ()
    downstream: tuple[Address, ...] = ()
    feeds: tuple[tuple[Address, Address], ...] = ()
    unaffected: int = 0
    pending: tuple[Pending, ...] = ()
    drift: tuple[DriftItem, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    canaries: tuple[Canary, ...] = field(default=(), metadata=SPARSE)
    resuming: tuple[Address, ...] = field(default=(), metadata=SPARSE)
    environment: str = field(default="", metadata=SPARSE)
    settings: RunnerSettings | None = field(default=None, metadata=SPARSE)
    settings_changes: tuple[FieldChange, ...] = field(default=(), metadata=SPARSE)
    started: Mapping[Address, Cause] = field(default_factory=dict, metadata=SPARSE)
    targets: tuple[Address, ...] = field(default=(), metadata=SPARSE)
    replacing: tuple[Address, ...] = field(default=(), metadata=SPARSE)
    losing: tuple[Address, ...] = field(default=(), metadata=SPARSE)
    analyses: Mapping[Address, str] = field(
        default_factory=dict, compare=False, metadata=stored(derived=lambda _: {})
    )

    @property
    def is_empty(self) -> bool:
        """Whether applying the plan would commit nothing."""
        settles = self.instances_changed or self.settings_changes
        return not self.changes and not settles and not self.resuming

    @property
    def errors(self) -> list[Diagnostic]:
        """The diagnostics that forbid applying the plan."""
        return [diagnostic for diagnostic in self.diagnostics if diagnostic.severity == "error"]

    def fates(self) -> dict[Fate, int]:
        """Return the number of changes of each fate."""
        counts: dict[Fate, int] = dict.fromkeys(FATES, 0)
        for change in self.changes:
            counts[change.fate] += 1
        return counts

    def summary(self) -> dict[str, int]:
        """Return the number of changes of each action."""
        counts: dict[str, int] = dict.fromkeys(ACTIONS, 0)
        for change in self.changes:
            counts[change.action] += 1
        return counts
