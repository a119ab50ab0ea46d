"""Kafka → collection: Avro records compared with the same records in JSON, both through mzplan's source.

Spark itself reads JSON. Python tasks (fastavro, Arrow) read Avro, each record with the schema of its id.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import fastavro
from confluent_kafka import Producer

from benchmarks.engine import describe_source
from benchmarks.figures import Rounds, Table, alternate, rate, ratio, verdict
from benchmarks.stage import Stage
from examples.servers import create_topic
from examples.servers.registry import SchemaRegistry
from mzplan.model.address import Address
from mzplan.schema.description import Description, InlinedConnection

PARTITIONS = 4
COLUMNS = "id BIGINT, customer STRING, amount DECIMAL(10,2), quantity INT, ts TIMESTAMP, note STRING"
SCHEMA = {
    "type": "record",
    "name": "orders",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "quantity", "type": "int"},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "note", "type": ["null", "string"]},
    ],
}


@dataclass(frozen=True, slots=True)
class Size:
    """The number of records in all, and per micro-batch."""

    records: int
    per_batch: int
    rounds: Rounds


FULL = Size(records=400_000, per_batch=100_000, rounds=Rounds(1, 3))
SMALL = Size(records=500, per_batch=500, rounds=Rounds(0, 1))


def measure(stage: Stage) -> Table:
    size = SMALL if stage.small else FULL
    records = size.records
    engine, brokers = stage.engine, stage.kafka.bootstrap
    with SchemaRegistry() as registry:
        id_ = registry.register("avro-value", SCHEMA, "AVRO")
        _produce(brokers, "avro", [_avro(id_, row) for row in _rows(records)])
        _produce(brokers, "json", [_json(row) for row in _rows(records)])

        def read(format_: str) -> float:
            source = _source(brokers, registry.url, format_, size.per_batch)
            seconds = engine.ours(source)
            table = engine.spark.read.format("delta").load(engine.collection(source))
            found = table.selectExpr("count(ts)", "count(DISTINCT id)", "count(*)").first()
            assert found is not None and tuple(found) == (records, records, records), found
            return seconds

        taken = alternate({name: partial(read, name) for name in ("avro", "json")}, size.rounds)
    times = ratio(taken["json"], taken["avro"])
    return Table(
        ("format", "rows/s", "× JSON", "aim"),
        [
            (
                "Avro, with a schema registry",
                rate(records, taken["avro"]),
                f"{times:.2f}",
                verdict("0.5", times >= 0.5),
            ),
            ("JSON", rate(records, taken["json"]), "1", ""),
        ],
    )


def _source(brokers: str, url: str, format_: str, per_batch: int) -> Description:
    source = describe_source(
        "kafka",
        {"type": "kafka", "brokers": [brokers]},
        topic=format_,
        format={"type": format_, "schema": COLUMNS},
        max_offsets_per_trigger=per_batch,
    )
    if format_ == "json":
        return source
    registry = InlinedConnection(
        address=Address("connection", "registry"),
        type="schema-registry",
        body={"type": "schema-registry", "url": url},
    )
    return replace(source, connections={**source.connections, "schema_registry": registry})


def _rows(records: int) -> Iterator[dict[str, Any]]:
    begin = datetime(2026, 1, 5, tzinfo=UTC)
    for i in range(records):
        yield {
            "id": i,
            "customer": f"customer {i % 5000}",
            "amount": Decimal(i % 100_000).scaleb(-2),
            "quantity": i % 7,
            "ts": begin + timedelta(seconds=i),
            "note": "left at the door, as always",
        }


_PARSED = fastavro.parse_schema(SCHEMA)


def _avro(id_: int, row: dict[str, Any]) -> bytes:
    out = io.BytesIO(struct.pack(">bI", 0, id_))
    out.seek(5)
    fastavro.schemaless_writer(out, _PARSED, row)
    return out.getvalue()


def _json(row: dict[str, Any]) -> bytes:
    return json.dumps({**row, "amount": str(row["amount"]), "ts": row["ts"].isoformat()}).encode()


def _produce(brokers: str, topic: str, records: Sequence[bytes]) -> None:
    create_topic(brokers, topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": brokers, "queue.buffering.max.messages": 2 * len(records)})
    for i, record in enumerate(records):
        producer.produce(topic, record, partition=i % PARTITIONS)
    assert producer.flush(60) == 0
