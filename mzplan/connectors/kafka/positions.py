"""Offsets in a Kafka source's topics: which are gone, how many are unread, and where to continue or read
again.

No pyspark. Every request has a time limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mzplan.connectors.api.connector import LastTimes
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.api.upstreams import list_names, start_over_hint
from mzplan.connectors.kafka.client import ClusterError
from mzplan.connectors.kafka.offsets import (
    Part,
    as_entry,
    as_position,
    edge_offsets,
    offsets_in,
    offsets_of,
    part_name,
    partition_counts,
    parts_of,
    records_at,
    start_offsets,
    topics_text,
)
from mzplan.connectors.kafka.options import route
from mzplan.connectors.kafka.probe import KafkaProbe, identify, topic_difference, topics_in
from mzplan.model.diagnostics import Diagnostic, MzplanError, error
from mzplan.model.losses import FirstCopy, Loss
from mzplan.model.times import instant_text
from mzplan.warehouse.checkpoint_log import CheckpointLog
from mzplan.warehouse.checkpoints import Checkpoint


class KafkaPositions:
    """The part of KafkaSource that compares positions with the topic."""

    def __init__(self) -> None:
        self._probe = KafkaProbe()

    def check_position(self, query: ResolvedQuery, position: str) -> Diagnostic | None:
        """Return MZ067 if the topics no longer have the records at the next offsets."""
        try:
            next_offsets = offsets_in(position, query.body)
        except ValueError:
            return None
        try:
            client = self._probe.client_of(query)
            partitions = partition_counts(identify(client, query, False))
            present = [part for part in next_offsets if part.partition < partitions.get(part.topic, 0)]
            first = edge_offsets(client, query, present, "earliest")
            end = edge_offsets(client, query, present, "latest", dirty=True)
        except ClusterError as problem:
            return problem.diagnostics[0]
        problems = []
        for part, offset in sorted(next_offsets.items()):
            name = part_name(part, query)
            if part not in first:
                only = partitions.get(part.topic, 0)
                problems.append(f"{name} doesn't exist, there are only {only}")
            elif first[part] > offset:
                problems.append(f"{name}: offsets {offset} to {first[part] - 1} are gone")
            elif end[part] < offset:
                problems.append(f"{name}: it ends at offset {end[part]}, before {offset}")
        return _offsets_gone(query, problems) if problems else None

    def backlog(self, query: ResolvedQuery) -> dict[str, int] | None:
        """Return the number of unread records, `{"records": n}`. Counts from the checkpoint or, before the
        first step, from the start position. Returns None if that isn't known."""
        log = query.checkpoint.log if query.checkpoint else None
        try:
            position = log.entry(log.committed()) if log is not None else None
            next_offsets = offsets_in(position, query.body)
            client = self._probe.client_of(query)
            parts = parts_of(identify(client, query, False))
            end = edge_offsets(client, query, parts, "latest")
            new_parts = [part for part in parts if part not in next_offsets]
            if position:  # partitions added since
                first = edge_offsets(client, query, new_parts, "earliest") if new_parts else {}
            else:
                first = start_offsets(client, query, new_parts)
        except (ClusterError, ValueError, KeyError, OSError):
            return None
        return {"records": sum(max(0, end[part] - {**first, **next_offsets}[part]) for part in parts)}

    def upstream_end(self, query: ResolvedQuery) -> dict[str, Any] | None:
        """Return the end of each partition, of several topics by topic. Returns None without a limit on the
        micro-batches: the first one then reads all records."""
        if "max_offsets_per_trigger" not in query.body:
            return None
        client = self._probe.client_of(query)
        end = as_position(edge_offsets(client, query, parts_of(identify(client, query, False)), "latest"))
        return end[query.body["topic"]] if "topic" in query.body else end

    def first_copy(self, checkpoint: Checkpoint, body: Mapping[str, Any]) -> FirstCopy:
        recorded = checkpoint.first_end() or {}
        ends = offsets_of({body["topic"]: recorded} if "topic" in body else recorded)
        try:
            next_offsets = offsets_in(checkpoint.position(), body)
        except ValueError:  # it reads another topic since (`on_upstream_change`)
            return FirstCopy()
        first = offsets_of(checkpoint.log.initial_offset() or {})
        begins = {part: min(first.get(part, 0), end) for part, end in ends.items()}
        return FirstCopy(
            read=tuple(next_offsets.get(part, 0) - begins[part] for part in ends),
            ends=tuple(end - begins[part] for part, end in ends.items()),
            unit="record",
            positions=_by_topic_id(next_offsets, checkpoint.upstream()),
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
        client, recorded = self._probe.client_of(query), former.upstream()
        identity = identify(client, query, False)
        accepts = recorded is None or query.body.get("on_upstream_change") == "accept"
        difference = topic_difference(recorded, identity) if recorded is not None and not accepts else None
        if others := sorted({part.topic for part in ranges} - topics_in(identity).keys()):
            difference = f"it would read {topics_text(query)} instead of {', '.join(others)}"
        if difference is not None:
            return Loss(lost=read, read=read, unit="records", where=f"{route(query)}: {difference}")
        starts = start_offsets(client, query, parts_of(identity))
        lost_ranges = {
            part: range(span.start, min(span.stop, starts.get(part, span.stop)))
            for part, span in sorted(ranges.items())
        }
        lost = sum(map(len, lost_ranges.values()))
        if not lost:
            return None
        names = [
            f"{part_name(part, query)}: {span.start:,}–{span.stop - 1:,}"
            for part, span in lost_ranges.items()
            if span
        ]
        start = query.body["start_offsets"]
        why = "" if start == "earliest" else f" (start_offsets: {start})"
        where = f"{route(query)}, {topics_text(query)}{why}: {list_names(names, 'partitions')}"
        return Loss(lost=lost, read=read, unit="records", where=where)

    def reposition(
        self, query: ResolvedQuery, policy: str, position: str | None, last_times: LastTimes
    ) -> str:
        """Return the position at which a source continues in another topic, or in one that has lost records:
        `{"topic": {"0": 17, …}}`. Raises MzplanError."""
        client, recorded = self._probe.client_of(query), offsets_in(position, query.body)
        parts = sorted(recorded) or parts_of(identify(client, query, False))
        first = edge_offsets(client, query, parts, "earliest")
        end = edge_offsets(client, query, parts, "latest")
        times = last_times() if policy == "translate-timestamp" else {}
        offsets = {}
        for part in parts:
            if part in recorded and first[part] <= recorded[part] <= end[part]:
                offsets[part] = recorded[part]
            elif policy == "reset-latest":
                offsets[part] = end[part]
            elif times:
                # In another topic, records may be in other partitions. The earliest time loses none of them.
                earliest = min(times.values())
                when = times.get(part.partition, earliest) if position else earliest
                record = records_at(client, query, [part], when).get(part)
                offsets[part] = max(record.offset, first[part]) if record else end[part]
            else:
                offsets[part] = first[part]
        return as_entry(offsets)

    def extended(self, query: ResolvedQuery, position: str, found: Mapping[str, Any]) -> str | None:
        """Return a position that also has the new topics. Topics that a source names begin at its
        start_offsets, and topics that a pattern finds at their beginning. Spark itself would begin all of
        them at their beginning, and fail if retention has removed records there."""
        offsets = offsets_in(position, query.body)
        known = {part.topic for part in offsets}
        new_parts = [part for part in parts_of(found) if part.topic not in known]
        if not new_parts:
            return None
        client = self._probe.client_of(query)
        if "topic_pattern" in query.body:
            return as_entry(offsets | edge_offsets(client, query, new_parts, "earliest"))
        return as_entry(offsets | start_offsets(client, query, new_parts))

    def between_times(
        self, query: ResolvedQuery, start: int, end: int, position: str | None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the offsets of records in a range of times before a position, by partition: `({"topic":
        {"0": 3}}, {"topic": {"0": 17}})`.

        Times are in milliseconds since the epoch. In each partition, the range ends before the first record
        with a later time, even if earlier times follow it. Raises MzplanError, including MZ277 and MZ278.
        """
        try:
            next_offsets = offsets_in(position, query.body)
        except ValueError:  # a position in another topic: nothing was read from this one
            next_offsets = {}
        client = self._probe.client_of(query)
        partitions = parts_of(identify(client, query, False))
        first = edge_offsets(client, query, partitions, "earliest")
        last = edge_offsets(client, query, partitions, "latest")
        first_records = records_at(client, query, partitions, start)
        end_records = records_at(client, query, partitions, end)
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
            raise error(
                "MZ278.not-read",
                address=query.address,
                range_text=_range_text(start, end),
                route=route(query),
                topics_text=topics_text(query),
            )
        return as_position({p: first_records[p].offset for p in parts}), as_position(
            {p: end_offsets[p] for p in parts}
        )


def _by_topic_id(offsets: Mapping[Part, int], upstream: Mapping[str, Any] | None) -> dict[str, int]:
    """Return the offsets by topic id and partition. `upstream`: the recorded identity of the topics."""
    ids = {name: topic["topic_id"] for name, topic in topics_in(upstream).items()} if upstream else {}
    return {f"{ids[p.topic]}/{p.partition}": offset for p, offset in offsets.items() if p.topic in ids}


def _ranges_read(log: CheckpointLog) -> dict[Part, range]:
    """Return the offsets that were read, by partition. Includes an uncommitted step's offsets,
    because its rows may be in the collection. Raises OSError."""
    end, _ = log.offset(log.newest())
    start = log.initial_offset() or {}
    return {
        Part(topic, int(partition)): range(int(start.get(topic, {}).get(partition, 0)), int(offset))
        for topic, offsets in (end or {}).items()
        for partition, offset in offsets.items()
    }


def _offsets_gone(query: ResolvedQuery, problems: list[str]) -> Diagnostic:
    return Diagnostic.of(
        "MZ067.cannot-continue",
        address=query.address,
        route=route(query),
        topics_text=topics_text(query),
        problems="; ".join(problems),
        start_over_hint=start_over_hint(query),
    )


def _range_gone(query: ResolvedQuery, start: int, end: int, oldest_times: Mapping[Part, int]) -> MzplanError:
    """Return MZ277. `oldest_times`: the time of the oldest record left, by partition, if the range begins
    with it."""
    where = f"{route(query)}, {topics_text(query)}"
    if not oldest_times:
        return error(
            "MZ277.no-records", address=query.address, range_text=_range_text(start, end), where=where
        )
    oldest = "; ".join(
        f"{part_name(part, query)}: the oldest is from {instant_text(t)}"
        for part, t in sorted(oldest_times.items())
    )
    return error(
        "MZ277.records-gone",
        address=query.address,
        range_text=_range_text(start, end),
        where=where,
        oldest=oldest,
        instant_text=instant_text(max(oldest_times.values()) + 1),
    )


def _range_text(start: int, end: int) -> str:
    return f"from {instant_text(start)} to {instant_text(end)}"
