"""Turns a DurableInputEndpoint into a stream reader of Spark's Python data sources.

Imports pyspark. source.py uses it when a query starts, and so do the Python processes that Spark starts.

A micro-batch uses the endpoint in the order of Spark's calls:

    latestOffset()          offers up to MOST_STEPS waiting durable steps; if none waits, the next step if
                            `read` brings rows for it; in any case the very first step
    (Spark logs the offsets)
    partitions(start, end)  calls `commit(step)`; after a crash it comes first, without a latestOffset
    read(partition)         in a task: `read(step)` of each durable step, by an endpoint of its own; for an
                            endpoint with parts `batches(part)`, so that memory holds one batch at a time
    (Spark writes the rows into the collection, and logs that)
    commit(end)             comes with the next batch: steps before `end` are never read again, so `expire`

An offset is `{"step": n}`, where n is the next step. So before a micro-batch reads steps of the endpoint,
Spark's offset log has their range. A reader lives in its own Python process on the driver, as long as the
query runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from mzplan.connectors.adapter.config import StepRows, as_task_error, read_step, with_positions
from mzplan.endpoints.interface import (
    DurableInputEndpoint,
    DurableInputFactory,
    PartedInputEndpoint,
    Step,
    StepError,
    SupportsClose,
    SupportsJoinedSteps,
)
from mzplan.schema.columns import Column

if TYPE_CHECKING:
    from pyarrow import RecordBatch

T = TypeVar("T")
_MAX_STEP = 2**63 - 1  # `_position.step` is a BIGINT
MOST_STEPS = 1_000
"""The most endpoint steps that one micro-batch reads. A longer backlog becomes several micro-batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderPlan:
    """The settings of a reader. Pickled into Spark's Python processes and never shown, because it holds
    secrets.

    - `resume`: the step after the last one that Spark has logged; None if it has logged none.
    - `has_positions`: whether the endpoint's batches already have all columns, including mzplan's own.
    """

    subject: str
    name: str
    factory: DurableInputFactory
    config: Mapping[str, Any] = field(repr=False)
    columns: tuple[Column, ...]
    secrets: Sequence[str] = field(repr=False)
    resume: Step | None
    has_positions: bool = False

    def endpoint(self) -> DurableInputEndpoint:
        return self.factory.new_endpoint(self.name, self.config)


def data_source(plan: ReaderPlan) -> type[DataSource]:
    """Return a data source for this one reader. The class holds the plan, because options of the stream would
    be visible in Spark."""
    registered = f"mzplan_{plan.name}".replace(".", "_").replace("-", "_")

    class StepSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return registered

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
            return StepReader(plan)

    return StepSource


class StepPartition(InputPartition):
    """`count` steps from `step` on, or a part of one step."""

    def __init__(self, step: Step, part: Any = None, count: int = 1):
        super().__init__(step)
        self.step = step
        self.part = part
        self.count = count


class StepReader(DataSourceStreamReader):
    """Reads one endpoint step by step. Spark pickles a reader, so it opens the endpoint at its first use."""

    def __init__(self, plan: ReaderPlan):
        self._plan = plan
        self._endpoint: DurableInputEndpoint | None = None
        self._next = plan.resume
        self._has_begun = plan.resume is not None
        self._uncommitted: Step | None = None  # the step after the durable ones, read but not committed

    # ── Spark's calls, in order

    def initialOffset(self) -> dict[str, Step]:  # noqa: N802
        return self._explain_errors(lambda: {"step": self._open_endpoint().steps().start})

    # Without its two arguments since Spark 4.2: all versions of Spark call this form.
    def latestOffset(self) -> dict[str, Step]:  # type: ignore[override]  # noqa: N802
        return self._explain_errors(self._latest)

    def partitions(self, start: dict[str, Step], end: dict[str, Step]) -> Sequence[InputPartition]:
        return self._explain_errors(lambda: self._commit(range(start["step"], end["step"])))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, StepPartition)
        if partition.part is not None:
            return self._until_stop(self._read_part(partition.step, partition.part))
        steps = range(partition.step, partition.step + partition.count)
        return self._until_stop(self._read_steps(steps))

    def commit(self, end: dict[str, Step]) -> None:
        self._explain_errors(lambda: self._open_endpoint().expire(end["step"]))

    def stop(self) -> None:
        endpoint, self._endpoint = self._endpoint, None
        if isinstance(endpoint, SupportsClose):
            with contextlib.suppress(Exception):
                endpoint.close()

    # ── helpers

    def _latest(self) -> dict[str, Step]:
        endpoint = self._open_endpoint()
        steps = endpoint.steps()
        if self._next is None:
            self._next = steps.start
        step = self._next
        if step in steps:
            waiting_steps = range(step, steps.stop)[:MOST_STEPS]
            if isinstance(endpoint, SupportsJoinedSteps):
                waiting_steps = endpoint.joined(waiting_steps)
            return {"step": waiting_steps.stop}
        if step != steps.stop:
            raise _missing_step(step, steps)
        has_records = self._read_ahead(endpoint, step)
        # Spark always makes a first micro-batch. Without rows, it is an empty first step.
        return {"step": step + 1 if has_records or not self._has_begun else step}

    def _read_ahead(self, endpoint: DurableInputEndpoint, step: Step) -> bool:
        """Read the step after the durable ones, and return whether it has records."""
        self._uncommitted = step
        if isinstance(endpoint, PartedInputEndpoint):
            return endpoint.offers(step)
        rows = StepRows(keep=False)
        endpoint.read(step, rows)
        return rows.count > 0

    def _commit(self, steps: range) -> list[InputPartition]:
        endpoint = self._open_endpoint()
        durable = endpoint.steps()
        for step in steps:
            if step > _MAX_STEP or (step not in durable and step != durable.stop):
                raise _missing_step(step, durable)
            if step not in durable:
                if self._uncommitted != step:
                    self._read_ahead(endpoint, step)
                endpoint.commit(step)
                durable = endpoint.steps()
            self._uncommitted = None
        self._next, self._has_begun = steps.stop, True
        if isinstance(endpoint, PartedInputEndpoint):
            return [StepPartition(step, part) for step in steps for part in endpoint.parts(step)]
        # One task, so that many small steps become one file of the collection.
        return [StepPartition(steps.start, count=len(steps))] if steps else []

    def _read_steps(self, steps: range) -> Iterator[RecordBatch]:
        """Yield the steps one after the other, so that memory holds one step at a time."""
        for step in steps:
            batches = read_step(self._open_endpoint(), step)
            yield from with_positions(batches, self._plan.columns, step)

    def _read_part(self, step: Step, part: Any) -> Iterator[RecordBatch]:
        endpoint = self._open_endpoint()
        assert isinstance(endpoint, PartedInputEndpoint)
        batches = iter(endpoint.batches(part))
        yield from batches if self._plan.has_positions else with_positions(batches, self._plan.columns, step)

    def _until_stop(self, batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        try:
            while (batch := self._explain_errors(lambda: next(batches, None))) is not None:
                yield batch
        finally:
            self.stop()

    def _open_endpoint(self) -> DurableInputEndpoint:
        if self._endpoint is None:
            self._endpoint = self._plan.endpoint()
        return self._endpoint

    def _explain_errors(self, call: Callable[[], T]) -> T:
        """Return the call's result. Raises the connector's exception in the form that mzplan.spark.failures
        reads."""
        try:
            return call()
        except Exception as problem:
            failure = as_task_error(problem, self._plan.subject, self._plan.secrets)
        raise failure


def _missing_step(step: Step, existing: range) -> StepError:
    return StepError(
        f"step {step} is needed, but only steps {existing.start} to {existing.stop} (excluded) exist"
    )
