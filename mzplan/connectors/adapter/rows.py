"""Reads an endpoint's steps again without Spark, for `mzplan verify --from-upstream`.

Rows have the declared columns and their `_position`, as in the collection. Imports no pyspark.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from mzplan.connectors.adapter.config import as_error, open_endpoint, secret_values
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.endpoints.arrow import fit
from mzplan.endpoints.interface import (
    DurableInputEndpoint,
    DurableInputFactory,
    PartedInputEndpoint,
    Step,
    StepError,
)
from mzplan.schema.columns import POSITION, Column
from mzplan.warehouse.content_hash import ContentHash, content_hash
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.step_record import StepRecord

if TYPE_CHECKING:
    from pyarrow import RecordBatch, StructArray


class StepRows:
    """A consumer that keeps the rows pushed to it, or only counts them."""

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


def read_step(endpoint: DurableInputEndpoint, step: Step) -> list[RecordBatch]:
    """Return the rows of a durable step. Raises StepError if the endpoint doesn't report the step's end."""
    rows = StepRows(keep=True)
    endpoint.read(step, rows)
    if not rows.complete:
        raise StepError(f"step {step} has no end: the endpoint didn't call eoi()")
    return rows.batches


def with_positions(
    batches: Iterable[RecordBatch], columns: Sequence[Column], step: Step
) -> Iterator[RecordBatch]:
    """Yield the columns in order, then `_position`, whose `row` counts from 0. Raises FitError."""
    row = 0
    for batch in batches:
        fitted = fit(batch, columns)
        yield fitted.append_column(POSITION, _positions(step, range(row, row + fitted.num_rows)))
        row += fitted.num_rows


def _positions(step: Step, rows: range) -> StructArray:
    """Return the positions. They are made from buffers, because pyarrow imports pandas to convert a list,
    which takes a second."""
    import pyarrow as pa

    numbers = (array("q", [step]) * len(rows), array("q", rows))
    arrays = [
        pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(column)]) for column in numbers
    ]
    return pa.StructArray.from_arrays(arrays, ["step", "row"])


class EndpointUpstream:
    """Reads the steps of one source again, through its endpoint (see
    mzplan.connectors.api.connector.Upstream)."""

    keeps_positions = True

    def __init__(self, factory: DurableInputFactory, query: ResolvedQuery):
        self._factory = factory
        self._query = query

    def close(self) -> None:
        """Do nothing: no resource stays open between two steps."""

    def content_hash(self, record: StepRecord) -> ContentHash:
        """Return the hash of the step's rows (see Upstream). Raises an endpoint's error as GoneError, because
        usually the step has expired."""
        steps = endpoint_steps(record)
        query = self._query
        try:
            with open_endpoint(self._factory, query) as endpoint:
                return content_hash(batch for step in steps for batch in self._rows(endpoint, step))
        except GoneError:
            raise
        except Exception as problem:
            explanation = as_error(problem, str(query.address), secret_values(query))
            raise GoneError(f"The upstream: {explanation.diagnostics[0].detail}") from None

    def _rows(self, endpoint: DurableInputEndpoint, step: Step) -> Iterator[RecordBatch]:
        steps = endpoint.steps()
        if step not in steps:
            raise GoneError(
                f"The upstream: step {step} is gone; only steps {steps.start} to {steps.stop} (excluded) "
                "exist."
            )
        columns = self._query.columns
        if isinstance(endpoint, PartedInputEndpoint):
            for part in endpoint.parts(step):
                yield from with_positions(endpoint.batches(part), columns, step)
        else:
            yield from with_positions(read_step(endpoint, step), columns, step)


def endpoint_steps(record: StepRecord) -> range:
    """Return the endpoint's steps that a step of the source has read. Raises GoneError if that isn't
    known."""
    start = {"step": 0} if record.step == 0 and record.start is None else record.start
    if not isinstance(start, dict) or not isinstance(record.end, dict):
        raise GoneError("The range of the upstream that it read is no longer known.")
    return range(int(start["step"]), int(record.end["step"]))
