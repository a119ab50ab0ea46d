"""Storage of collections without Spark: over tables that are stored as Spark writes them."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import fs

from mzplan.connectors.local.steps import LocalSteps
from mzplan.controller.terms import InvalidUppersError, ReadBeforeSinceError, StorageError
from mzplan.model.address import Address
from mzplan.model.tasks import TaskOutcome
from mzplan.model.times import instant_text
from mzplan.spark import delta_storage
from mzplan.spark.delta_storage import DeltaStorage, clean_log
from mzplan.warehouse.checkpoints import Checkpoint, TaskRecord, collection_path
from mzplan.warehouse.erased_steps import ERASED_AT
from mzplan.warehouse.folder import Data, LocalFolder, RemoteFolder
from mzplan.warehouse.rows.snapshot import small_files
from mzplan.warehouse.step_history import StepHistory, find_given_up_steps
from mzplan.warehouse.step_record import StepRecord
from mzplan.warehouse.storage import missing_storage
from tests.contract.controllers import appending, local_source, rows
from tests.stored_steps import StoredSink, StoredSource, offsets
from tests.tasks import task


class Tables:
    """What Spark was asked to do."""

    failure: Exception | None = None

    def __init__(self) -> None:
        self.merged: list[str] = []
        self.reclaimed: list[tuple[str, float]] = []
        self.swept: list[float] = []

    def merge_files(self, collection: str) -> None:
        self.merged.append(collection)

    def reclaim_files(self, collection: str, older: float, *, uncommitted: bool = False) -> None:
        self.reclaimed.append((collection, older))
        self.swept += [older] if uncommitted else []
        if self.failure is not None:
            raise self.failure


def stored(folder: Path, steps: int = 4) -> StoredSource:
    made = StoredSource(folder / "warehouse")
    for step in range(steps):
        made.run([{"id": step, "name": "x"}])
    return made


def test_steps_are_read_and_found_by_time(tmp_path: Path) -> None:
    source = stored(tmp_path)
    storage = DeltaStorage(str(source.warehouse), Tables())
    extent = storage.extent(source.place)
    assert (extent.since, extent.upper) == (0, 4)
    times = [r.time for r in StepHistory(str(source.warehouse), source.place).read().records]
    for step, at in enumerate(times):
        assert at is not None
        assert storage.first_recent(source.place, at) == times.index(at) <= step
    assert storage.first_recent(source.place, 2e9) == 3  # the newest can always be read
    assert storage.first_recent(("nobody", 1), 0.0) == 0
    assert storage.places() == [source.place]
    assert storage.extent(("nobody", 1)).upper == 0
    held = sorted(storage.snapshot(source.place, 1), key=lambda one: one[0]["id"])
    assert held == [({"id": n, "name": "x"}, 1) for n in (0, 1)]
    with pytest.raises(ReadBeforeSinceError):
        storage.snapshot(source.place, 9)
    # A layout of a later version is refused.
    storage.migrate([source.place, ("nobody", 1)])
    folder = Path(Checkpoint.of(str(source.warehouse), *source.place).folder)
    (folder / "layout.json").write_text(json.dumps({"format_version": 1, "layout": {"version": 2}}))
    with pytest.raises(StorageError, match="layout 2, of a later mzplan"):
        storage.migrate([source.place])


def test_maintenance_merges_many_files_and_reclaims_expired_steps(tmp_path: Path) -> None:
    """Once an hour or in so many steps, even after a failure."""
    source, tables = stored(tmp_path), Tables()
    tables.failure = RuntimeError("no")
    storage = DeltaStorage(str(source.warehouse), tables, reclaim_steps=3, merge_at=7, safety=60.0)
    with pytest.raises(RuntimeError):
        storage.maintain(source.place, 2)
    tables.failure = None
    for step in range(3):
        storage.maintain(source.place, 2)
        assert len(tables.reclaimed) == 1
        source.run([{"id": step, "name": "x"}])
    collection = collection_path(str(source.warehouse), *source.place)
    assert small_files(collection) == 7 and tables.merged == []
    storage.maintain(source.place, 2)
    (_, (reclaimed, older)) = tables.reclaimed
    assert reclaimed == collection and older >= 60.0 and tables.merged == [collection]
    assert storage.extent(source.place).since == 2
    storage.maintain(("nobody", 1), 0)


def test_an_append_of_several_steps_is_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = DeltaStorage(str(tmp_path), Tables())
    source = local_source("a").description
    storage.append([(source, appending("a", 0, *rows(0, 1)))])
    folder = Checkpoint.of(str(tmp_path), source.id, source.generation).steps
    first, last = appending("a", 1, *rows(1, 1)), appending("a", 2, *rows(2, 1))
    both = replace(first, updates=(*first.updates, *last.updates), upper=3, key="both")
    write = LocalFolder.write

    def killed(self: LocalFolder, name: str, data: Data) -> None:
        if name.startswith(f"{1:020}"):
            raise KeyboardInterrupt
        write(self, name, data)

    with monkeypatch.context() as patched:
        patched.setattr(LocalFolder, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            storage.append([(source, both)])
    steps = LocalSteps(folder)
    assert (steps.steps(), len(steps._look().leftovers)) == (range(1), 1)
    storage.append([(source, replace(first, key="another"))])
    assert (steps.steps(), steps._look().leftovers) == (range(2), {})
    with pytest.raises(InvalidUppersError, match="is 2, not 1"):
        storage.append([(source, both)])
    assert steps.steps() == range(2)
    later = tuple(replace(update, step=update.step + 1) for update in both.updates)
    moved = replace(both, updates=later, upper=4)
    storage.append([(source, moved)])
    storage.append([(source, moved)])
    storage.append([(source, replace(moved, upper=5))])
    found = [batch["id"].to_pylist() for step in steps.steps() for batch in steps.batches(step)]
    assert found == [[0], [1], [1], [2]]


def test_appends_to_an_object_store_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = threading.Lock()
    folder = RemoteFolder(fs.LocalFileSystem(), str(tmp_path))
    write = folder.write

    def slow(name: str, data: Data) -> None:
        time.sleep(0.05)
        write(name, data)

    monkeypatch.setattr(folder, "write", slow)
    monkeypatch.setattr("mzplan.connectors.local.steps.open_folder", lambda place: folder)
    monkeypatch.setattr("mzplan.connectors.local.step_numbers.next_unread_step", lambda *_: 0)
    storage = DeltaStorage("s3://bucket/warehouse", Tables(), alone=lambda: lock)
    source = local_source("a").description
    with ThreadPoolExecutor(2) as pool:
        tried = [pool.submit(storage.append, [(source, appending("a", 0, *rows(n, 1)))]) for n in range(2)]
    failed = [one.exception() for one in tried if one.exception() is not None]
    assert [type(one) for one in failed] == [InvalidUppersError]
    assert len(folder.names()) == 1


def test_an_append_at_a_step_meets_appends_that_were_read_together(tmp_path: Path) -> None:
    """Times of a controller are steps of the collection, wherever in the source's steps that is."""
    storage = DeltaStorage(str(tmp_path), Tables())
    source = local_source("a").description
    checkpoint = Checkpoint.of(str(tmp_path), source.id, source.generation)
    steps = LocalSteps(checkpoint.steps)
    for number in range(3):
        steps.append(pa.table({"id": [number], "name": ["x"]}), f"by hand {number}")
    # Nobody knows yet how many micro-batches that will be.
    with pytest.raises(InvalidUppersError, match=r"isn't known until .* is at least 1, not 0: nothing was"):
        storage.append([(source, appending("a", 0, *rows(9, 1)))])
    spark = Path(checkpoint.spark)
    offsets(spark, 0, {"step": 3})  # one: planned, done or not
    mine = appending("a", 1, *rows(9, 1), key="mine")
    with pytest.raises(InvalidUppersError, match="is 1, not 0"):
        storage.append([(source, appending("a", 0, *rows(9, 1)))])
    storage.append([(source, mine), (source, appending("a", 2, *rows(10, 1)))])
    assert steps.steps() == range(5)
    offsets(spark, 1, {"step": 4})
    for _ in range(2):  # also when it is read, and when the logs know it no more
        storage.append([(source, mine)])
        with pytest.raises(StorageError, match="has other rows"):
            storage.append([(source, replace(mine, updates=appending("a", 1, *rows(8, 1)).updates))])
        index = StepHistory(str(tmp_path), source.place).index
        later_step = StepRecord(step=1, start={"step": 3}, end={"step": 4})
        index.append([StepRecord(step=0, end={"step": 3}), later_step])
        (spark / "offsets" / "0").unlink(missing_ok=True)
    with pytest.raises(StorageError, match="is reserved for mzplan"):
        storage.append([(source, appending("a", 3, *rows(7, 1), key="mzplan:empty step 3"))])
    storage.append([(source, appending("a", 3, *rows(11, 1)))])
    steps.append(pa.table({"id": [12], "name": ["x"]}), "by hand")
    with pytest.raises(InvalidUppersError, match="is at least 3, not 2"):
        storage.append([(source, appending("a", 2, *rows(9, 1)))])
    assert steps.steps() == range(7)
    assert [steps.joined(range(first, 7)) for first in (0, 3, 6)] == [range(3), range(3, 4), range(6, 7)]


def test_a_duration_reaches_back_however_many_steps_it_has(tmp_path: Path) -> None:
    """Steps in several segments of the index, one a second; and from the middle of a segment on."""
    place = ("src", 1)
    index = StepHistory(str(tmp_path), place).index
    index.append(StepRecord(step=n, time=1000.0 + n, version=n + 1) for n in range(1_200))
    storage = DeltaStorage(str(tmp_path), Tables())
    assert storage.first_recent(place, 0.0) == 0
    assert storage.first_recent(place, 1000.0 + 731) == 731
    index.expire(810)
    assert storage.first_recent(place, 0.0) == 810
    assert storage.first_recent(place, 1e6) == 1_199


def test_the_change_feed_of_a_step_is_kept_although_it_is_older_than_its_commit(tmp_path: Path) -> None:
    source, tables = StoredSource(tmp_path / "warehouse"), Tables()
    for step in range(2):
        source.change([{"id": 1, "name": str(step)}])
    DeltaStorage(str(source.warehouse), tables, safety=60.0).maintain(source.place, 1)
    ((_, older),) = tables.reclaimed
    committed = source.history.read().records[-1].time
    assert committed is not None and older >= max(60.0, time.time() - committed) + 3599.0


def test_the_log_is_cleaned_up_to_a_checkpoint_that_nobody_needs_more_than(tmp_path: Path) -> None:
    source = StoredSource(tmp_path / "warehouse")
    for step in range(9):
        source.run([{"id": step, "name": "x"}])
        if step in (2, 5):
            DeltaTable(source.collection).create_checkpoint()
    log = source.history.collection
    assert clean_log(log.collection, 7) == 0  # VACUUM looks through all of it
    vacuumed = Path(log.collection) / "_delta_log" / "_last_vacuum_info"
    vacuumed.write_text('{"latestCommitVersionOutsideOfRetentionWindow": 8}')
    assert clean_log(log.collection, 2) == 0  # no checkpoint is that old
    vacuumed.write_text('{"latestCommitVersionOutsideOfRetentionWindow": 5}')
    assert clean_log(log.collection, 7) == 3  # 0 to 2, and nothing that the next VACUUM has to look through
    assert log.oldest() == 3
    vacuumed.write_text('{"latestCommitVersionOutsideOfRetentionWindow": 8}')
    assert clean_log(log.collection, 7) > 0
    assert log.oldest() == 6
    assert DeltaTable(source.collection).to_pyarrow_table().num_rows == 9
    assert DeltaTable(source.collection, version=6).to_pyarrow_table().num_rows == 6
    assert [record.step for record in source.history.tail(None)] == [5, 6, 7, 8]


def test_a_sink_that_has_waited_too_long_names_the_missing_step(tmp_path: Path) -> None:
    source = stored(tmp_path, 6)
    source.history.index.append(source.history.tail(None))
    sink, fresh = StoredSink(source), StoredSink(source, "fresh-id")
    sink.run(2, 0)  # step 1, perhaps all of it
    assert find_given_up_steps(sink.history, source.history) is None
    source.history.index.expire(2)
    assert find_given_up_steps(sink.history, source.history) is None
    source.history.index.expire(4)
    assert find_given_up_steps(sink.history, source.history) == (2, 4)
    assert find_given_up_steps(fresh.history, source.history) is None  # it begins with what is there
    Path(sink.checkpoint, "metadata").write_text("{}")
    reads = {Address("source", "orders"): source.place}
    (found,) = missing_storage(str(source.warehouse), Address("sink", "late"), sink.place, reads)
    assert found.code == "MZ194" and "step 2 of source.orders" in found.detail
    fresh.run(6, 0, starting=True)  # in the middle of the snapshot that it has begun with
    assert find_given_up_steps(fresh.history, source.history) is None


def test_old_files_of_an_erasure_are_removed_before_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, tables = stored(tmp_path), Tables()
    warehouse, place = str(source.warehouse), source.place
    history = StepHistory(warehouse, place)
    history.index.append(history.tail(None))
    ended = history.committed(3, 3)[0].time
    assert ended is not None
    storage, hour = DeltaStorage(warehouse, tables), 3600.0
    now = [ended + hour]
    monkeypatch.setattr(delta_storage.time, "time", lambda: now[0])
    assert storage.first_after_erasure(place) == 0
    by = instant_text(int(ended + 10 * hour) * 1000)
    erasure = task("erasure", 7, "erase of rows", condition="c", by=by)
    outcome = TaskOutcome(serial=7, facts={"rows": 1})
    record = TaskRecord(task=erasure, outcome=outcome, step=3, details={ERASED_AT: ended + 60})
    tasks = Checkpoint.of(warehouse, *place).tasks
    for done, hours, first in ((False, 20, 0), (True, 1, 0), (True, 7, 0), (True, 9, 4)):
        tasks.record(replace(record, done=done))
        now[0] = ended + hours * hour
        assert storage.first_after_erasure(place) == first, (done, hours)
    # A reader that is behind keeps the files.
    storage.maintain(place, 2)
    assert tables.reclaimed.pop()[1] > 9 * hour
    assert not tables.swept
    # Nothing has come since, and every reader has read everything.
    storage = DeltaStorage(warehouse, tables)
    for _ in range(2):
        storage.maintain(place, 4)
    ((_, older),) = tables.reclaimed
    assert older % hour == 0 and ended + 60 < now[0] - older <= ended + 60 + hour
    assert storage.extent(place).since == 3, "the count continues from the last step"
    # Also the files that a killed runner left, once for each erasure, whichever runner does it.
    assert tables.swept == [older]
    DeltaStorage(warehouse, tables).maintain(place, 4)
    assert tables.swept == [older] and len(tables.reclaimed) == 2


@pytest.mark.parametrize(("since", "erased", "sweeps"), [(4, 60.0, False), (3, -32400.0, True)])
def test_files_of_a_step_that_is_being_written_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, since: int, erased: float, sweeps: bool
) -> None:
    """Unless the step began after these files were written, because the step before it ended later.

    `erased`: in seconds after the last step."""
    source, tables = stored(tmp_path), Tables()
    warehouse, place = str(source.warehouse), source.place
    history = StepHistory(warehouse, place)
    history.index.append(history.tail(None))
    ended = history.committed(3, 3)[0].time
    assert ended is not None
    monkeypatch.setattr(delta_storage.time, "time", lambda: ended + 36000.0)
    erasure = task("erasure", 7, "erase of rows", condition="c", by=instant_text(int(ended) * 1000))
    details = {ERASED_AT: ended + erased}
    outcome = TaskOutcome(serial=7)
    record = TaskRecord(task=erasure, outcome=outcome, step=2, details=details, done=True)
    Checkpoint.of(warehouse, *place).tasks.record(record)
    history.log.plan(*history.log.lines(3)[2:])
    assert history.log.unfinished() == 4
    DeltaStorage(warehouse, tables).maintain(place, since)
    assert len(tables.reclaimed) == 1 and bool(tables.swept) is sweeps
