"""Offsets in a Kafka source's topic: which are gone, how many are unread, and where to continue or read
again.

No pyspark. Every request has a time limit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from mzplan.connectors.api.connector import LastTimes
from mzplan.connectors.api.probes import PROBE_TIMEOUT_S
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.api.upstreams import list_names, start_over_hint
from mzplan.connectors.kafka.client import Client, ClusterError, answer
from mzplan.connectors.kafka.options import route
from mzplan.connectors.kafka.probe import KafkaProbe, identify, topic_difference
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError, refusal
from mzplan.model.losses import FirstCopy, Loss
from mzplan.model.times import instant, instant_text
from mzplan.warehouse.checkpoint_log import CheckpointLog
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.folder import decoding


class _Record(NamedTuple):
    """A record's offset in its partition, and its time (milliseconds since the epoch)."""

    offset: int
    timestamp: int


class KafkaPositions:
    """The part of KafkaSource that compares positions with the topic."""

    def __init__(self) -> None:
        self._probe = KafkaProbe()

    def check_position(self, query: ResolvedQuery, position: str) -> Diagnostic | None:
        """Return MZ067 if the topic no longer has the records at the next offsets."""
        topic = query.body["topic"]
        try:
            next_offsets = _offsets_in(position, topic)
        except ValueError:
            return None
        try:
            client = self._probe.client_of(query)
            partitions = identify(client, query, False)["partitions"]
            present = [partition for partition in next_offsets if partition < partitions]
            first = _offsets(client, query, topic, present, "earliest")
            end = _offsets(client, query, topic, present, "latest", dirty=True)
        except ClusterError as problem:
            return problem.diagnostics[0]
        problems = []
        for partition, offset in sorted(next_offsets.items()):
            if partition >= partitions:
                problems.append(f"partition {partition} doesn't exist, there are only {partitions}")
            elif first[partition] > offset:
                problems.append(f"partition {partition}: offsets {offset} to {first[partition] - 1} are gone")
            elif end[partition] < offset:
                problems.append(f"partition {partition}: it ends at offset {end[partition]}, before {offset}")
        return _offsets_gone(query, problems) if problems else None

    def backlog(self, query: ResolvedQuery) -> dict[str, int] | None:
        """Return the number of unread records, `{"records": n}`. Counts from the checkpoint or, before the
        first step, from the start position. Returns None if that isn't known."""
        topic, log = query.body["topic"], query.checkpoint.log if query.checkpoint else None
        try:
            position = log.entry(log.committed()) if log is not None else None
            next_offsets = _offsets_in(position, topic)
            client = self._probe.client_of(query)
            partitions = range(identify(client, query, False)["partitions"])
            end = _offsets(client, query, topic, partitions, "latest")
            new_partitions = [partition for partition in partitions if partition not in next_offsets]
            if position:  # partitions added since
                first = _offsets(client, query, topic, new_partitions, "earliest") if new_partitions else {}
            else:
                first = _start_offsets(client, query, new_partitions)
        except (ClusterError, ValueError, KeyError, OSError):
            return None
        return {"records": sum(max(0, end[p] - {**first, **next_offsets}[p]) for p in partitions)}

    def upstream_end(self, query: ResolvedQuery) -> dict[str, int] | None:
        """Return the end of each partition. Returns None without a limit on the micro-batches: the first one
        then reads all records."""
        if "max_offsets_per_trigger" not in query.body:
            return None
        client = self._probe.client_of(query)
        partitions = range(identify(client, query, False)["partitions"])
        end = _offsets(client, query, query.body["topic"], partitions, "latest")
        return {str(partition): offset for partition, offset in end.items()}

    def first_copy(self, checkpoint: Checkpoint, body: Mapping[str, Any]) -> FirstCopy:
        topic, ends = body["topic"], checkpoint.first_end() or {}
        try:
            next_offsets = _offsets_in(checkpoint.position(), topic)
        except ValueError:  # it reads another topic since (`on_upstream_change`)
            return FirstCopy()
        first = (checkpoint.log.initial_offset() or {}).get(topic, {})
        begins = {p: min(int(first.get(p, 0)), int(end)) for p, end in ends.items()}
        return FirstCopy(
            read=tuple(next_offsets.get(int(p), 0) - begins[p] for p in ends),
            ends=tuple(int(end) - begins[p] for p, end in ends.items()),
            unit="record",
        )

    def loss(self, query: ResolvedQuery, former: Checkpoint) -> Loss | None:
        """Return the number of lost records. Counts offsets, so the markers that end transactions also
        count."""
        ranges = _ranges_read(former.log)
        read = sum(map(len, ranges.values()))
        if former.was_moved():
            where = "Records that it read from its former upstream don't exist on this one"
            return Loss(lost=None, read=None, unit="records", where=where)
        if not read:
            return None
        topic = query.body["topic"]
        client, recorded = self._probe.client_of(query), former.upstream()
        identity = identify(client, query, False)
        accepts = recorded is None or query.body.get("on_upstream_change") == "accept"
        difference = topic_difference(recorded, identity) if recorded is not None and not accepts else None
        if topics := sorted({name for name, _ in ranges} - {topic}):
            difference = f"it would read topic {topic} instead of {', '.join(topics)}"
        if difference is not None:
            return Loss(lost=read, read=read, unit="records", where=f"{route(query)}: {difference}")
        starts = _start_offsets(client, query, range(identity["partitions"]))
        lost_ranges = {
            partition: range(span.start, min(span.stop, starts.get(partition, span.stop)))
            for (_, partition), span in sorted(ranges.items())
        }
        lost = sum(map(len, lost_ranges.values()))
        if not lost:
            return None
        names = [
            f"partition {p}: {span.start:,}–{span.stop - 1:,}" for p, span in lost_ranges.items() if span
        ]
        start = query.body["start_offsets"]
        why = "" if start == "earliest" else f" (start_offsets: {start})"
        where = f"{route(query)}, topic {topic}{why}: {list_names(names, 'partitions')}"
        return Loss(lost=lost, read=read, unit="records", where=where)

    def reposition(
        self, query: ResolvedQuery, policy: str, position: str | None, last_times: LastTimes
    ) -> str:
        """Return the position at which a source continues in another topic, or in one that has lost records:
        `{"topic": {"0": 17, …}}`. Raises MzplanError."""
        topic = query.body["topic"]
        client, recorded = self._probe.client_of(query), _offsets_in(position, topic)
        partitions = sorted(recorded) or range(identify(client, query, False)["partitions"])
        first = _offsets(client, query, topic, partitions, "earliest")
        end = _offsets(client, query, topic, partitions, "latest")
        times = last_times() if policy == "translate-timestamp" else {}
        offsets = {}
        for partition in partitions:
            if partition in recorded and first[partition] <= recorded[partition] <= end[partition]:
                offsets[partition] = recorded[partition]
            elif policy == "reset-latest":
                offsets[partition] = end[partition]
            elif times:
                # In another topic, records may be in other partitions. The earliest time loses none of them.
                earliest = min(times.values())
                when = times.get(partition, earliest) if position else earliest
                record = _records_at(client, query, topic, [partition], when).get(partition)
                offsets[partition] = max(record.offset, first[partition]) if record else end[partition]
            else:
                offsets[partition] = first[partition]
        return json.dumps({topic: {str(p): offset for p, offset in offsets.items()}}, separators=(",", ":"))

    def between_times(
        self, query: ResolvedQuery, start: int, end: int, position: str | None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the offsets of records in a range of times before a position, by partition: `({"topic":
        {"0": 3}}, {"topic": {"0": 17}})`.

        Times are in milliseconds since the epoch. In each partition, the range ends before the first record
        with a later time, even if earlier times follow it. Raises MzplanError, including MZ277 and MZ278.
        """
        topic = query.body["topic"]
        try:
            next_offsets = _offsets_in(position, topic)
        except ValueError:  # a position in another topic: nothing was read from this one
            next_offsets = {}
        client = self._probe.client_of(query)
        partitions = range(identify(client, query, False)["partitions"])
        first = _offsets(client, query, topic, partitions, "earliest")
        last = _offsets(client, query, topic, partitions, "latest")
        first_records = _records_at(client, query, topic, partitions, start)
        end_records = _records_at(client, query, topic, partitions, end)
        end_offsets = {p: end_records[p].offset if p in end_records else last[p] for p in first_records}
        present = [p for p, record in first_records.items() if record.offset < end_offsets[p]]
        # The oldest record left may not be the oldest ever written. If a partition's oldest one is later than
        # the range, all of the range may be gone.
        oldest_times = {
            p: record.timestamp for p, record in first_records.items() if 0 < first[p] == record.offset
        }
        if oldest_times or not present:
            raise _range_gone(query, start, end, oldest_times)
        end_offsets = {p: min(end_offsets[p], next_offsets.get(p, 0)) for p in present}
        parts = sorted(p for p in present if first_records[p].offset < end_offsets[p])
        if not parts:
            raise refusal(
                "MZ278",
                f"{query.address} has not read the records {_range_text(start, end)} yet",
                f"{route(query)}, topic {topic}: the source will read them by itself.",
                "to get a second copy of them, wait until the source has read them (mzplan status).",
                address=query.address,
            )
        return {topic: {str(p): first_records[p].offset for p in parts}}, {
            topic: {str(p): end_offsets[p] for p in parts}
        }


def _offsets_in(position: str | None, topic: str) -> dict[int, int]:
    """Return the offset of each partition in an entry of Spark's offset log. Raises ValueError, also if the
    entry belongs to another topic."""
    try:
        with decoding("an offset"):
            return (
                {int(p): int(offset) for p, offset in json.loads(position)[topic].items()} if position else {}
            )
    except OSError as problem:
        raise ValueError(str(problem)) from None


def _ranges_read(log: CheckpointLog) -> dict[tuple[str, int], range]:
    """Return the offsets that were read, by topic and partition. Includes an uncommitted step's offsets,
    because its rows may be in the collection. Raises OSError."""
    end, _ = log.offset(log.newest())
    start = log.initial_offset() or {}
    return {
        (topic, int(partition)): range(int(start.get(topic, {}).get(partition, 0)), int(offset))
        for topic, offsets in (end or {}).items()
        for partition, offset in offsets.items()
    }


def _start_offsets(client: Client, query: ResolvedQuery, partitions: Iterable[int]) -> dict[int, int]:
    """Return where a source that has read nothing yet begins, by partition."""
    topic, start, partitions = query.body["topic"], query.body["start_offsets"], list(partitions)
    when = instant(start)
    if when is None:
        return _offsets(client, query, topic, partitions, "latest" if start == "latest" else "earliest")
    end = _offsets(client, query, topic, partitions, "latest")
    records = _records_at(client, query, topic, partitions, when)
    return {p: records[p].offset if p in records else end[p] for p in partitions}


def _offsets(
    client: Client,
    query: ResolvedQuery,
    topic: str,
    partitions: Iterable[int],
    edge: Literal["earliest", "latest"],
    *,
    dirty: bool = False,
) -> dict[int, int]:
    """Return the first or last offsets of partitions that the source may read. `dirty`: includes the
    records of open transactions."""
    spec: OffsetSpec = getattr(OffsetSpec, edge)()
    wanted = {TopicPartition(topic, partition): spec for partition in partitions}
    dirty = dirty or query.link.body["options"].get("isolation.level") == "read_uncommitted"
    futures = client.admin.list_offsets(
        wanted,
        isolation_level=IsolationLevel.READ_UNCOMMITTED if dirty else IsolationLevel.READ_COMMITTED,
        request_timeout=PROBE_TIMEOUT_S,
    )
    return {place.partition: answer(client, query, future).offset for place, future in futures.items()}


def _records_at(
    client: Client, query: ResolvedQuery, topic: str, partitions: Iterable[int], when: int
) -> dict[int, _Record]:
    """Return each partition's first record at or after a time (milliseconds since the epoch), if it has
    one."""
    wanted = {TopicPartition(topic, partition): OffsetSpec.for_timestamp(when) for partition in partitions}
    futures = client.admin.list_offsets(wanted, request_timeout=PROBE_TIMEOUT_S)
    replies = {place.partition: answer(client, query, future) for place, future in futures.items()}
    return {
        p: _Record(int(reply.offset), int(reply.timestamp))
        for p, reply in replies.items()
        if reply.offset >= 0
    }


def _offsets_gone(query: ResolvedQuery, problems: list[str]) -> Diagnostic:
    return Diagnostic(
        code="MZ067",
        kind="offsets-gone",
        summary=f"{query.address} can't continue where it stopped",
        detail=f"{route(query)}, topic {query.body['topic']}: {'; '.join(problems)}. They were deleted.",
        hint="set on_upstream_change: reset-earliest | reset-latest | translate-timestamp in the source; or "
        f"{start_over_hint(query)}",
        address=query.address,
        exit_code=ExitCode.REFUSED,
    )


def _range_gone(query: ResolvedQuery, start: int, end: int, oldest_times: Mapping[int, int]) -> MzplanError:
    """Return MZ277. `oldest_times`: the time of the oldest record left, by partition, if the range begins
    with it."""
    where = f"{route(query)}, topic {query.body['topic']}"
    if not oldest_times:
        return refusal(
            "MZ277",
            f"{query.address} has no records {_range_text(start, end)}",
            f"{where}: no record has a timestamp in that range.",
            "look at the timestamps of the records, and at the topic's message.timestamp.type.",
            address=query.address,
        )
    oldest = "; ".join(
        f"partition {p}: the oldest is from {instant_text(t)}" for p, t in sorted(oldest_times.items())
    )
    return refusal(
        "MZ277",
        f"Records of {query.address} {_range_text(start, end)} may be gone",
        f"{where}: {oldest}. Older records were deleted, and some of them may be in that range.",
        f"use the complete part: --from {instant_text(max(oldest_times.values()) + 1)} or later.",
        address=query.address,
    )


def _range_text(start: int, end: int) -> str:
    return f"from {instant_text(start)} to {instant_text(end)}"
