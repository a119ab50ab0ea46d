"""The kafka and files sinks: what arrives, in which order, and after a crash before the checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from mzplan.connectors.files.manifest import committed_files
from mzplan.model.diagnostics import MzplanError
from tests.integration.spark_lab import until

if TYPE_CHECKING:
    from tests.integration.spark_lab import Lab

Make = Callable[..., str]


def records(lab: Lab, topic: str) -> list[tuple[str | None, Any]]:
    """All (key, value) of a topic of one partition."""
    settings = {"bootstrap.servers": lab.kafka.bootstrap, "group.id": "test", "enable.auto.commit": False}
    consumer = Consumer(settings)
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[tuple[str | None, Any]] = []
        while len(found) < end:
            message = consumer.poll(10)
            assert message is not None and message.error() is None
            key, value = message.key(), message.value()
            found.append((key.decode() if key else None, json.loads(value or b"null")))
        return found
    finally:
        consumer.close()


def test_kafka_append_and_upsert(lab: Lab, topic: Make) -> None:
    name, all_, latest = topic(partitions=1), topic(partitions=1), topic(partitions=1)
    source = lab.kafka_source(name, "id BIGINT, customer STRING, at TIMESTAMP")
    broker = {"type": "kafka", "brokers": [lab.kafka.bootstrap]}
    twice = {"delivery": "at-least-once"}
    append = lab.sink(source, "kafka", broker, topic=all_, where="id < 100", **twice)
    upsert = lab.sink(
        source,
        "kafka",
        broker,
        topic=latest,
        mode="upsert",
        key=["id", "k"],
        select=["*", "id % 2 AS k"],
        **twice,
    )
    at = "2024-05-06T07:08:09.123456Z"
    lab.produce(name, *({"id": i % 2, "customer": f"c{i}", "at": at} for i in range(10)), {"id": 100})
    assert lab.check(append).ok
    assert lab.check(upsert).ok
    lab.start(source)
    until("the rows are there", lambda: lab.count(source) == 11)
    lab.start(append, upsert)
    until("all are appended", lambda: len(records(lab, all_)) == 10)
    until("the latest are there", lambda: len(records(lab, latest)) == 3)
    lab.finish(source, append, upsert)
    assert [value["customer"] for _, value in records(lab, all_)] == [f"c{i}" for i in range(10)]
    assert records(lab, all_)[0] == (None, {"id": 0, "customer": "c0", "at": at})
    assert sorted(records(lab, latest), key=str) == [
        ('{"id":0,"k":0}', {"id": 0, "customer": "c8", "at": at, "k": 0}),
        ('{"id":1,"k":1}', {"id": 1, "customer": "c9", "at": at, "k": 1}),
        ('{"id":100,"k":0}', {"id": 100, "customer": None, "at": None, "k": 0}),
    ]
    # At least once: a batch whose end Spark did not note down is written again.
    lab.undo_commit(append)
    lab.start(append)
    until("they are there again", lambda: len(records(lab, all_)) == 20)
    lab.stop(append)


def test_kafka_without_the_topic_or_the_server(lab: Lab) -> None:
    source = lab.kafka_source("orders")
    broker = {"type": "kafka", "brokers": [lab.kafka.bootstrap]}
    (found,) = lab.check(lab.sink(source, "kafka", broker, topic="nowhere", key=["id"])).diagnostics
    assert found.code == "MZ052"
    assert "a sink doesn't create one" in found.detail
    dead = lab.sink(source, "kafka", {**broker, "brokers": ["127.0.0.1:1"]}, topic="nowhere")
    assert lab.codes(dead) == ["MZ050"]


@pytest.mark.parametrize(
    "format_", ["json", *(pytest.param(form, marks=pytest.mark.nightly) for form in ("csv", "parquet"))]
)
def test_files_are_written_once(lab: Lab, topic: Make, tmp_path: Path, format_: str) -> None:
    name = topic(partitions=1)
    source = lab.kafka_source(name)
    folder = {"type": "files", "path": str(tmp_path)}
    sink = lab.sink(source, "files", folder, path="out", format={"type": format_}, select=["id", "customer"])
    assert lab.check(sink).ok
    lab.produce(name, *({"id": i, "customer": f"c{i}"} for i in range(20)))
    lab.start(source, sink)
    spark = lab.executor._spark
    assert spark is not None

    def ids() -> list[int]:
        if not (tmp_path / "out" / "_spark_metadata").exists():
            return []
        reader = spark.read.format(format_).schema("id BIGINT, customer STRING")
        return sorted(row.id for row in reader.option("header", "true").load(str(tmp_path / "out")).collect())

    until("twenty rows", lambda: len(ids()) == 20)
    lab.finish(sink)
    lab.undo_commit(sink)
    lab.start(sink)
    lab.produce(name, {"id": 20})
    until("one more", lambda: ids() == list(range(21)))
    lab.stop(sink)
    # Who follows the list of files sees each row once; what a killed attempt left does not count.
    (tmp_path / "out" / f"part-left.{format_}").write_bytes(b"")
    listed = committed_files(tmp_path / "out")
    assert sorted(row.id for row in _read(spark, format_, listed)) == list(range(21))

    # Another type for a column: readers refuse a folder of Parquet with both, others don't know types.
    retyped = replace(sink, digest="1:b", body={**sink.body, "select": ["CAST(id AS STRING) AS id"]})
    assert lab.codes(retyped) == (["MZ053"] if format_ == "parquet" else [])
    anew = replace(retyped, generation=2, body={**retyped.body, "on_replace": "truncate"})
    assert lab.codes(anew) == []

    # A query that begins anew does not go on in a folder of another one.
    other = lab.sink(source, "files", folder, path="out", format={"type": format_})
    with pytest.raises(MzplanError) as caught:
        lab.start(other)
    assert caught.value.diagnostics[0].code == "MZ057"
    emptied = replace(sink, generation=2)
    emptied.body["on_replace"] = "truncate"  # type: ignore[index]
    (tmp_path / "out" / "mine.txt").write_text("not of the sink")
    lab.start(emptied)
    until("all rows again", lambda: ids() == list(range(21)))
    lab.stop(source, emptied)
    assert (tmp_path / "out" / "mine.txt").exists()


def _read(spark: Any, format_: str, files: list[str]) -> Any:
    return spark.read.format(format_).schema("id BIGINT").option("header", "true").load(files).collect()


def test_csv_files_hold_simple_values(lab: Lab, tmp_path: Path) -> None:
    source = lab.kafka_source("orders", "id BIGINT, tags ARRAY<STRING>")
    folder = {"type": "files", "path": str(tmp_path)}
    (found,) = lab.check(lab.sink(source, "files", folder, path="x", format={"type": "csv"})).diagnostics
    assert found.code == "MZ053"
    assert "tags (ARRAY<STRING>)" in found.detail


@pytest.mark.parametrize(
    ("body", "is_refused"),
    [
        ({}, True),
        ({"key": ["customer"]}, True),
        ({"key": ["customer"], "where": "customer IS NOT NULL"}, False),
        ({"key": ["id"]}, False),
        ({"key": ["id", "customer"]}, False),
    ],
)
def test_a_compacted_topic_takes_no_null_key(
    lab: Lab, topic: Make, body: dict[str, Any], is_refused: bool
) -> None:
    name = topic(partitions=1, config={"cleanup.policy": "compact,delete"})
    source = lab.kafka_source(topic(partitions=1), "id BIGINT NOT NULL, customer STRING")
    broker = {"type": "kafka", "brokers": [lab.kafka.bootstrap]}
    assert lab.codes(lab.sink(source, "kafka", broker, topic=name, **body)) == ["MZ055"] * is_refused
    assert lab.codes(lab.sink(source, "kafka", broker, topic=topic(partitions=1), **body)) == []
