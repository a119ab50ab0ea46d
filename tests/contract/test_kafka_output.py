"""The output contract over the kafka sink's own endpoint, on a real broker."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pytest
from pyarrow import RecordBatch

from mzplan.connectors.api.queries import ResolvedConnection
from mzplan.connectors.kafka.options import transaction_options
from mzplan.connectors.kafka.output import KafkaOutput
from mzplan.connectors.kafka.step_record import KafkaStepRecord
from mzplan.connectors.kafka.transaction import KafkaTransaction
from mzplan.endpoints import OutputEndpoint
from mzplan.endpoints.testing import OutputSubject, output_contract
from mzplan.model.address import Address
from mzplan.warehouse.content_hash import HASH, row_hashes
from tests.integration.committed import committed

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
        contents=lambda: _settled(made.bootstrap, topic),
    )


def _settled(bootstrap: str, topic: str) -> list[Any]:
    """Read the committed values until two reads agree: a commit returns before its markers are written."""
    before = None
    while (values := [value for _, _, value in committed(bootstrap, topic)]) != before:
        before = values
        time.sleep(0.3)
    return values


TestKafkaOutput = output_contract(kafka_output)
