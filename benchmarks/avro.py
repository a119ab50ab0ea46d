"""Kafka → collection: records in Avro against the same in JSON, both by mzplan's source.

JSON is read by Spark itself; Avro by tasks in Python (fastavro, Arrow), each record by the schema of its id.
"""

from __future__ import annotations

import io
import json
import statistics
import struct
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
from confluent_kafka import Producer

from benchmarks.engine import Engine, describe_source
from benchmarks.stage import alternate, kafka_at, ratio, say, scratch, verdict
from examples.servers import create_topic
from examples.servers.registry import SchemaRegistry
from mzplan.inline import Description, InlinedConnection
from mzplan.model.address import Address

RECORDS = 400_000
PARTITIONS = 4
PER_BATCH = 100_000
WARM_UP = 1
ROUNDS = 3
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


def main() -> None:
    say(f"avro: {RECORDS:,} records, {PER_BATCH:,} in a micro-batch")
    with (
        scratch() as folder,
        kafka_at(folder) as kafka,
        SchemaRegistry() as registry,
        Engine(folder, {}, {}) as engine,
    ):
        id_ = registry.register("avro-value", SCHEMA, "AVRO")
        _produce(kafka.bootstrap, "avro", (_avro(id_, row) for row in _rows()))
        _produce(kafka.bootstrap, "json", (_json(row) for row in _rows()))

        def read(format_: str) -> float:
            source = _source(kafka.bootstrap, registry.url, format_)
            seconds = engine.ours(source)
            table = engine.spark.read.format("delta").load(engine.collection(source))
            found = table.selectExpr("count(ts)", "count(DISTINCT id)", "count(*)").first()
            assert found is not None and tuple(found) == (RECORDS, RECORDS, RECORDS), found
            return seconds

        taken = alternate({name: lambda name=name: read(name) for name in ("avro", "json")}, WARM_UP + ROUNDS)  # type: ignore[misc]
    a, b = taken["avro"][WARM_UP:], taken["json"][WARM_UP:]
    rates = [RECORDS / statistics.median(seconds) for seconds in (a, b)]
    times = ratio(b, a)
    say(f"  avro {rates[0]:,.0f} rows/s, json {rates[1]:,.0f} rows/s")
    say(f"  avro / json {times:.2f}; {verdict(times >= 0.5)}: 0.5")


def _source(brokers: str, url: str, format_: str) -> Description:
    source = describe_source(
        "kafka",
        {"type": "kafka", "brokers": [brokers]},
        topic=format_,
        format={"type": format_, "schema": COLUMNS},
        max_offsets_per_trigger=PER_BATCH,
    )
    if format_ == "json":
        return source
    registry = InlinedConnection(
        address=Address("connection", "registry"),
        type="schema-registry",
        body={"type": "schema-registry", "url": url},
    )
    return replace(source, connections={**source.connections, "schema_registry": registry})


def _rows() -> Iterator[dict[str, Any]]:
    begin = datetime(2026, 1, 5, tzinfo=UTC)
    for i in range(RECORDS):
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


def _produce(brokers: str, topic: str, records: Iterator[bytes]) -> None:
    create_topic(brokers, topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": brokers, "queue.buffering.max.messages": 2 * RECORDS})
    for i, record in enumerate(records):
        producer.produce(topic, record, partition=i % PARTITIONS)
    assert producer.flush(60) == 0


if __name__ == "__main__":
    main()
