"""From a DurableInputEndpoint to a stream reader of Spark's Python data sources. Imports pyspark: used by
source.py when a query starts, and by the Python processes that Spark starts for it.

How a micro-batch meets the endpoint's contract, in the order of Spark's calls:

    latestOffset()          offers the durable steps that wait, up to MOST_STEPS of them; where there is none
                            the next step, if `read` of it brings rows; the very first one in any case
    (Spark logs the offsets)
    partitions(start, end)  the point of `commit(step)`; after a crash it comes first, without a latestOffset
    read(partition)         in a task: `read(step)` of each durable step, by an endpoint of its own; of an
                            endpoint with parts, `batches(part)`, so that no more than a batch is in memory
    (Spark writes the rows into the collection, and logs that)
    commit(end)             comes with the next batch: nobody reads again what is before `end`: `expire`

An offset is `{"step": n}`: the next step, as the end of a range. So Spark's offset log says which steps of
the endpoint a micro-batch reads, before it reads them. One reader lives in a Python process of its own on the
driver, for as long as the query runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from mzplan.connectors.adapter.config import marked
from mzplan.connectors.adapter.rows import StepRows, placed
from mzplan.endpoints.interface import (
    Closes,
    DurableInputEndpoint,
    DurableInputFactory,
    JoinsSteps,
    PartedInputEndpoint,
    Step,
    StepError,
)
from mzplan.schema.columns import Column

if TYPE_CHECKING:
    from pyarrow import RecordBatch

T = TypeVar("T")
_MOST = 2**63 - 1  # `_position.step` is a BIGINT
MOST_STEPS = 1_000
"""Number of an endpoint's steps that one micro-batch reads: a backlog becomes several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderPlan:
    """What a reader needs. Pickled into Spark's Python processes, never shown: it holds secrets.
    `resume`: the step after the last one that Spark has logged, None for a checkpoint without any.
    `placed`: the endpoint's batches have all columns, mzplan's own as well."""

    subject: str
    name: str
    factory: DurableInputFactory
    config: Mapping[str, Any] = field(repr=False)
    columns: tuple[Column, ...]
    secrets: Sequence[str] = field(repr=False)
    resume: Step | None
    placed: bool = False

    def endpoint(self) -> DurableInputEndpoint:
        return self.factory.new_endpoint(self.name, self.config)


def data_source(plan: ReaderPlan) -> type[DataSource]:
    """A data source of this one reader. The plan is in the class: options of a stream are shown in places."""
    registered = f"mzplan_{plan.name}".replace(".", "_").replace("-", "_")

    class StepSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return registered

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
            return StepReader(plan)

    return StepSource


class StepPartition(InputPartition):
    """`count` steps from `step` on, or a part of one."""

    def __init__(self, step: Step, part: Any = None, count: int = 1):
        super().__init__(step)
        self.step = step
        self.part = part
        self.count = count


class StepReader(DataSourceStreamReader):
    """One endpoint, read step by step. Nothing is made before it is needed: Spark pickles a reader."""

    def __init__(self, plan: ReaderPlan):
        self._plan = plan
        self._endpoint: DurableInputEndpoint | None = None
        self._next = plan.resume
        self._begun = plan.resume is not None
        self._read: Step | None = None  # the step beyond the durable ones that was read, and not committed

    # ── what Spark calls, in its order

    def initialOffset(self) -> dict[str, Step]:  # noqa: N802
        return self._explained(lambda: {"step": self._made().steps().start})

    # Without the two arguments that it has since Spark 4.2: each line of Spark calls this one.
    def latestOffset(self) -> dict[str, Step]:  # type: ignore[override]  # noqa: N802
        return self._explained(self._latest)

    def partitions(self, start: dict[str, Step], end: dict[str, Step]) -> Sequence[InputPartition]:
        return self._explained(lambda: self._commit(range(start["step"], end["step"])))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, StepPartition)
        if partition.part is not None:
            return self._read_part(partition.step, partition.part)
        return self._read_steps(range(partition.step, partition.step + partition.count))

    def commit(self, end: dict[str, Step]) -> None:
        self._explained(lambda: self._made().expire(end["step"]))

    def stop(self) -> None:
        endpoint, self._endpoint = self._endpoint, None
        if isinstance(endpoint, Closes):
            with contextlib.suppress(Exception):
                endpoint.close()

    # ── how

    def _latest(self) -> dict[str, Step]:
        endpoint = self._made()
        steps = endpoint.steps()
        if self._next is None:
            self._next = steps.start
        step = self._next
        if step in steps:
            return {"step": self._joined(endpoint, range(step, steps.stop)[:MOST_STEPS]).stop}
        if step != steps.stop:
            raise _gone(step, steps)
        offered = self._offers(endpoint, step)
        # Spark makes a first micro-batch whether there is anything or not: it is the first step, if an empty
        # one.
        return {"step": step + 1 if offered or not self._begun else step}

    def _joined(self, endpoint: DurableInputEndpoint, waiting: range) -> range:
        """The first of the durable steps that wait: as many as make one micro-batch."""
        return endpoint.joined(waiting) if isinstance(endpoint, JoinsSteps) else waiting

    def _offers(self, endpoint: DurableInputEndpoint, step: Step) -> bool:
        """Look at the step just beyond: whether it has records."""
        self._read = step
        if isinstance(endpoint, PartedInputEndpoint):
            return endpoint.offers(step)
        rows = StepRows(keep=False)
        endpoint.read(step, rows)
        return rows.count > 0

    def _commit(self, steps: range) -> list[InputPartition]:
        endpoint = self._made()
        known = endpoint.steps()
        for step in steps:
            if step > _MOST or (step not in known and step != known.stop):
                raise _gone(step, known)
            if step not in known:
                if self._read != step:
                    self._offers(endpoint, step)
                endpoint.commit(step)
                known = endpoint.steps()
            self._read = None
        self._next, self._begun = steps.stop, True
        if isinstance(endpoint, PartedInputEndpoint):
            return [StepPartition(step, part) for step in steps for part in endpoint.parts(step)]
        # By one task: many small steps are one file of the collection.
        return [StepPartition(steps.start, count=len(steps))] if steps else []

    def _read_steps(self, steps: range) -> Iterator[RecordBatch]:
        """One step after the other, of which one at a time is in memory."""
        try:
            for step in steps:
                rows = StepRows(keep=True)
                self._explained(partial(self._read_durable, step, rows))
                yield from self._placed(step, rows.batches)
        finally:
            self.stop()

    def _read_part(self, step: Step, part: Any) -> Iterator[RecordBatch]:
        endpoint = self._explained(self._made)
        assert isinstance(endpoint, PartedInputEndpoint)
        row = 0
        try:
            batches = iter(endpoint.batches(part))
            while (batch := self._explained(lambda: next(batches, None))) is not None:
                yield batch if self._plan.placed else self._place(step, batch, row)
                row += batch.num_rows
        finally:
            self.stop()

    def _read_durable(self, step: Step, rows: StepRows) -> None:
        self._made().read(step, rows)
        if not rows.complete:
            raise StepError(f"step {step} was not fed to its end")

    def _placed(self, step: Step, batches: list[RecordBatch]) -> Iterator[RecordBatch]:
        row = 0
        for batch in batches:
            yield self._place(step, batch, row)
            row += batch.num_rows

    def _place(self, step: Step, batch: RecordBatch, row: int) -> RecordBatch:
        return self._explained(partial(placed, batch, self._plan.columns, step, row))

    def _made(self) -> DurableInputEndpoint:
        if self._endpoint is None:
            self._endpoint = self._plan.endpoint()
        return self._endpoint

    def _explained(self, call: Callable[[], T]) -> T:
        """What the connector raises, as mzplan.spark.failures reads it."""
        try:
            return call()
        except Exception as problem:
            failure = marked(problem, self._plan.subject, self._plan.secrets)
        raise failure


def _gone(step: Step, there: range) -> StepError:
    return StepError(f"step {step} is wanted, and steps {there.start} to {there.stop} (excluded) are there")
