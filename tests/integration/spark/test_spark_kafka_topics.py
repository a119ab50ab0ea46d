"""A Kafka source of several topics, on a real broker: one query and one collection."""

from __future__ import annotations

from typing import Any

from examples.servers import create_topic, delete_topic
from mzplan.schema.description import Description
from mzplan.warehouse.checkpoints import Checkpoint
from tests.integration.spark_lab import Lab
from tests.support import Make, eventually


def source_of(lab: Lab, **body: Any) -> Description:
    cluster = {"type": "kafka", "brokers": [lab.kafka.bootstrap]}
    return lab.source("kafka", cluster, format={"type": "json", "schema": "id BIGINT"}, **body)


def send(lab: Lab, topic: str, *ids: int) -> None:
    lab.send(topic, *(b'{"id": %d}' % number for number in ids))


def has(lab: Lab, source: Description, *ids: int) -> None:
    eventually(f"{source.address} has {ids}", lambda: lab.ids(source) == sorted(ids))


def test_named_topics_are_read_and_new_ones_begin_at_start_offsets(lab: Lab, topic: Make) -> None:
    a, b, c, d = (topic(partitions=1) for _ in range(4))
    source = source_of(lab, topics=[a, b])
    send(lab, a, 1, 2)
    send(lab, b, 3)
    assert lab.check(source).ok
    assert lab.waits(source) == {"records": 3}
    lab.start(source)
    has(lab, source, 1, 2, 3)
    places = {(row["id"], row["_position"]["topic"], row["_position"]["offset"]) for row in lab.read(source)}
    assert places == {(1, a, 0), (2, a, 1), (3, b, 0)}
    upstream = Checkpoint(str(lab.checkpoint(source))).upstream()
    assert upstream is not None and upstream["topics"].keys() == {a, b}
    lab.finish(source)
    lab.undo_commit(source)  # the step is interrupted

    send(lab, c, 4, 5, 6)
    lab.delete_records(c, 2)  # Spark alone would fail: the new partition doesn't begin at offset 0
    wider = lab.changed(source, topics=[a, b, c])
    assert lab.check(wider).ok
    lab.start(wider)
    has(lab, wider, 1, 2, 3, 6)
    lab.finish(wider)
    send(lab, d, 7)
    widest = lab.changed(wider, topics=[a, b, c, d], start_offsets="latest")
    lab.start(widest)
    eventually("it has looked for records", lambda: lab.report(widest).triggered)
    send(lab, d, 8)
    send(lab, b, 9)
    has(lab, widest, 1, 2, 3, 6, 8, 9)
    lab.finish(widest)
    upstream = Checkpoint(str(lab.checkpoint(source))).upstream()
    assert upstream is not None and upstream["topics"].keys() == {a, b, c, d}
    assert lab.waits(widest) == {"records": 0}
    for record in lab.recorded(widest, 3):
        if record.digest is not None:
            assert str(lab.upstream(widest).content_hash(record)) == record.digest

    delete_topic(lab.kafka.bootstrap, b)
    create_topic(lab.kafka.bootstrap, b, 1)
    assert f"topic {b} was deleted and created again" in lab.finds(widest, "MZ043").detail
    assert lab.refused(widest).code == "MZ043"


def test_a_pattern_finds_topics_while_the_query_runs(lab: Lab, topic: Make) -> None:
    first = topic(partitions=1)
    second, other = f"{first}-more", f"old-{first}"
    create_topic(lab.kafka.bootstrap, other, 1)
    send(lab, other, 9)  # its name only contains a match
    missing = source_of(lab, topic_pattern="nothing-.*-like-it")
    assert lab.finds(missing, "MZ052").summary == "No topic matches nothing-.*-like-it"
    source = source_of(lab, topic_pattern=f"{first}(-more)?")
    send(lab, first, 1)
    lab.start(source)
    has(lab, source, 1)
    create_topic(lab.kafka.bootstrap, second, 1)
    send(lab, second, 2)
    has(lab, source, 1, 2)
    lab.finish(source)
    lab.start(source)
    eventually("it has looked for records", lambda: lab.report(source).triggered)
    upstream = Checkpoint(str(lab.checkpoint(source))).upstream()
    assert upstream is not None and upstream["topics"].keys() == {first, second}
    lab.finish(source)
    delete_topic(lab.kafka.bootstrap, second)
    assert f"topic {second} is gone" in lab.finds(source, "MZ043").detail
    accepted = lab.changed(source, on_upstream_change="reset-earliest")
    lab.start(accepted)
    has(lab, accepted, 1, 1, 2)
    lab.finish(accepted)
