"""What runs where the rows are: one step into Kafka, its records and its step record in one transaction.

This module is sent to the executors whole (see `task`): they need pyarrow and confluent-kafka, no mzplan.

The step record is the committed offset, with metadata, of a consumer group of the sink's own: Kafka commits
it with the transaction's records, and it needs no topic and no right beyond those of a consumer. It is
compared before anything is written, twice: before `init_transactions`, so that a runner which was cut off
does not fence the one that has taken over (which has noted down its epoch there); and after it, when
whatever an earlier producer has left is decided.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

REPORT = "outcome STRING, detail STRING, record STRING, seconds DOUBLE"
"""What an attempt returns: `written` or `changed` (the record is not the one that was expected), with the
record as it is now; or the name of Kafka's error and what was said. A missing record is NULL."""

# Seconds: the most that a request to the coordinator may take, and that a full queue may stand still.
_ANSWER_S = 20.0
_STALL_S = 30.0
_BETWEEN_TRIES_S = 0.1
_PASSING = {
    "NOT_COORDINATOR",
    "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "UNSTABLE_OFFSET_COMMIT",
    "_WAIT_COORD",
    "_TIMED_OUT",
    "_TRANSPORT",
    "_ALL_BROKERS_DOWN",
    "REQUEST_TIMED_OUT",
    "NETWORK_EXCEPTION",
}
_MASK = (1 << 64) - 1


class StopError(Exception):
    """The transaction can't go on: the name of an error, and what was said."""

    def __init__(self, outcome: str, detail: str):
        super().__init__(detail)
        self.outcome, self.detail = outcome, detail


class Transaction:
    """One attempt at writing one step. `client` are librdkafka's settings (with secrets: never shown);
    `name` is the transactional id and the group of the step record, which stands at partition 0 of the
    topic."""

    def __init__(self, client: Mapping[str, Any], name: str, topic: str, timeout_ms: int):
        self.client = dict(client)
        self.name, self.topic, self.timeout_ms = name, topic, timeout_ms
        self.problems: list[Any] = []

    def write(
        self,
        seen: str | None,
        becomes: Mapping[str, Any],
        batches: Iterable[Any],
        place: Callable[[int], int],
    ) -> dict[str, Any]:
        """Write the records and the step record `becomes` (with their count and content hash added), if the
        record is still `seen`. `place` says which partition takes the keyless records of the nth batch.
        Raises only what `batches` raises."""
        import confluent_kafka

        began = time.monotonic()
        try:
            consumer = confluent_kafka.Consumer(self._consumer())
            try:
                outcome, record = self._attempt(consumer, seen, becomes, batches, place)
                detail = ""
            finally:
                consumer.close()
        except StopError as stop:
            outcome, detail, record = stop.outcome, stop.detail, None
        except confluent_kafka.KafkaException as problem:
            failure = self.cause(problem.args[0])
            outcome, detail, record = failure.name(), failure.str(), None
        return {
            "outcome": outcome,
            "detail": detail,
            "record": record,
            "seconds": time.monotonic() - began,
        }

    def read(self) -> str | None:
        """The step record, as far as it is decided. Raises StopError or KafkaException."""
        import confluent_kafka

        consumer = confluent_kafka.Consumer(self._consumer())
        try:
            return self._read(consumer)
        finally:
            consumer.close()

    def _attempt(
        self,
        consumer: Any,
        seen: str | None,
        becomes: Mapping[str, Any],
        batches: Iterable[Any],
        place: Callable[[int], int],
    ) -> tuple[str, str | None]:
        import confluent_kafka

        found = self._read(consumer)
        if found != seen:
            return "changed", found
        producer = confluent_kafka.Producer(self._producer())
        producer.poll(0.02)  # connected, the coordinator is found at once; else after a pause
        producer.init_transactions(_ANSWER_S)
        found = self._read(consumer)
        if found != seen:
            return "changed", found
        producer.begin_transaction()
        try:
            rows, total = self._send(producer, batches, place)
            record = json.dumps(
                {
                    **becomes,
                    "rows": becomes["rows"] + rows,
                    "hash": f"{(int(becomes['hash'], 16) + total) & _MASK:016x}",
                },
                sort_keys=True,
            )
            entry = confluent_kafka.TopicPartition(self.topic, 0, becomes["step"] + 1, metadata=record)
            producer.send_offsets_to_transaction([entry], consumer.consumer_group_metadata(), _ANSWER_S)
            producer.commit_transaction(_STALL_S)
        except BaseException:
            self._give_up(producer)
            raise
        return "written", record

    def _give_up(self, producer: Any) -> None:
        """So that nobody who reads committed records waits for the transaction's end. If this fails, too, the
        next attempt ends it, or the broker after its timeout."""
        import confluent_kafka

        try:
            producer.purge()
            producer.abort_transaction(3.0)
        except confluent_kafka.KafkaException:
            return

    def _send(self, producer: Any, batches: Iterable[Any], place: Callable[[int], int]) -> tuple[int, int]:
        """Count of the records, and the sum of their hashes. The columns: key (perhaps), value, hash."""
        rows = total = 0
        for i, batch in enumerate(batches):
            if not batch.num_rows:
                continue
            values, hashes = batch.column(batch.num_columns - 2), batch.column(batch.num_columns - 1)
            listed = values.to_numpy(zero_copy_only=False).tolist()
            if batch.num_columns == 3:
                keys = batch.column(0)
                named = zip(keys.to_numpy(zero_copy_only=False).tolist(), listed, strict=True)
                messages = [{"key": k, "value": v} for k, v in named]
                if keys.null_count:
                    self._enqueue(producer, [m for m in messages if m["key"] is None], place(i))
                    messages = [m for m in messages if m["key"] is not None]
                self._enqueue(producer, messages, -1)
            else:
                self._enqueue(producer, [{"value": v} for v in listed], place(i))
            producer.poll(0)
            rows += batch.num_rows
            total += int(hashes.to_numpy().sum())  # in 64 bits, and beyond them around again
        return rows, total

    def _enqueue(self, producer: Any, messages: list[dict[str, Any]], partition: int) -> None:
        still_since = None
        while messages:
            taken = producer.produce_batch(self.topic, messages, partition=partition)
            if taken == len(messages):
                return
            messages = [message for message in messages if "_error" in message]
            problem = messages[0]["_error"]
            if problem.name() != "_QUEUE_FULL":
                raise StopError(problem.name(), problem.str())
            for message in messages:
                del message["_error"]
            now = time.monotonic()
            still_since = now if taken or still_since is None else still_since
            if now - still_since > _STALL_S:
                told = self.problems[-1].str() if self.problems else "no record was taken"
                raise StopError("_TIMED_OUT", told)
            producer.poll(0.02)

    def _read(self, consumer: Any) -> str | None:
        """The group's committed offset, once no transaction that touches it is open or undecided."""
        import confluent_kafka

        deadline = time.monotonic() + _ANSWER_S
        place = confluent_kafka.TopicPartition(self.topic, 0)
        while True:
            try:
                (found,) = consumer.committed([place], timeout=_ANSWER_S / 4)
                if found.error is not None:
                    raise confluent_kafka.KafkaException(found.error)
                return found.metadata or "" if found.offset >= 0 else None
            except confluent_kafka.KafkaException as problem:
                # What keeps it from an answer (a missing right, say) is told only here.
                message = consumer.poll(0)
                if message is not None and message.error() is not None:
                    self.problems.append(message.error())
                passes = problem.args[0].name() in _PASSING and not self._denials()
                if not passes or time.monotonic() > deadline:
                    raise
            time.sleep(_BETWEEN_TRIES_S)

    def _consumer(self) -> dict[str, Any]:
        return {
            **self.client,
            "group.id": self.name,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "error_cb": self.problems.append,
        }

    def _producer(self) -> dict[str, Any]:
        return {
            # Keys go where Java's client, and so Spark's own writer, sends them.
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            "queue.buffering.max.kbytes": 131072,
            "queue.buffering.max.messages": 200_000,
            **self.client,
            "transactional.id": self.name,
            "transaction.timeout.ms": self.timeout_ms,
            "socket.timeout.ms": min(self.client.get("socket.timeout.ms", 60_000), self.timeout_ms),
            "error_cb": self.problems.append,
        }

    def cause(self, failure: Any) -> Any:
        """The cause rather than what followed from it: of a timeout, that nobody listens."""
        if failure.name() not in ("_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_WAIT_COORD"):
            return failure
        told = [p for p in self.problems if p.name() in ("_AUTHENTICATION", "_SSL", "_RESOLVE", "_TRANSPORT")]
        return next(iter([*self._denials(), *told]), failure)

    def _denials(self) -> list[Any]:
        return [p for p in self.problems if p.name().endswith("_AUTHORIZATION_FAILED")]


def task(
    transaction: Transaction, seen: str | None, becomes: Mapping[str, Any], partitions: int
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """A function for mapInArrow that writes the one partition of a step."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    step: int = becomes["step"]

    def write(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        # Keyless records: batch by batch to one partition after the other, the same ones on a replay.
        found = transaction.write(seen, becomes, batches, lambda i: (step + i) % partitions)
        yield pa.RecordBatch.from_pylist(
            [found],
            schema=pa.schema(
                [
                    ("outcome", pa.string()),
                    ("detail", pa.string()),
                    ("record", pa.string()),
                    ("seconds", pa.float64()),
                ]
            ),
        )

    return write
