"""An endpoint's name, configuration, errors and rows, for the adapters (docs/internals/endpoints.md).

`mzplan verify --from-upstream` reads an endpoint's steps again without Spark. Rows have the declared columns
and their `_position`, as in the collection. Imports no pyspark.
"""

from __future__ import annotations

import contextlib
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from mzplan.connectors.api.queries import Output, ResolvedQuery
from mzplan.connectors.api.targets import different_rows_error
from mzplan.connectors.api.upstreams import origin_of
from mzplan.connectors.formats.records import MARK
from mzplan.endpoints.arrow import fit
from mzplan.endpoints.interface import (
    DurableInputEndpoint,
    DurableInputFactory,
    PartedInputEndpoint,
    Step,
    StepError,
    SupportsClose,
)
from mzplan.endpoints.replay import DiffersError
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError, error, sentence
from mzplan.schema.columns import POSITION, Column
from mzplan.schema.kinds import resource_kind
from mzplan.secrets.resolved import remember, scrub, shortened
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.rows.content_hash import ContentHash, content_hash
from mzplan.warehouse.step_record import StepRecord

if TYPE_CHECKING:
    from pyarrow import RecordBatch, StructArray

Endpoint = TypeVar("Endpoint")


def endpoint_name(query: ResolvedQuery) -> str:
    """Return the name of a query's endpoint. It names one generation of a source or sink, and doesn't depend
    on the address. A source that continues an earlier generation's steps keeps that generation's name."""
    return f"{query.description.id}.g{origin_of(query)}"


def endpoint_config(query: ResolvedQuery, outputs: Sequence[Output] | None = None) -> dict[str, Any]:
    """Return the configuration of a query's endpoint. For a sink, `outputs` are the columns that it
    writes."""
    kind = resource_kind(query.address.kind, query.description.type)
    references = {reference.property for reference in kind.references}
    columns: Sequence[Column] = query.columns
    if outputs is not None:
        columns = [Column(output.name, output.type or "STRING") for output in outputs]
    return {
        "address": str(query.address),
        "directory": query.directory,
        "storage": query.checkpoint.steps if query.checkpoint else None,
        "connection": dict(query.connection.body) if query.connection else None,
        "options": {key: value for key, value in query.body.items() if key not in references},
        "columns": [{"name": c.name, "type": c.type, "nullable": c.nullable} for c in columns],
    }


@contextlib.contextmanager
def open_endpoint(factory: DurableInputFactory, query: ResolvedQuery) -> Iterator[DurableInputEndpoint]:
    """Open the endpoint of a source, and close it afterwards."""
    with closing(factory.new_endpoint(endpoint_name(query), endpoint_config(query))) as endpoint:
        yield endpoint


@contextlib.contextmanager
def closing(endpoint: Endpoint) -> Iterator[Endpoint]:
    """Close an endpoint afterwards, if it can be closed."""
    try:
        yield endpoint
    finally:
        if isinstance(endpoint, SupportsClose):
            endpoint.close()


def secret_values(query: ResolvedQuery) -> tuple[str, ...]:
    """Return the secrets in a query's configuration, longest first, which no error may show."""
    secrets = list(_secrets(query.address.kind, query.description.type, query.body))
    if query.connection is not None:
        secrets += _secrets("connection", query.connection.type, query.connection.body)
    return tuple(sorted(secrets, key=len, reverse=True))


def _secrets(kind: Any, type_: str, body: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[str]:
    secrets: list[str] = []
    for key, value in body.items():
        if isinstance(value, Mapping):
            secrets += _secrets(kind, type_, value, (*path, key))
        elif value and resource_kind(kind, type_).is_sensitive((*path, key)):
            secrets.append(str(value))
    return secrets


def as_error(problem: Exception, subject: str, secrets: Sequence[str]) -> MzplanError:
    """Return a connector's exception as an MzplanError that shows no secrets."""
    if isinstance(problem, MzplanError):
        return problem
    for secret in secrets:  # a task's process has resolved no secret itself
        remember(secret)
    text = shortened(re.sub(r"\s+", " ", scrub(str(problem).strip() or type(problem).__name__)), 500)
    if isinstance(problem, StepError):
        return error("MZ081.steps-not", subject=subject, text=text)
    if isinstance(problem, DiffersError):
        return different_rows_error(Address.parse(subject), text)
    known = isinstance(problem, OSError | ValueError | RuntimeError)
    return error(
        "MZ082.connector-reports",
        subject=subject,
        text=text if known else f"{type(problem).__name__}: {text}",
    )


def as_task_error(problem: Exception, subject: str, secrets: Sequence[str]) -> RuntimeError:
    """Return a connector's exception as a code and one line of text. mzplan.spark.failures reads them from
    the error of a Spark task."""
    first = as_error(problem, subject, secrets).diagnostics[0]
    return RuntimeError(f"{MARK}[{first.code}]: {' '.join(sentence(first).splitlines())}")


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
