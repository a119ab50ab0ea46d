"""The steps after a given one, from what Spark itself has logged: offsets, commits, and the collection's log.

Spark keeps the offsets of the last hundred steps, and Delta its log for thirty days; so that is how far back
a tail can be made, and why there is an index. Nothing is written here: making a tail twice gives the same.
"""

from __future__ import annotations

import json
from typing import Any

from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.folder import Folder, open_folder
from mzplan.warehouse.step_record import StepRecord


class CheckpointLog:
    """What Spark has noted down in a checkpoint. Raises OSError."""

    def __init__(self, checkpoint: Checkpoint):
        self.checkpoint = checkpoint
        self._offsets: Folder = open_folder(f"{checkpoint.spark}/offsets")
        self._commits: Folder = open_folder(f"{checkpoint.spark}/commits")

    def planned(self) -> list[int]:
        """The steps whose offsets are there, in order."""
        return sorted(int(name) for name in self._offsets.names() if name.isdecimal())

    def committed(self) -> int:
        """The last step that Spark has seen through; -1: none."""
        return max((int(name) for name in self._commits.names() if name.isdecimal()), default=-1)

    def offset(self, step: int) -> tuple[Any, float | None]:
        """Where the upstream is after a step, and when the step began; None where that is not known."""
        data = self._offsets.read(str(step)) if step >= 0 else None
        lines = data.decode().splitlines() if data is not None else []
        if len(lines) != 3:  # a version, the batch's settings, one source
            return None, None
        began = json.loads(lines[1]).get("batchTimestampMs")
        return _parsed(lines[2]), began / 1000 if began else None

    def before_all(self) -> Any:
        """Where the upstream was before step 0, of a source that notes that (Kafka)."""
        data = open_folder(f"{self.checkpoint.spark}/sources/0").read("0")
        found = _parsed(data.decode(errors="replace").rpartition("\n")[2]) if data is not None else None
        # A source of files notes the files of its first batch there.
        return found if isinstance(found, dict) and all(isinstance(v, dict) for v in found.values()) else None

    def files(self, start: Any, end: Any) -> tuple[str, ...]:
        """The URIs of the files that a source of files noted down between two of its offsets; its log keeps
        all of them, merging ten entries into one now and then."""
        folder = open_folder(f"{self.checkpoint.spark}/sources/0")
        first, last = _log_offset(start) + 1, _log_offset(end)
        found: dict[tuple[int, str], None] = {}
        for name in folder.names():
            number = name.removesuffix(".compact")
            if not number.isdecimal() or not (first <= int(number) <= last or name.endswith(".compact")):
                continue
            for line in (folder.read(name) or b"").decode().splitlines()[1:]:
                entry = json.loads(line)
                if first <= entry["batchId"] <= last:
                    found[entry["batchId"], entry["path"]] = None
        return tuple(path for _, path in sorted(found))

    def range_of(self, step: int, before: StepRecord | None) -> tuple[Any, Any, float | None]:
        """From where to where a step reads, and when it began."""
        end, began = self.offset(step)
        if step == 0:
            return self.before_all(), end, began
        if before is not None and before.step == step - 1 and before.end is not None:
            return before.end, end, began
        return self.offset(step - 1)[0], end, began


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None if text in ("", "-") else text


def _log_offset(offset: Any) -> int:
    return int(offset["logOffset"]) if isinstance(offset, dict) and "logOffset" in offset else -1


def source_tail(
    log: CheckpointLog, collection: CollectionLog, last: StepRecord | None, upto: int | None = None
) -> list[StepRecord]:
    """The steps of a source after the `last` known one that its collection holds (at most `upto`)."""
    found: list[StepRecord] = []
    for commit in collection.after(last.version if last is not None and last.version is not None else -1):
        if commit.step is None or (last is not None and commit.step <= last.step):
            continue
        if upto is not None and commit.step > upto:
            break
        start, end, _ = log.range_of(commit.step, last)
        last = StepRecord(
            step=commit.step,
            start=start,
            end=end,
            rows=commit.rows,
            bytes=commit.bytes,
            time=commit.time,
            version=commit.version,
        )
        found.append(last)
    return found


def sink_tail(
    log: CheckpointLog, collection: CollectionLog, last: StepRecord | None, upto: int | None = None
) -> list[StepRecord]:
    """The steps of a sink after the `last` known one that Spark has seen through (at most `upto`)."""
    committed = log.committed()
    top = committed if upto is None else min(upto, committed)
    found: list[StepRecord] = []
    for step in log.planned():
        if step > top or (last is not None and step <= last.step):
            continue
        start, end, began = log.range_of(step, last)
        last = _sink_step(collection, step, start, end, began)
        found.append(last)
    return found


def in_flight(
    log: CheckpointLog, collection: CollectionLog | None, last: StepRecord | None
) -> StepRecord | None:
    """The step whose offsets are logged and that is not committed yet. `collection`: that of a sink."""
    step = max(log.planned(), default=-1)
    if step < 0 or (last is not None and step <= last.step):
        return None
    start, end, began = log.range_of(step, last)
    if collection is not None:
        found = _sink_step(collection, step, start, end, began)
        return StepRecord(
            step=step,
            start=start,
            end=end,
            time=began,
            sources=found.sources,
            rows=found.rows,
            committed=False,
        )
    return StepRecord(step=step, start=start, end=end, time=began, committed=False)


def _sink_step(collection: CollectionLog, step: int, start: Any, end: Any, began: float | None) -> StepRecord:
    covered = versions_between(start, end, collection)
    sources, rows = steps_of(collection, *covered) if covered else (None, None)
    if rows is not None and not (_at_boundary(start) and _at_boundary(end)):
        rows = None  # parts of a version: the log doesn't say how many rows each file has
    return StepRecord(step=step, start=start, end=end, rows=rows, time=began, sources=sources)


def versions_between(start: Any, end: Any, collection: CollectionLog) -> tuple[int, int] | None:
    """The first and last version of the collection that Delta's offsets reach into; None for none.

    An offset is a version and the index of a file in it; a negative index is before all its files. With
    `isStartingVersion`, it is within the snapshot that a reader begins with: of that version and all before.
    Of the changes of a keyed collection, an offset stays at the last file of a version that is read.
    """
    if not isinstance(end, dict) or "reservoirVersion" not in end:
        return None
    last = int(end["reservoirVersion"]) - (0 if int(end.get("index", -1)) >= 0 else 1)
    first = 0
    if isinstance(start, dict) and not start.get("isStartingVersion"):
        first = int(start.get("reservoirVersion", 0))
        begun = collection.commit(first) if int(start.get("index", -1)) >= 0 else None
        first += begun is not None and begun.is_read_by(int(start["index"]))
    return (first, last) if first <= last else None


def steps_of(collection: CollectionLog, first: int, last: int) -> tuple[tuple[int, int] | None, int | None]:
    """The first and last step that these versions hold, and their rows; None for what is not known."""
    commits = [collection.commit(version) for version in range(first, last + 1)]
    steps = [commit.step for commit in commits if commit is not None and commit.step is not None]
    if not steps:
        return None, None
    if (
        None in commits
    ):  # the log of the oldest is gone: a reader that began at 0 has seen step 0 all the same
        return ((0 if first == 0 else min(steps)), max(steps)), None
    rows = [commit.rows for commit in commits if commit is not None and commit.step is not None]
    known = sum(r for r in rows if r is not None) if None not in rows else None
    return (min(steps), max(steps)), known


def _at_boundary(offset: Any) -> bool:
    """Whether an offset is between two versions."""
    return offset is None or (isinstance(offset, dict) and int(offset.get("index", -1)) < 0)
