"""The columns and the key of a source: by its format, its envelope, and the columns that it includes."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from mzplan.model.resources import Configuration
from mzplan.plan import build_plan
from mzplan.schema.source_columns import columns_of, keys_of
from tests.unit.config_files import brief, errors, load, resource
from tests.unit.small_projects import actions, commit, fields, kafka, postgres, project, sink, source

CONNECTIONS = """\
connections:
  c: {type: kafka, brokers: ['a:1']}
  same: {type: kafka, brokers: ['k2:9092', 'A:1']}
  other: {type: kafka, brokers: ['k2:9092']}
  r: {type: schema-registry, url: 'https://r:8081'}
  p: {type: postgres, host: h, database: d, user: u, password: '${env:P}'}
  l: {type: files, path: ./lake}
"""
JSON = "{type: json, schema: 'a INT'}"
RAW = "{type: raw}"
ROWS = "{type: json, schema: 'id BIGINT, tags ARRAY<INT>'}"
PAIRS = "{type: json, schema: 'id BIGINT, at DATE'}"
CHANGES = "{type: json, schema: 'id BIGINT, _change STRING'}"
AVRO = "{type: avro, schema: 'id BIGINT, at DATE'}\n    schema_registry: r"
UPSERT = "envelope: {type: upsert, key: [id]}"
OWN_KEY = "envelope: {type: upsert, key: [key]}\ninclude: [key]"


def declared(format_: str, more: str = "", sink_: str = "") -> str:
    """A Kafka source of this format, with more properties, and a sink of it."""
    sinks = f"sinks:\n  k: {{from: s, {sink_}}}\n" if sink_ else ""
    head = f"{CONNECTIONS}sources:\n  s:\n    connection: c\n    topic: t\n    format: {format_}\n"
    return f"{head}{indent(more, '    ')}\n{sinks}"


def test_included_columns_can_be_selected(tmp_path: Path) -> None:
    text = declared("{type: text}", "include: [key, timestamp]", "type: console, select: [key, value, %s]")
    body = resource(load(tmp_path, {"a.yaml": text % "timestamp"}), "source.s").body
    assert body["include"] == {"key": "key", "timestamp": "timestamp"}
    assert list(map(str, columns_of("kafka", body))) == ["value STRING", "key STRING", "timestamp TIMESTAMP"]
    wrong = errors(tmp_path, {"a.yaml": text % "headers"})
    assert brief(wrong) == ['a.yaml:15:52 MZ019 Unknown column "headers"']


def test_a_key_has_the_names_of_its_columns() -> None:
    body = {"schema": "Id BIGINT, name STRING", "key": ["NAME", "id"]}
    assert keys_of("local", body) == ("name", "Id")
    assert keys_of("local", {**body, "schema": "no columns"}) == ("NAME", "id")


@pytest.mark.parametrize(
    ("format_", "more", "expected"),
    [
        ("{type: text, schema: 'a INT'}", "", "MZ020 The schema does not fit the format"),
        ("{type: csv, schema: 'a ARRAY<INT>'}", "", "MZ020 The schema does not fit the format"),
        ("{type: json, schema: 'a INT', quote: x}", "", "MZ020 Options of csv in another format"),
        ("{type: csv, schema: 'a INT', header: true}", "", "MZ020 A header in Kafka records"),
        ("{type: parquet, schema: 'a INT'}", "", "MZ020 parquet is a format of files"),
        (JSON, "envelope: {type: debezium}", 'MZ006 Missing key "key"'),
        ("{type: csv, schema: id INT}", UPSERT.replace("upsert", "debezium"), "MZ020 Debezium's envelope in"),
        (JSON, "envelope: {type: debezium, key: [a], key_format: json}", "MZ020 A key format with"),
        (JSON, "envelope: {type: upsert, key: [a], key_format: avro}", "MZ020 Avro keys without avro values"),
        (JSON, "on_error: dead-letter", 'MZ006 Missing key "dead_letter"'),
        (JSON, "dead_letter: {path: dead}", "MZ020 dead_letter without on_error: dead-letter"),
        (RAW, "include: {key: value}", 'MZ020 The column "value" is declared twice'),
        (RAW, "include: {key: a, timestamp: A}", 'MZ020 The column "A" is declared twice'),
        # The key of a collection
        (ROWS, UPSERT, ""),
        (RAW, OWN_KEY, ""),
        (ROWS, "envelope: {type: upsert, key: [idd]}", 'MZ018 Unknown key column "idd"'),
        (ROWS, "envelope: {type: upsert, key: [tags]}", 'MZ018 "tags" can\'t be a key'),
        (CHANGES, UPSERT, 'MZ018 The column "_change" is reserved'),
        (CHANGES, "", ""),
        (ROWS, "envelope: {key: [id]}", "MZ020"),
        (ROWS, "envelope: {type: none, key_format: json}", "MZ020"),
        (PAIRS, "envelope: {type: upsert, key: [id, at], key_format: text}", "MZ020 A text key"),
        (PAIRS, "include: [key]\nenvelope: {type: upsert, key: [id, key], key_format: text}", ""),
        (AVRO, UPSERT, 'MZ006 Missing key "key_format"'),
        (AVRO, UPSERT.replace("}", ", key_format: text}"), ""),
        (AVRO, UPSERT.replace("upsert", "debezium"), ""),
        # Of a key that always comes from the record's own there is nothing to read otherwise.
        (AVRO, OWN_KEY, ""),
    ],
)
def test_properties_that_contradict_each_other_are_refused(
    tmp_path: Path, format_: str, more: str, expected: str
) -> None:
    found = brief(errors(tmp_path, {"a.yaml": declared(format_, more)}))
    assert len(found) == bool(expected) and expected in "".join(found)


def test_a_connection_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    text = declared(RAW).replace("connection: c\n    topic:", "connection: l\n    path:")
    (found,) = brief(errors(tmp_path, {"a.yaml": text}))
    assert found.endswith("MZ020 raw, avro and protobuf are formats of Kafka records")
    text = declared(RAW).replace("['a:1']", "['a:1'], options: {group.id: x}")
    (found,) = brief(errors(tmp_path, {"a.yaml": text}))
    assert found.endswith('MZ020 "group.id" can\'t be set here')


def test_an_included_column_restarts_and_a_removed_one_replaces() -> None:
    def including(include: Any) -> Configuration:
        return project(kafka(), postgres(), source(**({"include": include} if include else {})), sink())

    state = commit(including(["timestamp"]))
    plan = build_plan(including(["key", "timestamp"]), state)
    assert actions(plan) == {"source.orders": "update", "sink.orders_pg": "restart"}
    assert fields(plan, "source.orders") == {"include.key": (None, "key", "restart")}
    for fewer in ([], {"timestamp": "ts"}):
        plan = build_plan(including(fewer), state)
        assert actions(plan) == {"source.orders": "replace", "sink.orders_pg": "replace"}


BY_ID = "mode: upsert, key: [id]"


@pytest.mark.parametrize(
    ("sink_", "expected"),
    [
        (f"connection: p, table: t, {BY_ID}", ""),
        ("connection: p, table: t, mode: append", "MZ020 A sink that only adds rows can't follow"),
        ("connection: c, topic: u, key: [id]", "MZ020 A sink that only adds rows can't follow"),
        (f"connection: l, type: delta, path: d, {BY_ID}", ""),
        ("connection: l, type: delta, path: d", "MZ020 A sink that only adds rows can't follow"),
        ("connection: l, type: files, path: f", "MZ020 A sink that only adds rows can't follow"),
        ("type: console", "MZ020 A sink that only adds rows can't follow"),
        (f"connection: p, table: t, {BY_ID}, select: [id, 'id AS _change']", "MZ019"),
        (f"connection: p, table: t, {BY_ID}, where: 'id > unix_timestamp()'", "MZ019"),
        (f"connection: p, table: t, {BY_ID}, where: 'id > unix_timestamp(string(id))'", ""),
        (f"connection: p, table: t, {BY_ID}, select: [id, 'now() AS loaded_at']", ""),
        # It may not write the topic of its source.
        (f"connection: c, topic: t, {BY_ID}", "MZ020 sink.k would feed itself"),
        (f"connection: same, topic: t, {BY_ID}", "MZ020 sink.k would feed itself"),
        (f"connection: {{type: kafka, brokers: ['A:1']}}, topic: t, {BY_ID}", "would feed itself"),
        (f"connection: other, topic: t, {BY_ID}", ""),
        (f"connection: c, topic: u, {BY_ID}", ""),
    ],
)
def test_a_sink_of_a_keyed_collection_can_delete_and_does_not_feed_itself(
    tmp_path: Path, sink_: str, expected: str
) -> None:
    found = brief(errors(tmp_path, {"a.yaml": declared(ROWS, UPSERT, sink_)}))
    assert len(found) == bool(expected) and expected in "".join(found)
