"""The event log of an instance: the past events of its queries, across runners, for people.

The log consists of segments. Each segment is a key (`events/<instance>.<begin in ms>-<epoch>.jsonl`) with one
line of JSON per event. A runner appends only to segments of its own epoch. A runner that was cut off from the
store therefore can't damage its successor's segments. A runner merges a small last segment of its predecessor
into its own, so many short runs create few keys.

Readers skip invalid lines.
"""

from __future__ import annotations

import heapq
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from mzplan.model.codec import decode, encode, parse_json
from mzplan.model.diagnostics import MzplanError
from mzplan.model.event import Event
from mzplan.model.times import instant
from mzplan.secrets.resolved import shortened
from mzplan.store.backends.backend import Backend
from mzplan.store.formats import canonical, scrubbed_cause

FOLDER = "events/"
RETENTION_SECONDS = 90 * 86_400.0
RETENTION_BYTES = 50 << 20
SEGMENT_BYTES = 256 << 10
MAX_QUEUED = 5000  # unwritten events; beyond this the oldest are discarded
MAX_DETAIL = 1000  # characters
_SKEW = 86_400_000  # milliseconds by which a clock may be ahead
_KEY = re.compile(rf"{FOLDER}(?P<instance>[a-z][a-z0-9_]*)\.(?P<began>\d{{13}})-(?P<epoch>\d{{1,15}})\.jsonl")


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """A key of the log. `began` is in milliseconds since the epoch."""

    began: int
    epoch: int
    instance: str

    @property
    def key(self) -> str:
        return f"{FOLDER}{self.instance}.{self.began:013d}-{self.epoch}.jsonl"


def segments(backend: Backend, instance: str | None = None) -> list[Segment]:
    """Return the segments of an instance, or of all instances, the oldest first."""
    matches = (_KEY.fullmatch(key) for key in backend.list(FOLDER))
    parsed = (Segment(int(m["began"]), int(m["epoch"]), m["instance"]) for m in matches if m is not None)
    return sorted(segment for segment in parsed if instance in (None, segment.instance))


class EventLog:
    """Appends to the log of an instance that this process leads. `clock`: seconds since the epoch."""

    def __init__(self, backend: Backend, instance: str, epoch: int, clock: Callable[[], float] = time.time):
        self._backend = backend
        self._instance, self._epoch = instance, epoch
        self._clock = clock
        self._queue: list[bytes] = []
        self._queued_since: float | None = None  # when the oldest queued event was added
        self._segment: Segment | None = None
        self._segment_data = b""  # the content of the current segment
        self._merged: Segment | None = None  # the segment that the current segment includes

    def add(self, events: Iterable[Event], serial: int) -> None:
        """Queue events for the next `flush`. `serial`: the newest serial that the runner follows."""
        lines = [_line(replace(event, serial=max(0, serial), epoch=self._epoch)) for event in events]
        if lines:
            self._queued_since = self._clock() if self._queued_since is None else self._queued_since
            self._queue = [*self._queue, *lines][-MAX_QUEUED:]

    def queued_seconds(self) -> float:
        """Return the seconds that the oldest queued event has waited; -1 if none is queued."""
        return self._clock() - self._queued_since if self._queued_since is not None else -1.0

    def flush(self) -> None:
        """Write all queued events at once. Raises MzplanError; the events then stay queued."""
        if not self._queue:
            return
        data = b"".join(self._queue)
        if self._segment is None or len(self._segment_data) + len(data) > SEGMENT_BYTES:
            self._begin(len(data))
        assert self._segment is not None
        self._backend.write(self._segment.key, self._segment_data + data)
        self._segment_data += data
        self._queue, self._queued_since = [], None
        if self._merged is not None:
            self._backend.delete(self._merged.key)
            self._merged = None

    def _begin(self, size: int) -> None:
        """Start a segment for `size` bytes. The first segment of this process merges a small last one."""
        existing = segments(self._backend, self._instance)
        last, self._merged, self._segment_data = existing[-1] if existing else None, None, b""
        if self._segment is None and last is not None:
            whole = self._whole_lines(last)
            if whole is not None and len(whole) + size <= SEGMENT_BYTES:
                self._merged, self._segment_data = last, whole
        now = self._clock()
        began = int(now * 1000)
        if last is not None and 0 <= last.began - began < _SKEW:  # the clock of its runner was ahead
            began = last.began + 1
        self._segment = Segment(began, self._epoch, self._instance)
        for segment in _expired(existing, now):
            self._backend.delete(segment.key)

    def _whole_lines(self, segment: Segment) -> bytes | None:
        """Return the segment without a last line that a crash cut off; None if it can't be read."""
        try:
            blob = self._backend.read(segment.key)
        except MzplanError:  # mzplan didn't write it
            return None
        return blob.data[: blob.data.rfind(b"\n") + 1] if blob is not None else b""


def _expired(existing: list[Segment], now: float) -> Iterator[Segment]:
    """Yield the segments beyond the retention. A segment ends when the next one begins."""
    oldest = (now - RETENTION_SECONDS) * 1000
    for number, segment in enumerate(existing[:-1]):
        if existing[number + 1].began < oldest or len(existing) - number >= RETENTION_BYTES // SEGMENT_BYTES:
            yield segment


def _line(event: Event) -> bytes:
    cause = scrubbed_cause(event.cause) if event.cause is not None else None
    shortened_event = replace(event, detail=shortened(event.detail, MAX_DETAIL), cause=cause)
    fields = {name: value for name, value in encode(shortened_event).items() if value is not None}
    return (canonical(fields) + "\n").encode(errors="replace")


def seconds_of(event: Event) -> float:
    """Return the event's time in seconds since the epoch."""
    return (instant(event.at) or 0) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEvent:
    """An event and the instance whose log holds it."""

    instance: str
    event: Event


class EventReader:
    """Reads the logs of a store. For one thread.

    `unreadable`: the number of lines that aren't events, plus one for each unreadable segment.
    `unreadable_segments`: the keys of unreadable segments.
    """

    def __init__(self, backend: Backend):
        self._backend = backend
        self._versions: dict[str, str | None] = {}
        self._yielded: dict[str, set[bytes]] = {}
        self.unreadable = 0
        self.unreadable_segments: list[str] = []

    def newest_first(
        self, matches: Callable[[bytes], bool], since: float = 0.0, until: float = math.inf
    ) -> Iterator[LoggedEvent]:
        """Yield the wanted events of all instances, the newest first by their own times.

        Skips segments that end before `since` or begin after `until` (seconds since the epoch). Reads a
        segment only when it may contain the next event.
        """
        instances: dict[str, list[Segment]] = {}
        for segment in segments(self._backend):
            instances.setdefault(segment.instance, []).append(segment)
        unread: list[tuple[float, float, Segment]] = []  # by end, the latest first
        for log in instances.values():
            for number, segment in enumerate(log):
                end = log[number + 1].began / 1000 if number + 1 < len(log) else math.inf
                # A segment may hold merged lines that are as old as the beginning of the previous segment.
                begin = log[number - 1].began / 1000 if number else 0.0
                if end >= since and begin <= until:
                    heapq.heappush(unread, (-end, -segment.began, segment))
        ready: list[tuple[float, int, LoggedEvent]] = []
        seen: set[bytes] = set()
        while unread or ready:
            if unread and (not ready or unread[0][0] <= ready[0][0]):
                segment = heapq.heappop(unread)[2]
                for line in reversed(self._lines(segment)):
                    if (
                        matches(line) and line not in seen
                    ):  # after a crash, a merged line may be in both segments
                        seen.add(line)
                        for logged in self._event(segment.instance, line):
                            heapq.heappush(ready, (-seconds_of(logged.event), len(seen), logged))
            else:
                yield heapq.heappop(ready)[2]

    def fresh(self) -> Iterator[LoggedEvent]:
        """Yield the events since the last call, each instance in its own order.

        The first call yields all events of the newest segments.
        """
        newest: dict[str, list[Segment]] = {}
        for segment in segments(self._backend):
            newest[segment.instance] = [*newest.get(segment.instance, [])[-1:], segment]
        for instance, last in newest.items():
            yielded, current = self._yielded.get(instance, set()), set()
            for segment in last:
                version = self._backend.version(segment.key)
                if self._versions.get(segment.key, "") == version:
                    current |= yielded
                    continue
                lines = self._lines(segment)
                self._versions[segment.key] = version
                current |= set(lines)
                for line in lines:
                    if line not in yielded:
                        yield from self._event(instance, line)
            self._yielded[instance] = current

    def _lines(self, segment: Segment) -> list[bytes]:
        try:
            blob = self._backend.read(segment.key)
        except MzplanError as problem:
            if problem.kind == "unreachable":  # the whole store fails
                raise
            self.unreadable += 1
            self.unreadable_segments.append(segment.key)
            return []
        if blob is None:  # merged or removed meanwhile
            return []
        return [line for line in blob.data.split(b"\n") if line.strip()]

    def _event(self, instance: str, line: bytes) -> Iterator[LoggedEvent]:
        try:
            event = decode(Event, parse_json(line))
        except (ValueError, RecursionError):  # cut off by a crash, or from a newer mzplan
            self.unreadable += 1
        else:
            yield LoggedEvent(instance=instance, event=event)
