"""The terms of the storage controller (seed 004): ids, frontiers, policies and states.

Times are steps: the micro-batches of a source, counted from 0. A *frontier* is the least step that may still
be written, or that can still be read. (The seed's antichains are totally ordered here.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, assert_never

from mzplan.controller.decision import HeldQuery, WantedQuery
from mzplan.controller.reconcile import BACKOFF
from mzplan.model.address import Address, Place
from mzplan.model.cause import Cause
from mzplan.model.observed import Condition
from mzplan.model.resources import Retries
from mzplan.schema.description import Description
from mzplan.store.journal import Prepared

GlobalId: TypeAlias = str
"""A resource's id. It identifies a collection or an export for life, across renames and replacements."""

InstanceId: TypeAlias = str
"""The name of a storage instance."""

Step: TypeAlias = int
Diff: TypeAlias = int
Row: TypeAlias = Mapping[str, Any]


class StorageError(Exception):
    """A command that can't be carried out, and changed nothing. The message is a sentence for people."""


class IdentifierMissingError(StorageError):
    """The collection, export or instance doesn't exist, and never did."""

    def __init__(self, what: str, id_: str):
        super().__init__(f"There is no {what} {id_}.")
        self.id = id_


class IdentifierReusedError(StorageError):
    """The id is already in use."""


class UpdateBeyondUpperError(StorageError):
    """An update whose step isn't below the new upper of its append."""


class InvalidUppersError(StorageError):
    """An append expected an upper that is no longer the collection's: another client has appended since.

    `decided`: False if the upper isn't known yet, and `current` is only a lower bound of the upper.
    """

    def __init__(self, id_: GlobalId, expected: Step, current: Step, *, decided: bool = True):
        verb = "is" if decided else "isn't known until other appends are read, and is at least"
        super().__init__(f"The upper of {id_} {verb} {current}, not {expected}: nothing was written.")
        self.id, self.expected, self.current = id_, expected, current


class ReadBeforeSinceError(StorageError):
    """A read as of a step that has expired, or doesn't exist yet."""


class InstanceInUseError(StorageError):
    """An instance with queries or a live runner can't be dropped, because that would leak them."""


class NotAttachedError(StorageError):
    """This process isn't the instance's runner, so this controller may not act on the instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LagSteps:
    """`since` follows `upper` at this distance, so this number of newest steps can be read."""

    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LagDuration:
    """`since` follows the time: steps that became durable in the last `seconds` can be read."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainFrom:
    """Steps from this one on never expire."""

    step: Step


ReadPolicy = LagSteps | LagDuration | RetainFrom


@dataclass(slots=True, kw_only=True)
class Frontiers:
    """The frontiers of one query. They only move forward.

    - `upper`: its next step.
    - `implied`: the read capability of its collection that follows from the policy.
    - `holds`: other read capabilities of its collection, by holder. Each is a step: it and later steps stay
      readable.
    - `since`: the least of all capabilities. Storage may expire the steps below it.
    - `read_holds`: by collection that the query reads, the first step that it still reads.
    """

    wanted_query: WantedQuery
    since: Step = 0
    upper: Step = 0
    implied: Step = 0
    policy: ReadPolicy = field(default_factory=lambda: RetainFrom(step=0))
    holds: dict[str, Step] = field(default_factory=dict)
    read_holds: dict[GlobalId, Step] = field(default_factory=dict)
    condition: Condition = "starting"

    @property
    def place(self) -> Place:
        return self.wanted_query.description.place

    @property
    def address(self) -> Address:
        return self.wanted_query.description.address

    @property
    def wanted_since(self) -> Step:
        """The least of all read capabilities, but at least `since`."""
        return max(self.since, min([self.implied, *self.holds.values()]))

    def advance(self, first_recent: Step | None = None, *, least: Step = 0) -> None:
        """Advance the policy's read capability, after the upper or the time has advanced.

        `first_recent`: the first step within the policy's duration (Storage.first_recent); None if it has no
        duration or the step isn't known. `least`: a step to advance to whatever the policy keeps.
        """
        match self.policy:
            case LagSteps(steps=steps):
                step = max(0, self.upper - steps)
            case LagDuration():
                step = first_recent or 0
            case RetainFrom(step=step):
                pass
            case _:
                assert_never(self.policy)
        self.implied = max(self.implied, min(max(step, least), self.upper))

    def hold(self, holder: str, step: Step) -> Step:
        """Add or move a read capability, and return its step.

        A new capability starts at `since` or later, and an existing one never moves back, because expired
        steps are gone.
        """
        self.holds[holder] = max(self.since, self.holds.get(holder, self.since), step)
        return self.holds[holder]

    def release(self, holder: str) -> None:
        """Remove a read capability. No error if there is none."""
        self.holds.pop(holder, None)


CreateExportToken: TypeAlias = Prepared
"""The right of an export to read a collection.

It holds the collection's since at `step`, and stays in the journal, until it is used or cancelled.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A row that is added (`diff` 1) or removed (-1) at a step."""

    row: Row
    step: Step
    diff: Diff = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendCommand:
    """Updates for a local input, which advance its upper to `upper`.

    `key` identifies the append: repeating it writes nothing.
    """

    id: GlobalId
    updates: tuple[Update, ...]
    upper: Step
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLocation:
    """A runner process. `owner` is unique even among processes with the same pid on the same machine."""

    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageParameters:
    """The parameters that can be changed without a restart. Times are in seconds.

    - `parallelism`: the number of concurrent starts, stops and checks.
    - `backoff`: the retries of failed queries.
    - `retain_dropped`: how long unclaimed storage is kept.
    - `survive_store_outage`: how long queries continue while the store doesn't answer.
    - `maintain_every`: the time between two surveys of a collection.
    """

    parallelism: int = 8
    backoff: Retries = BACKOFF
    retain_dropped: float = 7 * 86_400.0
    survive_store_outage: float = 3600.0
    maintain_every: float = 60.0


class Gate(Protocol):
    """Holds queries back (see mzplan.runner.gates)."""

    def hold(self, wanted: Description, accepted: Description | None) -> HeldQuery | None:
        """Return the hold on a committed query; None if it may run. Changes nothing.

        `accepted`: the description that ran last.
        """

    def cause(self, wanted: Description, accepted: Description | None) -> Cause | None:
        """Return the cause of a start if this gate has held the query; None if the commit is the cause."""
        return None

    def keeps_running(self) -> bool:
        """Return whether queries run on that have read what was there (`trigger: available-now`)."""
        return False

    def started(self, address: Address) -> None:
        """Record that a query has started. Called on a thread of its job."""
        return
