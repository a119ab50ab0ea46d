"""Spark's own log in a checkpoint: what each step reads, and which steps are done.

Spark keeps the offsets of the last hundred steps.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from mzplan.warehouse.folder import Folder, decoded, decoding, delete_checksum, open_folder, read_text
from mzplan.warehouse.step_record import StepRecord

_MOVED = "mzplanMoved"  # in the settings of a step that only moved the checkpoint
_READ_AGAIN = 3  # steps: the last one that is done, the one before, and one that was interrupted
_NO_WATERMARK = b'v1\n{"nextBatchWatermarkMs":0}'


class CheckpointLog:
    """What Spark has logged in its checkpoint location. Raises OSError."""

    def __init__(self, spark: str):
        self.spark = spark
        self._offsets: Folder = open_folder(f"{spark}/offsets")
        self._commits: Folder = open_folder(f"{spark}/commits")

    def has_begun(self) -> bool:
        """Whether there are offsets, or what a source keeps beside them: they mean something from now on."""
        return bool(open_folder(f"{self.spark}/sources").names() or self._offsets.names())

    def query_id(self) -> str | None:
        """The id of the streaming query; None before its first start."""
        text = read_text(f"{self.spark}/metadata")
        with decoding(f"{self.spark}/metadata"):
            return str(json.loads(text)["id"]) if text else None

    def planned(self) -> list[int]:
        """The steps whose offsets are there, in order."""
        return sorted(int(name) for name in self._offsets.names() if name.isdecimal())

    def newest(self) -> int:
        """The last step that is planned; -1: none."""
        return max(self.planned(), default=-1)

    def committed(self) -> int:
        """The last step that Spark has seen through; -1: none."""
        return max((int(name) for name in self._commits.names() if name.isdecimal()), default=-1)

    def unfinished(self) -> int | None:
        """The step that is planned and not done, so that it is run again: its rows may be in the target. None
        if there is none."""
        newest = self.newest()
        return newest if newest > self.committed() else None

    def last_written(self) -> int:
        """The last step that is done and has been written, as far as its offsets are kept; -1: none."""
        done = self.committed()
        steps = (step for step in reversed(self.planned()) if step <= done and self.is_written(step))
        return next(steps, -1)

    def is_written(self, step: int) -> bool:
        """Whether Spark has run a step that is done. One that only moved the checkpoint has left nothing
        anywhere but here; a step whose offsets are not kept any more may be such a one."""
        lines = self.lines(step)
        with decoding(f"{self.spark}/offsets/{step}"):
            return len(lines) > 1 and _MOVED not in json.loads(lines[1]) and lines != self.lines(step - 1)

    def lines(self, step: int) -> list[str]:
        """What is logged of a step's offsets: a version, the batch's settings, a line for each source; none
        where it is not there."""
        data = self._offsets.read(str(step)) if step >= 0 else None
        return decoded(data, f"{self.spark}/offsets/{step}").splitlines() if data is not None else []

    def entry(self, step: int) -> str | None:
        """Where its one source is after a step, as Spark has written it; None where that is not known."""
        lines = self.lines(step)
        return lines[2] if len(lines) == 3 else None

    def offset(self, step: int) -> tuple[Any, float | None]:
        """Return the offset after a step, and when the step began; None for what isn't known. For a query
        with several inputs, the offset is a list."""
        lines = self.lines(step)
        if len(lines) < 3:
            return None, None
        with decoding(f"{self.spark}/offsets/{step}"):
            began = json.loads(lines[1]).get("batchTimestampMs")
            offsets = [_parsed(line) for line in lines[2:]]
            return offsets[0] if len(offsets) == 1 else offsets, began / 1000 if began else None

    def begin(self, query_id: str, earlier: CheckpointLog, position: str) -> None:
        """Let a query of this id, which has not begun, go on at `position` of another checkpoint, behind a
        step 0 that is done. Again, it is the same. The query must not run."""
        folder = open_folder(self.spark)
        head = earlier.lines(earlier.committed())[:2] or earlier.lines(earlier.newest())[:2]
        commit = self._commits_of(earlier) or _NO_WATERMARK
        for log, name, data in (
            (folder, "metadata", json.dumps({"id": query_id}).encode()),
            (self._offsets, "0", "\n".join([*head, position]).encode()),
            (self._commits, "0", commit),
        ):
            delete_checksum(log, name)
            log.write(name, data)

    def _commits_of(self, other: CheckpointLog) -> bytes | None:
        done = other.committed()
        return other._commits.read(str(done)) if done >= 0 else None

    def plan(self, position: str) -> None:
        """Have the next step read up to `position`: it is planned as Spark plans one, and runs at the next
        start. The query must not run."""
        done = self.committed()
        with decoding(f"{self.spark}/offsets/{done}"):
            version, settings = self.lines(done)[:2]
            read = {name: value for name, value in json.loads(settings).items() if name != _MOVED}
        head = [version, json.dumps(read, separators=(",", ":"))]
        delete_checksum(self._offsets, str(done + 1))
        self._offsets.write(str(done + 1), "\n".join([*head, position]).encode())

    def replace(self, step: int, position: str) -> None:
        """Let a step have ended at another position; nothing where it is not there. The query must not
        run."""
        head = self.lines(step)[:2]
        if head:
            delete_checksum(self._offsets, str(step))
            self._offsets.write(str(step), "\n".join([*head, position]).encode())

    def order_sources(self, tables: Sequence[str | None]) -> None:
        """Let the sources of a query stand in this order of their Delta tables, which is the order in the
        query's plan: Spark tells them apart by their places alone. If these are other tables than the
        checkpoint has, change nothing; Spark then refuses to start. The query must not run."""
        for step in self.planned()[-_READ_AGAIN:]:
            lines = self.lines(step)
            offsets = [(_table_of(line), line) for line in lines[2:]]
            if None in tables or Counter(tables) != Counter(table for table, _ in offsets):
                return
            ordered = []
            for table in tables:
                offsets.remove(found := next(pair for pair in offsets if pair[0] == table))
                ordered.append(found[1])
            if ordered != lines[2:]:
                delete_checksum(self._offsets, str(step))
                self._offsets.write(str(step), "\n".join([*lines[:2], *ordered]).encode())

    def move(self, position: str) -> None:
        """Let the next step begin at `position`: one without rows, planned and done at once. One that was
        planned before and is not done is replaced by it. The query must not run."""
        done = self.committed()
        head = self.lines(self.newest())[:2]
        if len(head) < 2:
            settings = {"batchWatermarkMs": 0, "batchTimestampMs": int(time.time() * 1000), "conf": {}}
            head = ["v1", json.dumps(settings)]
        head[1] = _as_moved(head[1])
        commit = self._commits.read(str(done)) if done >= 0 else None
        for log, data in (
            (self._offsets, "\n".join([*head, position]).encode()),
            (self._commits, commit or _NO_WATERMARK),
        ):
            delete_checksum(log, str(done + 1))
            log.write(str(done + 1), data)

    def pass_over(self, step: int) -> None:
        """Put the checkpoint behind a step that has not read anything: planned and done, and the position is
        that of the step before. Again, also by a runner that was frozen meanwhile, it is the same. The query
        must not run. Raises OSError where that step is not known any more."""
        lines, commit = self.lines(step - 1), self._commits.read(str(step - 1))
        if len(lines) != 3 or commit is None:
            raise OSError(f"{self.spark} no longer says where step {step - 1} has ended")
        lines[1] = _as_moved(lines[1])
        for log, data in ((self._offsets, "\n".join(lines).encode()), (self._commits, commit)):
            delete_checksum(log, str(step))
            log.write(str(step), data)

    def before_all(self) -> Any:
        """Where the upstream was before step 0, of a source that logs that (Kafka)."""
        data = open_folder(f"{self.spark}/sources/0").read("0")
        with decoding(f"{self.spark}/sources/0/0"):
            offset = _parsed(data.decode(errors="replace").rpartition("\n")[2]) if data is not None else None
        # A source of files logs the files of its first batch there.
        return (
            offset if isinstance(offset, dict) and all(isinstance(v, dict) for v in offset.values()) else None
        )

    def files(self, start: Any, end: Any) -> tuple[str, ...]:
        """Return the URIs of the files that a source of files has logged between two of its offsets."""
        return tuple(self.files_read(start, end))

    def files_read(self, start: Any, end: Any) -> dict[str, int]:
        """Like `files`, in the same order, with the time of each file when it was read, in milliseconds since
        the epoch. Spark's log keeps all of them, merging ten entries into one now and then."""
        folder = open_folder(f"{self.spark}/sources/0")
        with decoding(f"an offset in {self.spark}"):
            first, last = _log_offset(start) + 1, _log_offset(end)
        paths: dict[tuple[int, str], int] = {}
        for name in folder.names():
            number = name.removesuffix(".compact")
            if not number.isdecimal() or not (first <= int(number) <= last or name.endswith(".compact")):
                continue
            with decoding(f"{self.spark}/sources/0/{name}"):
                for line in (folder.read(name) or b"").decode().splitlines()[1:]:
                    entry = json.loads(line)
                    if first <= entry["batchId"] <= last:
                        paths[entry["batchId"], entry["path"]] = int(entry["timestamp"])
        return {path: paths[batch, path] for batch, path in sorted(paths)}

    def range_of(self, step: int, before: StepRecord | None) -> tuple[Any, Any, float | None]:
        """From where to where a step reads, and when it began."""
        end, began = self.offset(step)
        if step == 0:
            return self.before_all(), end, began
        follows = before is not None and before.step == step - 1 and before.task is None
        if follows and before is not None and before.end is not None:
            return before.end, end, began
        return self.offset(step - 1)[0], end, began


def _as_moved(settings: str) -> str:
    """The settings of a step's offsets, with the word that it was not run. Spark reads past it."""
    with decoding("the settings of a step"):
        return json.dumps({**json.loads(settings), _MOVED: True}, separators=(",", ":"))


def _table_of(line: str) -> str | None:
    """Return the id of the Delta table that an offset is of."""
    offset = _parsed(line)
    return str(offset["reservoirId"]) if isinstance(offset, dict) and "reservoirId" in offset else None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None if text in ("", "-") else text


def _log_offset(offset: Any) -> int:
    return int(offset["logOffset"]) if isinstance(offset, dict) and "logOffset" in offset else -1
