"""One step into Kafka, without Spark: what becomes of its transaction when something fails in the middle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from examples.servers import KafkaBroker, create_topic
from mzplan.connectors.kafka_options import transaction_options
from mzplan.connectors.kafka_problems import FENCED
from mzplan.connectors.kafka_record import StepRecord
from mzplan.connectors.kafka_task import Transaction
from tests.integration.committed import committed, step_record

if TYPE_CHECKING:
    Make = Callable[..., str]

FIRST = StepRecord(generation=1, epoch=1, query="q", step=-1)


def transaction(bootstrap: str, topic: str, timeout_ms: int = 60_000) -> Transaction:
    body = {"brokers": [bootstrap], "security": {"protocol": "PLAINTEXT"}, "options": {}}
    return Transaction(transaction_options(body, "."), f"mzplan.{topic}", topic, timeout_ms)


def batch(first: int, last: int) -> pa.RecordBatch:
    ids = range(first, last)
    return pa.RecordBatch.from_pydict(
        {"value": [f'{{"id":{i}}}' for i in ids], "hash": pa.array(list(ids), pa.int64())}
    )


def send(
    one: Transaction, seen: StepRecord | None, step: int, batches: Any, epoch: int = 1
) -> dict[str, Any]:
    becomes = StepRecord(generation=1, epoch=epoch, query="q", step=step)
    return one.write(seen.text if seen else None, becomes.fields(), batches, lambda i: i % 2)


def ids(bootstrap: str, topic: str) -> list[int]:
    return sorted(value["id"] for _, _, value in committed(bootstrap, topic))


def test_rows_and_record_are_there_together(kafka: KafkaBroker, topic: Make) -> None:
    name = topic()
    one = transaction(kafka.bootstrap, name)
    report = send(one, None, 0, [batch(0, 10), batch(10, 20)])
    assert report["outcome"] == "written", report
    record = StepRecord.parse(report["record"])
    assert (record.step, record.rows, record.hash) == (0, 20, f"{sum(range(20)):016x}")
    assert step_record(kafka.bootstrap, name, name) == dict(record.fields())
    assert ids(kafka.bootstrap, name) == list(range(20))
    # Another attempt at the same step finds that the record is not what it was.
    again = send(transaction(kafka.bootstrap, name), None, 0, [batch(0, 10)])
    assert (again["outcome"], again["record"]) == ("changed", report["record"])
    assert ids(kafka.bootstrap, name) == list(range(20))


def test_rows_that_fail_to_come_leave_nothing(kafka: KafkaBroker, topic: Make) -> None:
    name = topic()

    def failing() -> Iterator[pa.RecordBatch]:
        yield batch(0, 1000)
        raise RuntimeError("the task was killed")

    with pytest.raises(RuntimeError, match="was killed"):
        send(transaction(kafka.bootstrap, name), None, 0, failing())
    assert send(transaction(kafka.bootstrap, name), None, 0, [batch(0, 5)])["outcome"] == "written"
    assert ids(kafka.bootstrap, name) == list(range(5))


def test_an_older_writer_that_froze_in_the_middle_is_fenced(kafka: KafkaBroker, topic: Make) -> None:
    name = topic()
    assert send(transaction(kafka.bootstrap, name), None, -1, ())["outcome"] == "written"
    claimed: list[dict[str, Any]] = []

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield batch(0, 100)
        # Frozen here; a newer runner takes over and writes the step; then this one wakes up.
        newer = StepRecord(generation=1, epoch=2, query="q", step=-1)
        claimed.append(send(transaction(kafka.bootstrap, name), FIRST, -1, (), epoch=2))
        claimed.append(send(transaction(kafka.bootstrap, name), newer, 0, [batch(0, 100)], epoch=2))
        yield batch(100, 200)

    report = send(transaction(kafka.bootstrap, name), FIRST, 0, overtaken())
    assert [one["outcome"] for one in claimed] == ["written", "written"], claimed
    assert report["outcome"] in FENCED, report
    assert ids(kafka.bootstrap, name) == list(range(100))
    # And it does not try again: it sees the newer epoch before it touches the transactional id.
    assert send(transaction(kafka.bootstrap, name), FIRST, 0, [batch(0, 100)])["outcome"] == "changed"
    newest = StepRecord.parse(claimed[1]["record"])
    assert send(transaction(kafka.bootstrap, name), newest, 1, [batch(100, 101)], 2)["outcome"] == "written"
    assert ids(kafka.bootstrap, name) == list(range(101))


def test_a_transaction_that_takes_too_long_is_told_from_a_fenced_one(kafka: KafkaBroker, topic: Make) -> None:
    import time

    name = topic()

    def slow() -> Iterator[pa.RecordBatch]:
        yield batch(0, 10)
        time.sleep(16)  # the brokers look for such transactions every ten seconds
        yield batch(10, 20)

    report = send(transaction(kafka.bootstrap, name, timeout_ms=2000), None, 0, slow())
    assert report["outcome"] in FENCED, report
    assert report["seconds"] > 2
    assert ids(kafka.bootstrap, name) == []


def test_a_broker_that_dies_in_the_middle(own_kafka: KafkaBroker) -> None:
    name = "mid-transaction"
    create_topic(own_kafka.bootstrap, name, 2)

    def interrupted() -> Iterator[pa.RecordBatch]:
        yield batch(0, 50_000)
        own_kafka.kill()
        own_kafka.start()
        yield batch(50_000, 100_000)

    report = send(transaction(own_kafka.bootstrap, name), None, 0, interrupted())
    if report["outcome"] != "written":  # it may also have been too long: then nothing of it counts
        assert ids(own_kafka.bootstrap, name) == []
        seen = transaction(own_kafka.bootstrap, name).read()
        assert seen is None
        report = send(transaction(own_kafka.bootstrap, name), None, 0, [batch(0, 100_000)])
        assert report["outcome"] == "written", report
    assert ids(own_kafka.bootstrap, name) == list(range(100_000))


def test_a_dead_broker_is_said_within_its_time(own_kafka: KafkaBroker) -> None:
    import time

    create_topic(own_kafka.bootstrap, "gone", 2)
    assert send(transaction(own_kafka.bootstrap, "gone"), None, -1, ())["outcome"] == "written"
    own_kafka.kill()
    began = time.monotonic()
    report = send(transaction(own_kafka.bootstrap, "gone"), FIRST, 0, [batch(0, 10)])
    assert report["outcome"] in ("_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN"), report
    assert time.monotonic() - began < 60


def test_what_may_not_be_used_is_named(tmp_path: Path) -> None:
    broker = KafkaBroker(
        tmp_path / "kafka",
        properties={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
            "super.users": "User:nobody",
        },
    )
    try:
        broker.start()
        for type_, outcome in (
            (ResourceType.TRANSACTIONAL_ID, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
            (ResourceType.GROUP, "GROUP_AUTHORIZATION_FAILED"),
        ):
            name = f"denied-{type_.name.lower().replace('_', '-')}"
            create_topic(broker.bootstrap, name, 1)
            _deny(broker, type_, f"mzplan.{name}")
            report = send(transaction(broker.bootstrap, name), None, 0, [batch(0, 1)])
            assert report["outcome"] == outcome, report
            assert ids(broker.bootstrap, name) == []
    finally:
        broker.remove_data()


def _deny(broker: KafkaBroker, type_: ResourceType, name: str) -> None:
    binding = AclBinding(
        type_,
        name,
        ResourcePatternType.LITERAL,
        "User:ANONYMOUS",
        "*",
        AclOperation.ALL,
        AclPermissionType.DENY,
    )
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (future,) = admin.create_acls([binding]).values()
    future.result(20)
