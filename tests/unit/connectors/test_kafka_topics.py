"""A Kafka source of several topics, without a broker: its options, identity, positions and changes."""

from __future__ import annotations

import json
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from mzplan.connectors.api.upstreams import take_upstream
from mzplan.connectors.catalogue import Connectors
from mzplan.connectors.kafka import probe
from mzplan.connectors.kafka.offsets import Part, as_entry, offsets_in
from mzplan.connectors.kafka.probe import compare_upstreams
from mzplan.connectors.kafka.source import KafkaSource, adoption_problems, stream_options
from mzplan.connectors.unresolved import lineage_of
from mzplan.plan.comparison import compare_bodies
from mzplan.schema.description import Description
from mzplan.schema.kinds import resource_kind
from tests.support import refusal
from tests.unit.connectors.test_connectors_kafka import GIVEN, query, source
from tests.unit.connectors.test_first_copies import Written

FORMAT = GIVEN["format"]
SINGLE = "STRUCT<partition: INT, offset: BIGINT, timestamp: TIMESTAMP>"
SEVERAL = "STRUCT<topic: STRING, partition: INT, offset: BIGINT, timestamp: TIMESTAMP>"


def several(**body: Any) -> Any:
    """Return the resolved query of a source without `topic`."""
    resolved = query(**body)
    del resolved.body["topic"]
    del resolved.description.body["topic"]  # type: ignore[attr-defined]
    return resolved


def cluster(**topics: tuple[str, int]) -> Any:
    """Return a client of a cluster with these topics: their ids and numbers of partitions."""

    def done(value: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(value)
        return future

    def describe(wanted: Any, **_: Any) -> dict[str, Future[Any]]:
        return {
            name: done(
                SimpleNamespace(
                    topic_id=topics[name][0], partitions=[None] * topics[name][1], authorized_operations=None
                )
            )
            for name in wanted.topic_names
        }

    admin = Mock(describe_topics=describe, describe_cluster=lambda **_: done(SimpleNamespace(cluster_id="c")))
    admin.list_topics.return_value = SimpleNamespace(topics=dict.fromkeys(topics))
    return SimpleNamespace(admin=admin, problems=[])


@pytest.fixture(autouse=True)
def plain_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka's collection of topics shows no names."""
    monkeypatch.setattr(probe, "TopicCollection", lambda names: SimpleNamespace(topic_names=names))


def test_spark_subscribes_to_the_topics() -> None:
    def options(**body: Any) -> dict[str, str]:
        return {k: v for k, v in stream_options(several(**body)).items() if k.startswith("subscribe")}

    assert options(topics=["a", "b"]) == {"subscribe": "a,b"}
    assert options(topic_pattern="orders-.*") == {"subscribePattern": "^(?:orders-.*)$"}


def test_the_identity_has_each_topic() -> None:
    known = cluster(orders_a=("1", 2), orders_b=("2", 1), other=("3", 1))
    found = probe.identify(known, several(topic_pattern="orders_.*"), False)
    assert found == {
        "type": "kafka",
        "cluster_id": "c",
        "topics": {
            "orders_a": {"topic_id": "1", "partitions": 2},
            "orders_b": {"topic_id": "2", "partitions": 1},
        },
    }
    assert probe.identify(known, several(topics=["other", "orders_b"]), False)["topics"].keys() == {
        "other",
        "orders_b",
    }
    assert probe.identify(known, query(topic="other"), False) == {
        "type": "kafka",
        "cluster_id": "c",
        "topic": "other",
        "topic_id": "3",
        "partitions": 1,
    }


@pytest.mark.parametrize("pattern", ["order", "[", "__.*"])
def test_a_pattern_without_topics_is_an_error(pattern: str) -> None:
    known, asked = cluster(orders=("1", 1), __consumer_offsets=("2", 50)), several(topic_pattern=pattern)
    assert refusal(lambda: probe.identify(known, asked, False)).code == "MZ052"


def test_a_topic_that_is_gone_or_another_one_is_another_upstream() -> None:
    asked = several(topic_pattern="o.*")

    def identity(**topics: tuple[str, int]) -> dict[str, Any]:
        return probe.identify(cluster(**topics), asked, False)

    recorded = identity(oa=("1", 2), ob=("2", 1))
    assert compare_upstreams(asked, recorded, identity(oa=("1", 3), ob=("2", 1), oc=("3", 1))) is None
    for found, difference in (
        (identity(oa=("1", 2)), "topic ob is gone"),
        (identity(oa=("1", 2), ob=("9", 1)), "topic ob was deleted and created again"),
        (identity(oa=("1", 1), ob=("2", 1)), "topic oa has 1 partitions instead of 2"),
    ):
        problem = compare_upstreams(asked, recorded, found)
        assert problem is not None and problem.code == "MZ043" and difference in problem.detail


def test_a_position_gets_the_offsets_of_new_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = several(topics=["a", "b"], start_offsets="latest")
    found = probe.identify(cluster(a=("1", 1), b=("2", 2)), asked, False)
    edges: list[str] = []

    def edge_offsets(client: Any, query: Any, parts: Any, edge: str) -> dict[Part, int]:
        edges.append(edge)
        return dict.fromkeys(parts, 7)

    monkeypatch.setattr("mzplan.connectors.kafka.offsets.edge_offsets", edge_offsets)
    monkeypatch.setattr("mzplan.connectors.kafka.positions.edge_offsets", edge_offsets)
    position = '{"a":{"0":3}}'
    extended = KafkaSource().extended(asked, position, found)
    assert json.loads(extended or "") == {"a": {"0": 3}, "b": {"0": 7, "1": 7}}
    by_pattern = several(topic_pattern="[ab]", start_offsets="latest")
    assert KafkaSource().extended(by_pattern, position, found) == extended
    assert edges == ["latest", "earliest"]
    assert KafkaSource().extended(asked, extended or "", found) is None


def test_a_start_moves_the_checkpoint_to_new_topics_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def edge_offsets(
        client: Any, query: Any, parts: Any, edge: str, *, dirty: bool = False
    ) -> dict[Part, int]:
        return dict.fromkeys(parts, 7 if edge == "latest" else 2)

    monkeypatch.setattr("mzplan.connectors.kafka.offsets.edge_offsets", edge_offsets)
    monkeypatch.setattr("mzplan.connectors.kafka.positions.edge_offsets", edge_offsets)
    known = cluster(a=("1", 1), b=("2", 1))
    monkeypatch.setattr(probe.KafkaProbe, "client_of", lambda self, query: known)
    asked, former = several(topics=["a", "b"]), several(topics=["a"])
    found = probe.identify(known, asked, False)
    written = Written(tmp_path, "kafka", {"topics": ["a"]})
    written.start()
    written.step(0, {"a": {"0": 3}})
    checkpoint = written.checkpoint
    checkpoint.record_upstream(probe.identify(known, former, False))
    written.spark.joinpath("commits/0").unlink()  # the step is interrupted, so it runs first
    take_upstream(KafkaSource(), asked, checkpoint, found, dict)  # by the run that finishes it
    assert checkpoint.log.newest() == 0
    for _ in range(2):
        finish_step = partial(written.step, 0, {"a": {"0": 3}})
        take_upstream(KafkaSource(), asked, checkpoint, found, dict, finish_step)
        take_upstream(KafkaSource(), asked, checkpoint, found, dict)
        assert json.loads(checkpoint.position() or "") == {"a": {"0": 3}, "b": {"0": 2}}
        assert (checkpoint.log.committed(), checkpoint.upstream()) == (1, found)
    # A login that may not see the ids doesn't make mzplan forget them.
    unseen = {
        **found,
        "topics": {name: {**topic, "topic_id": None} for name, topic in found["topics"].items()},
    }
    take_upstream(KafkaSource(), asked, checkpoint, unseen, dict)
    assert checkpoint.upstream() == found


def test_an_entry_of_the_offset_log_is_read_and_written_alike() -> None:
    body = several(topics=["a", "b"]).body
    entry = '{"a":{"0":3,"10":4},"b":{"0":5}}'
    assert as_entry(offsets_in(entry, body)) == entry
    for other in ('{"c":{"0":1}}', '{"logOffset":3}', "{"):
        with pytest.raises(ValueError, match=r"."):
            offsets_in(other, body)


def test_rows_have_their_topic_only_with_several_topics() -> None:
    of_one = source()
    of_two = Description(**{**_fields(of_one), "body": {"topics": ["a"], "format": FORMAT}})
    position = Connectors().position
    assert (position(of_one), position(of_two)) == (SINGLE, SEVERAL)


def _fields(description: Description) -> dict[str, Any]:
    return {name: getattr(description, name) for name in Description.__slots__}


@pytest.mark.parametrize(
    ("before", "after", "effects"),
    [
        (["a"], ["a", "b"], {"restart"}),
        (["a", "b"], ["a"], {"replace"}),
        (["a", "b"], ["b", "a"], {"replace"}),
    ],
)
def test_adding_a_topic_restarts_and_removing_one_replaces(
    before: list[str], after: list[str], effects: set[str]
) -> None:
    kind = resource_kind("source", "kafka")
    changes = compare_bodies(kind, {"topics": before}, {"topics": after})
    assert {change.effect for change in changes} == effects


def test_a_query_that_read_the_topics_can_be_adopted() -> None:
    def problems(position: dict[str, Any], **body: Any) -> list[str]:
        wanted: Any = SimpleNamespace(body=body)
        return list(adoption_problems(wanted, position))

    offsets = {"a": {"0": 1}, "b": {"0": 1}}
    assert problems(offsets, topics=["b", "a"]) == [] == problems(offsets, topic_pattern="a|b")
    assert problems(offsets, topics=["a"]) == ["It reads the topics a, b, but the source reads a."]
    assert problems(offsets, topic_pattern="a") == ["It reads the topics b, which don't match topic_pattern."]
    assert problems({"a": {"0": 1}}, topic="a") == []


def test_lineage_names_each_topic() -> None:
    asked = several(topics=["a", "b"])
    ends = lineage_of(asked.description, "/project", "/warehouse").inputs
    assert [end.name for end in ends] == [("kafka://a:1", "a"), ("kafka://a:1", "b")]
