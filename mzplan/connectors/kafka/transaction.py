"""Consecutive transactions under one transactional id, each with records and the step record.

The step record is the metadata of an offset that is committed for the sink's own consumer group. Kafka
commits it together with the transaction's records. It needs no topic of its own, and only a consumer's
rights.

Before a transaction writes anything, the step record is compared with the expected one twice. The first time
is before `init_transactions`: an isolated runner then sees its successor's epoch, and doesn't fence it. The
second time is afterwards, when the open transaction of an earlier producer has ended.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

# The most seconds for a request to the coordinator, and for a full queue without progress.
_ANSWER_S = 20.0
_STALL_S = 30.0
# Seconds to wait for an open transaction that includes the step record: commits take milliseconds.
_SETTLES_S = 3.0
_BETWEEN_TRIES_S = 0.1
_TRANSIENT = {
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

CHANGED = "changed"
"""The outcome of a TransactionError if the record isn't the expected one."""


class TransactionError(Exception):
    """Raised if the transaction can't continue. `outcome` is an error's name or CHANGED, `detail` its
    message, and `record` (for CHANGED) the current step record."""

    def __init__(self, outcome: str, detail: str, record: str | None = None):
        super().__init__(detail)
        self.outcome, self.detail, self.record = outcome, detail, record


class KafkaTransaction:
    """Transactions under one id. Every method except `close` raises TransactionError or KafkaException.

    - `client`: librdkafka's settings; never shown, because they hold secrets.
    - `name`: the transactional id, and the group of the step record, stored for partition 0 of the topic.
    """

    def __init__(self, client: Mapping[str, Any], name: str, topic: str, timeout_ms: int):
        self.client = dict(client)
        self.name, self.topic, self.timeout_ms = name, topic, timeout_ms
        self.problems: list[Any] = []
        self._consumer: Any = None
        self._producer: Any = None

    @property
    def is_open(self) -> bool:
        return self._producer is not None

    def read(self) -> str | None:
        """Return the step record, or None.

        If an open transaction includes a record, waits for _SETTLES_S, then returns the committed one. A
        killed writer's transaction stays open until its time limit, unless the next writer ends it.
        """
        return self._read(wait=False)

    def _read(self, *, wait: bool) -> str | None:
        import confluent_kafka

        deadline = time.monotonic() + _ANSWER_S
        while True:
            try:
                return self._committed(self._reader(), _SETTLES_S)
            except confluent_kafka.KafkaException as problem:
                is_transient = problem.args[0].name() in _TRANSIENT and not self._denials()
                if not is_transient or time.monotonic() > deadline:
                    raise
            if not wait:
                try:
                    return self._before_open_transactions()
                except confluent_kafka.KafkaException:
                    pass  # no open transaction is the cause: the broker doesn't answer
            time.sleep(_BETWEEN_TRIES_S)

    def _committed(self, consumer: Any, seconds: float) -> str | None:
        import confluent_kafka

        try:
            place = confluent_kafka.TopicPartition(self.topic, 0)
            (committed,) = consumer.committed([place], timeout=seconds)
            if committed.error is not None:
                raise confluent_kafka.KafkaException(committed.error)
            return committed.metadata or "" if committed.offset >= 0 else None
        except confluent_kafka.KafkaException:
            # The reason (a missing right, for example) is reported only here.
            message = consumer.poll(0)
            if message is not None and message.error() is not None:
                self.problems.append(message.error())
            raise

    def _before_open_transactions(self) -> str | None:
        import confluent_kafka

        consumer = confluent_kafka.Consumer(self.reader_settings("read_uncommitted"))
        try:
            return self._committed(consumer, _SETTLES_S)
        finally:
            consumer.close()

    def begin(self, expected: str | None) -> None:
        """Begin a transaction, and fence other writers with this id. Raises TransactionError CHANGED if the
        step record isn't `expected`. If two writers begin at once, one of them is fenced."""
        import confluent_kafka

        producer = confluent_kafka.Producer(self._producer_settings())
        producer.poll(0.02)  # once connected, the coordinator is found immediately; otherwise after a pause
        producer.init_transactions(_ANSWER_S)
        self.expect(expected)
        producer.begin_transaction()
        self._producer = producer

    def expect(self, expected: str | None) -> None:
        """Raise TransactionError CHANGED if the record isn't this one."""
        current = self._read(wait=True)
        if current != expected:
            raise TransactionError(CHANGED, "", current)

    def send(self, messages: list[dict[str, Any]], partition: int) -> None:
        """Send records (`value`, optionally `key`) to a partition; -1 chooses it by their keys."""
        stalled_since = None
        while messages:
            accepted = self._producer.produce_batch(self.topic, messages, partition=partition)
            if accepted == len(messages):
                break
            messages = [message for message in messages if "_error" in message]
            problem = messages[0]["_error"]
            if problem.name() != "_QUEUE_FULL":
                raise TransactionError(problem.name(), problem.str())
            for message in messages:
                del message["_error"]
            now = time.monotonic()
            stalled_since = now if accepted or stalled_since is None else stalled_since
            if now - stalled_since > _STALL_S:
                text = self.problems[-1].str() if self.problems else "no record was taken"
                raise TransactionError("_TIMED_OUT", text)
            self._producer.poll(0.02)
        self._producer.poll(0)

    def add_record(self, step: int, record: str) -> None:
        """Add the step record, which becomes visible with the commit."""
        import confluent_kafka

        entry = confluent_kafka.TopicPartition(self.topic, 0, step + 1, metadata=record)
        group = self._reader().consumer_group_metadata()
        self._producer.send_offsets_to_transaction([entry], group, _ANSWER_S)

    def commit(self) -> None:
        """Commit the records that were sent, and the step record."""
        self._producer.commit_transaction(_STALL_S)
        self._producer = None

    def commit_record(self, expected: str | None, step: int, record: str) -> None:
        """Commit a transaction that contains only the step record."""
        self.begin(expected)
        self.add_record(step, record)
        self.commit()

    def abort(self) -> None:
        """Abort an open transaction, so that readers of committed records needn't wait for its timeout. If
        aborting fails, the next attempt ends the transaction, or the broker does after its timeout."""
        import confluent_kafka

        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            producer.purge()
            producer.abort_transaction(3.0)
        except confluent_kafka.KafkaException:
            return

    def close(self) -> None:
        """Abort an open transaction, and close the connections."""
        self.abort()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _reader(self) -> Any:
        import confluent_kafka

        if self._consumer is None:
            self.problems.clear()
            self._consumer = confluent_kafka.Consumer(self.reader_settings("read_committed"))
        return self._consumer

    def reader_settings(self, isolation: str) -> dict[str, Any]:
        """Return librdkafka's settings for a consumer in the step record's group."""
        return {
            **self.client,
            "group.id": self.name,
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "error_cb": self.problems.append,
        }

    def _producer_settings(self) -> dict[str, Any]:
        return {
            # Keys go to the same partitions as with Java's client, and therefore with Spark's own writer.
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
        """Return the error that caused a failure, such as the connection error behind a timeout."""
        if failure.name() not in ("_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_WAIT_COORD"):
            return failure
        names = ("_AUTHENTICATION", "_SSL", "_RESOLVE", "_TRANSPORT")
        causes = [problem for problem in self.problems if problem.name() in names]
        return next(iter([*self._denials(), *causes]), failure)

    def _denials(self) -> list[Any]:
        return [p for p in self.problems if p.name().endswith("_AUTHORIZATION_FAILED")]
