"""Native sources as durable endpoints (seed 003): the interface over their checkpoint and collection.

Kafka and files are read by Spark's own streams, which commit their steps themselves; so the endpoint of such
a source reads and expires steps, and learns of new ones, but makes none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mzplan.endpoints.interface import InputConsumer, Step, StepError, checked_step
from mzplan.warehouse.replay import collection_batches
from mzplan.warehouse.step_history import StepHistory
from mzplan.warehouse.step_record import StepRecord

if TYPE_CHECKING:
    from pyarrow import RecordBatch


class CollectionFactory:
    """Endpoints of the native sources. The configuration: `{"warehouse", "id", "generation"}`."""

    def name(self) -> str:
        return "collection"

    def new_endpoint(self, name: str, config: Mapping[str, Any]) -> CollectionEndpoint:
        try:
            place = str(config["id"]), int(config["generation"])
            return CollectionEndpoint(StepHistory(str(config["warehouse"]), place))
        except KeyError as missing:
            raise ValueError(f"the configuration of {name} has no {missing}") from None


class CollectionEndpoint:
    """Implements mzplan.endpoints.DurableInputEndpoint. Batches have all columns, `_position` too.

    `read` raises GoneError for a step whose files were vacuumed, and OSError for what the storage did.
    """

    def __init__(self, history: StepHistory):
        self._history = history
        self._awaited: tuple[Step, InputConsumer] | None = None

    def read(self, step: Step, consumer: InputConsumer) -> None:
        """Of the step just beyond nothing is pushed yet: it is not durable before Spark has committed it."""
        there = self.steps()
        if checked_step(step) == there.stop:
            self._awaited = (step, consumer)
            return
        if step not in there:
            raise StepError(_no_step(step, there))
        self._push(step, consumer)

    def commit(self, step: Step) -> None:
        """Raises StepError as long as the source's query has not committed the step."""
        there = self.steps()
        if self._awaited is not None and self._awaited[0] == step and step in there:
            _, consumer = self._awaited
            self._awaited = None
            self._push(step, consumer)
        elif checked_step(step) not in there:
            raise StepError(f"{_no_step(step, there)}: the source's own query commits it")

    def steps(self) -> range:
        records = self._history.committed(0, None)
        upper = records[-1].step + 1 if records else self._history.upper()
        start = upper
        for record in reversed(records):
            if record.step != start - 1:  # what is known of older ones has a gap
                break
            start = record.step
        return range(start, upper)

    def expire(self, step: Step) -> None:
        there = self.steps()
        if checked_step(step) > there.stop:
            raise StepError(f"can't expire steps before {step}: the next one is {there.stop}")
        self._history.index.expire(step)

    def _push(self, step: Step, consumer: InputConsumer) -> None:
        record = next(r for r in self._history.committed(step, step) if r.step == step)
        for batch in self._batches(record):
            consumer.push(batch)
        consumer.eoi()
        consumer.committed()

    def _batches(self, record: StepRecord) -> Iterator[RecordBatch]:
        return collection_batches(self._history.collection, record)


def _no_step(step: Step, there: range) -> str:
    return f"there is no step {step}: there are {there.start} to {there.stop} (excluded)"
