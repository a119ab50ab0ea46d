"""One step into Kafka, without Spark: its transaction when something fails."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from examples.servers import KafkaBroker, create_topic
from mzplan.connectors.api.queries import ResolvedConnection
from mzplan.connectors.kafka.options import transaction_options
from mzplan.connectors.kafka.output import report
from mzplan.connectors.kafka.problems import FENCED
from mzplan.connectors.kafka.step_record import KEPT_STEPS, KafkaStepRecord
from mzplan.connectors.kafka.transaction import KafkaTransaction
from mzplan.endpoints.interface import Written
from mzplan.model.address import Address
from mzplan.warehouse.content_hash import HASH
from tests.integration.committed import committed, step_record
from tests.support import eventually

if TYPE_CHECKING:
    Make = Callable[..., str]

FIRST = KafkaStepRecord(generation=1, epoch=1, query="q", step=-1)


def transaction(bootstrap: str, topic: str, timeout_ms: int = 60_000) -> KafkaTransaction:
    body = {"brokers": [bootstrap], "security": {"protocol": "PLAINTEXT"}, "options": {}}
    cluster = ResolvedConnection(address=Address("connection", "k"), type="kafka", body=body)
    return KafkaTransaction(transaction_options(cluster, "."), f"mzplan.{topic}", topic, timeout_ms)


def batch(first: int, last: int) -> pa.RecordBatch:
    ids = range(first, last)
    return pa.RecordBatch.from_pydict(
        {"value": [f'{{"id":{i}}}' for i in ids], HASH: pa.array(list(ids), pa.int64())}
    )


def claim(bootstrap: str, topic: str, epoch: int = 1) -> None:
    """As a run's first batch does."""
    one = transaction(bootstrap, topic)
    try:
        seen = one.read()
        before = KafkaStepRecord.parse(seen) if seen else FIRST
        one.commit_record(seen, before.step, replace(before, epoch=epoch).text)
    finally:
        one.close()


def send(one: KafkaTransaction, step: int, batches: Any, epoch: int = 1) -> dict[str, Any]:
    return dict(report(one, replace(FIRST, epoch=epoch), step, batches, partitions=2, compare="fail"))


def ids(bootstrap: str, topic: str) -> list[int]:
    return sorted(value["id"] for _, _, value in committed(bootstrap, topic))


def test_rows_and_record_are_there_together(kafka: KafkaBroker, topic: Make) -> None:
    name = topic()
    one = transaction(kafka.bootstrap, name)
    assert send(one, 0, [batch(0, 10)])["outcome"] == "changed"  # nobody has claimed it
    claim(kafka.bootstrap, name)
    sent = send(one, 0, [batch(0, 10), batch(10, 20)])
    assert sent["outcome"] == "written", sent
    record = KafkaStepRecord.parse(sent["record"])
    assert (record.step, record.rows, record.hash) == (0, 20, f"1:{sum(range(20)):016x}")
    found = step_record(kafka.bootstrap, name, name)
    assert found is not None and KafkaStepRecord.parse(json.dumps(found)) == record
    assert ids(kafka.bootstrap, name) == list(range(20))
    # Another attempt at the same step leaves it as it is; one that has other rows is told.
    again = send(transaction(kafka.bootstrap, name), 0, [batch(0, 20)])
    assert (again["outcome"], again["record"]) == ("written", sent["record"])
    assert send(transaction(kafka.bootstrap, name), 0, [batch(0, 10)])["outcome"] == "differs"
    assert ids(kafka.bootstrap, name) == list(range(20))


def test_a_step_record_fits_into_kafkas_limit(kafka: KafkaBroker, topic: Make) -> None:
    name = topic()
    first = replace(FIRST, query="6f9619ff-8b86-d011-b42d-00cf4fc964ff", epoch=1_000_000, step=-1)
    large = first
    for step in range(1_000_000, 1_000_000 + KEPT_STEPS + 1):
        large = large.with_step(step, Written(rows=10_000_000, digest=f"1:{2**64 - step:016x}"))
    assert len(large.text) < 3000
    one = transaction(kafka.bootstrap, name)
    one.commit_record(None, large.step, large.text)
    assert one.read() == large.text
    one.close()


def test_a_task_that_fails_leaves_no_rows(kafka: KafkaBroker, topic: Make) -> None:
    name = topic()
    claim(kafka.bootstrap, name)

    def failing() -> Iterator[pa.RecordBatch]:
        yield batch(0, 1000)
        raise RuntimeError("the task was killed")

    with pytest.raises(RuntimeError, match="was killed"):
        send(transaction(kafka.bootstrap, name), 0, failing())
    assert send(transaction(kafka.bootstrap, name), 0, [batch(0, 5)])["outcome"] == "written"
    assert ids(kafka.bootstrap, name) == list(range(5))


@pytest.mark.nightly
def test_a_frozen_older_writer_is_fenced(kafka: KafkaBroker, topic: Make) -> None:
    name = topic()
    claim(kafka.bootstrap, name)
    newer: list[dict[str, Any]] = []

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield batch(0, 100)
        # Frozen here; a newer runner takes over and writes the step; then this one wakes up.
        claim(kafka.bootstrap, name, epoch=2)
        newer.append(send(transaction(kafka.bootstrap, name), 0, [batch(0, 100)], epoch=2))
        yield batch(100, 200)

    sent = send(transaction(kafka.bootstrap, name), 0, overtaken())
    assert [one["outcome"] for one in newer] == ["written"], newer
    assert sent["outcome"] in FENCED, sent
    assert ids(kafka.bootstrap, name) == list(range(100))
    # And it does not try again: it sees the newer epoch before it touches the transactional id.
    assert send(transaction(kafka.bootstrap, name), 0, [batch(0, 100)])["outcome"] == "changed"
    assert send(transaction(kafka.bootstrap, name), 1, [batch(100, 101)], 2)["outcome"] == "written"
    assert ids(kafka.bootstrap, name) == list(range(101))


def test_a_transaction_that_takes_too_long_leaves_no_rows(kafka: KafkaBroker, topic: Make) -> None:
    name = topic(partitions=2)
    claim(kafka.bootstrap, name)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})

    def there(isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED) -> int:
        """The number of records; where an open transaction hides some, of what comes before it."""
        ends = {TopicPartition(name, partition): OffsetSpec.latest() for partition in (0, 1)}
        asked = admin.list_offsets(ends, isolation_level=isolation)
        return sum(future.result(20).offset for future in asked.values())

    def slow() -> Iterator[pa.RecordBatch]:
        yield batch(0, 10)
        # The brokers look for such transactions every ten seconds.
        eventually("it is aborted", lambda: there() and there() == there(IsolationLevel.READ_COMMITTED))
        yield batch(10, 20)

    sent = send(transaction(kafka.bootstrap, name, timeout_ms=2000), 0, slow())
    assert sent["outcome"] in FENCED, sent
    assert sent["seconds"] > 2
    assert ids(kafka.bootstrap, name) == []


@pytest.mark.nightly
def test_a_step_is_written_whole_or_not_at_all_if_the_broker_dies(own_kafka: KafkaBroker) -> None:
    name = "mid-transaction"
    create_topic(own_kafka.bootstrap, name, 2)
    claim(own_kafka.bootstrap, name)

    def interrupted() -> Iterator[pa.RecordBatch]:
        yield batch(0, 50_000)
        own_kafka.kill()
        own_kafka.start()
        yield batch(50_000, 100_000)

    sent = send(transaction(own_kafka.bootstrap, name), 0, interrupted())
    if sent["outcome"] != "written":  # it may also have been too long: then nothing of it counts
        assert ids(own_kafka.bootstrap, name) == []
        sent = send(transaction(own_kafka.bootstrap, name), 0, [batch(0, 100_000)])
        assert sent["outcome"] == "written", sent
    assert ids(own_kafka.bootstrap, name) == list(range(100_000))


@pytest.mark.nightly
def test_a_dead_broker_is_an_error_within_its_time(own_kafka: KafkaBroker) -> None:
    create_topic(own_kafka.bootstrap, "gone", 2)
    claim(own_kafka.bootstrap, "gone")
    own_kafka.kill()
    began = time.monotonic()
    sent = send(transaction(own_kafka.bootstrap, "gone"), 0, [batch(0, 10)])
    assert sent["outcome"] in ("_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN"), sent
    assert time.monotonic() - began < 60


@pytest.mark.nightly
def test_a_forbidden_transactional_id_or_group_is_named(tmp_path: Path) -> None:
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
            claim(broker.bootstrap, name)
            deny = ("User:ANONYMOUS", "*", AclOperation.ALL, AclPermissionType.DENY)
            binding = AclBinding(type_, f"mzplan.{name}", ResourcePatternType.LITERAL, *deny)
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            (future,) = admin.create_acls([binding]).values()
            future.result(20)
            sent = send(transaction(broker.bootstrap, name), 0, [batch(0, 1)])
            assert sent["outcome"] == outcome, sent
            assert ids(broker.bootstrap, name) == []
    finally:
        broker.remove_data()
