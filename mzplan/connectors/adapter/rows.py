"""The rows of a step as they come into a collection: the declared columns, and where each row was. Imports no
pyspark."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mzplan.endpoints.interface import Step
from mzplan.schema.columns import POSITION, Column

if TYPE_CHECKING:
    from pyarrow import RecordBatch, StructArray


class Rows:
    """A consumer that keeps what is pushed, or only counts it."""

    def __init__(self, keep: bool):
        self.keep = keep
        self.batches: list[RecordBatch] = []
        self.count = 0
        self.complete = False

    def push(self, batch: RecordBatch) -> None:
        self.count += batch.num_rows
        if self.keep and batch.num_rows:
            self.batches.append(batch)

    def eoi(self) -> None:
        self.complete = True

    def committed(self) -> None:
        pass


def placed(batch: RecordBatch, columns: Sequence[Column], step: Step, row: int) -> RecordBatch:
    """The columns in order, then `_position`; `row`: that of the first one. Raises FitError."""
    from mzplan.endpoints.arrow import fit

    fitted = fit(batch, columns)
    return fitted.append_column(POSITION, _positions(step, range(row, row + fitted.num_rows)))


def _positions(step: Step, rows: range) -> StructArray:
    """From buffers: making an array of Python's numbers would have pyarrow import pandas, a second of CPU."""
    import pyarrow as pa

    numbers = (array("q", [step]) * len(rows), array("q", rows))
    arrays = [pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(one)]) for one in numbers]
    return pa.StructArray.from_arrays(arrays, ["step", "row"])
