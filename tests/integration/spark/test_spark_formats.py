"""Formats and included columns, on a real broker and real files: what becomes of records, good and bad."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from tests.integration.spark_lab import until

if TYPE_CHECKING:
    from tests.integration.spark_lab import Lab

Make = Callable[..., str]
PEOPLE = "id BIGINT NOT NULL, name VARCHAR(5), born DATE"
AT = datetime.datetime.fromtimestamp(1_700_000_000.123)  # in the session of this process: local time


def send(lab: Lab, topic: str, *values: bytes | None, **more: Any) -> None:
    producer = Producer({"bootstrap.servers": lab.kafka.bootstrap})
    for value in values:
        producer.produce(topic, value, partition=0, **more)
    assert producer.flush(30) == 0


def rows(lab: Lab, source: Any) -> list[dict[str, Any]]:
    found = lab.collection(source).orderBy("_position").drop("_position").collect()
    return [row.asDict(recursive=True) for row in found]


def test_text_and_raw_records_with_their_keys_headers_and_timestamps(lab: Lab, topic: Make) -> None:
    name = topic(partitions=1)
    headers = [("a", b"1"), ("a", b"\xff"), ("none", None)]
    send(lab, name, b"one line", key="käy".encode(), headers=headers, timestamp=1_700_000_000_123)
    send(lab, name, None)
    text = lab.kafka_source(name, format={"type": "text"}, include=["key", "headers", "timestamp"])
    raw = lab.kafka_source(
        name, format={"type": "raw", "schema": "body BINARY"}, include={"key": "k BINARY", "timestamp": "at"}
    )
    lab.start(text, raw)
    for source in (text, raw):
        until("both records", lambda source=source: lab.count(source) == 2)  # type: ignore[misc]
    first, second = rows(lab, text)
    assert list(first) == ["value", "key", "headers", "timestamp"]
    assert first["value"] == "one line"
    assert first["key"] == "käy"
    assert [(h["key"], h["value"] and bytes(h["value"])) for h in first["headers"]] == headers
    assert first["timestamp"] == AT
    assert (second["value"], second["key"], second["headers"]) == (None, None, None)
    first, _ = rows(lab, raw)
    assert {k: bytes(v) if isinstance(v, bytearray) else v for k, v in first.items()} == {
        "body": b"one line",
        "k": "käy".encode(),
        "at": AT,
    }
    # What is not text: a key, then a value.
    send(lab, name, b"fine", key=b"\xff")
    until("it has failed", lambda: not lab.report(text).active)
    assert lab.report(text).error_code == "MZ066"
    problem, _, fix = str(lab.report(text).error).partition(". Fix: ")
    assert problem == f"topic {name}, partition 0, offset 2: key is not UTF-8" and fix
    until("bytes may be anything", lambda: lab.count(raw) == 3)
    lab.stop(text, raw)


@pytest.mark.nightly
def test_csv_records(lab: Lab, topic: Make) -> None:
    name = topic(partitions=1)
    good = [b"1,ann,2001-02-03", b'2,"a""b,",', b"3,,"]
    bad = [b"4,ann", b"5,ann,2001-02-03,more", b"x,ann,", b",ann,", b"6,annabel,", b"", None, b"7,\xff,"]
    send(lab, name, *good, *bad)
    format_ = {"type": "csv", "schema": PEOPLE}
    skipping = lab.kafka_source(name, format=format_, on_error="skip")
    failing = lab.kafka_source(name, format=format_, max_offsets_per_trigger=3)
    lab.start(skipping, failing)
    until("the good records", lambda: lab.count(skipping) == 3)
    assert rows(lab, skipping) == [
        {"id": 1, "name": "ann", "born": datetime.date(2001, 2, 3)},
        {"id": 2, "name": 'a"b,', "born": None},
        {"id": 3, "name": None, "born": None},
    ]
    ended = lab.ended(failing)
    assert ended.error_code == "MZ066"
    assert f"topic {name}, partition 0, offset " in str(ended.error)
    assert rows(lab, failing) == rows(lab, skipping)
    lab.stop(skipping, failing)


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (b"4,ann", "the record has not 3 fields"),
        (b"4,ann,,", "the record has not 3 fields"),
        (b"x,ann,", "id is not a BIGINT"),
        (b",ann,", "id is missing (NOT NULL)"),
        (b"6,annabel,", "name is longer than VARCHAR(5)"),
        (b"6,ann,someday", "born is not a DATE"),
        (b"7,\xff,", "the record is not UTF-8"),
        (b"", "the record is empty"),
        (None, "the record has no value"),
    ],
)
def test_a_malformed_csv_record_has_a_reason(lab: Lab, record: bytes | None, why: str) -> None:
    from pyspark.sql import functions as f

    from mzplan.connectors.formats.records import Records, parse_records
    from mzplan.schema.columns import parse_columns

    spark = lab.executor._spark
    assert spark is not None
    records = Records(
        rows=spark.createDataFrame([(record, 7)], "value BINARY, offset BIGINT"),
        value="value",
        position=f.struct("offset"),
        where=lambda at: f.lit("here"),
    )
    parsed = parse_records(records, {"type": "csv"}, parse_columns(PEOPLE), "fail")
    with pytest.raises(Exception, match=r"mzplan\[MZ066\]: here: ") as caught:
        parsed.collect()
    assert f"here: {why}" in str(caught.value)


@pytest.mark.nightly
def test_csv_text_and_parquet_files(lab: Lab, tmp_path: Path) -> None:
    for name in ("csv", "text", "parquet"):
        (tmp_path / name).mkdir()
    (tmp_path / "csv" / "a.csv").write_text("id;name;born\n1;'a;b';2001-02-03\n2;;\n")
    (tmp_path / "csv" / "b.csv").write_text("id;name;born\n3;bo;\n")
    (tmp_path / "text" / "a.txt").write_text("one\n\nthree\n")
    spark = lab.executor._spark
    assert spark is not None
    spark.sql("SELECT 1L AS id, 'x' AS other").write.parquet(str(tmp_path / "parquet" / "a"))
    written = next((tmp_path / "parquet" / "a").glob("*.parquet"))
    written.rename(tmp_path / "parquet" / "a.parquet")
    csv = lab.files_source(
        tmp_path / "csv",
        format={"type": "csv", "schema": PEOPLE, "delimiter": ";", "quote": "'", "header": True},
    )
    text = lab.files_source(tmp_path / "text", format={"type": "text", "schema": "line STRING"})
    parquet = lab.files_source(
        tmp_path / "parquet", format={"type": "parquet", "schema": "id BIGINT, missing STRING"}
    )
    lab.start(csv, text, parquet)
    until("three people", lambda: lab.count(csv) == 3)
    until("three lines", lambda: lab.count(text) == 3)
    until("a row", lambda: lab.count(parquet) == 1)
    assert sorted((row["id"], row["name"]) for row in rows(lab, csv)) == [(1, "a;b"), (2, None), (3, "bo")]
    assert [row["line"] for row in rows(lab, text)] == ["one", "", "three"]
    assert rows(lab, parquet) == [{"id": 1, "missing": None}]
    lab.stop(text, parquet)

    # A malformed line names its file; so does a header of other columns.
    arrive(tmp_path, "csv", "c.csv", "id;name;born\nx;bo;\n")
    ended = lab.ended(csv)
    assert ended.error_code == "MZ066"
    assert "c.csv" in str(ended.error)
    assert "id is not a BIGINT" in str(ended.error)
    lab.stop(csv)
    skipping = lab.retried(csv)
    skipping.body["on_error"] = "skip"  # type: ignore[index]
    arrive(tmp_path, "csv", "d.csv", "id;name;born\n4;bo;\n5\n")
    lab.start(skipping)
    until("one more", lambda: lab.count(csv) == 4)
    arrive(tmp_path, "csv", "e.csv", "name;id;born\nbo;5;\n")
    ended = lab.ended(skipping)
    assert ended.error_code == "MZ066", ended
    assert "e.csv" in str(ended.error)
    lab.stop(skipping)


def arrive(folder: Path, kind: str, name: str, text: str) -> None:
    """A file that appears whole."""
    (folder / name).write_text(text)
    (folder / name).rename(folder / kind / name)
