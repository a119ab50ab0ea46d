"""One step into Kafka, without Spark: its transaction when something fails."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
from mzplan.warehouse.rows.content_hash import HASH
from tests.integration.committed import committed, step_record
from tests.support import Make, Stopwatch, eventually

FIRST = KafkaStepRecord(generation=1, epoch=1, query="q", step=-1)


@dataclass(frozen=True)
class Target:
    """A topic that a sink writes in transactions."""

    bootstrap: str
    topic: str
    timeout_ms: int = 60_000

    def transaction(self) -> KafkaTransaction:
        body = {"brokers": [self.bootstrap], "security": {"protocol": "PLAINTEXT"}, "options": {}}
        cluster = ResolvedConnection(address=Address("connection", "k"), type="kafka", body=body)
        options = transaction_options(cluster, ".")
        return KafkaTransaction(options, f"mzplan.{self.topic}", self.topic, self.timeout_ms)

    def claim(self, epoch: int = 1) -> None:
        """Claim the topic as a run's first batch does."""
        with contextlib.closing(self.transaction()) as transaction:
            seen = transaction.read()
            before = KafkaStepRecord.parse(seen) if seen else FIRST
            transaction.commit_record(seen, before.step, replace(before, epoch=epoch).text)

    def send(self, step: int, batches: Iterable[pa.RecordBatch], epoch: int = 1) -> dict[str, Any]:
        """Send a step in a new transaction. Return its report."""
        writer = replace(FIRST, epoch=epoch)
        return dict(report(self.transaction(), writer, step, batches, partitions=2, compare="fail"))

    def ids(self) -> list[int]:
        return sorted(value["id"] for _, _, value in committed(self.bootstrap, self.topic))


@pytest.fixture
def target(kafka: KafkaBroker, topic: Make) -> Target:
    return Target(kafka.bootstrap, topic(partitions=2))


def claimed(broker: KafkaBroker, topic: str) -> Target:
    """Create a topic on a test's own broker, and claim it."""
    create_topic(broker.bootstrap, topic, 2)
    target = Target(broker.bootstrap, topic)
    target.claim()
    return target


def batch(first: int, last: int) -> pa.RecordBatch:
    ids = range(first, last)
    return pa.RecordBatch.from_pydict(
        {"value": [f'{{"id":{i}}}' for i in ids], HASH: pa.array(list(ids), pa.int64())}
    )


def test_rows_and_record_are_there_together(target: Target) -> None:
    assert target.send(0, [batch(0, 10)])["outcome"] == "changed"  # nobody has claimed it
    target.claim()
    sent = target.send(0, [batch(0, 10), batch(10, 20)])
    assert sent["outcome"] == "written", sent
    record = KafkaStepRecord.parse(sent["record"])
    assert (record.step, record.rows, record.hash) == (0, 20, f"1:{sum(range(20)):016x}")
    found = step_record(target.bootstrap, target.topic, target.topic)
    assert found is not None and KafkaStepRecord.parse(json.dumps(found)) == record
    assert target.ids() == list(range(20))


def test_a_step_record_fits_into_kafkas_limit(target: Target) -> None:
    large = replace(FIRST, query="6f9619ff-8b86-d011-b42d-00cf4fc964ff", epoch=1_000_000)
    for step in range(1_000_000, 1_000_000 + KEPT_STEPS + 1):
        large = large.with_step(step, Written(rows=10_000_000, digest=f"1:{2**64 - step:016x}"))
    assert len(large.text) < 3000
    with contextlib.closing(target.transaction()) as transaction:
        transaction.commit_record(None, large.step, large.text)
        assert transaction.read() == large.text


@pytest.mark.nightly
def test_a_frozen_older_writer_is_fenced(target: Target) -> None:
    target.claim()
    newer: list[str] = []

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield batch(0, 100)
        # Frozen here; a newer runner takes over and writes the step; then this one wakes up.
        target.claim(epoch=2)
        newer.append(target.send(0, [batch(0, 100)], epoch=2)["outcome"])
        yield batch(100, 200)

    assert target.send(0, overtaken())["outcome"] in FENCED
    assert newer == ["written"]
    assert target.ids() == list(range(100))
    # And it does not try again: it sees the newer epoch before it touches the transactional id.
    assert target.send(0, [batch(0, 100)])["outcome"] == "changed"
    assert target.send(1, [batch(100, 101)], epoch=2)["outcome"] == "written"
    assert target.ids() == list(range(101))


def test_a_transaction_that_takes_too_long_leaves_no_rows(target: Target) -> None:
    target.claim()
    admin = AdminClient({"bootstrap.servers": target.bootstrap})

    def there(isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED) -> int:
        """The number of records; where an open transaction hides some, of what comes before it."""
        ends = {TopicPartition(target.topic, partition): OffsetSpec.latest() for partition in (0, 1)}
        asked = admin.list_offsets(ends, isolation_level=isolation)
        return sum(future.result(20).offset for future in asked.values())

    def slow() -> Iterator[pa.RecordBatch]:
        yield batch(0, 10)
        # The brokers look for such transactions every ten seconds.
        eventually("it is aborted", lambda: there() and there() == there(IsolationLevel.READ_COMMITTED))
        yield batch(10, 20)

    sent = replace(target, timeout_ms=2000).send(0, slow())
    assert sent["outcome"] in FENCED, sent
    assert sent["seconds"] > 2
    assert target.ids() == []


@pytest.mark.nightly
def test_a_step_is_written_whole_or_not_at_all_if_the_broker_dies(own_kafka: KafkaBroker) -> None:
    target = claimed(own_kafka, "mid-transaction")

    def interrupted() -> Iterator[pa.RecordBatch]:
        yield batch(0, 50_000)
        own_kafka.kill()
        own_kafka.start()
        yield batch(50_000, 100_000)

    if target.send(0, interrupted())["outcome"] != "written":  # it may also have been too long
        assert target.ids() == []
        sent = target.send(0, [batch(0, 100_000)])
        assert sent["outcome"] == "written", sent
    assert target.ids() == list(range(100_000))


@pytest.mark.nightly
def test_a_dead_broker_is_an_error_within_its_time(own_kafka: KafkaBroker) -> None:
    target = claimed(own_kafka, "gone")
    own_kafka.kill()
    took = Stopwatch()
    sent = target.send(0, [batch(0, 10)])
    assert sent["outcome"] in ("_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN"), sent
    assert took.seconds < 60


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
            target = claimed(broker, f"denied-{type_.name.lower()}")
            deny = ("User:ANONYMOUS", "*", AclOperation.ALL, AclPermissionType.DENY)
            binding = AclBinding(type_, f"mzplan.{target.topic}", ResourcePatternType.LITERAL, *deny)
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            (future,) = admin.create_acls([binding]).values()
            future.result(20)
            sent = target.send(0, [batch(0, 1)])
            assert sent["outcome"] == outcome, sent
            assert target.ids() == []
    finally:
        broker.remove_data()
