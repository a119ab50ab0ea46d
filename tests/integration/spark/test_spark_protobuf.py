"""Protobuf records, with a schema registry and without one, through a real broker and Spark."""

from __future__ import annotations

from dataclasses import replace

from examples.servers.registry import SchemaRegistry
from mzplan.schema.description import Description
from tests.integration.spark.test_spark_avro import error, from_registry, problems
from tests.integration.spark.test_spark_formats import rows
from tests.integration.spark_lab import Lab
from tests.support import Make, eventually
from tests.unit.connectors.test_protobuf_decode import MONEY, ORDER, TEXTS, message, wire

COLUMNS = "id BIGINT NOT NULL, note STRING, amount STRUCT<units: BIGINT>, tags ARRAY<STRING>, state STRING"


def framed(lab: Lab, registry: SchemaRegistry, topic: str, schema: str, **body: object) -> Description:
    format_ = {"type": "protobuf", "schema": schema}
    found = lab.kafka_source(topic, format=format_, schema_registry="reg", **body)
    return replace(found, connections={**found.connections, **from_registry(registry)})


def test_records_are_read_by_the_definition_in_the_project(lab: Lab, topic: Make) -> None:
    name = topic(partitions=1)
    of_project = {"proto_file": "protos/order.proto", "proto": dict(TEXTS)}
    format_ = {"type": "protobuf", "message": "shop.Order", "schema": COLUMNS, **of_project}
    unfit = lab.kafka_source(name, format={**format_, "schema": "id STRING, gone INT"})
    assert [found.detail for found in lab.check(unfit).diagnostics] == [
        "protos/order.proto, shop.Order: its field id is int64, but the column is STRING.",
        "protos/order.proto, shop.Order: it has no field gone: the column would be NULL in every row.",
    ]
    source = lab.kafka_source(name, format=format_, on_error="skip", include={"key": "k"})
    assert lab.codes(source) == []
    first = message(id=1, note="a", amount={"units": 9}, tags=["x"], state="PAID")
    lab.send(name, first, b"\xff", message(id=2), key=b"K")
    lab.start(source)
    eventually("the good ones", lambda: lab.count(source) == 2)
    assert rows(lab, source) == [
        {"id": 1, "note": "a", "amount": {"units": 9}, "tags": ["x"], "state": "PAID", "k": "K"},
        {"id": 2, "note": None, "amount": None, "tags": [], "state": "NEW", "k": "K"},
    ]
    eventually("the other is counted", lambda: lab.report(source).left_out == 1)
    failing = lab.kafka_source(name, format=format_)
    lab.start(failing)
    where = f"topic {name}, partition 0, offset 1"
    assert error(lab, failing) == ("MZ066", f"{where}: the record doesn't match the message shop.Order")


def test_records_with_a_registry_are_read_by_its_latest_definition(lab: Lab, topic: Make) -> None:
    name = topic(partitions=1)
    with SchemaRegistry("app", lab.postgres.password) as registry:
        registry.register("money", MONEY, "PROTOBUF")
        references = [{"name": "common/money.proto", "subject": "money", "version": 1}]
        first = registry.register(f"{name}-value", ORDER, "PROTOBUF", references)
        assert problems(lab, framed(lab, registry, name, "id STRING")) == [
            "its field id is int64, but the column is STRING."
        ]
        key = {"envelope": {"type": "upsert", "key": ["id"], "key_format": "text"}}
        source = framed(lab, registry, name, "id BIGINT, note STRING", on_error="skip", **key)
        assert lab.codes(source) == []
        lab.send(name, wire(message(id=1, note="a"), first), key=b"1")
        lab.send(name, wire(message(id=2, note="b"), first), key=b"2")
        lab.send(name, wire(message("shop.Customer", id=3), first, b"\x02\x02"), key=b"3")
        lab.start(source)
        eventually(
            "two rows, without the customer", lambda: [row["id"] for row in rows(lab, source)] == [1, 2]
        )
        # A definition that is registered while the query runs, with another field before and a renamed one.
        later = ORDER.replace(
            "int64 id = 1; optional string note", "int32 extra = 30; int64 id = 1; optional string memo"
        )
        second = registry.register(f"{name}-value", later, "PROTOBUF", references)
        texts = (TEXTS[0], ("order.proto", later))
        lab.send(name, wire(message(texts=texts, id=2, memo="c", extra=1), second), key=b"2")
        lab.send(name, None, key=b"1")
        eventually("one row", lambda: rows(lab, source) == [{"id": 2, "note": "c"}])
