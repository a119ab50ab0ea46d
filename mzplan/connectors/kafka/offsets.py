"""Offsets of topics: as Spark writes them in its offset log, and as a cluster knows them.

No pyspark. Every request has a time limit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from mzplan.connectors.api.probes import PROBE_TIMEOUT_S
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.api.upstreams import list_names
from mzplan.connectors.kafka.client import Client, answer
from mzplan.connectors.kafka.probe import named_topics, topics_in
from mzplan.model.times import instant
from mzplan.warehouse.folder import decoding


class Part(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class Record(NamedTuple):
    """A record's offset in its partition, and its time (milliseconds since the epoch)."""

    offset: int
    timestamp: int


def topics_text(query: ResolvedQuery) -> str:
    """Return the query's topics, for people."""
    body = query.body
    if "topic_pattern" in body:
        return f"topics {body['topic_pattern']}"
    names = named_topics(body)
    return f"topic {names[0]}" if len(names) == 1 else f"topics {list_names(names, 'topics')}"


def part_name(part: Part, query: ResolvedQuery) -> str:
    """Return a partition for people. The name of a source's only topic is left out."""
    name = f"partition {part.partition}"
    return name if "topic" in query.body else f"{part.topic} {name}"


def partition_counts(identity: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of partitions of each topic."""
    return {topic: int(facts["partitions"]) for topic, facts in topics_in(identity).items()}


def parts_of(identity: Mapping[str, Any]) -> list[Part]:
    """Return all partitions of the topics of an identity."""
    counts = sorted(partition_counts(identity).items())
    return [Part(topic, partition) for topic, number in counts for partition in range(number)]


def as_position(offsets: Mapping[Part, int]) -> dict[str, dict[str, int]]:
    """Return offsets as in an entry of Spark's offset log: `{"topic": {"0": 17}}`."""
    topics: dict[str, dict[str, int]] = {}
    for part, offset in offsets.items():
        topics.setdefault(part.topic, {})[str(part.partition)] = offset
    return topics


def as_entry(offsets: Mapping[Part, int]) -> str:
    return json.dumps(as_position(offsets), separators=(",", ":"))


def offsets_of(position: Mapping[str, Mapping[str, Any]]) -> dict[Part, int]:
    """Return the offset of each partition in a decoded entry. Raises ValueError, KeyError, TypeError."""
    return {
        Part(topic, int(p)): int(offset)
        for topic, partitions in position.items()
        for p, offset in partitions.items()
    }


def offsets_in(position: str | None, body: Mapping[str, Any]) -> dict[Part, int]:
    """Return the offset of each partition in an entry of Spark's offset log. Raises ValueError, also if the
    entry belongs to topics that the body doesn't name."""
    if not position:
        return {}
    try:
        with decoding("an offset"):
            offsets = offsets_of(json.loads(position))
            named = named_topics(body)
            if named and not {part.topic for part in offsets} <= set(named):
                raise ValueError("other topics")
            return offsets
    except OSError as problem:
        raise ValueError(str(problem)) from None


def start_offsets(client: Client, query: ResolvedQuery, parts: Iterable[Part]) -> dict[Part, int]:
    """Return where a source that has read nothing yet begins, by partition."""
    start, parts = query.body["start_offsets"], list(parts)
    when = instant(start)
    if when is None:
        return edge_offsets(client, query, parts, "latest" if start == "latest" else "earliest")
    end = edge_offsets(client, query, parts, "latest")
    records = records_at(client, query, parts, when)
    return {p: records[p].offset if p in records else end[p] for p in parts}


def edge_offsets(
    client: Client,
    query: ResolvedQuery,
    parts: Iterable[Part],
    edge: Literal["earliest", "latest"],
    *,
    dirty: bool = False,
) -> dict[Part, int]:
    """Return the first or last offsets of partitions that the source may read. `dirty`: includes the
    records of open transactions."""
    spec: OffsetSpec = getattr(OffsetSpec, edge)()
    wanted = {TopicPartition(*part): spec for part in parts}
    dirty = dirty or query.link.body["options"].get("isolation.level") == "read_uncommitted"
    futures = client.admin.list_offsets(
        wanted,
        isolation_level=IsolationLevel.READ_UNCOMMITTED if dirty else IsolationLevel.READ_COMMITTED,
        request_timeout=PROBE_TIMEOUT_S,
    )
    return {
        Part(place.topic, place.partition): answer(client, query, future, place.topic).offset
        for place, future in futures.items()
    }


def records_at(client: Client, query: ResolvedQuery, parts: Iterable[Part], when: int) -> dict[Part, Record]:
    """Return each partition's first record at or after a time (milliseconds since the epoch), if it has
    one."""
    wanted = {TopicPartition(*part): OffsetSpec.for_timestamp(when) for part in parts}
    futures = client.admin.list_offsets(wanted, request_timeout=PROBE_TIMEOUT_S)
    replies = {
        Part(place.topic, place.partition): answer(client, query, future, place.topic)
        for place, future in futures.items()
    }
    return {
        p: Record(int(reply.offset), int(reply.timestamp))
        for p, reply in replies.items()
        if reply.offset >= 0
    }
