"""What the controller asks of the storage of collections and checkpoints.

Two implementations: DeltaStorage (mzplan.spark.delta_storage) and InMemoryStorage (mzplan.controller.memory).
Storage decides nothing: which step may be given up, and when, is the controller's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mzplan.controller.terms import (
    AppendCommand,
    CollectionDescription,
    Diff,
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
    """How far a query's storage reaches: `since`, the oldest step that was not given up; `upper`, the next
    one."""

    since: Step = 0
    upper: Step = 0


class Storage(Protocol):
    """Called from several threads, for one place at a time. Every method raises OSError for what the storage
    did, with a message that says what."""

    def extent(self, place: Place) -> Extent:
        """Of a collection. Of one that has no storage yet: no steps at all."""

    def first_young(self, place: Place, when: float) -> Step:
        """The first step of a collection that became durable at `when` (seconds since the epoch) or later;
        the newest, where all are older; 0 when there is none."""

    def needed(self, export: Place, source: Place) -> Step:
        """The oldest step of its collection that an export has still to read; the collection's upper if there
        is none."""

    def maintain(self, place: Place, since: Step) -> None:
        """Give up what only steps below `since` need: reclaim it, and merge small files so that a collection
        that is fed in small steps does not rot. May take long. Again, it finds nothing to do; stopped
        half-way, the next time finishes it."""

    def append(self, commands: Sequence[tuple[CollectionDescription, AppendCommand]]) -> None:
        """Make the updates durable steps of local inputs, but for those of which an append of this key has.
        Those of a command are there all or not at all. Raises StorageError (see StorageController.append)
        and, where others keep the lock for long, MzplanError MZ033; then nothing was written, of none."""

    def snapshot(self, place: Place, as_of: Step) -> list[tuple[Row, Diff]]:
        """All updates up to a step that is there, consolidated. Raises ReadBeforeSinceError for what was
        removed."""

    def migrate(self, places: Sequence[Place]) -> None:
        """Bring the storage of these to today's layout. Raises StorageError for a later one."""

    def listed(self) -> list[Place]:
        """All places that there is any storage of."""


def appended_columns(query: Description) -> tuple[Column, ...]:
    """The columns of the rows in the steps of a local source."""
    columns, keys = columns_of(query.type, query.body), keys_of(query.type, query.body)
    return change_columns(columns, keys) if keys else columns


def planned_steps(command: AppendCommand, current: Step, keyed: bool) -> list[list[Row]]:
    """The rows of each step from `current`, the input's upper, to the command's. `keyed`: with what becomes
    of each, and in each step what goes before what comes.

    Raises InvalidUppersError for an append that was made on an older upper, UpdateBeyondUpperError for an
    update at or above the new one, StorageError for a diff that the input can't have.
    """
    first = min((update.step for update in command.updates), default=current)
    if command.upper <= current or first < current:
        raise InvalidUppersError(command.id, min(first, command.upper - 1), current)
    steps: list[list[Row]] = [[] for _ in range(command.upper - current)]
    for update in sorted(command.updates, key=lambda update: update.diff) if keyed else command.updates:
        if update.diff != 1 and not (keyed and update.diff == -1):
            why = "a row of a key is there once" if keyed else "without a key, rows only come"
            raise StorageError(f"An update of {command.id} has the diff {update.diff}: {why}.")
        if update.step >= command.upper:
            raise UpdateBeyondUpperError(
                f"An update of {command.id} is at step {update.step}, not below the upper {command.upper}."
            )
        change = {CHANGE: UPSERT if update.diff == 1 else DELETE} if keyed else {}
        steps[update.step - current].append({**update.row, **change})
    return steps


def to_table(columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    """Rows as Arrow, of exactly these columns. Raises StorageError for one that doesn't fit them."""
    import pyarrow as pa

    schema = arrow_schema(columns)
    names = {column.name.lower() for column in columns}
    for number, row in enumerate(rows, 1):
        unknown = [name for name in row if name.lower() not in names]
        if unknown:
            raise StorageError(f"Row {number} has {', '.join(unknown)}, which no column is called.")
    try:
        batch = pa.RecordBatch.from_pylist([dict(row) for row in rows], schema=schema)
        return pa.Table.from_batches([fit(batch, columns)])
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as problem:
        raise StorageError(f"A row does not fit the columns: {problem}.") from None
    except FitError as problem:
        where = f"Row {problem.row + 1}: " if problem.row is not None else ""
        raise StorageError(f"{where}{problem}.") from None


def consolidated(rows: Iterable[Row]) -> list[tuple[Row, Diff]]:
    """Equal rows once, with how often they are there; in the order in which they came."""
    counted: dict[str, tuple[Row, Diff]] = {}
    for row in rows:
        key = repr(sorted(row.items()))
        counted[key] = (row, counted[key][1] + 1 if key in counted else 1)
    return list(counted.values())
