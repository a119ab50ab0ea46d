"""What the storage controller speaks of (seed 004): ids, frontiers, policies, collections, exports.

Times are steps: the micro-batches of a source, counted from 0. A *frontier* (the seed's antichain of one
total order) is the least step that may still come, or that can still be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, assert_never

from mzplan.controller.reconcile import DEFAULT_PACE
from mzplan.model.address import Address, Place
from mzplan.model.cause import Cause
from mzplan.model.observed import Condition
from mzplan.model.resources import Retries
from mzplan.schema.description import Description
from mzplan.store.journal import Prepared

GlobalId: TypeAlias = str
"""A resource's id: it names a collection or an export for life, whatever it is called and however often it is
replaced."""

InstanceId: TypeAlias = str
"""The name of a storage instance."""

Step: TypeAlias = int
Diff: TypeAlias = int
Row: TypeAlias = Mapping[str, Any]


class StorageError(Exception):
    """A command that can't be carried out; nothing of it was. The message is a sentence for people."""


class IdentifierMissingError(StorageError):
    """There is no such collection, export or instance, and there was none."""

    def __init__(self, what: str, id_: str):
        super().__init__(f"There is no {what} {id_}.")
        self.id = id_


class IdentifierReusedError(StorageError):
    """There is one already, of another kind or at another place."""


class UpdateBeyondUpperError(StorageError):
    """An update whose step is not below the upper that its append is to advance to, or not in its order."""


class InvalidUppersError(StorageError):
    """The upper that an append was made on is no longer the collection's: somebody else has appended.
    `decided`: whether `current` is the upper, or only the first step that it may be."""

    def __init__(self, id_: GlobalId, expected: Step, current: Step, *, decided: bool = True):
        verb = "is" if decided else "is decided when what others have appended is read, and is at least"
        super().__init__(f"The upper of {id_} {verb} {current}, not {expected}: nothing was written.")
        self.id, self.expected, self.current = id_, expected, current


class ReadBeforeSinceError(StorageError):
    """A read as of a step that was expired, or of one that is not there yet."""


class InstanceInUseError(StorageError):
    """An instance that has queries or a live runner can't be dropped: that would leak them."""


class NotAttachedError(StorageError):
    """No runner, or another one, is attached to the instance: this controller may not act on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedQuery:
    """A query as it should run. `instance` hosts it. `because`: why it last had to start or stop."""

    query: Description
    instance: InstanceId
    paused: bool = False
    because: Cause | None = None

    @property
    def from_ids(self) -> tuple[GlobalId, ...]:
        """The collections that the query reads."""
        return tuple(sorted(read.id for read in self.query.reads.values()))


CollectionDescription: TypeAlias = HostedQuery
"""A query that writes a collection: a source or a view."""

ExportDescription: TypeAlias = HostedQuery
"""A query that reads collections: a sink or a view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LagSteps:
    """`since` follows `upper` at so many steps: that many of the newest can be read."""

    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LagDuration:
    """`since` follows at a time: steps that became durable in the last so many seconds can be read."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainFrom:
    """Nothing from this step on is given up."""

    step: Step


ReadPolicy = LagSteps | LagDuration | RetainFrom


@dataclass(slots=True, kw_only=True)
class CollectionState:
    """What is known of a collection, and how that moves on: only forward.

    `upper`: the next step. `implied`: the read capability that follows from the policy. `holds`: read
    capabilities of others, by who holds them; each keeps what is needed from its step on. `since`: the least
    of all capabilities, as far as storage may give up; it never goes back. `condition` is that of the query.
    """

    description: CollectionDescription
    since: Step = 0
    upper: Step = 0
    implied: Step = 0
    policy: ReadPolicy = field(default_factory=lambda: RetainFrom(step=0))
    holds: dict[str, Step] = field(default_factory=dict)
    condition: Condition = "starting"

    @property
    def place(self) -> Place:
        return self.description.query.place

    @property
    def wanted_since(self) -> Step:
        """The least of all read capabilities, and never before `since`."""
        return max(self.since, min([self.implied, *self.holds.values()]))

    def advance(self, young: Step | None = None) -> None:
        """Let the policy follow, after the upper or the time has moved on. `young`: the first step within the
        policy's duration, if it has one (Storage.first_young); None where that is not known."""
        match self.policy:
            case LagSteps(steps=steps):
                step = max(0, self.upper - steps)
            case LagDuration():
                step = young or 0
            case RetainFrom(step=step):
                pass
            case _:
                assert_never(self.policy)
        self.implied = max(self.implied, min(step, self.upper))

    def advance_upper(self, upper: Step) -> bool:
        """Take a write frontier; False for one that has been seen before."""
        if upper <= self.upper:
            return False
        self.upper = upper
        return True

    def hold(self, holder: str, step: Step) -> Step:
        """Take or move a read capability; returns where it is. A new one is never before `since`, and one
        that is there never goes back: what was given up is gone."""
        self.holds[holder] = max(self.since, self.holds.get(holder, self.since), step)
        return self.holds[holder]

    def release(self, holder: str) -> None:
        """Give a read capability back; no error where there is none."""
        self.holds.pop(holder, None)


@dataclass(slots=True, kw_only=True)
class ExportState:
    """What is known of an export. `read_holds`: for each collection, the step from which the export still
    reads it. `upper`: the export's own next step."""

    description: ExportDescription
    read_holds: dict[GlobalId, Step] = field(default_factory=dict)
    upper: Step = 0
    condition: Condition = "starting"

    @property
    def place(self) -> Place:
        return self.description.query.place


CreateExportToken: TypeAlias = Prepared
"""The right to read one collection by one export. It holds the collection's since at `step`, and the journal
keeps it, until it is used or cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A row that comes (`diff` 1) or goes (-1) at a step."""

    row: Row
    step: Step
    diff: Diff = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendCommand:
    """Updates for a local input, whose upper is then `upper`. The same append again, known by `key`, is the
    one that was made."""

    id: GlobalId
    updates: tuple[Update, ...]
    upper: Step
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLocation:
    """A runner: this process. `owner` distinguishes it from any other, also one of the same pid on the same
    machine."""

    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageParameters:
    """What can be changed without a restart; times in seconds. `parallelism`: starts, stops and checks at
    once. `pace`: how failed queries are tried again. `retain_dropped`: how long storage that nothing claims
    is kept. `maintain_every`: between two looks at what a collection may give up."""

    parallelism: int = 8
    pace: Retries = DEFAULT_PACE
    retain_dropped: float = 7 * 86_400.0
    maintain_every: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldQuery:
    """What holds for a query instead of what is committed. `description`: this one is to run; None: nothing
    is started or stopped, and where nothing runs, the query is in `condition`. `check`: whether it is checked
    before it is started."""

    description: Description | None = None
    condition: Condition = "starting"
    check: bool = True


class Gate(Protocol):
    """Holds queries back (see mzplan.runner.gates)."""

    def hold(self, wanted: Description, accepted: Description | None) -> HeldQuery | None:
        """What holds for a committed query, of which `accepted` has run last; None: it may pass."""

    def cause(self, wanted: Description, accepted: Description | None) -> Cause | None:
        """Why a query is started now, where this gate has held it, or holds it; None: its commit says."""
        return None

    def started(self, address: Address) -> None:
        """A query was started (called from the pool)."""
