"""The output contract over the kafka sink's own endpoint, on a real broker."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec
from pyarrow import RecordBatch

from mzplan.connectors.api.queries import ResolvedConnection
from mzplan.connectors.kafka.options import transaction_options
from mzplan.connectors.kafka.output import KafkaOutput
from mzplan.connectors.kafka.step_record import KafkaStepRecord
from mzplan.connectors.kafka.transaction import KafkaTransaction
from mzplan.endpoints import OutputEndpoint
from mzplan.endpoints.testing import OutputSubject, output_contract
from mzplan.model.address import Address
from mzplan.warehouse.rows.content_hash import HASH, row_hashes
from tests.integration.committed import committed
from tests.support import eventually

if TYPE_CHECKING:
    from examples.servers import KafkaBroker

_topics = itertools.count()


@pytest.fixture(autouse=True)
def broker(kafka: KafkaBroker) -> Iterator[None]:
    Outputs.bootstrap = kafka.bootstrap
    yield
    for made in Outputs.opened:
        made.close()
    Outputs.opened.clear()


class AsRecords(KafkaOutput):
    """Rows become records as Spark makes them: JSON, with the row's hash."""

    def push_buffer(self, batch: RecordBatch) -> None:
        values = [json.dumps(row) for row in batch.to_pylist()]
        hashes = pa.array(row_hashes(batch).view("i8"))
        super().push_buffer(pa.RecordBatch.from_pydict({"value": values, HASH: hashes}))


class Outputs:
    """Endpoints into one topic, each a run of its own."""

    bootstrap = ""
    opened: ClassVar[list[KafkaOutput]] = []

    def __init__(self, topic: str):
        self.topic = topic

    def name(self) -> str:
        return "kafka"

    def new_endpoint(self, name: str, config: Mapping[str, Any]) -> OutputEndpoint:
        body = {"brokers": [self.bootstrap], "security": {"protocol": "PLAINTEXT"}, "options": {}}
        cluster = ResolvedConnection(address=Address("connection", "k"), type="kafka", body=body)
        transaction = KafkaTransaction(
            transaction_options(cluster, "."), f"mzplan.{self.topic}", self.topic, 60_000
        )
        writer = KafkaStepRecord(generation=1, epoch=1, query="q", step=-1)
        if transaction.read() is None:  # as the driver claims it
            transaction.commit_record(None, writer.step, writer.text)
        made = AsRecords(transaction, writer, partitions=1, compare=config["compare"])
        self.opened.append(made)
        return made


def kafka_output(folder: Path) -> OutputSubject:
    from examples.servers import create_topic

    topic = f"contract-{next(_topics)}"
    create_topic(Outputs.bootstrap, topic, 1)
    made = Outputs(topic)
    return OutputSubject(
        factory=made,
        config={},
        contents=lambda: _committed(made.bootstrap, topic),
    )


def _committed(bootstrap: str, topic: str) -> list[Any]:
    """Read the committed values, once no transaction is undecided: a commit returns before its markers are
    written."""
    from examples.servers.topics import admin

    client, place = admin(bootstrap), TopicPartition(topic, 0)

    def end(level: IsolationLevel) -> int:
        found = client.list_offsets({place: OffsetSpec.latest()}, isolation_level=level)
        return found[place].result(10).offset

    levels = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
    eventually("all transactions have ended", lambda: len(set(map(end, levels))) == 1)
    return [value for _, _, value in committed(bootstrap, topic)]


TestKafkaOutput = output_contract(kafka_output)
