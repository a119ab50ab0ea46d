"""Avro records with a schema registry, through a real broker and Spark."""

from __future__ import annotations

import datetime
import io
import json
import struct
from dataclasses import replace
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer

from examples.servers.registry import SchemaRegistry
from mzplan.schema.description import Description, InlinedConnection
from tests.integration.committed import committed
from tests.integration.spark.test_spark_formats import local, rows
from tests.integration.spark_lab import Lab
from tests.support import Make, eventually
from tests.unit.connectors.queries import inlined

UTC = datetime.UTC
LOGIN = {"user": "app", "password": "${env:PG_PASSWORD}"}  # the one secret that the lab has


def avro(id_: int, schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return struct.pack(">bI", 0, id_) + out.getvalue()


def record(*fields: tuple[Any, ...]) -> dict[str, Any]:
    made = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return {"type": "record", "name": "orders", "fields": made}


def problems(lab: Lab, description: Description) -> list[str]:
    """What a check says of the first version of a schema."""
    return [found.detail.partition("version 1: ")[2] for found in lab.check(description).diagnostics]


def error(lab: Lab, description: Description) -> tuple[str | None, str]:
    """The code and the summary of the error that ends a query."""
    report = lab.ended(description)
    return report.error_code, (report.error or "").partition(". Fix: ")[0]


def avro_source(lab: Lab, registry: SchemaRegistry, topic: str, schema: str, **body: Any) -> Description:
    found = lab.kafka_source(topic, format={"type": "avro", "schema": schema}, schema_registry="reg", **body)
    return replace(found, connections={**found.connections, **from_registry(registry)})


def from_registry(registry: SchemaRegistry) -> dict[str, InlinedConnection]:
    return {"schema_registry": inlined("reg", {"type": "schema-registry", "url": registry.url, **LOGIN})}


MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
AT = {"type": "long", "logicalType": "timestamp-millis"}


def test_records_of_several_schemas(lab: Lab, topic: Make) -> None:
    name = topic(partitions=1)
    one = record(("id", "long"), ("customer", "string"), ("amount", ["null", MONEY]), ("at", AT))
    tags = {"type": "map", "values": "int"}
    two = record(("note", "string", "none"), ("id", "int"), ("amount", MONEY), ("tags", tags))
    at = datetime.datetime(2026, 5, 3, 17, 30, tzinfo=UTC)
    ann = {"id": 1, "customer": "ann", "amount": Decimal("9.99"), "at": at}
    columns = "id BIGINT NOT NULL, customer STRING, amount DECIMAL(12,2), at TIMESTAMP"
    with SchemaRegistry("app", lab.postgres.password) as registry:
        assert lab.codes(avro_source(lab, registry, name, columns)) == ["MZ052"]
        first = registry.register(f"{name}-value", one, "AVRO")
        wrong = avro_source(lab, registry, name, "id INT, customer BIGINT, more INT")
        assert problems(lab, wrong) == [
            "its field id is long, but the column is INT; "
            "its field customer is string, but the column is BIGINT.",
            "it has no field more: the column would be NULL in every row.",
        ]
        source = avro_source(lab, registry, name, columns, include={"key": "k"}, on_error="skip")
        failing = avro_source(lab, registry, name, columns)
        assert lab.codes(source) == []
        second = registry.register(f"{name}-value", two, "AVRO")
        other = registry.register("other", {"type": "object"})
        newer = avro(second, two, {"note": "x", "id": 3, "amount": Decimal(1), "tags": {"a": 1}})
        lab.send(name, avro(first, one, ann), avro(first, one, {**ann, "id": 2, "amount": None}), key=b"K")
        lab.send(name, newer, avro(99, one, ann), b"{}", None, avro(other, one, ann), newer)
        lab.start(source, failing)
        eventually("the good ones", lambda: lab.count(source) == 4)
        assert rows(lab, source)[:2] == [
            {"id": 1, "customer": "ann", "amount": Decimal("9.99"), "at": local(at), "k": "K"},
            {"id": 2, "customer": "ann", "amount": None, "at": local(at), "k": "K"},
        ]
        assert [row["id"] for row in rows(lab, source)] == [1, 2, 3, 3]
        eventually("the others are counted", lambda: lab.report(source).left_out == 4)
        where = f"topic {name}, partition 0, offset 3"
        assert error(lab, failing) == ("MZ066", f"{where}: its schema 99 is not in connection.reg")

        # An added column: with the latest schema's default where the record's own has no such field.
        lab.stop(source, failing)
        format_ = {"type": "avro", "schema": f"{columns}, note STRING, tags MAP<STRING,INT>"}
        wider = replace(source, digest="1:b", body={**source.body, "format": format_})
        lab.send(name, newer, avro(first, one, {**ann, "id": 4}))
        lab.start(wider)
        eventually("two more", lambda: lab.count(source) == 6)
        added = [(row["id"], row["note"], row["tags"]) for row in rows(lab, wider)[2:]]
        assert added == [(3, None, None), (3, None, None), (3, "x", {"a": 1}), (4, "none", None)]

        # Another schema appears while it runs; defaults stay those of its start.
        third = registry.register(f"{name}-value", record(("id", "long")), "AVRO")
        lab.send(name, avro(third, record(("id", "long")), {"id": 5}))
        eventually("the last one", lambda: lab.count(source) == 7)
        last = rows(lab, wider)[-1]
        assert last == dict.fromkeys(last) | {"id": 5, "note": "none"}


@pytest.mark.nightly
def test_a_record_waits_for_the_registry_that_knows_its_schema(lab: Lab, topic: Make) -> None:
    name, long, int_ = topic(partitions=1), record(("id", "long")), record(("id", "int"))
    with SchemaRegistry("app", lab.postgres.password) as registry:
        first = registry.register(f"{name}-value", long, "AVRO")
        source = avro_source(lab, registry, name, "id BIGINT")
        lab.start(source)
        lab.send(name, avro(first, long, {"id": 1}))
        eventually("the first is read", lambda: lab.count(source) == 1)
        second = registry.register(f"{name}-value", int_, "AVRO")
        registry.stop()
        lab.send(name, avro(first, long, {"id": 2}))
        eventually("what is known is read on", lambda: lab.count(source) == 2)
        lab.send(name, avro(second, int_, {"id": 3}))
        code, summary = error(lab, source)
        assert code == "MZ050"
        assert summary.startswith(f"schema {second} is needed, and connection.reg can't be reached: ")
        registry.start()
        lab.start(source)  # as the runner does after a while
        eventually("the last is read", lambda: [row["id"] for row in rows(lab, source)] == [1, 2, 3])


def debezium(name: str, *fields: tuple[Any, ...]) -> dict[str, Any]:
    return {**record(*fields), "name": name, "namespace": "shop.public.orders"}


MICROS = {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}
ROW = debezium("Value", ("id", "long"), ("name", ["null", "string"], None), ("at", ["null", MICROS]))
CHANGES = debezium(
    "Envelope",
    ("before", ["null", ROW], None),
    ("after", ["null", "Value"], None),
    ("source", {"type": "record", "name": "Source", "fields": [{"name": "lsn", "type": "long"}]}),
    ("op", "string"),
    ("ts_ms", ["null", "long"], None),
)
KEY = debezium("Key", ("id", "long"))


@pytest.mark.nightly
def test_changes_in_debeziums_envelope(lab: Lab, topic: Make) -> None:
    """The same changes in Avro, and in JSON with its schema beside it, in the registry or nowhere."""

    def row(id_: int, name: str | None) -> dict[str, Any]:
        return {"id": id_, "name": name, "at": 1_000_000 * id_ if name else None}

    def change(op: str, before: Any = None, after: Any = None) -> dict[str, Any]:
        return {"before": before, "after": after, "source": {"lsn": 1}, "op": op, "ts_ms": 1}

    first = [
        (1, change("r", after=row(1, "ann"))),
        (2, change("c", after=row(2, "bob"))),
        (3, change("c", after=row(3, "cid"))),
        (3, change("u", after=row(3, "Cid"))),
    ]
    second = [
        (2, change("u", row(2, "bob"), row(2, "Bob"))),
        # PostgreSQL tells only the key of what it deletes, unless asked for more.
        (1, change("d", row(1, None))),
        (1, None),
        (4, change("c", after=row(4, "dan"))),
        # An update that changes the key: deleted and created.
        (2, change("d", row(2, "Bob"))),
        (2, None),
        (5, change("c", after=row(5, "Bob"))),
        # Not even the key: that is in the record's own.
        (3, change("d")),
        # The same, and not its primary key, so Debezium tells of one update: here the record's own key stays.
        (6, change("c", after=row(6, "eve"))),
        (6, change("u", row(6, "eve"), row(7, "Eve"))),
    ]
    avro_topic, json_topic = topic("dbz-avro", 1), topic("dbz-json", 1)
    columns = "id BIGINT, name STRING NOT NULL, at "
    envelope = {"type": "debezium", "key": ["id"]}
    with SchemaRegistry("app", lab.postgres.password) as registry:
        id_ = registry.register(f"{avro_topic}-value", CHANGES, "AVRO")
        key_id = registry.register(f"{avro_topic}-key", KEY, "AVRO")
        wrong = avro_source(lab, registry, avro_topic, "id INT, more STRING", envelope=envelope)
        assert len(problems(lab, wrong)) == 2
        sources = [
            avro_source(lab, registry, avro_topic, columns + "TIMESTAMP", envelope=envelope),
            avro_source(lab, registry, json_topic, columns + "BIGINT", envelope=envelope, on_error="skip"),
        ]
        sources[1].body["format"]["type"] = "json"
        registry.register(f"{json_topic}-value", {"type": "object"})

        def produce(changes: list[tuple[int, Any]]) -> None:
            producer = Producer({"bootstrap.servers": lab.kafka.bootstrap, "linger.ms": 200})
            for number, value in changes:
                key = avro(key_id, KEY, {"id": number})
                producer.produce(avro_topic, value and avro(id_, CHANGES, value), key=key)
                pair: list[Any] = [{"id": number}, value]
                if number % 2 == 0:
                    pair = [one and {"schema": {"type": "struct"}, "payload": one} for one in pair]
                head = b"\0\0\0\0\7" if number % 3 == 0 else b""
                producer.produce(json_topic, pair[1] and head + encoded(pair[1]), key=head + encoded(pair[0]))
            assert producer.flush(30) == 0

        def are(wanted: dict[int, str]) -> None:
            eventually(f"both have {wanted}", lambda: all(names(lab, source) == wanted for source in sources))

        produce(first)
        lab.start(*sources)
        are({1: "ann", 2: "bob", 3: "Cid"})
        produce(second)
        are({4: "dan", 5: "Bob", 7: "Eve"})
        assert {r["at"] for r in rows(lab, sources[0])} == {
            local(datetime.datetime.fromtimestamp(seconds, UTC)) for seconds in (4, 5, 7)
        }
        # What can't be followed: also a value that PostgreSQL did not send along, for it was not changed.
        unsent = change("u", after=row(5, "__debezium_unavailable_value"))
        bad = (change("t"), change("c"), change("m", after=row(9, "x")), {"id": 9}, change("d"), unsent)
        lab.send(json_topic, *(encoded(value) for value in (*bad, change("c", after=row(6, "eve")))))
        lab.send(avro_topic, avro(id_, CHANGES, change("d")), key=avro(77, KEY, {"id": 4}))
        assert "neither the row before it nor the record's key says id" in (lab.ended(sources[0]).error or "")
        eventually("skipped", lambda: names(lab, sources[1]) == {4: "dan", 5: "Bob", 6: "eve", 7: "Eve"})


@pytest.mark.nightly
def test_tombstones_with_avro_keys(lab: Lab, topic: Make) -> None:
    name = topic(partitions=1)
    row = record(("id", "long"), ("name", "string"))
    with SchemaRegistry("app", lab.postgres.password) as registry:
        id_ = registry.register(f"{name}-value", row, "AVRO")
        key_id = registry.register(f"{name}-key", KEY, "AVRO")
        envelope = {"type": "upsert", "key": ["id"], "key_format": "avro"}
        source = avro_source(lab, registry, name, "id BIGINT, name STRING", envelope=envelope)
        for number, value in ((1, "ann"), (2, "bob"), (1, None), (2, "Bob"), (3, "cid")):
            told = avro(id_, row, {"id": number, "name": value}) if value else None
            lab.send(name, told, key=avro(key_id, KEY, {"id": number}))
        lab.start(source)
        eventually("what is left", lambda: names(lab, source) == {2: "Bob", 3: "cid"})
        lab.send(name, None, key=b"2")
        assert "the key is not id BIGINT in Avro" in (lab.ended(source).error or "")


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def names(lab: Lab, source: Description) -> dict[int, str]:
    return {row["id"]: row["name"] for row in lab.read(source)}


def test_rows_are_written_with_the_topics_schema(lab: Lab, topic: Make) -> None:
    """Exactly once and at least once; what is deleted is a tombstone."""
    name, once, often = topic("in", 1), topic("once", 1), topic("often", 1)
    columns = "id BIGINT, amount DECIMAL(10,2), at TIMESTAMP, tags MAP<STRING,INT>"
    source = lab.kafka_source(name, columns, envelope={"type": "upsert", "key": ["id"]})
    written = record(
        ("id", "long"),
        ("amount", ["null", {**MONEY, "precision": 11, "scale": 3}]),
        ("at", {"type": "long", "logicalType": "timestamp-micros"}),
        ("tags", ["null", {"type": "map", "values": "long"}]),
        ("note", "string", "none"),
    )
    with SchemaRegistry("app", lab.postgres.password) as registry:

        def sink(to: str, **body: Any) -> Description:
            body = {"mode": "upsert", "key": ["id"], "format": {"type": "avro"}, **body}
            made = lab.kafka_sink(source, to, schema_registry="reg", **body)
            return replace(made, connections={**made.connections, **from_registry(registry)})

        sinks = (sink(once), sink(often, delivery="at-least-once"))
        assert lab.codes(sinks[0]) == ["MZ052"]
        ids = {to: registry.register(f"{to}-value", written, "AVRO") for to in (once, often)}
        assert [lab.codes(one) for one in sinks] == [[], []]
        narrow = sink(once, select=["id", "amount"])
        assert problems(lab, narrow) == ["its field at has no default, but the sink doesn't write it."]

        def put(key: int, **row: Any) -> None:
            value = encoded({"id": key, **row}) if row else None
            lab.send(name, value, key=str(key).encode())

        def hold(wanted: dict[int, Any]) -> None:
            eventually("both hold it", lambda: all(latest(lab, to, ids[to], written) == wanted for to in ids))

        at = datetime.datetime(2026, 5, 3, 17, 30, 0, 123456, UTC)
        put(1, amount=9.99, at=at.isoformat(), tags={"a": 1})
        put(2, at=at.isoformat())
        lab.start(source, *sinks)
        one = {"id": 1, "amount": Decimal("9.990"), "at": at, "tags": {"a": 1}, "note": "none"}
        two = {"id": 2, "amount": None, "at": at, "tags": None, "note": "none"}
        hold({1: one, 2: two})
        put(2)
        hold({1: one, 2: None})
        # What the schema does not allow, nobody could read.
        put(3, amount=1)
        for one_sink in sinks:
            assert error(lab, one_sink) == (
                "MZ059",
                f"a row can't be written with schema {ids[once]}: "
                "orders.at is long timestamp-micros in the schema, but NULL in the row",
            )


def latest(lab: Lab, topic: str, id_: int, schema: Any) -> dict[int, Any]:
    """By key, the last record that is committed."""
    parsed = fastavro.parse_schema(schema)
    found: dict[int, Any] = {}
    for _, key, value in committed(lab.kafka.bootstrap, topic, lambda message: message.value()):
        assert value is None or value[:5] == struct.pack(">bI", 0, id_)
        found[int(key or "")] = value and fastavro.schemaless_reader(io.BytesIO(value[5:]), parsed, None)
    return found
