"""Which durable steps an append makes, and of which rows: pure rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mzplan.columns import Column
from mzplan.controller.types import (
    AppendCommand,
    InvalidUppersError,
    Row,
    Step,
    StorageError,
    UpdateBeyondUpperError,
)
from mzplan.endpoints.arrow import FitError, arrow_schema, fit

if TYPE_CHECKING:
    from pyarrow import Table


def planned_steps(command: AppendCommand, current: Step) -> list[list[Row]]:
    """The rows of each step from `current`, the input's upper, to the command's.

    Raises InvalidUppersError for an append that was made on an older upper, UpdateBeyondUpperError for an
    update at or above the new one, StorageError for a diff other than 1.
    """
    first = min((update.step for update in command.updates), default=current)
    if command.upper <= current or first < current:
        raise InvalidUppersError(command.id, min(first, command.upper - 1), current)
    steps: list[list[Row]] = [[] for _ in range(command.upper - current)]
    for update in command.updates:
        if update.diff != 1:
            raise StorageError(
                f"An update of {command.id} has the diff {update.diff}: without a key, rows only come."
            )
        if update.step >= command.upper:
            raise UpdateBeyondUpperError(
                f"An update of {command.id} is at step {update.step}, not below the upper {command.upper}."
            )
        steps[update.step - current].append(update.row)
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
