"""Spark's own log in a checkpoint: the offsets of each step, and which steps are done.

Spark keeps the offsets of the last hundred steps.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mzplan.warehouse.folder import Folder, decoded, decoding, open_folder, read_text, replace_file
from mzplan.warehouse.step_record import StepRecord

_MOVED = "mzplanMoved"  # in a step's settings: the step only moved the checkpoint
_REREAD_STEPS = 3  # that Spark reads at a start: the last done step, the one before, and an interrupted one
_BEGAN = "batchTimestampMs"
_PARTITIONS = "spark.sql.shuffle.partitions"
_FIRST = ("v1", '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}')  # the head of a first step
_NONE = "-"  # the position of a source of which nothing is read
_WATERMARK, _NEXT_WATERMARK = "batchWatermarkMs", "nextBatchWatermarkMs"
_NO_WATERMARK = b'v1\n{"nextBatchWatermarkMs":0}'


class CheckpointLog:
    """Spark's log in a checkpoint location. Raises OSError."""

    def __init__(self, spark: str):
        self.spark = spark
        self._offsets: Folder = open_folder(f"{spark}/offsets")
        self._commits: Folder = open_folder(f"{spark}/commits")

    def has_begun(self) -> bool:
        """Whether the query has read anything: the checkpoint has offsets, or the log of a source."""
        return bool(open_folder(f"{self.spark}/sources").names() or self._offsets.names())

    def query_id(self) -> str | None:
        """Return the id of the streaming query; None before its first start."""
        text = read_text(f"{self.spark}/metadata")
        with decoding(f"{self.spark}/metadata"):
            return str(json.loads(text)["id"]) if text else None

    def planned(self) -> list[int]:
        """Return the steps whose offsets are kept, in order."""
        return sorted(int(name) for name in self._offsets.names() if name.isdecimal())

    def has_known_commits(self) -> bool:
        """Whether the record of the last done step has the format that this module reads and writes."""
        return self._last_commit().startswith(b"v1\n")

    def newest(self) -> int:
        """Return the last planned step; -1 if there is none."""
        return max(self.planned(), default=-1)

    def committed(self) -> int:
        """Return the last step that Spark has finished; -1 if there is none."""
        return max((int(name) for name in self._commits.names() if name.isdecimal()), default=-1)

    def unfinished(self) -> int | None:
        """Return the step that is planned but not done, if any.

        Spark will run this step again, and its rows may already be in the target."""
        newest = self.newest()
        return newest if newest > self.committed() else None

    def last_written(self) -> int:
        """Return the last done step that wrote rows, as far as offsets are kept; -1 if there is none."""
        committed = self.committed()
        steps = (step for step in reversed(self.planned()) if step <= committed and self.is_written(step))
        return next(steps, -1)

    def is_written(self, step: int) -> bool:
        """Whether Spark has run this done step. If not, it only moved the checkpoint, or repartitioned the
        state.

        Such a step has no commit in the table. Also False if the step's offsets are no longer kept."""
        lines = self.lines(step)
        with decoding(f"{self.spark}/offsets/{step}"):
            if len(lines) < 2 or _MOVED in json.loads(lines[1]) or lines == self.lines(step - 1):
                return False
        return not self._repartitions(step)

    def partitions(self, step: int) -> int | None:
        """Return how many partitions the query's state has after a step; None if that isn't recorded."""
        number = self.settings(step).get(_PARTITIONS)
        with decoding(f"{self.spark}/offsets/{step}"):
            return int(number) if number is not None else None

    def settings(self, step: int) -> Mapping[str, str]:
        """Return the settings that a step's offsets fix for the query, such as the format of its state."""
        lines = self.lines(step)
        with decoding(f"{self.spark}/offsets/{step}"):
            settings: dict[str, str] = json.loads(lines[1]).get("conf", {}) if len(lines) > 1 else {}
            return settings

    def has_watermark(self) -> bool:
        """Whether the query has had a watermark. False before it has read a row with a time."""
        lines = self.lines(self.newest())
        with decoding(f"{self.spark}/offsets"):
            watermark = json.loads(lines[1]).get(_WATERMARK, 0) if len(lines) > 1 else 0
            return max(int(watermark), self._next_watermark()) > 0

    def unfinished_repartition(self) -> int | None:
        """Return the number of partitions for which Spark has begun to repartition the state, if it hasn't
        finished. Spark plans that as a step of its own, which reads nothing."""
        step = self.unfinished()
        return self.partitions(step) if step is not None and self._repartitions(step) else None

    def _repartitions(self, step: int) -> bool:
        """Whether a step changes the number of partitions of the state, by which Spark knows such a step."""
        numbers = self.partitions(step - 1), self.partitions(step)
        return None not in numbers and numbers[0] != numbers[1]

    def lines(self, step: int) -> list[str]:
        """Return the lines of a step's offsets: a version, the batch's settings, a line per source.

        Returns no lines if the log doesn't have the step."""
        data = self._offsets.read(str(step)) if step >= 0 else None
        return decoded(data, f"{self.spark}/offsets/{step}").splitlines() if data is not None else []

    def entry(self, step: int) -> str | None:
        """Return the log entry of the step's only source, as Spark wrote it.

        Returns None if the log doesn't have the step, or if the query reads several sources."""
        lines = self.lines(step)
        return lines[2] if len(lines) == 3 else None

    def offset(self, step: int) -> tuple[Any, float | None]:
        """Return the offset after a step, and the time when the step began; None for unknown values.

        For a query with several inputs, the offset is a list."""
        lines = self.lines(step)
        if len(lines) < 3:
            return None, None
        with decoding(f"{self.spark}/offsets/{step}"):
            began = json.loads(lines[1]).get(_BEGAN)
            offsets = [_parsed(line) for line in lines[2:]]
            return offsets[0] if len(offsets) == 1 else offsets, began / 1000 if began else None

    def begin(self, query_id: str, earlier: CheckpointLog, position: str) -> None:
        """Prepare the checkpoint of a new query: record its id, and step 0 as done.

        Step 0 ends at `position`, an entry of the log of the `earlier` checkpoint. The query must not run.
        Idempotent."""
        folder = open_folder(self.spark)
        head = earlier.lines(earlier.committed())[:2] or earlier.lines(earlier.newest())[:2]
        replace_file(folder, "metadata", json.dumps({"id": query_id}).encode())
        self._write_done(0, [*head, position], earlier._last_commit())

    def plan(self, *positions: str, partitions: int | None = None, is_unwritten: bool = False) -> None:
        """Plan the next step, as Spark would, to read up to these positions. It runs at the next start, even
        if it reads nothing. The query must not run. It gets an id if it has none yet.

        `partitions`: of a query whose first step may be planned so. Spark 4.2 reads their number in a planned
        step and in the step before it. `is_unwritten`: see mark_unwritten."""
        if self.query_id() is None:  # Spark wants it beside offsets
            replace_file(open_folder(self.spark), "metadata", json.dumps({"id": str(uuid.uuid4())}).encode())
        committed, now = self.committed(), int(time.time() * 1000)
        with decoding(f"{self.spark}/offsets/{committed}"):
            version, settings = self.lines(committed)[:2] or _FIRST
            kept_settings = {name: value for name, value in json.loads(settings).items() if name != _MOVED}
            if partitions is not None:
                kept_settings["conf"] = {_PARTITIONS: str(partitions), **kept_settings.get("conf", {})}
            watermark = max(int(kept_settings.get(_WATERMARK, 0)), self._next_watermark())
        begun = json.dumps({**kept_settings, _WATERMARK: watermark, _BEGAN: now}, separators=(",", ":"))
        self._write_offsets(committed + 1, [version, _as_moved(begun) if is_unwritten else begun, *positions])

    def plan_nothing(self) -> None:
        """Plan the next step to read nothing. Unlike a step that `skip` records, Spark runs it, and so also
        keeps a version of the query's state for it."""
        self.plan(*self.lines(self.committed())[2:], is_unwritten=True)

    def finish(self, step: int) -> None:
        """Record a planned step as done, because its rows are written. The query must not run."""
        replace_file(self._commits, str(step), self._last_commit())

    def mark_unwritten(self, step: int) -> None:
        """Mark a step that has nothing to write, so that nobody misses its commit in the table."""
        lines = self.lines(step)
        self._write_offsets(step, [lines[0], _as_moved(lines[1]), *lines[2:]])

    def replace(self, step: int, position: str) -> None:
        """Replace the position at which a step ends, if the log has the step. The query must not run."""
        head = self.lines(step)[:2]
        if head:
            self._write_offsets(step, [*head, position])

    def has_place_for(self, tables: Sequence[str | None]) -> bool:
        """Return whether `fit_sources` can fit the offsets to these Delta tables."""
        return all(self._fitted(step, tables) is not None for step in self._reread())

    def fit_sources(self, tables: Sequence[str | None]) -> None:
        """Give the recent offsets a line for each Delta table that the query's plan reads, in this order.

        Spark identifies a source only by its place in the order. A further reading of a table begins where
        the table's other readings are. If the checkpoint has other tables, or has no place for these readings
        (see has_place_for), nothing changes, and Spark refuses to start. The query must not run."""
        fitted = {step: self._fitted(step, tables) for step in self._reread()}
        for step, lines in fitted.items():
            if lines is not None and None not in fitted.values() and lines != self.lines(step)[2:]:
                self._write_offsets(step, [*self.lines(step)[:2], *lines])

    def set_tables(self, ends: Mapping[str, str], oldest: Mapping[str, int]) -> None:
        """Give the recent offsets a line for each of these Delta tables, in this order, and for no other.

        `ends`: for each table, the position up to which a planned step reads it if it hasn't read it before,
        or if its log no longer has the version after that. `oldest`: the oldest version in each log. The
        query must not run."""
        committed = self.committed()
        for step in self._reread():
            head, lines = self.lines(step)[:2], self.lines(step)[2:]
            positions = {
                table_of(offset): line
                for line, offset in zip(lines, map(_parsed, lines), strict=True)
                if isinstance(offset, dict) and _version(offset) >= oldest.get(str(table_of(offset)), 0)
            }
            fitted = [positions.get(table, end if step > committed else _NONE) for table, end in ends.items()]
            if fitted != lines:
                self._write_offsets(step, [*head, *fitted])

    def positions(self, ends: Mapping[str, str]) -> list[str]:
        """Return where the last done step has read these tables; for other tables, their `ends`."""
        lines = self.lines(self.committed())[2:]
        positions = {table_of(_parsed(line)): line for line in lines}
        return [positions.get(table, end) for table, end in ends.items()]

    def _reread(self) -> list[int]:
        """Return the steps whose offsets Spark reads at a start."""
        return self.planned()[-_REREAD_STEPS:]

    def _fitted(self, step: int, tables: Sequence[str | None]) -> list[str] | None:
        """Return the lines of a step's sources for these tables.

        Returns None if the number of a table's readings changes, and they aren't all at one position. Spark
        doesn't use the positions of steps before the last done one."""
        lines = self.lines(step)[2:]
        positions: dict[str | None, list[str]] = {}
        for line in lines:
            positions.setdefault(table_of(_parsed(line)), []).append(line)
        if None in tables or set(positions) != set(tables):
            return lines
        for table, count in Counter(tables).items():
            if len(positions[table]) != count:
                if step >= self.committed() and len(set(positions[table])) > 1:
                    return None
                positions[table] = positions[table][:1] * count
        return [positions[table].pop(0) for table in tables]

    def move(self, position: str) -> None:
        """Move the checkpoint to `position`, by recording a step without rows as planned and done.

        This step replaces a step that is planned but not done. The query must not run."""
        head = self.lines(self.newest())[:2]
        if len(head) < 2:
            head = [_FIRST[0], json.dumps({**json.loads(_FIRST[1]), _BEGAN: int(time.time() * 1000)})]
        head[1] = _as_moved(head[1])
        self._write_done(self.committed() + 1, [*head, position], self._last_commit())

    def skip(self, step: int) -> None:
        """Record a step that has read nothing as planned and done, at the position of the step before.

        Idempotent, even if a runner that was frozen meanwhile repeats it. The query must not run. Raises
        OSError if the step before is no longer known."""
        lines, commit = self.lines(step - 1), self._commits.read(str(step - 1))
        if len(lines) < 3 or commit is None:
            raise OSError(f"{self.spark} no longer says where step {step - 1} has ended")
        lines[1] = _as_moved(lines[1])
        self._write_done(step, lines, commit)

    def _last_commit(self) -> bytes:
        """Return Spark's record of the last done step, to copy it for a step without rows."""
        committed = self.committed()
        data = self._commits.read(str(committed)) if committed >= 0 else None
        return data or _NO_WATERMARK

    def _next_watermark(self) -> int:
        """Return the watermark of the next step, as Spark has recorded it with the last done step."""
        return int(json.loads(self._last_commit().decode().splitlines()[1]).get(_NEXT_WATERMARK, 0))

    def _write_offsets(self, step: int, lines: Sequence[str]) -> None:
        replace_file(self._offsets, str(step), "\n".join(lines).encode())

    def _write_done(self, step: int, lines: Sequence[str], commit: bytes) -> None:
        self._write_offsets(step, lines)
        replace_file(self._commits, str(step), commit)

    def initial_offset(self) -> Any:
        """Return the upstream's offset before step 0, for a source that logs it (Kafka)."""
        data = open_folder(f"{self.spark}/sources/0").read("0")
        with decoding(f"{self.spark}/sources/0/0"):
            offset = _parsed(data.decode(errors="replace").rpartition("\n")[2]) if data is not None else None
        # In the same place, a file source logs the files of its first batch.
        return (
            offset if isinstance(offset, dict) and all(isinstance(v, dict) for v in offset.values()) else None
        )

    def files(self, start: Any, end: Any) -> dict[str, int]:
        """Return the files that a file source has logged between two of its offsets, by URI.

        The values are the files' modification times when Spark read them, in milliseconds since the epoch.
        Spark's log keeps all entries, and now and then merges ten into one."""
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
        """Return the offsets between which a step reads, and the time when it began."""
        end, began = self.offset(step)
        if step == 0:
            return self.initial_offset(), end, began
        follows = before is not None and before.step == step - 1 and before.task is None
        if follows and before is not None and before.end is not None:
            return before.end, end, began
        return self.offset(step - 1)[0], end, began


def _as_moved(settings: str) -> str:
    """Return the settings of a step's offsets with the mark for a moved step, which Spark ignores."""
    with decoding("the settings of a step"):
        return json.dumps({**json.loads(settings), _MOVED: True}, separators=(",", ":"))


def table_of(offset: Any) -> Any:
    """Return the id of the Delta table that an offset belongs to; None for any other offset."""
    return offset.get("reservoirId") if isinstance(offset, dict) else None


def position_after(table: str, version: int) -> str:
    """Return Delta's position after all rows of a version of a table, for `plan`."""
    offset = {"sourceVersion": 1, "reservoirId": table, "reservoirVersion": version + 1, "index": -1}
    return json.dumps({**offset, "isStartingVersion": False}, separators=(",", ":"))


def _version(offset: Mapping[str, Any]) -> int:
    with decoding("an offset"):
        return int(offset["reservoirVersion"])


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None if text in ("", _NONE) else text


def _log_offset(offset: Any) -> int:
    return int(offset["logOffset"]) if isinstance(offset, dict) and "logOffset" in offset else -1
