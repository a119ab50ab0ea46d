"""The index of a query's steps: a folder of small segments beside its checkpoint.

docs/internals/protocol.md describes it.

    <checkpoint>/index/00000000000000000500.jsonl    steps 500 … 999, one JSON line each
    <checkpoint>/index/since-00000000000000000040    steps below 40 were expired; the highest counts
    <checkpoint>/index/foreign-00000000000000000057  the newest version in which another writer changed rows

The index can be rebuilt from the checkpoint and the collection's log, as far back as these go. So readers
skip a line that a crash has cut short.
"""

from __future__ import annotations

import bisect
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby

from mzplan.secrets.resolved import shortened
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.folder import decoding, open_folder
from mzplan.warehouse.step_record import StepRecord

FORMAT_VERSION = 1
SEGMENT = 500  # steps
SEGMENTS = 200  # of one query that are kept: 100,000 steps, about 25 MB
RECENT_STEPS = 8  # of each query in a Status, 25 bytes each: 200 KB for 1,000 queries
_MARK = "since-"
_FOREIGN = "foreign-"


@dataclass(frozen=True, slots=True)
class ForeignVersion:
    """A version of a collection in which another writer changed rows, and Delta's name for its operation."""

    version: int
    operation: str

    def __str__(self) -> str:
        return (
            f"another writer changed rows of its collection, last in version {self.version} "
            f"({shortened(self.operation, 40)}): `mzplan verify` shows them"
        )


class StepIndex:
    """The index of one query. The leading runner writes steps; any process may read or expire.

    Raises OSError if the storage fails."""

    def __init__(self, checkpoint: Checkpoint):
        self.place = f"{checkpoint.folder}/index"
        self._folder = open_folder(self.place)

    def since(self) -> int:
        """Return the oldest step that isn't expired. It never decreases."""
        return _since(self._folder.names())

    def recent(self) -> tuple[StepRecord, ...]:
        """Return the newest steps, the newest first, for a Status."""
        return tuple(itertools.islice(self.backwards(), RECENT_STEPS))

    def oldest(self) -> tuple[int, float | None]:
        """Return the oldest step that isn't expired, and the time of the first step from there on."""
        record = self.first()
        return self.since(), record.time if record is not None else None

    def first(self) -> StepRecord | None:
        """Return the first step that isn't expired; None if there is none."""
        names = self._folder.names()
        since = _since(names)
        young = (first for first in _segments(names) if first + SEGMENT > since)
        records = (record for first in young for record in self._read(first) if record.step >= since)
        return next(records, None)

    def foreign(self) -> ForeignVersion | None:
        """Return the newest version that was marked as foreign; None if there is none."""
        name = max((name for name in self._folder.names() if name.startswith(_FOREIGN)), default=None)
        data = self._folder.read(name) if name is not None else None
        if data is None:
            return None
        with decoding(f"{self.place}/{name}"):
            content = json.loads(data)
            return ForeignVersion(int(content["version"]), str(content["operation"]))

    def mark_foreign(self, found: ForeignVersion) -> None:
        """Mark the newest version of the collection in which another writer changed rows."""
        name = f"{_FOREIGN}{found.version:020}"
        content = {"format_version": FORMAT_VERSION, **asdict(found)}
        self._folder.write(name, json.dumps(content).encode())
        for other in self._folder.names():
            if other.startswith(_FOREIGN) and other < name:
                self._folder.delete(other)

    def last(self) -> StepRecord | None:
        """Return the newest step; None if there is none."""
        return next(self.backwards(), None)

    def backwards(self) -> Iterator[StepRecord]:
        """Yield the steps from the newest to the oldest unexpired one. Reads lazily."""
        names = self._folder.names()
        since = _since(names)
        for first in reversed(_segments(names)):
            if first + SEGMENT <= since:
                return
            yield from (r for r in reversed(self._read(first)) if r.step >= since)

    def first_young(self, when: float) -> StepRecord | None:
        """Return the oldest step that became durable at `when` or later.

        Ignores steps without a recorded time. Reads few segments, by binary search, because times only
        grow."""
        names = self._folder.names()
        since = _since(names)
        segments = [first for first in _segments(names) if first + SEGMENT > since]

        def is_young(record: StepRecord) -> bool:
            return record.step >= since and record.time is not None and record.time >= when

        def has_young(first: int) -> bool:
            return any(map(is_young, self._read(first)))

        at = bisect.bisect_left(segments, True, key=has_young)
        return next(filter(is_young, self._read(segments[at])), None) if at < len(segments) else None

    def find(self, step: int) -> StepRecord | None:
        """Return a step that is still in a segment, even if it is expired."""
        return next((r for r in self._read(step // SEGMENT * SEGMENT) if r.step == step), None)

    def append(self, records: Iterable[StepRecord]) -> None:
        """Add steps, in order. A step that is added again replaces its record."""
        segments = _segments(self._folder.names())
        for first, group in groupby(records, key=lambda record: record.step // SEGMENT * SEGMENT):
            self._extend(first, list(group))
            if first not in segments:
                segments.append(first)
                self._prune(segments)

    def expire(self, step: int) -> None:
        """Forget the steps below `step`. An earlier step than before changes nothing."""
        if step <= self.since():
            return
        # Each call writes a file of its own, and the highest number counts. So concurrent writers (the runner
        # and `mzplan expire`) can't undo each other's work, even in an object store.
        since = {"format_version": FORMAT_VERSION, "since": step}
        self._folder.write(f"{_MARK}{step:020}", json.dumps(since).encode())
        names = self._folder.names()
        newest = _since(names)
        for name in names:
            if _is_mark(name) and int(name.removeprefix(_MARK)) < newest:
                self._folder.delete(name)
        for first in _segments(names):
            if first + SEGMENT <= newest:
                self._folder.delete(_name(first))

    def _prune(self, segments: Sequence[int]) -> None:
        """Remove the oldest segments beyond the limit."""
        for first in sorted(segments)[:-SEGMENTS]:
            self._folder.delete(_name(first))

    def _read(self, first: int) -> list[StepRecord]:
        data = self._folder.read(_name(first)) or b""
        records: dict[int, StepRecord] = {}
        for line in data.splitlines():
            try:
                with decoding(f"{self.place}/{_name(first)}"):
                    record = StepRecord.parse(line)
            except OSError:  # cut short by a crash
                continue
            records[record.step] = record
        return [records[step] for step in sorted(records)]

    def _extend(self, first: int, records: list[StepRecord]) -> None:
        self._folder.extend(_name(first), "".join(f"{record.line()}\n" for record in records).encode())


def _since(names: Sequence[str]) -> int:
    return max((int(name.removeprefix(_MARK)) for name in names if _is_mark(name)), default=0)


def _is_mark(name: str) -> bool:
    return name.startswith(_MARK) and name.removeprefix(_MARK).isdecimal()


def _segments(names: Sequence[str]) -> list[int]:
    """Return the first step of each segment, in order."""
    return sorted(int(name[:20]) for name in names if len(name) == 26 and name[:20].isdecimal())


def _name(first: int) -> str:
    return f"{first:020}.jsonl"
