"""All steps of one query: those in the index, plus the steps since the index was last written.

The later steps (the tail) are derived from logs: Spark's offsets and commits, and the collection's log. Spark
keeps the offsets of the last hundred steps, and Delta keeps its log for thirty days. Older steps are known
only from the index. This module writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import Any

from mzplan.model.address import Place
from mzplan.warehouse.checkpoint_log import CheckpointLog, table_of
from mzplan.warehouse.checkpoints import Checkpoint, TaskRecords, collection_path
from mzplan.warehouse.collection_log import CollectionLog, is_at_boundary, steps_of, versions_between
from mzplan.warehouse.current_steps import CurrentSteps
from mzplan.warehouse.erased_steps import last_erasure
from mzplan.warehouse.folder import decoding
from mzplan.warehouse.log_entries import Commit
from mzplan.warehouse.rows.violations import Violations
from mzplan.warehouse.step_index import ForeignVersion, StepIndex
from mzplan.warehouse.step_record import StepRecord, StepTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Steps in order; at most the last one isn't committed.

    `since`: the oldest step that isn't expired. `upper`: the next step."""

    since: int
    upper: int
    records: tuple[StepRecord, ...]


class StepHistory:
    """Reads the recorded steps of a query. Raises OSError if the storage fails.

    - `source`: for a sink, the place of the collection that it reads.
    - `writes_all_rows`: whether a sink writes every row that it reads, so that the numbers of rows are equal.
    - `recomputes`: whether it is a current view. `expects`: whether it has expectations.
    """

    def __init__(
        self,
        warehouse: str,
        place: Place,
        source: Place | None = None,
        *,
        writes_all_rows: bool = True,
        recomputes: bool = False,
        expects: bool = False,
    ):
        self._writes_all_rows = writes_all_rows
        self.warehouse = warehouse
        checkpoint = self._checkpoint = Checkpoint.of(warehouse, *place)
        self._current = CurrentSteps(checkpoint.folder) if recomputes else None
        self._violations = Violations(checkpoint.folder) if expects else None
        self._table: str | None = None  # the id of the collection's table, once known
        self.is_source = source is None
        self.written = source or place  # the place of the collection
        self.index = StepIndex(checkpoint)
        self.log = checkpoint.log
        self.tasks = checkpoint.tasks
        writer = Checkpoint.of(warehouse, *self.written).log
        self.collection = CollectionLog(collection_path(warehouse, *self.written), writer.query_id)

    def tail(self, last: StepRecord | None, upto: int | None = None) -> list[StepRecord]:
        """Return the committed steps after the `last` known one."""
        if self.is_source:
            records = source_tail(self.log, self.collection, self.tasks, last, upto)
            migrated = self._checkpoint.migrated_rows() if records and records[0].step == 0 else None
            if migrated is not None:
                records[0] = replace(records[0], migrated=migrated.generation)
            return self._with_violations([self._with_refresh(record) for record in records])
        records = sink_tail(self.log, self.collection, last, upto)
        records = records if self._writes_all_rows else [replace(record, rows=None) for record in records]
        return [self._own_values(record) for record in records]

    def _with_refresh(self, record: StepRecord) -> StepRecord:
        step = self._current.at(record.step) if self._current is not None else None
        return replace(record, refreshed=step.summary()) if step is not None else record

    def _with_violations(self, records: list[StepRecord]) -> list[StepRecord]:
        if self._violations is None or not records:
            return records
        wanted = {record.step for record in records}.intersection(self._violations.steps())
        found = {step: self._violations.at(step) for step in wanted}
        return [
            replace(record, violations=counted.rows) if (counted := found.get(record.step)) else record
            for record in records
        ]

    def foreign_commits(self, first: StepRecord) -> list[Commit]:
        """Return the commits after a step in which another writer changed rows of the collection.

        After step 0: also those before it, but not the table's creation."""
        version = first.version if first.step > 0 and first.version is not None else 0
        return [commit for commit in self.collection.after(version) if commit.is_foreign]

    def newest_foreign(self) -> ForeignVersion | None:
        """Return the newest version in which another writer changed rows of the collection.

        Ignores expired steps. Reads only a few files: the index, and the log after the last recorded step."""
        last = self.index.last()
        if last is None or last.version is None:
            return None
        found = self.foreign_between(last.version, None) or self.index.foreign()
        oldest = self.index.first() if found is not None else None
        is_expired = found and oldest and oldest.step > 0 and found.version <= (oldest.version or 0)
        return None if is_expired else found

    def foreign_between(self, version: int, upto: int | None) -> ForeignVersion | None:
        """Return the newest foreign version after one, at most `upto`."""
        commits = takewhile(
            lambda commit: upto is None or commit.version <= upto, self.collection.following(version)
        )
        newest = max((c for c in commits if c.is_foreign), key=lambda c: c.version, default=None)
        return ForeignVersion(newest.version, newest.operation) if newest is not None else None

    def _own_values(self, record: StepRecord) -> StepRecord:
        """Clear the values that come from the offsets of a former generation of the collection.

        The versions in such offsets mean nothing in this collection."""
        return record if self.has_read(record.end) else replace(record, rows=None, sources=None)

    def read(self, count: int | None = None, first: int = 0) -> Steps:
        """Return the newest `count` steps (None: all), not below `first`."""
        newest = self.index.last()
        since = self.index.since()
        committed = self.tail(newest)
        last = committed[-1] if committed else newest  # may be expired, like all steps before it
        tail = [r for r in committed if r.step >= since]
        running = in_flight(self.log, None if self.is_source else self.collection, last)
        recent = [*tail, running] if running is not None else tail
        older: list[StepRecord] = []
        if count is None or count > len(recent):
            backwards = self.index.backwards()
            for record in islice(backwards, None if count is None else count - len(recent)):
                if record.step < first:
                    break
                older.append(record)
        records = [r for r in (*reversed(older), *recent) if r.step >= first]
        return Steps(
            since=since,
            upper=last.step + 1 if last is not None else since,
            records=tuple(records[-count:] if count else records),
        )

    def committed(self, first: int, last: int | None) -> list[StepRecord]:
        """Return the committed steps from `first` to `last` (None: the newest)."""
        records = self.read(first=first).records
        return [r for r in records if r.committed and (last is None or r.step <= last)]

    def first_young(self, when: float) -> int:
        """Return the first committed step that became durable at `when` or later.

        Returns the newest step if all are older, and 0 if there is none."""
        newest = self.index.last()
        tail = self.tail(newest)
        young = self.index.first_young(when) or next((r for r in tail if r.time and r.time >= when), None)
        last = tail[-1] if tail else newest
        record = young or last
        return record.step if record is not None else 0

    def covers(self, step: int) -> tuple[int, int] | None:
        """For a sink: return the source steps that a planned step covers, even partly, as a range.

        Returns None if that is unknown, also if the storage fails."""
        try:
            start, end, _ = self.log.range_of(step, None)
            versions = versions_between(start, end, self.collection)
            return steps_of(self.collection, *versions)[0] if versions is not None else None
        except OSError:
            return None

    def last_erasure(self) -> int | None:
        """Return the last step in which rows of this collection were erased; None if none were."""
        erasure = last_erasure(Checkpoint.of(self.warehouse, *self.written).tasks)
        return erasure.step if erasure is not None else None

    def position(self) -> Any:
        """Return the offset up to which a query has read this collection; None if the log doesn't say."""
        offset, _ = self.log.offset(self.log.committed())
        if not isinstance(offset, list):
            return offset
        table = self._table_id()
        offsets = [o for o in offset if isinstance(o, dict) and o.get("reservoirId") == table]
        if table is None or not offsets:
            return None
        with decoding(f"an offset in {self.log.spark}"):  # a query may read a collection twice
            return min(offsets, key=lambda o: (int(o["reservoirVersion"]), int(o.get("index", -1))))

    def has_read(self, offset: Any) -> bool:
        """For a sink: return whether an offset belongs to the current generation of its collection.

        Returns False if the offset belongs to a former generation, and True if neither is certain."""
        table = self._table_id()
        return not isinstance(offset, dict) or offset.get("reservoirId", table) == table or table is None

    def _table_id(self) -> str | None:
        if self._table is None:
            self._table = Checkpoint.of(self.warehouse, *self.written).collection()
        return self._table

    def step_read(self, step: int) -> StepRecord | None:
        """For a sink: return the record of a step of its source; None if the source's index doesn't have it.

        Raises OSError."""
        return StepIndex(Checkpoint.of(self.warehouse, *self.written)).find(step)

    def upper(self) -> int:
        """Return the next step."""
        last = self.index.last()
        tail = self.tail(last)
        last = tail[-1] if tail else last
        return last.step + 1 if last is not None else self.index.since()


def source_tail(
    log: CheckpointLog,
    collection: CollectionLog,
    tasks: TaskRecords,
    last: StepRecord | None,
    upto: int | None = None,
) -> list[StepRecord]:
    """Return a source's steps in its collection after the `last` known one (at most `upto`)."""
    records: list[StepRecord] = []
    for commit in collection.after(last.version if last is not None and last.version is not None else -1):
        if commit.step is None or (last is not None and commit.step <= last.step):
            continue
        if upto is not None and commit.step > upto:
            break
        start, end, _ = _range_of(log, commit.step, last)
        # The step of a task doesn't move the checkpoint, so any other step needs no look-up.
        task = tasks.at(commit.step) if end is None or start == end else None
        if task is not None:
            start, end = (task.start, task.end) if task.end is not None else (start, start)
        last = StepRecord(
            step=commit.step,
            start=start,
            end=end,
            task=StepTask(task.task.kind, task.task.serial) if task is not None else None,
            rows=commit.rows,
            bytes=commit.bytes,
            time=commit.time,
            version=commit.version,
        )
        records.append(last)
    return records


def sink_tail(
    log: CheckpointLog, collection: CollectionLog, last: StepRecord | None, upto: int | None = None
) -> list[StepRecord]:
    """Return the sink's steps that Spark has finished after the `last` known one (at most `upto`)."""
    committed = log.committed()
    top = committed if upto is None else min(upto, committed)
    records: list[StepRecord] = []
    for step in log.planned():
        if step > top or (last is not None and step <= last.step):
            continue
        start, end, began = _range_of(log, step, last)
        last = _sink_step(collection, step, start, end, began)
        records.append(last)
    return records


def _range_of(log: CheckpointLog, step: int, last: StepRecord | None) -> tuple[Any, Any, float | None]:
    """Return the offsets between which a step has read, and when it began."""
    start, end, began = log.range_of(step, last)
    if table_of(start) != table_of(end):  # the sink moved to the next generation of its input
        start = log.offset(step - 1)[0]
    return start, end, began


def in_flight(
    log: CheckpointLog, collection: CollectionLog | None, last: StepRecord | None
) -> StepRecord | None:
    """Return the step with logged offsets that isn't committed yet. `collection`: only for a sink."""
    step = log.newest()
    if step < 0 or (last is not None and step <= last.step):
        return None
    if step <= log.committed() and not log.is_written(step):
        return None  # it had nothing to write
    start, end, began = log.range_of(step, last)
    record = (
        _sink_step(collection, step, start, end, began)
        if collection is not None
        else StepRecord(step=step, start=start, end=end, time=began)
    )
    return replace(record, committed=False)


def _sink_step(collection: CollectionLog, step: int, start: Any, end: Any, began: float | None) -> StepRecord:
    versions = versions_between(start, end, collection)
    sources, rows = steps_of(collection, *versions) if versions else (None, None)
    if rows is not None and not (is_at_boundary(start) and is_at_boundary(end)):
        rows = None  # it has read a part of a version, and the log doesn't say how many rows each file has
    return StepRecord(step=step, start=start, end=end, rows=rows, time=began, sources=sources)


def oldest_needed_step(sink: StepHistory) -> int | None:
    """Return the oldest step of its source that a sink, running or paused, hasn't finished, or None.

    Raises OSError."""
    offset = sink.position()
    if not isinstance(offset, dict) or "reservoirVersion" not in offset:
        return 0
    if not sink.has_read(offset):
        return 1  # the sink continues after the migrated rows with which this generation begins
    if offset.get("isStartingVersion") and not is_at_boundary(offset):
        return 0  # within its initial snapshot
    with decoding(f"an offset in {sink.log.spark}"):
        version, index = int(offset["reservoirVersion"]), int(offset.get("index", -1))
    # A sink may still have to read more of this version, whatever the file's index; not so for a MERGE.
    for commit in sink.collection.after(version - 1):
        is_read = commit.is_read_by(index if commit.version == version else -1)
        if commit.step is not None and not is_read and not commit.is_erasure:
            return commit.step
    return None


def backlog_of(sink: StepHistory, source: StepHistory) -> dict[str, int]:
    """Return how many `steps` of its source a sink hasn't finished, and their `rows` if known.

    Reads few entries of the log, even for a large backlog. Raises OSError."""
    first, newest = oldest_needed_step(sink), source.index.last()
    if newest is None or first is None or first > newest.step:
        return {"steps": 0, "rows": 0}
    before = source.index.find(first - 1) if first > 0 else None
    rows_read = before.total if before is not None else 0 if first == 0 else None
    rows = {"rows": newest.total - rows_read} if newest.total is not None and rows_read is not None else {}
    return {"steps": newest.step + 1 - first, **rows}


def steps_read(reader: StepHistory) -> tuple[int, int]:
    """Return the step of its collection up to which a reader has read all rows, and the next step.

    Steps without rows count as read. Raises OSError."""
    end = Checkpoint.of(reader.warehouse, *reader.written).log.committed() + 1
    needed, offset = oldest_needed_step(reader), reader.position()
    if needed is None:
        return end, end
    version = -1
    if isinstance(offset, dict) and reader.has_read(offset):
        with decoding(f"an offset in {reader.log.spark}"):
            version = int(offset["reservoirVersion"]) - 1
    commits = (c for c in reader.collection.after(version) if c.has_changes and not c.is_erasure)
    return next((c.step for c in commits if c.step is not None and c.step >= needed), end), end


def find_given_up_steps(sink: StepHistory, source: StepHistory) -> tuple[int, int] | None:
    """Return the first step that the collection expired before the sink has finished it, and the oldest kept
    step.

    The first step is approximate if the log doesn't say. Returns None if the sink has lost no step. Raises
    OSError."""
    offset = sink.position()
    since = source.index.since()
    if since == 0 or not isinstance(offset, dict) or not sink.has_read(offset):
        return None
    first_needed = oldest_needed_step(sink) if not offset.get("isStartingVersion") else None
    version = int(offset.get("reservoirVersion", 0))
    oldest = sink.collection.oldest()
    if oldest is not None and version < oldest:
        last = sink.index.last()
        next_step = last.sources[1] + 1 if last is not None and last.sources is not None else 0
        return min(next_step, since), since
    if first_needed is not None and int(offset.get("index", -1)) >= 0:
        first_needed += 1  # the sink has read some or all files of this step
    return (first_needed, since) if first_needed is not None and first_needed < since else None
