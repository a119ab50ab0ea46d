"""Avro records with a schema registry, through a real broker and Spark."""

from __future__ import annotations

import datetime
import io
import struct
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import fastavro
from confluent_kafka import Producer

from examples.servers.registry import SchemaRegistry
from mzplan.inline import Description, InlinedConnection
from mzplan.model.address import Address
from tests.integration.spark_lab import until

if TYPE_CHECKING:
    from tests.integration.spark_lab import Lab

Make = Callable[..., str]
UTC = datetime.UTC
LOGIN = {"user": "app", "password": "${env:PG_PASSWORD}"}  # the one secret that the lab has


def avro(id_: int, schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return struct.pack(">bI", 0, id_) + out.getvalue()


def record(*fields: tuple[Any, ...]) -> dict[str, Any]:
    made = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return {"type": "record", "name": "orders", "fields": made}


def send(lab: Lab, topic: str, *values: bytes | None, key: bytes | None = None) -> None:
    producer = Producer({"bootstrap.servers": lab.kafka.bootstrap})
    for value in values:
        producer.produce(topic, value, key=key, partition=0)
    assert producer.flush(30) == 0


def rows(lab: Lab, source: Description) -> list[dict[str, Any]]:
    found = lab.collection(source).orderBy("_position").drop("_position").collect()
    return [row.asDict(recursive=True) for row in found]


def avro_source(lab: Lab, registry: SchemaRegistry, topic: str, schema: str, **body: Any) -> Description:
    found = lab.kafka_source(topic, format={"type": "avro", "schema": schema}, schema_registry="reg", **body)
    there = InlinedConnection(
        address=Address("connection", "reg"),
        type="schema-registry",
        body={"type": "schema-registry", "url": registry.url, **LOGIN},
    )
    return replace(found, connections={**found.connections, "schema_registry": there})


MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
AT = {"type": "long", "logicalType": "timestamp-millis"}


def test_records_of_several_schemas(lab: Lab, topic: Make) -> None:
    name = topic(partitions=1)
    one = record(("id", "long"), ("customer", "string"), ("amount", ["null", MONEY]), ("at", AT))
    two = record(
        ("note", "string", "none"),
        ("id", "int"),
        ("amount", MONEY),
        ("tags", {"type": "map", "values": "int"}),
    )
    at = datetime.datetime(2026, 5, 3, 17, 30, tzinfo=UTC)
    ann = {"id": 1, "customer": "ann", "amount": Decimal("9.99"), "at": at}
    columns = "id BIGINT NOT NULL, customer STRING, amount DECIMAL(12,2), at TIMESTAMP"
    with SchemaRegistry("app", lab.postgres.password) as registry:
        assert lab.codes(avro_source(lab, registry, name, columns)) == ["MZ127"]
        first = registry.register(f"{name}-value", one, "AVRO")
        wrong = avro_source(lab, registry, name, "id INT, customer BIGINT, more INT")
        assert [d.detail.partition("version 1: ")[2] for d in lab.check(wrong).diagnostics] == [
            "its field id is long, and the column INT; its field customer is string, and the column BIGINT.",
            "it has no field more: the column would be NULL in every row.",
        ]
        source = avro_source(lab, registry, name, columns, include={"key": "k"}, on_error="skip")
        failing = avro_source(lab, registry, name, columns)
        assert lab.codes(source) == []
        send(lab, name, avro(first, one, ann), avro(first, one, {**ann, "id": 2, "amount": None}), key=b"K")
        lab.start(source, failing)
        until("both", lambda: lab.collection(source).count() == 2 == lab.collection(failing).count())
        assert rows(lab, source) == [
            {"id": 1, "customer": "ann", "amount": Decimal("9.99"), "at": local(at), "k": "K"},
            {"id": 2, "customer": "ann", "amount": None, "at": local(at), "k": "K"},
        ]

        # Another schema appears while it runs: asked for once. With it come records that can't be read.
        second = registry.register(f"{name}-value", two, "AVRO")
        other = registry.register("other", {"type": "object"})
        newer = avro(second, two, {"note": "x", "id": 3, "amount": Decimal(1), "tags": {"a": 1}})
        before = len(registry.asked)
        send(lab, name, newer, avro(99, one, ann), b"{}", None, avro(other, one, ann), newer)
        until("the good ones", lambda: lab.collection(source).count() == 4)
        assert [row["id"] for row in rows(lab, source)] == [1, 2, 3, 3]
        asked = [path for path in registry.asked[before:] if path == f"/schemas/ids/{second}"]
        assert 1 <= len(asked) <= 4, "once a Python process that it runs in"
        report = lab.ended(failing)
        assert (report.error_code, report.error) == (
            "MZ066",
            f"topic {name}, partition 0, offset 3: its schema 99 is not in connection.reg",
        )

        # An added column: with the latest schema's default where the record's own has no such field.
        lab.stop(source, failing)
        wider = replace(
            source,
            digest="1:b",
            body={
                **source.body,
                "format": {"type": "avro", "schema": f"{columns}, note STRING, tags MAP<STRING,INT>"},
            },
        )
        lab.start(wider)
        send(lab, name, newer, avro(first, one, {**ann, "id": 4}))
        until("two more", lambda: lab.collection(source).count() == 6)
        assert [(r["id"], r["note"], r["tags"]) for r in rows(lab, wider)[2:]] == [
            (3, None, None),
            (3, None, None),
            (3, "x", {"a": 1}),
            (4, "none", None),
        ]

        # The registry is gone: what is known is read on; what is not known waits for it.
        third = registry.register(f"{name}-value", record(("id", "long")), "AVRO")
        registry.stop()
        send(lab, name, newer)
        until("one more", lambda: lab.collection(source).count() == 7)
        send(lab, name, avro(third, record(("id", "long")), {"id": 5}))
        report = lab.ended(wider)
        assert report.error_code == "MZ125"
        assert report.error == (
            f"schema {third} is needed, and connection.reg can't be reached: "
            f"connection refused ({registry.url})"
        )
        registry.start()
        lab.start(wider)  # as the runner does after a while
        until("the last one", lambda: lab.collection(source).count() == 8)
        # The schema that is the latest now has no default to give.
        assert rows(lab, wider)[-1] == dict.fromkeys(rows(lab, wider)[-1]) | {"id": 5}
        lab.stop(wider)


def local(at: datetime.datetime) -> datetime.datetime:
    return at.astimezone().replace(tzinfo=None)
