"""`mzplan generate` on real servers: what it prints is valid, and can be read."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
import yaml

from examples.servers import KafkaBroker, PostgresServer
from examples.servers.registry import SchemaRegistry
from tests.support import Make
from tests.unit.cli_runs import PROJECT, failed, mzplan

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "odd", "type": ["int", "string"]},
    ],
}
JSON = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "day": {"type": "string", "format": "date"},
        "who": {"type": "object", "properties": {"first-name": {"type": ["string", "null"]}}},
        "any": {},
    },
}
CART = """
syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto";
message Cart {
  int64 id = 1; google.protobuf.Timestamp at = 2; repeated Line lines = 3; map<string, bool> marks = 4;
  message Line { string sku = 1; int32 count = 2; }
}
"""
TABLES = """
CREATE TABLE customers (id BIGINT PRIMARY KEY, name TEXT, balance NUMERIC(10,2), seen TIMESTAMPTZ);
CREATE TABLE visits (at DATE);
CREATE SCHEMA sales;
CREATE TABLE sales."Order lines" (
  "order" INT, line INT GENERATED ALWAYS AS IDENTITY, twice INT GENERATED ALWAYS AS (2 * "order") STORED,
  PRIMARY KEY ("order", line)
);
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mzplan.yaml").write_text(PROJECT % "dry")
    return tmp_path


def test_topics_become_sources_with_the_columns_of_the_registry(
    kafka: KafkaBroker, topic: Make, folder: Path
) -> None:
    plain, orders, users, known = topic("Plain.v2"), topic("orders"), topic("users"), topic("known")
    carts = topic("carts")
    with SchemaRegistry() as registry:
        registry.register(f"{orders}-value", AVRO, "AVRO")
        registry.register(f"{users}-value", JSON)
        registry.register(f"{carts}-value", CART, "PROTOBUF")
        (folder / "pipeline.yaml").write_text(
            f"connections:\n  k: {{type: kafka, brokers: ['{kafka.bootstrap}']}}\n"
            f"  reg: {{type: schema-registry, url: '{registry.url}'}}\n"
            f"sources:\n  s: {{connection: k, topic: {known}, format: {{type: raw}}}}\n"
        )
        ran = mzplan(folder, "generate", "--connection", "k", "--json")
        assert ran.code == 0, ran
        by_topic = {body["topic"]: body for body in ran.json()["sources"].values()}
        assert known not in by_topic
        assert by_topic[plain] == {"connection": "k", "topic": plain, "format": {"type": "raw"}}
        assert by_topic[orders]["schema_registry"] == "reg"
        schema = "id BIGINT, amount DECIMAL(10,2), at TIMESTAMP, tags ARRAY<STRING>, counts MAP<STRING,INT>"
        assert by_topic[orders]["format"] == {"type": "avro", "schema": schema}
        schema = "id BIGINT, day DATE, who STRUCT<`first-name`: STRING>"
        assert by_topic[users]["format"] == {"type": "json", "schema": schema}
        schema = (
            "id BIGINT, at TIMESTAMP, lines ARRAY<STRUCT<sku: STRING, count: INT>>, marks MAP<STRING,BOOLEAN>"
        )
        assert by_topic[carts]["format"] == {"type": "protobuf", "schema": schema}
        printed = mzplan(folder, "generate", "--connection", "connection.k")
        assert "no column type holds them: odd." in printed.out
        assert yaml.safe_load(printed.out) == {"sources": ran.json()["sources"]}
        (folder / "generated.yaml").write_text(printed.out)
        assert mzplan(folder, "validate").code == 0
        assert "No other topic or table" in mzplan(folder, "generate", "--connection", "k").out


def test_tables_become_sources_with_their_keys(
    postgres: PostgresServer, database: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = database("shop")
    with psycopg.connect(postgres.dsn(name), autocommit=True) as session:
        session.execute(TABLES)
    link = (
        f"{{type: postgres, host: 127.0.0.1, port: {postgres.port}, database: {name}, user: {postgres.user}"
    )
    (folder / "pipeline.yaml").write_text(f"connections:\n  pg: {link}, password: '${{env:PG_PW}}'}}\n")
    monkeypatch.setenv("PG_PW", postgres.password)
    monkeypatch.delenv("CI", raising=False)  # a CI job would need a policy
    printed = mzplan(folder, "generate", "--connection", "pg")
    assert printed.code == 0, printed
    assert "# visits: It has no primary key or unique index" in printed.out
    assert "doesn't log generated columns: twice." in printed.out
    assert yaml.safe_load(printed.out)["sources"] == {
        "customers": {
            "connection": "pg",
            "tables": ["public.customers"],
            "schema": "id BIGINT, name STRING, balance DECIMAL(10,2), seen TIMESTAMP",
            "key": ["id"],
        },
        "sales_order_lines": {
            "connection": "pg",
            "tables": ['sales."Order lines"'],
            "schema": "order INT, line INT",
            "key": ["order", "line"],
        },
    }
    (folder / "generated.yaml").write_text(printed.out)
    assert mzplan(folder, "validate").code == 0
    assert "No other topic or table" in mzplan(folder, "generate", "--connection", "pg").out


def test_what_cannot_be_listed_is_an_error(folder: Path) -> None:
    (folder / "pipeline.yaml").write_text(
        "connections:\n  k: {type: kafka, brokers: ['127.0.0.1:9']}\n  here: {type: files, path: data}\n"
        "  cloud: {type: aws, region: eu-west-1}\n"
    )
    assert failed(folder, "generate", "--connection", "here", code=64)["code"] == "MZ070"
    assert failed(folder, "generate", "--connection", "cloud", code=64)["code"] == "MZ070"
    assert failed(folder, "generate", "--connection", "nothing", code=64)["code"] == "MZ070"
    assert failed(folder, "generate", "--connection", "k", code=1)["code"] == "MZ050"
