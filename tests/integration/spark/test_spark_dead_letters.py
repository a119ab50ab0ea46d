"""Malformed records kept aside, in a table and in a topic, and how many there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from confluent_kafka import Consumer, Producer

from mzplan.spark import streams
from mzplan.warehouse.step_history import StepHistory
from tests.integration.spark_lab import until

if TYPE_CHECKING:
    from tests.integration.spark_lab import Lab

Make = Callable[..., str]
GOOD = (b'{"id": 1, "name": "ann"}', b'{"id": 2, "name": "bob"}')
BAD = (b'{"id": "x"}', b"\xff\x00", b'{"name": "no id"}')


def send(lab: Lab, topic: str, *values: bytes, key: bytes | None = None) -> None:
    producer = Producer({"bootstrap.servers": lab.kafka.bootstrap, "linger.ms": 100})
    for value in values:
        producer.produce(topic, value, key=key, partition=0)
    assert producer.flush(30) == 0


def test_malformed_records_are_kept_aside(lab: Lab, topic: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    name, dead = topic(partitions=1), topic("dead", 1)
    schema = "id BIGINT NOT NULL, name STRING"
    aside = {"on_error": "dead-letter", "max_offsets_per_trigger": 5}
    table = lab.kafka_source(name, schema, **aside, dead_letter={"path": "dead/letters"})
    keyed = lab.kafka_source(
        name, schema, **aside, dead_letter={"topic": dead}, envelope={"type": "upsert", "key": ["id"]}
    )
    skipping = lab.kafka_source(name, schema, on_error="skip")
    itself = lab.kafka_source(name, schema, **aside, dead_letter={"topic": name})
    nowhere = lab.kafka_source(name, schema, **aside, dead_letter={"topic": f"{name}-none"})
    nofolder = lab.kafka_source(name, schema, **aside, dead_letter={"path": "file/dead"})
    (lab.folder / "file").touch()
    assert [lab.codes(one) for one in (table, keyed, itself, nowhere, nofolder)] == [
        [],
        [],
        ["MZ210"],
        ["MZ052"],
        ["MZ210"],
    ]
    send(lab, name, GOOD[0], *BAD, GOOD[1], key=b"k")
    lab.start(table, keyed, skipping)
    for source in (table, keyed, skipping):
        until(
            f"{source.address}: the good ones",
            lambda source=source: {r["id"] for r in lab.read(source)} == {1, 2},  # type: ignore[misc]
        )
        until("counted", lambda source=source: lab.report(source).left_out == 3)  # type: ignore[misc]
        until("timed", lambda source=source: lab.report(source).latency_seconds is not None)  # type: ignore[misc]
    letters = found(lab)
    assert [(r.offset, bytes(r.key), bytes(r.value), r.reason) for r in letters] == [
        (1, b"k", BAD[0], "id is not a BIGINT"),
        (2, b"k", BAD[1], "the record is not UTF-8"),
        (3, b"k", BAD[2], "id is missing (NOT NULL)"),
    ]
    assert {(r.source, r.topic, r.partition, r.step) for r in letters} == {
        (str(table.address), name, 0, letters[0].step)
    }
    assert None not in {value for r in letters for value in (r.timestamp, r.kept_at)}

    # A step that is run again, because the driver was killed before Spark noted it down: nothing twice.
    lab.stop(keyed, skipping)
    send(lab, name, BAD[0], b'{"id": 3}', key=b"k")
    until("one more", lambda: lab.count(table) == 3 and lab.checkpoint_done(table))
    lab.stop(table)
    step = lab.undo_commit(table)
    lab.start(table)
    until("it is done again", lambda: lab.checkpoint_done(table) and lab.report(table).step >= step)
    assert lab.count(table) == 3
    assert [r.offset for r in found(lab)] == [1, 2, 3, 5]
    # Its steps are known, though it is not Spark's own sink that writes them.
    history = StepHistory(str(lab.folder / "warehouse"), (table.id, 1))
    assert sum(record.rows or 0 for record in history.tail(None, step)) == 3
    lab.stop(table)

    # A step that stops between the two, and is run again with a column more: what is bad only now is kept.
    send(lab, name, BAD[0], b'{"id": 4, "n": 5}', b'{"id": 5, "n": "five"}', key=b"k")
    with monkeypatch.context() as patch:
        patch.setattr(streams, "append", Mock(side_effect=RuntimeError("as if killed")))
        lab.start(table)
        assert "as if killed" in str(lab.ended(table).error)
    lab.stop(table)
    assert [r.offset for r in found(lab)] == [1, 2, 3, 5, 7]
    wider = lab.retried(
        replace(table, body={**table.body, "format": {**table.body["format"], "schema": f"{schema}, n INT"}})
    )
    lab.start(wider)
    until("it has the column", lambda: [r.get("n") for r in lab.read(wider)].count(5) == 1)
    lab.stop(wider)
    assert {r["id"] for r in lab.read(wider)} == {1, 2, 3, 4}
    assert [(r.offset, r.reason) for r in found(lab)][4:] == [
        (7, "id is not a BIGINT"),
        (9, "n is not a INT"),
    ]

    records = sent(lab, dead, 3)
    assert [(value, told["mzplan.offset"], told["mzplan.reason"]) for value, told in records] == [
        (BAD[0], b"1", b"id is not a BIGINT"),
        (BAD[1], b"2", b"the record is not UTF-8"),
        (BAD[2], b"3", b"id is missing (NOT NULL)"),
    ]


def found(lab: Lab) -> list[Any]:
    spark = lab.executor._spark
    assert spark is not None
    return spark.read.format("delta").load(str(lab.folder / "dead/letters")).orderBy("offset").collect()


def sent(lab: Lab, topic: str, count: int) -> list[tuple[bytes, dict[str, bytes]]]:
    consumer = Consumer(
        {"bootstrap.servers": lab.kafka.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    try:
        records = consumer.consume(count, 30)
        return [(record.value(), dict(record.headers() or ())) for record in records]
    finally:
        consumer.close()
