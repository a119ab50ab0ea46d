"""Creates topics and produces messages with confluent-kafka, for tests and examples."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from examples.servers.errors import ServerError

TIMEOUT_S = 30.0

# Settings of every client here. Otherwise librdkafka would log to stderr, where pytest can't capture it.
_QUIET: dict[str, Any] = {"log_level": 0, "error_cb": lambda error: None}


def admin(bootstrap: str, client: Mapping[str, str] | None = None) -> AdminClient:
    """Return an admin client. ``client``: further librdkafka settings (TLS, SASL)."""
    return AdminClient({"bootstrap.servers": bootstrap, **_QUIET, **(client or {})})


def create_topic(
    bootstrap: str,
    name: str,
    partitions: int = 2,
    *,
    config: Mapping[str, str] | None = None,
    client: Mapping[str, str] | None = None,
) -> None:
    """Create a topic (one replica) and wait until each partition has a leader.

    ``config``: topic settings such as ``cleanup.policy``. Raises ServerError, for example if it exists.
    """
    connection = admin(bootstrap, client)
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
    _finish(f"create topic {name}", connection.create_topics([topic], operation_timeout=TIMEOUT_S)[name])

    # The controller answers first. The broker that serves clients learns of the topic a moment later.
    def led() -> bool:
        found = connection.list_topics(name, timeout=TIMEOUT_S).topics[name].partitions.values()
        return len(found) == partitions and all(partition.leader >= 0 for partition in found)

    _wait(f"topic {name} has no leaders", led)


def delete_topic(bootstrap: str, name: str, *, client: Mapping[str, str] | None = None) -> None:
    """Delete a topic and wait until it is no longer listed. Raises ServerError, for example without one."""
    connection = admin(bootstrap, client)
    _finish(f"delete topic {name}", connection.delete_topics([name], operation_timeout=TIMEOUT_S)[name])
    _wait(
        f"topic {name} is still listed", lambda: name not in connection.list_topics(timeout=TIMEOUT_S).topics
    )


def produce_json(
    bootstrap: str,
    topic: str,
    rows: Iterable[Mapping[str, Any]],
    key: str | None = None,
    *,
    client: Mapping[str, str] | None = None,
) -> int:
    """Send each row as one JSON object (UTF-8), wait until all are acknowledged, and return their number.

    ``key``: the field whose text is the message key, so that rows with equal keys keep their order.
    Values without a JSON type (dates, decimals) are sent as text. Raises ServerError if any row fails.
    """
    failures: list[str] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(error.str())

    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "linger.ms": 5,
        "enable.idempotence": True,
        "message.timeout.ms": int(TIMEOUT_S * 1000),
        "topic.metadata.propagation.max.ms": 2000,  # how long a topic may be unknown; default: 30 s
    }
    producer = Producer({**settings, **_QUIET, **(client or {})})
    sent = 0
    for row in rows:
        message_key = None if key is None else str(row[key]).encode()
        value = json.dumps(row, default=str).encode()
        while True:
            try:
                producer.produce(topic, value, message_key, on_delivery=delivered)
                break
            except BufferError:  # the client's queue of 100,000 messages is full
                producer.poll(0.1)
        producer.poll(0)
        sent += 1
    unsent = producer.flush(TIMEOUT_S + 5)
    if failures or unsent:
        why = failures[0] if failures else "no acknowledgement"
        raise ServerError(f"{len(failures) + unsent} of {sent} rows did not reach topic {topic}: {why}")
    return sent


def _finish(what: str, future: Any) -> None:
    try:
        future.result(TIMEOUT_S)
    except (KafkaException, TimeoutError) as error:
        reason = (
            error.args[0].str() if isinstance(error, KafkaException) else f"no answer in {TIMEOUT_S:.0f} s"
        )
        raise ServerError(f"can't {what}: {reason}") from error


def _wait(problem: str, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not done():
        if time.monotonic() > deadline:
            raise ServerError(f"{problem} after {TIMEOUT_S:.0f} s")
        time.sleep(0.05)
