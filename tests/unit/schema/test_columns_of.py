"""The columns and the key of a source: by its format, its envelope, and the columns that it includes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mzplan.model.address import Address
from mzplan.model.resources import Configuration
from mzplan.plan import build_plan
from mzplan.schema.source_columns import columns_of
from tests.unit.config_files import brief, errors, load
from tests.unit.small_projects import actions, commit, fields, kafka, postgres, project, sink, source


def declared(format_: str, more: str = "", connection: str = "kafka, brokers: ['a:1']") -> str:
    return (
        f"connections:\n  c: {{type: {connection}}}\nsources:\n  s:\n    connection: c\n    topic: t\n"
        f"    format: {format_}\n{more}"
    )


def source_with(format_: str, more: str = "") -> str:
    """A Kafka source with one more key."""
    return declared(format_, f"    {more}\n" if more else "")


def test_included_columns_can_be_selected(tmp_path: Path) -> None:
    text = declared("{type: text}", "    include: [key, timestamp]\nsinks:\n  p: {type: console, from: s, ")
    found = load(tmp_path, {"a.yaml": f"{text}select: [key, value, timestamp]}}\n"})
    body = found.resources[Address("source", "s")].body
    assert body["include"] == {"key": "key", "timestamp": "timestamp"}
    assert list(map(str, columns_of("kafka", body))) == ["value STRING", "key STRING", "timestamp TIMESTAMP"]
    wrong = errors(tmp_path, {"a.yaml": f"{text}select: [headers]}}\n"})
    assert brief(wrong) == ['a.yaml:10:40 MZ019 Unknown column "headers"']


JSON = "{type: json, schema: 'a INT'}"
RAW = "{type: raw}"


@pytest.mark.parametrize(
    ("format_", "more", "expected"),
    [
        ("{type: text, schema: 'a INT'}", "", "MZ020 The schema does not fit the format"),
        ("{type: csv, schema: 'a ARRAY<INT>'}", "", "MZ020 The schema does not fit the format"),
        ("{type: json, schema: 'a INT', quote: x}", "", "MZ020 Options of csv in another format"),
        ("{type: csv, schema: 'a INT', header: true}", "", "MZ020 A header in Kafka records"),
        ("{type: parquet, schema: 'a INT'}", "", "MZ020 parquet is a format of files"),
        (JSON, "envelope: {type: debezium}", 'MZ006 Missing key "key"'),
        (
            "{type: csv, schema: 'a INT'}",
            "envelope: {type: debezium, key: [a]}",
            "MZ020 Debezium's envelope in another format",
        ),
        (
            JSON,
            "envelope: {type: debezium, key: [a], key_format: json}",
            "MZ020 A key format with Debezium's envelope",
        ),
        (JSON, "envelope: {type: upsert, key: [a], key_format: avro}", "MZ020 Avro keys without avro values"),
        (JSON, "on_error: dead-letter", 'MZ006 Missing key "dead_letter"'),
        (JSON, "dead_letter: {path: dead}", "MZ020 dead_letter without on_error: dead-letter"),
        (RAW, "include: {key: value}", 'MZ020 The column "value" is declared twice'),
        (RAW, "include: {key: a, timestamp: A}", 'MZ020 The column "A" is declared twice'),
    ],
)
def test_properties_that_contradict_each_other_are_refused(
    tmp_path: Path, format_: str, more: str, expected: str
) -> None:
    (found,) = brief(errors(tmp_path, {"a.yaml": source_with(format_, more)}))
    assert found.partition(" ")[2] == expected


def test_a_connection_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    text = declared(RAW, connection="files, path: .").replace("topic:", "path:")
    (found,) = brief(errors(tmp_path, {"a.yaml": text}))
    assert found.endswith("MZ020 raw and avro are formats of Kafka records")
    text = declared(RAW, connection="kafka, brokers: ['a:1'], options: {group.id: x}")
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


UPSERT = "    envelope: {type: upsert, key: [id]}\n"
ROWS = "{type: json, schema: 'id BIGINT, tags ARRAY<INT>'}"
PAIRS = "{type: json, schema: 'id BIGINT, at DATE'}"
AVRO = "{type: avro, schema: 'id BIGINT, at DATE'}\n    schema_registry: r"
REGISTRY = "  r: {type: schema-registry, url: 'https://r:8081'}\n"


@pytest.mark.parametrize(
    ("format_", "more", "found"),
    [
        (ROWS, UPSERT, []),
        ("{type: raw}", "    include: [key]\n    envelope: {type: upsert, key: [key]}\n", []),
        (ROWS, "    envelope: {type: upsert, key: [idd]}\n", ["MZ018"]),
        (ROWS, "    envelope: {type: upsert, key: [tags]}\n", ["MZ018"]),
        ("{type: json, schema: 'id BIGINT, _change STRING'}", UPSERT, ["MZ018"]),
        ("{type: json, schema: 'id BIGINT, _change STRING'}", "", []),
        (ROWS, "    envelope: {key: [id]}\n", ["MZ020"]),
        (ROWS, "    envelope: {type: none, key_format: json}\n", ["MZ020"]),
        (PAIRS, "    envelope: {type: upsert, key: [id, at], key_format: text}\n", ["MZ020"]),
        (PAIRS, "    include: [key]\n    envelope: {type: upsert, key: [id, key], key_format: text}\n", []),
        (AVRO, UPSERT, ["MZ006"]),
        (AVRO, UPSERT.replace("}", ", key_format: text}"), []),
        (AVRO, UPSERT.replace("upsert", "debezium"), []),
        # Of a key that always comes from the record's own there is nothing to read otherwise.
        (AVRO, "    include: [key]\n    envelope: {type: upsert, key: [key]}\n", []),
    ],
)
def test_the_key_of_a_collection_is_checked(
    tmp_path: Path, format_: str, more: str, found: list[str]
) -> None:
    text = declared(format_, more).replace("sources:", REGISTRY + "sources:")
    assert [one.code for one in errors(tmp_path, {"a.yaml": text})] == found


@pytest.mark.parametrize(
    ("sink_", "found"),
    [
        ("connection: p, table: t, mode: upsert, key: [id]", []),
        ("connection: p, table: t, mode: append", ["MZ020"]),
        ("connection: c, topic: u, mode: upsert, key: [id]", []),
        ("connection: c, topic: u, key: [id]", ["MZ020"]),
        ("connection: l, type: delta, path: d, mode: upsert, key: [id]", []),
        ("connection: l, type: delta, path: d", ["MZ020"]),
        ("connection: l, type: files, path: f", ["MZ020"]),
        ("type: console", ["MZ020"]),
        ("connection: p, table: t, mode: upsert, key: [id], select: [id, 'id AS _change']", ["MZ019"]),
        ("connection: p, table: t, mode: upsert, key: [id], where: 'id > unix_timestamp()'", ["MZ019"]),
        ("connection: p, table: t, mode: upsert, key: [id], where: 'id > unix_timestamp(string(id))'", []),
        ("connection: p, table: t, mode: upsert, key: [id], select: [id, 'now() AS loaded_at']", []),
    ],
)
def test_only_sinks_that_can_delete_follow_a_keyed_collection(
    tmp_path: Path, sink_: str, found: list[str]
) -> None:
    more = UPSERT + f"sinks:\n  k: {{from: s, {sink_}}}\n"
    text = declared(ROWS, more).replace(
        "sources:",
        "  p: {type: postgres, host: h, database: d, user: u, password: '${env:P}'}\n"
        "  l: {type: files, path: ./lake}\nsources:",
    )
    assert [one.code for one in errors(tmp_path, {"a.yaml": text})] == found


@pytest.mark.parametrize(
    ("sink_", "found"),
    [
        ("connection: c, topic: t", ["MZ020"]),
        ("connection: same, topic: t", ["MZ020"]),
        ("connection: {type: kafka, brokers: ['A:1']}, topic: t", ["MZ020"]),
        ("connection: other, topic: t", []),
        ("connection: c, topic: u", []),
    ],
)
def test_a_sink_that_writes_the_topic_of_its_source_is_refused(
    tmp_path: Path, sink_: str, found: list[str]
) -> None:
    text = declared(ROWS, f"sinks:\n  k: {{from: s, {sink_}}}\n").replace(
        "sources:",
        "  same: {type: kafka, brokers: ['k2:9092', 'A:1']}\n"
        "  other: {type: kafka, brokers: ['k2:9092']}\nsources:",
    )
    assert [one.code for one in errors(tmp_path, {"a.yaml": text})] == found
