"""Plan: the difference, as immutable data. Read by a person, by a machine and by apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mzplan.model.address import Address
from mzplan.model.cause import Cause, CauseKind
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.resources import Instance, RunnerSettings
from mzplan.model.state import Canary, ResourceState
from mzplan.model.stored import SPARSE, InstanceName, stored

PLAN_FORMAT_VERSION = "1.0"

Action = Literal["create", "update", "restart", "replace", "delete", "move"]
ACTIONS: tuple[Action, ...] = ("create", "update", "restart", "replace", "delete", "move")

# In order of weight. `none`: a resource that runs nothing of its own and reaches nobody.
Effect = Literal["none", "in-place", "restart", "replace", "forbidden"]
EFFECTS: tuple[Effect, ...] = ("none", "in-place", "restart", "replace", "forbidden")

Fate = Literal["create", "update", "restart", "replace", "delete", "move", "pause", "resume"]
FATES: tuple[Fate, ...] = ("create", "update", "restart", "replace", "delete", "move", "pause", "resume")


def heaviest(effects: list[Effect]) -> Effect:
    """The heaviest of several effects (`none` for an empty list)."""
    return max(effects, key=EFFECTS.index, default="none")


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """One leaf of a diff. `path` is `security.sasl.username` or `brokers[0]`; `before`/`after` are
    None where the leaf is absent, and always None where `sensitive`."""

    path: str
    before: Any
    after: Any
    sensitive: bool
    effect: Effect

    @property
    def property_name(self) -> str:
        """The property of the resource that the leaf is in: `security` of `security.sasl.username`."""
        return self.path.partition(".")[0].partition("[")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One planned step. `before` is the committed record, `after` the record to commit (None for a delete;
    a create gets its id at commit). `ways`: of each cause that
    it does not name itself, the connections in between, from its own on. `cause`: what its query is started
    or stopped for, where that is not a change of the configuration."""

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

    @property
    def fate(self) -> Fate:
        """What happens to the resource, whatever kind of edit does that: a renamed query restarts, one whose
        `paused` changes pauses, and of one that is paused already nothing does."""
        before, after = self.before, self.after
        if self.address.kind == "connection" or before is None or after is None:
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
        """Whether it is replaced by a generation that begins with the rows it has, and reads none again."""
        return self.action == "replace" and self.after is not None and self.after.predecessor is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """Committed, but not converged: what the status says about it."""

    address: Address
    condition: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftItem:
    """A place where reality has left the state. `kind` is one of interface.md's."""

    address: str
    kind: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The difference between a Configuration (or an operation on the state) and the State.

    `variables` are those that the configuration was read with (see Configuration.variables). `feeds` says
    what each query downstream uses of what is in the plan, as (used, user). `canaries` go first, where that
    was asked for. `resuming` are queries that a canary of an earlier serial held back when it failed, and
    that canary: applying the plan lets them go. `environment`: of which of the project's environments it is,
    and no other takes it; "" in a project without any. `settings`: how runners are to work, None where the
    state says so already; `settings_changes`: what of mzplan.yaml changes for them, with declared instances.
    `started`: why that runs which its changes stop, where a runner has said so.
    `targets`, `replacing`: the addresses of `--target` and `--replace`, to make the same plan again.
    `losing`: queries whose replace can't read all their rows again, as far as the runners' statuses say.
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

    @property
    def is_empty(self) -> bool:
        """Whether applying it would commit nothing."""
        settles = self.instances_changed or self.settings_changes
        return not self.changes and not settles and not self.resuming

    def fates(self) -> dict[Fate, int]:
        """How many changes of each fate."""
        counts: dict[Fate, int] = dict.fromkeys(FATES, 0)
        for change in self.changes:
            counts[change.fate] += 1
        return counts

    def summary(self) -> dict[str, int]:
        """How many changes of each action."""
        counts: dict[str, int] = dict.fromkeys(ACTIONS, 0)
        for change in self.changes:
            counts[change.action] += 1
        return counts
