"""The storage of collections and checkpoints in a warehouse. Only merging and removing files needs Spark."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, Unpack

from mzplan.connectors.local.step_numbers import StepNumbers, appenders
from mzplan.connectors.local.steps import RESERVED
from mzplan.controller.core import Controller, ControllerOptions
from mzplan.controller.executor import ExecutorContext
from mzplan.controller.jobs import Jobs
from mzplan.controller.storage import (
    Extent,
    appended_columns,
    consolidated,
    planned_steps,
    to_table,
)
from mzplan.controller.terms import (
    AppendCommand,
    Diff,
    InstanceId,
    InvalidUppersError,
    ReadBeforeSinceError,
    Row,
    Step,
    StorageError,
)
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.address import Place
from mzplan.schema.description import Description
from mzplan.schema.source_columns import keys_of
from mzplan.secrets.references import Secrets
from mzplan.spark.executor import SparkExecutor
from mzplan.store.store import Store
from mzplan.warehouse.checkpoints import LAYOUT, Checkpoint, TaskRecord
from mzplan.warehouse.damage import GoneError, last_vacuumed
from mzplan.warehouse.erased_steps import ERASED_AT, SWEPT_AT, last_erasure
from mzplan.warehouse.folder import Folder, delete_checksum, open_folder
from mzplan.warehouse.paths import absolute
from mzplan.warehouse.rows.snapshot import small_files, snapshot_batches
from mzplan.warehouse.step_history import StepHistory, oldest_needed_step
from mzplan.warehouse.step_record import StepRecord
from mzplan.warehouse.storage import newest_epoch, places_below, record_epoch

# Commits of a table's log, their checksums, and checkpoints (whole or in parts).
_ENTRY = re.compile(r"(\d{20})\.(json|crc|checkpoint\.[0-9a-z.-]+)")
_CHECKSUM = re.compile(r"(\d{20})\.crc")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
_READERS = 16
_CHANGES_BEFORE = 3600.0  # seconds that a micro-batch may take to merge its changes
# Seconds after an erasure from which on the files of a step are so young that a removal of older ones, which
# rounds up to whole hours, removes the erased rows.
_SETTLED = 3600.0 + _CHANGES_BEFORE + 60


class Tables(Protocol):
    """Operations that only Spark may perform, because only one process may write to a table's log.

    Both raise Spark's errors.
    """

    def merge_files(self, collection: str) -> None:
        """Merge small files into large ones."""

    def reclaim_files(self, collection: str, older: float, *, uncommitted: bool = False) -> None:
        """Remove the files that no version of the last `older` seconds contains.

        `uncommitted`: also older files that no version ever had, because their writer was killed.
        """


@dataclass(frozen=True, slots=True)
class _Reclaim:
    """The last removal of a collection's old files.

    `tried`: when it was last tried, in monotonic seconds.
    `upper`: the collection's upper at that time.
    `since`: the files of all steps before this one have been removed.
    `is_read`: whether the files that only this step needs have been removed, too.
    """

    tried: float
    upper: Step
    since: Step
    is_read: bool = False


_NEVER = _Reclaim(-math.inf, 0, 0)


class DeltaStorage:
    """Implements mzplan.controller.storage.Storage.

    `merge_at`: merge a collection's small files when it has at least this many.
    `reclaim_every`, `reclaim_steps`: reclaim storage after this many seconds or steps, whichever comes first.
    `safety`: reclaim only files older than this many seconds.
    `alone`: keeps other processes from appending where the storage has no lock.
    """

    def __init__(
        self,
        warehouse: str,
        tables: Tables,
        *,
        merge_at: int = 200,
        reclaim_every: float = 3600.0,
        reclaim_steps: int = 1000,
        safety: float = 3600.0,
        alone: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    ):
        self._warehouse = warehouse
        self._tables = tables
        self.merge_at = merge_at
        self.reclaim_every = reclaim_every
        self.reclaim_steps = reclaim_steps
        self.safety = safety
        self._alone = alone
        self._reclaimed: dict[Place, _Reclaim] = {}

    def extent(self, place: Place) -> Extent:
        steps = StepHistory(self._warehouse, place).read(1)
        return Extent(since=steps.since, upper=steps.upper)

    def first_recent(self, place: Place, when: float) -> Step:
        return StepHistory(self._warehouse, place).first_young(when)

    def first_after_erasure(self, place: Place) -> Step:
        history = StepHistory(self._warehouse, place)
        erased_at = _erased_at(history)
        if erased_at is None:
            return 0
        first = history.first_young(erased_at + _SETTLED)
        time_of_first = _time_of(history, first)
        if time_of_first is None or time_of_first >= erased_at + _SETTLED:
            return first
        is_quiet = time.time() - max(time_of_first, erased_at) > _SETTLED
        return history.upper() if is_quiet else first

    def first_unread(self, export: Place, source: Place) -> Step:
        sink = StepHistory(self._warehouse, export, source)
        needed = oldest_needed_step(sink)
        return StepHistory(self._warehouse, source).upper() if needed is None else needed

    def maintain(self, place: Place, since: Step) -> None:
        history = StepHistory(self._warehouse, place)
        upper = history.upper()
        # Everything is read, and the files that only earlier steps need are due because of an erasure.
        is_read = since >= upper > 0 and self.first_after_erasure(place) >= upper
        since = min(since, max(0, upper - 1))  # the count continues from the last step
        history.index.expire(since)
        failpoint(Failpoint.STORAGE_EXPIRED)
        collection = history.collection.collection
        if small_files(collection) >= self.merge_at:
            self._tables.merge_files(collection)
            failpoint(Failpoint.STORAGE_MERGED)
        tidy_log(collection)
        now = time.monotonic()
        last = self._reclaimed.get(place, _NEVER)
        is_due = now - last.tried >= self.reclaim_every or upper - last.upper >= self.reclaim_steps
        if not is_due:
            return
        oldest = next((r for r in history.committed(since, since) if r.step == since), None)
        if oldest is None or oldest.time is None:
            return
        older = self._unneeded_after(history, oldest, is_read=is_read)
        erasure = _erasure_to_sweep(history, older)
        if (since, is_read) == (last.since, last.is_read) and erasure is None:
            return  # each VACUUM makes a commit or two, which every reader of the table has to read
        # Don't retry a failure every minute.
        self._reclaimed[place] = _Reclaim(now, upper, last.since)
        self._tables.reclaim_files(collection, older, uncommitted=erasure is not None)
        if erasure is not None:
            details = {**erasure.details, SWEPT_AT: time.time()}
            history.tasks.record(replace(erasure, details=details))
        self._reclaimed[place] = _Reclaim(now, upper, since, is_read)
        failpoint(Failpoint.STORAGE_RECLAIMED)
        self._clean_log(history, since)

    def _unneeded_after(self, history: StepHistory, oldest: StepRecord, *, is_read: bool) -> float:
        """Return the age in seconds from which no reader needs a replaced file.

        `oldest`: the oldest step to keep. `is_read`: whether readers need the newest version only.
        """
        assert oldest.time is not None
        if is_read:
            return _whole_hours(time.time() - max(oldest.time, _erased_at(history) or 0.0))
        # A reader that starts at that step may still need a file that was replaced after it.
        older = max(self.safety, time.time() - oldest.time)
        # Change-feed files belong to no version and are removed by their own age. The files of a step are
        # somewhat older than its commit.
        return older + (_CHANGES_BEFORE if self._is_merged(history, oldest) else 0.0)

    def _clean_log(self, history: StepHistory, since: Step) -> None:
        """Remove the log entries that only steps before `since` need.

        A sink that has read all steps below `since` may resume right after the last of them, at versions
        without rows. So the entries after that step stay.
        """
        before = history.index.find(since - 1)
        if before is not None and before.version is not None:
            clean_log(history.collection.collection, before.version)

    def _is_merged(self, history: StepHistory, record: StepRecord) -> bool:
        commit = history.collection.commit(record.version) if record.version is not None else None
        return commit is not None and commit.merged is not None

    def append(self, commands: Sequence[tuple[Description, AppendCommand]]) -> None:
        places = {description.place for description, _ in commands}
        with appenders(self._warehouse, places, self._alone) as by_place:
            for query, command in commands:
                appender = by_place[query.place]
                if command.key.startswith(RESERVED):
                    raise StorageError(
                        f"The key {command.key!r} is reserved for mzplan: no append may have it."
                    )
                if appender.plans(command.key):
                    continue
                columns, keyed = appended_columns(query), bool(keys_of(query.type, query.body))
                step_numbers = StepNumbers(appender, self._warehouse, query.place)
                known = appender.known(command.key)
                first = step_numbers.upper() if known is None else step_numbers.collection_step(known)
                if first is None and known is not None:
                    continue  # this append is so old that its steps are no longer known
                if first is None:
                    raise InvalidUppersError(
                        command.id, command.upper - 1, step_numbers.next + 1, decided=False
                    )
                planned = planned_steps(command, first, keyed)
                appended = appender.append(
                    [to_table(columns, step) for step in planned], command.key, separate=True
                )
                if appended.digests is not None:
                    raise StorageError(
                        f"An earlier append with the key {command.key!r} is step {appended.step}, and step "
                        f"{appended.differing_step} has other rows: their digest is {appended.digests[0]}, "
                        f"and the digest of the new rows is {appended.digests[1]}."
                    )
            for appender in by_place.values():
                appender.write()

    def snapshot(self, place: Place, as_of: Step) -> list[tuple[Row, Diff]]:
        try:
            batches = snapshot_batches(StepHistory(self._warehouse, place), as_of)
            return consolidated(row for batch in batches for row in batch.to_pylist())
        except GoneError as gone:
            raise ReadBeforeSinceError(str(gone)) from None

    def migrate(self, places: Sequence[Place]) -> None:
        with ThreadPoolExecutor(_READERS) as pool:  # an object store is slow to answer each request
            layouts = list(pool.map(lambda p: Checkpoint.of(self._warehouse, *p).layout(), places))
        for place, layout in zip(places, layouts, strict=True):
            if layout > LAYOUT:
                raise StorageError(
                    f"The storage of {place[0]} g{place[1]} has layout {layout}, of a later mzplan: "
                    f"this one knows {LAYOUT}."
                )

    def places(self) -> list[Place]:
        return places_below(self._warehouse)

    def newest_epoch(self, lineage: str, instance: InstanceId) -> int:
        return newest_epoch(self._warehouse, lineage, instance)

    def record_epoch(self, lineage: str, instance: InstanceId, epoch: int) -> None:
        record_epoch(self._warehouse, lineage, instance, epoch)


class SparkController(Controller):
    """A controller on one PySpark driver."""

    def __init__(
        self,
        context: ExecutorContext,
        store: Store,
        secrets: Secrets,
        jobs: Jobs,
        executor: SparkExecutor | None = None,
        **options: Unpack[ControllerOptions],
    ):
        spark = executor or SparkExecutor(context)
        warehouse = absolute(context.directory, context.warehouse)
        storage = DeltaStorage(warehouse, spark, alone=store.lock_for_append)
        super().__init__(store, spark, storage, secrets, jobs, **options)


def _due_erasure(history: StepHistory) -> TaskRecord | None:
    return last_erasure(history.tasks, due=time.time() + _SETTLED)


def _erased_at(history: StepHistory) -> float | None:
    """Return when rows of a collection were last erased whose old files are due; None without any."""
    erasure = _due_erasure(history)
    return float(erasure.details.get(ERASED_AT, 0.0)) if erasure is not None else None


def _erasure_to_sweep(history: StepHistory, older: float) -> TaskRecord | None:
    """Return a due erasure, if older files without a version may have its rows, and nobody still writes them.

    A killed runner leaves such files. A step that began earlier has been committed since, or none is being
    written, because one query after the other writes a collection.
    """
    erasure = _due_erasure(history)
    before = time.time() - math.ceil(older / 3600) * 3600  # VACUUM rounds up
    if erasure is None or SWEPT_AT in erasure.details or before < erasure.details.get(ERASED_AT, 0.0):
        return None
    if any(not task.done and (task.step or 0) >= history.upper() for task in history.tasks.all()):
        return None  # a task commits all its files at its end
    if history.log.unfinished() is None:
        return erasure
    last = _time_of(history, history.upper() - 1)
    return erasure if last is not None and last >= before else None


def _time_of(history: StepHistory, step: Step) -> float | None:
    record = history.index.find(step)
    return record.time if record is not None else None


def _whole_hours(seconds: float) -> float:
    """Return the greatest number of whole hours, in seconds, that is less than a time."""
    return (math.ceil(seconds / 3600) - 1) * 3600.0


# ── keeping a table's log short
#
# Delta removes log entries older than the table property `delta.logRetentionDuration`, which can't follow the
# readers. So collections have a retention that is never reached, and `clean_log` removes unneeded entries as
# Delta does: everything before a checkpoint. This makes no commit, and a reader that starts at that
# checkpoint or later doesn't notice. Speed depends on it: every access to a table lists its log, several
# times in each micro-batch. Storage that can't start listing at a name lists the whole log.


def clean_log(collection: str, version: int) -> int:
    """Remove log entries that neither `version`, a later version, nor the next VACUUM … LITE needs.

    Keeps everything from the newest checkpoint that all of them can start from. Returns the number of removed
    entries. Raises OSError for storage failures.
    """
    folder = open_folder(f"{collection}/_delta_log")
    names = folder.names()
    limit = min(version, last_vacuumed(collection))
    first = max(
        (checkpoint for checkpoint in _versions(names, _CHECKPOINT) if checkpoint <= limit), default=0
    )
    obsolete = [name for name in names if (match := _ENTRY.fullmatch(name)) and int(match[1]) < first]
    for name in obsolete:  # oldest first: if this is interrupted, the log stays intact
        _delete(folder, name)
    return len(obsolete)


def tidy_log(collection: str) -> int:
    """Remove the checksums of the versions before the newest checkpoint; return how many.

    Nothing reads these files, and they are three of the four files that a commit leaves on a file system.
    Raises OSError.
    """
    folder = open_folder(f"{collection}/_delta_log")
    names = folder.names()
    newest = max(_versions(names, _CHECKPOINT), default=0)
    old = [version for version in _versions(names, _CHECKSUM) if version < newest]
    for version in old:
        delete_checksum(folder, f"{version:020}.json")
        _delete(folder, f"{version:020}.crc")
    return len(old)


def _versions(names: list[str], pattern: re.Pattern[str]) -> list[int]:
    return [int(match[1]) for name in names if (match := pattern.fullmatch(name))]


def _delete(folder: Folder, name: str) -> None:
    delete_checksum(folder, name)
    folder.delete(name)
