"""Damaged files in a warehouse are errors that name the file. Steps that a table has lost are found by
comparing its log with the checkpoint's. The logs of a query that reads several collections: the order of its
sources, and the versions of the snapshots that its steps read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mzplan.warehouse.checkpoint_log import CheckpointLog
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.collection_log import CollectionLog, is_at_boundary, versions_between
from mzplan.warehouse.rows import snapshot
from mzplan.warehouse.rows.replay import files_of
from mzplan.warehouse.rows.snapshot import SnapshotVersions, name_of
from mzplan.warehouse.step_record import StepRecord
from mzplan.warehouse.stored_files import HeldStep, lost_steps, newest_held
from tests.stored_steps import StoredSource


def table(folder: Path, *commits: str) -> CollectionLog:
    log = folder / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    for version, commit in enumerate(commits):
        (log / f"{version:020}.json").write_text(commit)
    return CollectionLog(str(folder))


WRITTEN = '{"commitInfo": {"operation": "STREAMING UPDATE", "operationParameters": {"epochId": "0"}}}'


def offset(version: Any, index: Any = 0) -> dict[str, Any]:
    return {"reservoirVersion": version, "index": index}


@pytest.mark.parametrize("version", ["x", float("inf")])
def test_an_invalid_offset_is_damage(tmp_path: Path, version: Any) -> None:
    log = table(tmp_path, WRITTEN)
    for start, end in ((None, offset(version)), (None, offset(0, version)), (offset(version), offset(1))):
        with pytest.raises(OSError, match="is damaged"):
            versions_between(start, end, log)
        with pytest.raises(OSError, match="is damaged"):
            files_of(log, StepRecord(step=1, start=start or offset(0), end=end))
    with pytest.raises(OSError, match="is damaged"):
        is_at_boundary(offset(0, version))


@pytest.mark.parametrize(
    "commit",
    [
        '{"txn": {"appId": "q", "version": 1e999}}',
        '{"commitInfo": {"operation": "WRITE", "operationMetrics": {"numOutputRows": "x"}}}',
        '{"add": {"path": 7, "size": 1}}',
    ],
)
def test_a_damaged_commit_is_named(tmp_path: Path, commit: str) -> None:
    log = table(tmp_path, WRITTEN, commit)
    with pytest.raises(OSError, match=r"0001\.json is damaged"):
        log.commit(1)


def spark_log(folder: Path, **files: str) -> CheckpointLog:
    """Write files of a Spark checkpoint by name: `offsets_3` stands for `offsets/3`."""
    for name, text in files.items():
        path = folder / name.replace("_", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return CheckpointLog(str(folder))


@pytest.mark.parametrize("text", ["[]", "7", '{"id": '])
def test_damaged_logs_of_spark_are_named(tmp_path: Path, text: str) -> None:
    log = spark_log(tmp_path, metadata=text, offsets_1=f"v1\n{text}\n-", sources_0_0=f"v1\n{text}")
    with pytest.raises(OSError, match="metadata is damaged"):
        log.query_id()
    if text != "[]":  # valid JSON, though without settings
        with pytest.raises(OSError, match="offsets/1 is damaged"):
            log.is_written(1)
    with pytest.raises(OSError, match="offsets/1 is damaged"):
        log.offset(1)
    with pytest.raises(OSError, match="is damaged"):
        log.files(None, {"logOffset": 3})


@pytest.mark.parametrize("name", ["layout", "collection", "departure", "begun", "migrated", "versions"])
def test_damaged_files_of_a_checkpoint_are_named(tmp_path: Path, name: str) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    readers = {"begun": checkpoint.descriptions, "migrated": checkpoint.migrated_rows}
    for text in ('"x"', f'{{"{name}": ', f'{{"{name}": 7}}'):
        (tmp_path / f"{name}.json").write_text(text)
        with pytest.raises(OSError, match=f"{name}.json is damaged"):
            readers.get(name, getattr(checkpoint, name, None))()  # type: ignore[misc]


# --- steps that a table has lost


def stored(folder: Path, steps: int) -> tuple[StoredSource, Checkpoint]:
    source = StoredSource(folder)
    checkpoint = Checkpoint.of(str(folder), *source.place)
    (Path(checkpoint.spark) / "metadata").write_text('{"id":"q"}')
    for step in range(steps):
        source.change([{"id": step}])
    return source, checkpoint


def lost(source: StoredSource, checkpoint: Checkpoint) -> tuple[int, int] | None:
    return lost_steps(CollectionLog(str(source.collection)), checkpoint.log)


def test_last_steps_are_missing(tmp_path: Path) -> None:
    source, checkpoint = stored(tmp_path, 4)
    assert lost(source, checkpoint) is None
    source.cut_log(4)
    assert lost(source, checkpoint) == (3, 3)
    source.cut_log(2, 3)
    assert lost(source, checkpoint) == (1, 3)
    source.cut_log(1)
    assert lost(source, checkpoint) == (0, 3), "only the table itself is there"


def test_gap_before_later_steps(tmp_path: Path) -> None:
    source, checkpoint = stored(tmp_path, 3)
    source.cut_log(2, 3)
    source.step = 3
    source.change([{"id": 3}])
    assert lost(source, checkpoint) == (1, 2)
    source.alter()  # a version that no query wrote
    log = CollectionLog(str(source.collection))
    whole = newest_held(log, checkpoint.log)
    assert whole is not None and (whole.version, whole.step) == (2, 3)
    for step in range(4, 30):
        source.change([{"id": step}])
    assert lost(source, checkpoint) is None, "only the newest steps are checked"

    # With the result of an earlier check, a gap is found even if many steps follow it.
    def since(known: HeldStep) -> tuple[int, int] | None:
        return lost_steps(CollectionLog(str(source.collection)), checkpoint.log, known)

    assert since(whole) is None and since(HeldStep(4, 4)) is None
    assert since(HeldStep(2, 1)) == since(HeldStep(1, 0)) == (1, 2)


def test_unknown_without_ids_or_step_numbers(tmp_path: Path) -> None:
    by_hand, checkpoint = stored(tmp_path / "by hand", 0)
    assert lost(by_hand, checkpoint) is None
    by_hand.run([{"id": 1}])  # a query whose commits don't have the steps' numbers
    assert lost(by_hand, checkpoint) is None
    source, checkpoint = stored(tmp_path / "begun", 1)
    (Path(checkpoint.spark) / "metadata").unlink()
    assert lost(source, checkpoint) is None


# --- a query that reads several collections


def log_of(folder: Path, *steps: list[tuple[str, int]], done: int) -> CheckpointLog:
    """Write a checkpoint whose steps have these offsets. Steps up to `done` are done."""
    files = {f"commits_{step}": "v1\n{}" for step in range(done + 1)}
    for step, offsets in enumerate(steps):
        lines = (json.dumps({"reservoirId": id_, **offset(version, -1)}) for id_, version in offsets)
        files[f"offsets_{step}"] = "\n".join(["v1", "{}", *lines])
    return spark_log(folder, **files)


def read(log: CheckpointLog, step: int) -> list[tuple[str, int]]:
    offsets = map(json.loads, log.lines(step)[2:])
    return [(each["reservoirId"], each["reservoirVersion"]) for each in offsets]


def test_the_offsets_follow_the_order_of_the_query(tmp_path: Path) -> None:
    steps = [[("a", n), ("b", n + 10), ("a", n + 20)] for n in range(5)]
    log = log_of(tmp_path, *steps, done=3)
    log.fit_sources(["a", "b", "a"])
    assert [read(log, step) for step in range(5)] == steps
    log.fit_sources(["b", "a", "a"])
    assert read(log, 1) == steps[1]  # Spark won't read this step again
    for n in (2, 3, 4):
        assert read(log, n) == [("b", n + 10), ("a", n), ("a", n + 20)]


def test_a_further_reading_begins_where_the_others_are(tmp_path: Path) -> None:
    log = log_of(tmp_path, [("a", 1), ("b", 2), ("a", 3)], [("a", 4), ("b", 5), ("a", 4)], done=1)
    for tables in (["a", "b", "b", "a", "a"], ["b", "a"], ["a", "a", "b"]):
        assert log.has_place_for(tables)
        log.fit_sources(tables)
        assert read(log, 0) == [(table, {"a": 1, "b": 2}[table]) for table in tables]
        assert read(log, 1) == [(table, {"a": 4, "b": 5}[table]) for table in tables]


def test_readings_at_different_positions_have_no_place_for_another_number(tmp_path: Path) -> None:
    steps = [[("a", n), ("b", n), ("a", n + 1)] for n in range(2)]
    log = log_of(tmp_path, *steps, done=0)
    for tables in (["a", "b"], ["a", "b", "a", "a"]):
        assert not log.has_place_for(tables)
        log.fit_sources(tables)
        assert [read(log, step) for step in range(2)] == steps
    assert log.has_place_for(["a", "a", "b", "b"])


def test_other_tables_change_nothing(tmp_path: Path) -> None:
    log = log_of(tmp_path, [("b", 1), ("a", 2)], done=0)
    others: list[list[str | None]] = [["a"], ["a", "c"], ["a", None], []]
    for tables in others:
        log.fit_sources(tables)
        assert read(log, 0) == [("b", 1), ("a", 2)]
    log.fit_sources(["a", "b"])
    assert read(log, 0) == [("a", 2), ("b", 1)]


CUSTOMERS, CITIES = ("customers-id", 1), ("cities-id", 2)


def test_a_step_reads_the_same_versions_again(tmp_path: Path) -> None:
    table(tmp_path / "a", WRITTEN, WRITTEN)
    table(tmp_path / "b", WRITTEN)
    paths = {CUSTOMERS: str(tmp_path / "a"), CITIES: str(tmp_path / "b")}
    versions = SnapshotVersions(str(tmp_path / "checkpoint"))
    assert versions.at(7) == {}
    assert versions.choose(7, paths) == {CUSTOMERS: 1, CITIES: 0}
    assert versions.at(7) == {name_of(CUSTOMERS): 1, name_of(CITIES): 0}
    table(tmp_path / "a", WRITTEN, WRITTEN, WRITTEN)
    again = SnapshotVersions(str(tmp_path / "checkpoint"))
    assert again.choose(7, paths) == {CUSTOMERS: 1, CITIES: 0}
    assert again.choose(8, paths) == {CUSTOMERS: 2, CITIES: 0}
    # The recorded version is gone: the newest one is read.
    (tmp_path / "a" / "_delta_log" / f"{1:020}.json").unlink()
    assert again.choose(7, paths) == {CUSTOMERS: 2, CITIES: 0}
    with pytest.raises(OSError, match="no Delta log"):
        again.choose(9, {CUSTOMERS: str(tmp_path / "nothing")})


def test_only_the_newest_steps_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "RETAINED_STEPS", 3)
    table(tmp_path, WRITTEN)
    versions = SnapshotVersions(str(tmp_path / "checkpoint"))
    for step in range(10):
        versions.choose(step, {CUSTOMERS: str(tmp_path)})
    assert [step for step in range(10) if versions.at(step)] == [7, 8, 9]
