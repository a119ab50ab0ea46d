"""The event log of an instance: what has happened to its queries, across runners, for people.

It lies in segments, each a key of its own (`events/<instance>.<when it began>-<epoch>.jsonl`), a line of JSON
for an event. Only the leading runner appends, to segments of its own epoch: one that was cut off from the
store can't harm what its successor writes. A small segment that another runner has left is taken over, so
that many short runs make few keys.

A line that is no event is left out.
"""

from __future__ import annotations

import heapq
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from mzplan.model.address import is_valid_name
from mzplan.model.codec import decode, encode, parse_json
from mzplan.model.diagnostics import MzplanError
from mzplan.model.event import Event
from mzplan.model.times import instant
from mzplan.secrets.resolved import shortened
from mzplan.store.backends.backend import Backend
from mzplan.store.formats import canonical, scrubbed_cause

FOLDER = "events/"
KEPT_SECONDS = 90 * 86_400.0
KEPT_BYTES = 50 << 20
SEGMENT_BYTES = 256 << 10
MAX_WAITING = 5000  # events that could not be written yet: the oldest go
MAX_DETAIL = 1000  # characters
_SKEW = 86_400_000  # milliseconds by which a clock may be ahead
_KEY = re.compile(rf"{FOLDER}(?P<instance>[^./]+)\.(?P<began>\d{{13}})-(?P<epoch>\d{{1,15}})\.jsonl")


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """A key of the log: when it was begun (milliseconds since the epoch), and under which epoch."""

    began: int
    epoch: int
    instance: str

    @property
    def key(self) -> str:
        return f"{FOLDER}{self.instance}.{self.began:013d}-{self.epoch}.jsonl"


def segments(backend: Backend, instance: str | None = None) -> list[Segment]:
    """The segments of an instance, or of all instances; the oldest first."""
    matches = (_KEY.fullmatch(key) for key in backend.list(FOLDER))
    every = (Segment(int(m["began"]), int(m["epoch"]), m["instance"]) for m in matches if m is not None)
    return sorted(
        segment
        for segment in every
        if is_valid_name(segment.instance) and instance in (None, segment.instance)
    )


class EventLog:
    """Appends to the log of an instance, which its process leads. `clock` gives seconds since the epoch."""

    def __init__(self, backend: Backend, instance: str, epoch: int, clock: Callable[[], float] = time.time):
        self._backend = backend
        self._instance, self._epoch = instance, epoch
        self._clock = clock
        self._waiting: list[bytes] = []
        self._since: float | None = None  # when the oldest of these came
        self._segment: Segment | None = None
        self._written = b""  # what it holds
        self._former: Segment | None = None  # whose lines it has taken over

    def add(self, events: Iterable[Event], serial: int) -> None:
        """To be written by the next `flush`. `serial`: the newest that was taken in."""
        lines = [_line(replace(event, serial=max(0, serial), epoch=self._epoch)) for event in events]
        if lines:
            self._since = self._clock() if self._since is None else self._since
            self._waiting = [*self._waiting, *lines][-MAX_WAITING:]

    def waits(self) -> float:
        """For how many seconds the oldest event has waited to be written; -1 where none waits."""
        return self._clock() - self._since if self._since is not None else -1.0

    def flush(self) -> None:
        """Write all that waits, with one write. Raises MzplanError: then it waits on."""
        if not self._waiting:
            return
        data = b"".join(self._waiting)
        if self._segment is None or len(self._written) + len(data) > SEGMENT_BYTES:
            self._begin(len(data))
        assert self._segment is not None
        self._backend.write(self._segment.key, self._written + data)
        self._written += data
        self._waiting, self._since = [], None
        if self._former is not None:
            self._backend.delete(self._former.key)
            self._former = None

    def _begin(self, size: int) -> None:
        """A segment, for so many bytes at once: at first with what a small one before it holds."""
        known = segments(self._backend, self._instance)
        last, self._former, self._written = known[-1] if known else None, None, b""
        if self._segment is None and last is not None:
            whole = self._whole_lines(last)
            if whole is not None and len(whole) + size <= SEGMENT_BYTES:
                self._former, self._written = last, whole
        now = self._clock()
        began = int(now * 1000)
        if last is not None and 0 <= last.began - began < _SKEW:  # behind one of a clock that was ahead
            began = last.began + 1
        self._segment = Segment(began, self._epoch, self._instance)
        for segment in _too_many(known, now):
            self._backend.delete(segment.key)

    def _whole_lines(self, segment: Segment) -> bytes | None:
        """Without the last one, where a crash has cut it off; None where it can't be read."""
        try:
            blob = self._backend.read(segment.key)
        except MzplanError:  # what lies there is none of ours
            return None
        return blob.data[: blob.data.rfind(b"\n") + 1] if blob is not None else b""


def _too_many(known: list[Segment], now: float) -> Iterator[Segment]:
    """The segments beyond what is kept: a segment ends where the next one begins."""
    oldest = (now - KEPT_SECONDS) * 1000
    for number, segment in enumerate(known[:-1]):
        if known[number + 1].began < oldest or len(known) - number >= KEPT_BYTES // SEGMENT_BYTES:
            yield segment


def _line(event: Event) -> bytes:
    cause = scrubbed_cause(event.cause) if event.cause is not None else None
    bare = replace(event, detail=shortened(event.detail, MAX_DETAIL), cause=cause)
    fields = {name: value for name, value in encode(bare).items() if value is not None}
    return (canonical(fields) + "\n").encode(errors="replace")


def seconds_of(event: Event) -> float:
    """When it was, in seconds since the epoch."""
    return (instant(event.at) or 0) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEvent:
    """An event as it is read: from the log of which instance."""

    instance: str
    event: Event


class EventReader:
    """Reads the logs of a store. `unreadable`: how many lines were no events; a segment that can't be read
    counts as one, and is in `left_out`. One thread."""

    def __init__(self, backend: Backend):
        self._backend = backend
        self._versions: dict[str, str | None] = {}
        self._shown: dict[str, set[bytes]] = {}
        self.unreadable = 0
        self.left_out: list[str] = []

    def newest_first(
        self, wanted: Callable[[bytes], bool], since: float = 0.0, until: float = math.inf
    ) -> Iterator[LoggedEvent]:
        """The events whose line is wanted, of all instances by their own times, the newest first. `since`,
        `until`: of what ended before, or began after that (seconds since the epoch) nothing need be read.

        A segment is read when the events may be in it that come next, and not before."""
        instances: dict[str, list[Segment]] = {}
        for segment in segments(self._backend):
            instances.setdefault(segment.instance, []).append(segment)
        unread: list[tuple[float, float, Segment]] = []  # the end first
        for own in instances.values():
            for number, segment in enumerate(own):
                end = own[number + 1].began / 1000 if number + 1 < len(own) else math.inf
                # What it has taken over came after the beginning of the one before.
                begin = own[number - 1].began / 1000 if number else 0.0
                if end >= since and begin <= until:
                    heapq.heappush(unread, (-end, -segment.began, segment))
        waiting: list[tuple[float, int, LoggedEvent]] = []
        seen: set[bytes] = set()
        while unread or waiting:
            if unread and (not waiting or unread[0][0] <= waiting[0][0]):
                segment = heapq.heappop(unread)[2]
                for line in reversed(self._lines(segment)):
                    if wanted(line) and line not in seen:  # what was taken over may stand twice
                        seen.add(line)
                        for logged in self._event(segment.instance, line):
                            heapq.heappush(waiting, (-seconds_of(logged.event), len(seen), logged))
            else:
                yield heapq.heappop(waiting)[2]

    def fresh(self) -> Iterator[LoggedEvent]:
        """What has come since the last call, of each instance in its order; all of the newest segments at
        the first one."""
        newest: dict[str, list[Segment]] = {}
        for segment in segments(self._backend):
            newest[segment.instance] = [*newest.get(segment.instance, [])[-1:], segment]
        for instance, last in newest.items():
            shown, now = self._shown.get(instance, set()), set()
            for segment in last:
                version = self._backend.version(segment.key)
                if self._versions.get(segment.key, "") == version:
                    now |= shown
                    continue
                self._versions[segment.key] = version
                lines = self._lines(segment)
                now |= set(lines)
                for line in lines:
                    if line not in shown:
                        yield from self._event(instance, line)
            self._shown[instance] = now

    def _lines(self, segment: Segment) -> list[bytes]:
        try:
            blob = self._backend.read(segment.key)
        except MzplanError as problem:
            if problem.kind == "unreachable":  # the whole store fails
                raise
            self.unreadable += 1
            self.left_out.append(segment.key)
            return []
        if blob is None:  # taken over, or dropped meanwhile
            return []
        return [line for line in blob.data.split(b"\n") if line.strip()]

    def _event(self, instance: str, line: bytes) -> Iterator[LoggedEvent]:
        try:
            event = decode(Event, parse_json(line))
        except (ValueError, RecursionError):  # cut off by a crash, or of a newer mzplan
            self.unreadable += 1
        else:
            yield LoggedEvent(instance=instance, event=event)
