"""What a consumer of committed records sees of a topic, and what a sink's group has noted down."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from tests.support import Stopwatch

_SECONDS = 60.0


def committed(
    bootstrap: str,
    topic: str,
    decode: Callable[[Message], Any] = lambda message: json.loads(message.value() or b"null"),
) -> list[tuple[int, str | None, Any]]:
    """Return (partition, key, decode(message)) of each committed record, in the order of its partition.

    An open transaction hides the records after it."""
    consumer = _consumer(bootstrap, uuid.uuid4().hex)
    try:
        listed = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1] for p in listed}
        consumer.assign([TopicPartition(topic, p, 0) for p in listed])
        at_end: set[int] = {p for p, end in ends.items() if end == 0}
        found: list[tuple[int, str | None, Any]] = []
        waited = Stopwatch()
        while len(at_end) < len(ends):
            assert waited.seconds < _SECONDS, f"{topic}: not read to its end"
            message = consumer.poll(5)
            if message is None:
                continue
            if message.error() is not None:  # the end of a partition, as far as it is committed
                assert message.error().name() == "_PARTITION_EOF", message.error()
                at_end.add(message.partition() or 0)
                continue
            key = message.key()
            text = key.decode() if key is not None else None
            found.append((message.partition() or 0, text, decode(message)))
        return found
    finally:
        consumer.close()


def step_record(bootstrap: str, topic: str, sink_id: str) -> dict[str, Any] | None:
    """The step record of a sink, None if there is none."""
    consumer = _consumer(bootstrap, f"mzplan.{sink_id}")
    try:
        for _ in range(100):
            try:
                (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=10)
                return json.loads(found.metadata) if found.offset >= 0 else None
            except KafkaException:
                time.sleep(0.1)
        raise AssertionError("the group's coordinator does not answer")
    finally:
        consumer.close()


def _consumer(bootstrap: str, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
