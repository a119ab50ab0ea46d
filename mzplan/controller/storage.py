"""The controller's interface to the storage of collections and checkpoints.

Two implementations: DeltaStorage (mzplan.spark.delta_storage) and InMemoryStorage (mzplan.controller.memory).
Storage decides nothing: the controller decides which steps expire, and when.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mzplan.controller.terms import (
    AppendCommand,
    Diff,
    InstanceId,
    InvalidUppersError,
    Row,
    Step,
    StorageError,
    UpdateBeyondUpperError,
)
from mzplan.endpoints.arrow import FitError, arrow_schema, fit
from mzplan.model.address import Place
from mzplan.schema.columns import CHANGE, DELETE, UPSERT, Column, change_columns
from mzplan.schema.description import Description
from mzplan.schema.source_columns import columns_of, keys_of

if TYPE_CHECKING:
    from pyarrow import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The extent of a query's storage: `since`, its oldest step not expired, and `upper`, its next step."""

    since: Step = 0
    upper: Step = 0


class Storage(Protocol):
    """The storage of collections. Called from several threads, by one thread at a time for each place.

    Every method raises OSError, with a message, if the storage fails.
    """

    def extent(self, place: Place) -> Extent:
        """Return the extent of a collection; it is empty if the collection has no storage yet."""

    def first_recent(self, place: Place, when: float) -> Step:
        """Return the first step that became durable at `when` (seconds since the epoch) or later.

        Returns the newest step if all are older, and 0 if the collection has no steps.
        """

    def first_after_erasure(self, place: Place) -> Step:
        """Return the first step to keep because the old files of an erasure are due; 0 without one.

        Returns the upper if no step needs old files any more.
        """

    def first_unread(self, export: Place, source: Place) -> Step:
        """Return the oldest step of a collection that an export still has to read, or else the upper."""

    def maintain(self, place: Place, since: Step) -> None:
        """Expire the steps below `since`: reclaim their storage, and merge small files.

        If a collection is written in small steps, merging keeps it readable. May take a long time.
        Idempotent: the next call finishes an interrupted call.
        """

    def append(self, commands: Sequence[tuple[Description, AppendCommand]]) -> None:
        """Write the updates as durable steps of local inputs, each command atomically.

        Skips a command whose key an earlier append has used. Raises StorageError (see
        mzplan.controller.adapter), and MzplanError MZ033 if other processes hold the lock for a long time.
        After an error, nothing was written for any command.
        """

    def snapshot(self, place: Place, as_of: Step) -> list[tuple[Row, Diff]]:
        """Return all updates up to an existing step, consolidated.

        Raises ReadBeforeSinceError for a step that was removed.
        """

    def migrate(self, places: Sequence[Place]) -> None:
        """Migrate the storage of places to the current layout. Raises StorageError for a later layout."""

    def places(self) -> list[Place]:
        """Return all places that have storage."""

    def newest_epoch(self, lineage: str, instance: InstanceId) -> int:
        """Return the epoch that the instance's newest runner has recorded, or 0."""

    def record_epoch(self, lineage: str, instance: InstanceId, epoch: int) -> None:
        """Record that runners of the instance with a lower epoch no longer lead. Durable."""


def appended_columns(query: Description) -> tuple[Column, ...]:
    """Return the columns of the rows in the steps of a local source."""
    columns, keys = columns_of(query.type, query.body), keys_of(query.type, query.body)
    return change_columns(columns, keys) if keys else columns


def planned_steps(command: AppendCommand, current: Step, keyed: bool) -> list[list[Row]]:
    """Return the rows of each step, from the input's upper `current` to the command's upper.

    Rows of a `keyed` input also have their change, and in each step deletions come before upserts.

    Raises InvalidUppersError for an append that was based on an older upper, UpdateBeyondUpperError for an
    update at or above the new upper, StorageError for a diff that the input can't have.
    """
    first = min((update.step for update in command.updates), default=current)
    if command.upper <= current or first < current:
        raise InvalidUppersError(command.id, min(first, command.upper - 1), current)
    steps: list[list[Row]] = [[] for _ in range(command.upper - current)]
    for update in sorted(command.updates, key=lambda update: update.diff) if keyed else command.updates:
        if update.diff != 1 and not (keyed and update.diff == -1):
            why = "a key has at most one row" if keyed else "without a key, rows can only be added"
            raise StorageError(f"An update of {command.id} has the diff {update.diff}: {why}.")
        if update.step >= command.upper:
            raise UpdateBeyondUpperError(
                f"An update of {command.id} is at step {update.step}, not below the upper {command.upper}."
            )
        change = {CHANGE: UPSERT if update.diff == 1 else DELETE} if keyed else {}
        steps[update.step - current].append({**update.row, **change})
    return steps


def to_table(columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    """Return rows as an Arrow table with exactly these columns. Raises StorageError if a row doesn't fit."""
    import pyarrow as pa

    schema = arrow_schema(columns)
    names = {column.name.lower() for column in columns}
    for number, row in enumerate(rows, 1):
        unknown = [name for name in row if name.lower() not in names]
        if unknown:
            raise StorageError(f"Row {number} has {', '.join(unknown)}, but the input has no such column.")
    try:
        batch = pa.RecordBatch.from_pylist([dict(row) for row in rows], schema=schema)
        return pa.Table.from_batches([fit(batch, columns)])
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as problem:
        raise StorageError(f"A row does not fit the columns: {problem}.") from None
    except FitError as problem:
        where = f"Row {problem.row + 1}: " if problem.row is not None else ""
        raise StorageError(f"{where}{problem}.") from None


def consolidated(rows: Iterable[Row]) -> list[tuple[Row, Diff]]:
    """Return each distinct row with its count, in the order of first occurrence."""
    counted: dict[str, tuple[Row, Diff]] = {}
    for row in rows:
        key = repr(sorted(row.items()))
        counted[key] = (row, counted[key][1] + 1 if key in counted else 1)
    return list(counted.values())
