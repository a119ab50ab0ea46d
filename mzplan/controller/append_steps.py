"""Which durable steps an append makes, and of which rows: pure rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mzplan.controller.types import (
    AppendCommand,
    InvalidUppersError,
    Row,
    Step,
    StorageError,
    UpdateBeyondUpperError,
)
from mzplan.endpoints.arrow import FitError, arrow_schema, fit
from mzplan.schema.columns import CHANGE, DELETE, UPSERT, Column, change_columns
from mzplan.schema.description import Description
from mzplan.schema.source_columns import columns_of, keys_of

if TYPE_CHECKING:
    from pyarrow import Table


def appended_columns(query: Description) -> tuple[Column, ...]:
    """Those of the steps of a local source."""
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
    for update in sorted(command.updates, key=lambda one: one.diff) if keyed else command.updates:
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


def step_key(key: str, index: int) -> str:
    """The id of one step of an append: that of the append itself for its first."""
    return key if index == 0 else f"{key}+{index}"


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
