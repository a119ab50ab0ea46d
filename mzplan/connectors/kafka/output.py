"""The kafka sink as an OutputEndpoint, and the task in which Spark pushes a step into it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mzplan.connectors.frames.task_code import one_row, until_end
from mzplan.connectors.kafka.step_record import KEPT_STEPS, KafkaStepRecord
from mzplan.connectors.kafka.transaction import CHANGED, KafkaTransaction, TransactionError
from mzplan.endpoints.interface import Step, StepError, checked_step
from mzplan.endpoints.replay import Compare, DiffersError, StepReplay
from mzplan.host.failpoints import Failpoint, failpoint

if TYPE_CHECKING:
    from pyarrow import RecordBatch

log = logging.getLogger("mzplan.endpoints")

REPORT = "outcome STRING, detail STRING, record STRING, seconds DOUBLE, warnings ARRAY<STRING>"
"""The result of an attempt; a missing record is NULL.

- `outcome`: `written`, `changed` (by another writer), `differs` (compare: fail), or the name of Kafka's
  error.
- `detail`: Kafka's message.
- `record`: the step record: the new one for `written`, the current one for `changed`.
"""


class KafkaOutput:
    """An OutputEndpoint that writes a step's records and its step record in one transaction.

    The columns of a batch are `key` (optional), `value`, and HASH. The transaction begins with the first
    record to write. A batch's records without a key go to one partition. Batches take the partitions in turn,
    and the same ones if the step is repeated.

    `writer` is a step record whose generation, epoch and query the current record must have. Otherwise,
    methods raise TransactionError CHANGED, and the driver decides what to do.
    """

    def __init__(
        self,
        transaction: KafkaTransaction,
        writer: KafkaStepRecord,
        *,
        partitions: int,
        compare: Compare,
        warn: Callable[[str], None] = log.warning,
    ):
        self._transaction = transaction
        self._writer = writer
        self._partitions = partitions
        self._compare = compare
        self._warn = warn
        self._replay: StepReplay | None = None
        self._batches = 0
        self._stored_text: str | None = None
        self.record = writer

    def start_step(self, step: Step) -> None:
        """Begin a step. Raises TransactionError, KafkaException."""
        checked_step(step)
        self._abort()
        self._read_record()
        written = self.record.written()
        replay = StepReplay(
            step,
            written=written.get(step),
            last=max(written, default=None),
            compare=self._compare,
            warn=self._warn,
        )
        if not replay.repeats:
            self._begin_transaction()  # meanwhile, Spark reads the first records
        self._replay, self._batches = replay, 0

    def push_buffer(self, batch: RecordBatch) -> None:
        """Write the rows of a batch that aren't written yet. Raises TransactionError, KafkaException,
        DiffersError."""
        replay = self._open_replay()
        try:
            fresh = replay.push(batch)
            if fresh.num_rows:
                self._begin_transaction()
                self._send(fresh, (replay.step + self._batches) % self._partitions)
            self._batches += 1
        except BaseException:
            self._abort()
            raise

    def finish_step(self) -> None:
        """Commit the step. Raises TransactionError, KafkaException, DiffersError."""
        replay = self._open_replay()
        try:
            self._commit_record(self.record.with_step(replay.step, replay.finish()))
        finally:
            self._abort()

    def expire_step(self, step: Step) -> None:
        """Drop older steps from the record, in the open step's transaction or in one of its own."""
        checked_step(step)
        if self._replay is not None:
            self.record = self.record.without(step)
            return
        self._read_record()
        expired = self.record.without(step)
        if expired.older != self.record.older:
            try:
                self._commit_record(expired)
            finally:
                self._abort()

    def close(self) -> None:
        """Abort an unfinished step."""
        self._replay = None
        self._transaction.close()

    def _read_record(self) -> None:
        self._stored_text = self._transaction.read()
        record = KafkaStepRecord.parse(self._stored_text) if self._stored_text is not None else None
        if record is None or not record.is_by(self._writer):
            raise TransactionError(CHANGED, "", self._stored_text)
        self.record = record

    def _commit_record(self, record: KafkaStepRecord) -> None:
        if record.text != self._stored_text:
            self._begin_transaction()
            failpoint(Failpoint.TASK_SENT)
            self._transaction.add_record(record.step, record.text)
            failpoint(Failpoint.TASK_NOTED)
            self._transaction.commit()
            failpoint(Failpoint.TASK_COMMITTED)
        self.record, self._stored_text = record, record.text

    def _begin_transaction(self) -> None:
        if not self._transaction.is_open:
            self._transaction.begin(self._stored_text)
            failpoint(Failpoint.TASK_BEGUN)

    def _open_replay(self) -> StepReplay:
        if self._replay is None:
            raise StepError("no step is started")
        return self._replay

    def _abort(self) -> None:
        self._replay = None
        self._transaction.abort()

    def _send(self, batch: RecordBatch, partition: int) -> None:
        names = batch.schema.names
        values = batch.column(names.index("value")).to_numpy(zero_copy_only=False).tolist()
        if "key" not in names:
            self._transaction.send([{"value": v} for v in values], partition)
            return
        keys = batch.column(names.index("key"))
        pairs = zip(keys.to_numpy(zero_copy_only=False).tolist(), values, strict=True)
        messages = [{"key": k, "value": v} for k, v in pairs]
        if keys.null_count:
            self._transaction.send([m for m in messages if m["key"] is None], partition)
            messages = [m for m in messages if m["key"] is not None]
        self._transaction.send(messages, -1)


def report(
    transaction: KafkaTransaction,
    writer: KafkaStepRecord,
    step: Step,
    batches: Iterable[RecordBatch],
    *,
    partitions: int,
    compare: Compare,
) -> Mapping[str, Any]:
    """Push a step, and return its result as REPORT. Raises only the exceptions of `batches`."""
    import confluent_kafka

    started_at = time.monotonic()
    warnings: list[str] = []
    output = KafkaOutput(transaction, writer, partitions=partitions, compare=compare, warn=warnings.append)
    record: str | None = None
    try:
        output.start_step(step)
        output.expire_step(max(0, step - KEPT_STEPS))
        for batch in batches:
            output.push_buffer(batch)
        output.finish_step()
        outcome, detail, record = "written", "", output.record.text
    except TransactionError as problem:
        outcome, detail, record = problem.outcome, problem.detail, problem.record
    except DiffersError as differs:
        outcome, detail = "differs", str(differs)
    except confluent_kafka.KafkaException as problem:
        failure = transaction.cause(problem.args[0])
        outcome, detail = failure.name(), failure.str()
    finally:
        output.close()
    seconds = time.monotonic() - started_at
    return {"outcome": outcome, "detail": detail, "record": record, "seconds": seconds, "warnings": warnings}


def task(
    transaction: KafkaTransaction, writer: KafkaStepRecord, step: Step, partitions: int, compare: Compare
) -> Callable[[Iterable[RecordBatch]], Iterator[RecordBatch]]:
    """Return a function for mapInArrow that writes a step, which is one partition (in_one_task)."""

    def write(batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
        import pyarrow as pa

        whole = until_end(batches)
        outcome = report(transaction, writer, step, whole, partitions=partitions, compare=compare)
        types = {
            "outcome": pa.string(),
            "detail": pa.string(),
            "record": pa.string(),
            "seconds": pa.float64(),
            "warnings": pa.list_(pa.string()),
        }
        yield one_row(outcome, types)

    return write
