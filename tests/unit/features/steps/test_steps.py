"""Steps without Spark: the index, its reconstruction from logs, replays, and the steps that a sink needs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mzplan.warehouse import step_index as index_module
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.collection_log import CollectionLog, versions_between
from mzplan.warehouse.damage import DamagedError, GoneError
from mzplan.warehouse.folder import Data, LocalFolder
from mzplan.warehouse.rows.content_hash import content_hash
from mzplan.warehouse.rows.replay import collection_batches, collection_hash, step_hash, versions_of
from mzplan.warehouse.step_history import oldest_needed_step, steps_read
from mzplan.warehouse.step_index import SEGMENT, StepIndex
from mzplan.warehouse.step_record import StepRecord
from tests.stored_steps import StoredSink, StoredSource, named


@pytest.fixture
def source(tmp_path: Path) -> StoredSource:
    return StoredSource(tmp_path)


def run(source: StoredSource, steps: int) -> None:
    """Run steps of one row each."""
    for _ in range(steps):
        source.run(named(source.step, source.step + 1))


# --- the index


@pytest.fixture
def index(tmp_path: Path) -> StepIndex:
    return StepIndex(Checkpoint(str(tmp_path)))


def records(first: int, last: int) -> list[StepRecord]:
    return [StepRecord(step=s, rows=s, digest=f"{s:016x}", digest_from="stream") for s in range(first, last)]


def steps_of(index: StepIndex) -> list[int]:
    return [record.step for record in index.backwards()]


def test_the_index_is_bounded_and_read_from_its_end(
    index: StepIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert index.last() is None
    index.append(records(0, 3 * SEGMENT // 2))
    index.append(records(3 * SEGMENT // 2, 2 * SEGMENT + 2))
    assert steps_of(index) == list(range(2 * SEGMENT + 1, -1, -1))
    assert index.last() == records(2 * SEGMENT + 1, 2 * SEGMENT + 2)[0]
    assert len(list((tmp_path / "index").iterdir())) == 3
    monkeypatch.setattr(index_module, "SEGMENTS", 2)
    index.append(records(2 * SEGMENT + 2, 5 * SEGMENT))
    assert steps_of(index)[-1] == 3 * SEGMENT


def test_a_damaged_line_is_skipped_and_a_truncated_one_is_written_again(
    index: StepIndex, tmp_path: Path
) -> None:
    index.append(records(0, 3))
    (segment,) = (tmp_path / "index").iterdir()
    segment.write_bytes(b'{"step": 1e999}\n' + segment.read_bytes()[:-9])
    assert index.last() == records(1, 2)[0]
    index.append(records(2, 4))
    assert list(index.backwards())[::-1] == records(0, 4)
    index.append([StepRecord(step=1, rows=7)])
    assert [(r.step, r.rows) for r in index.backwards()] == [(3, 3), (2, 2), (1, 7), (0, 0)], "each step once"


def test_expired_steps_are_gone_and_whole_segments_are_removed(index: StepIndex, tmp_path: Path) -> None:
    assert index.oldest() == (0, None)
    timed = replace(records(SEGMENT + 4, SEGMENT + 5)[0], time=5.0)  # the step before wrote nothing
    index.append([*records(0, SEGMENT + 3), timed, *records(SEGMENT + 5, 2 * SEGMENT)])
    index.expire(SEGMENT + 3)
    index.expire(2)
    assert index.oldest() == (SEGMENT + 3, 5.0) and index.since() == SEGMENT + 3
    assert steps_of(index)[-1] == SEGMENT + 4
    assert len(list((tmp_path / "index").glob("*.jsonl"))) == 1


@pytest.mark.parametrize("expired", [False, True])
def test_since_never_goes_back_although_two_processes_write_it(
    index: StepIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expired: bool
) -> None:
    """The runner applies `retention` while somebody runs `mzplan expire`."""
    index.append(records(0, 3 * SEGMENT))
    if expired:
        index.expire(3)
    write = LocalFolder.write

    def later(self: LocalFolder, name: str, data: Data) -> None:
        monkeypatch.setattr(LocalFolder, "write", write)
        StepIndex(Checkpoint(str(tmp_path))).expire(SEGMENT + 40)  # the first process has read the value
        write(self, name, data)

    monkeypatch.setattr(LocalFolder, "write", later)
    index.expire(10)
    assert index.since() == steps_of(index)[-1] == SEGMENT + 40
    assert len([path for path in (tmp_path / "index").iterdir() if path.name.startswith("since")]) == 1


# --- steps from logs


def test_the_index_and_later_logs_are_one_history(source: StoredSource) -> None:
    assert source.history.read().records == ()
    source.record(*(source.run(named(i, i + 1)) for i in range(6)))
    run(source, 3)
    whole = source.history.read().records
    assert [(r.step, r.digest is None) for r in whole] == [(step, step > 5) for step in range(9)]
    for last in (4, 2):
        assert source.history.read(last).records == whole[-last:]
    assert source.history.committed(2, 6) == list(whole[2:7])


def test_steps_and_offsets_that_logs_no_longer_hold_are_unknown(source: StoredSource) -> None:
    run(source, 4)
    for step in (0, 1):
        (source.checkpoint / "offsets" / str(step)).unlink()
    ends = [(r.start, r.end) for r in source.history.read().records]
    third = {"orders": {"0": 3}}
    assert ends[1:] == [(None, None), (None, third), (third, {"orders": {"0": 4}})]
    source.cut_log(0, 1, 2)
    assert [r.step for r in source.history.read().records] == [2, 3]


def test_the_steps_of_a_keyed_collection(source: StoredSource) -> None:
    source.change([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    source.change(
        [{"id": 3, "name": "c"}, {"id": 1, "name": "x"}],
        ("update_preimage", {"id": 1, "name": "a"}),
        ("update_postimage", {"id": 1, "name": "x"}),
        ("delete", {"id": 2, "name": "b"}),
        ("insert", {"id": 3, "name": "c"}),
    )
    source.change([])
    found = source.history.read().records
    assert [(r.step, r.version, r.rows) for r in found] == [(0, 1, 2), (1, 2, 3), (2, 3, 0)]
    batches = [collection_batches(source.history.collection, record) for record in found]
    changes = [[row for batch in step for row in batch.to_pylist()] for step in batches]
    assert [[(row["id"], row["name"], row["_change"]) for row in rows] for rows in changes] == [
        [(1, "a", "upsert"), (2, "b", "upsert")],
        [(1, "x", "upsert"), (2, "b", "delete"), (3, "c", "upsert")],
        [],
    ]
    # A sink stays at the last file of the last version with changes. It has also read later versions.
    sink = StoredSink(source)
    for version, needed in ((None, 0), (1, 1), (2, None)):
        if version is not None:
            sink.run(version, 0)
        assert oldest_needed_step(sink.history) == needed
    steps = sink.history.read().records
    assert [record.sources for record in steps] == [(0, 0), (1, 1)]
    assert [versions_of(source.history.collection, record) for record in steps] == [(0, 1), (2, 2)]
    sink.run(2, 0, starting=True)
    with pytest.raises(GoneError, match="snapshot"):
        versions_of(source.history.collection, sink.history.read().records[-1])


def test_the_files_that_a_step_has_read(source: StoredSource) -> None:
    """As Spark's file source records them, with ten entries merged into one."""
    noted = source.checkpoint / "sources" / "0"
    (noted / "0").unlink()

    def note(name: str, *files: tuple[int, str]) -> None:
        entries = (json.dumps({"path": f"file:///in/{f}", "timestamp": 1, "batchId": b}) for b, f in files)
        (noted / name).write_text("\n".join(["v1", *entries]))

    note("9.compact", *((batch, f"{batch}%20a.json") for batch in range(10)))
    note("9", (9, "9%20a.json"))
    note("10", (10, "b.json"), (10, "c.json"))
    log = source.history.log
    assert list(log.files(None, {"logOffset": 0})) == ["file:///in/0%20a.json"]
    found = list(log.files({"logOffset": 8}, {"logOffset": 10}))
    assert found == [f"file:///in/{name}" for name in ("9%20a.json", "b.json", "c.json")]


# --- steps of a sink


@pytest.mark.parametrize(
    ("start", "end", "covered"),
    [
        (None, (3, -1, False), (0, 2)),
        (None, (3, 4, True), (0, 3)),
        ((3, 4, True), (3, 9, True), (0, 3)),
        ((3, -1, False), (3, 0, False), (3, 3)),
        ((3, -1, False), (3, -1, False), None),
        ((3, -1, False), None, None),
    ],
)
def test_offsets_of_a_sink_give_the_versions_that_it_has_read(
    tmp_path: Path, start: Any, end: Any, covered: tuple[int, int] | None
) -> None:
    names = ("reservoirVersion", "index", "isStartingVersion")
    given = [dict(zip(names, one, strict=True)) if one else None for one in (start, end)]
    assert versions_between(*given, CollectionLog(str(tmp_path))) == covered


def test_a_step_of_a_sink_covers_steps_of_its_source(source: StoredSource) -> None:
    sink = StoredSink(source)
    source.run(named(0, 3))
    source.run(named(3, 5))
    sink.run(3)
    source.alter()
    source.run(named(5, 9))
    sink.run(4)  # the altered table alone: no step
    sink.run(4, 0)
    sink.run(5)
    source.run(named(9, 10))
    sink.run(6, seen_through=False)
    assert [(r.step, r.sources, r.rows, r.committed) for r in sink.history.read().records] == [
        (0, (0, 1), 5, True),
        (1, None, None, True),
        (2, (2, 2), None, True),  # a part of it: the log does not say how many rows
        (3, (2, 2), None, True),
        (4, (3, 3), 1, False),
    ]


def test_the_oldest_step_that_a_sink_still_needs(source: StoredSource) -> None:
    sink = StoredSink(source)
    assert oldest_needed_step(sink.history) == 0
    run(source, 3)
    runs: list[tuple[tuple[int, int], dict[str, bool], int]] = [
        ((2, 0), {"starting": True}, 0),
        ((2, -1), {}, 1),
        ((3, 0), {}, 2),
        ((4, -1), {"seen_through": False}, 2),
    ]
    for place, more, needed in runs:
        sink.run(*place, **more)
        assert oldest_needed_step(sink.history) == needed, place
    sink.run(4)
    source.alter()
    assert oldest_needed_step(sink.history) is None
    run(source, 1)
    assert oldest_needed_step(sink.history) == 3


def test_a_sink_skips_the_step_that_erased_rows(source: StoredSource) -> None:
    """As its stream does: the step adds no rows, and rewrites the file of an earlier step."""
    sink = StoredSink(source)
    source.run(named(0, 2))
    source.run(named(2, 4))
    sink.run(3)
    assert oldest_needed_step(sink.history) is None
    source.erase(0, named(0, 1)[0], named(1, 2))
    assert oldest_needed_step(sink.history) is None and steps_read(sink.history)[0] == 3
    source.run(named(4, 6))
    assert oldest_needed_step(sink.history) == 3
    sink.run(5)
    first, second = sink.history.read().records
    assert (first.sources, first.rows) == ((0, 1), 4)
    assert second.sources == (2, 3) and second.rows == 2
    columns = {"id": "id", "name": "name"}
    hashed = step_hash(sink.history.collection, second, columns)
    assert hashed == content_hash([pa.Table.from_pylist(named(4, 6), schema=source.schema.remove(2))])
    erasure = source.history.read().records[2]
    assert erasure.rows == 1 and source.history.foreign_commits(source.history.read().records[0]) == []
    (change,) = (batch.to_pylist() for batch in collection_batches(source.history.collection, erasure))
    assert [(row["id"], row["_change"]) for row in change] == [(0, "delete")]


def test_the_hash_of_a_sinks_step_needs_no_spark(source: StoredSource) -> None:
    source.run(named(0, 3), files=3)
    source.run([*named(3, 4), {"id": 3, "name": "again"}])
    sink = StoredSink(source)
    sink.run(2)
    sink.run(3)
    log, (first, second) = sink.history.collection, sink.history.read().records
    renamed = pa.table({"key": [0, 1, 2], "name": [row["name"] for row in named(0, 3)]})
    columns = {"key": "ID", "name": "name"}
    for keys in ((), ["KEY"]):
        assert step_hash(log, first, columns, keys) == content_hash([renamed])
    assert step_hash(log, second, columns, ["key"]) is None, "one of two rows counts, and Spark decides which"
    assert step_hash(log, second, columns, ["key", "name"]) == step_hash(log, second, columns)
    assert step_hash(log, first, {"name": "name"}, ["key"]) is None


# --- replays


def test_a_step_that_was_vacuumed_or_whose_log_is_gone_is_gone(source: StoredSource) -> None:
    run(source, 3)
    vacuumed, unlogged, moved = source.history.read().records
    (file,) = source.data(0)
    source.merge()
    source.vacuum()
    file.unlink()
    source.cut_log(2)
    log = source.history.collection
    for record, why in (
        (vacuumed, r"version 4 has taken it out .*, and the VACUUM of version 5"),
        (unlogged, r"log of version 2 .* is gone"),
        (StepRecord(step=9, version=moved.version), "holds step 2"),
    ):
        with pytest.raises(GoneError, match=why):
            collection_hash(log, record)
    source.data(2)[0].write_bytes(b"PAR1 no more")
    with pytest.raises(DamagedError, match="is damaged"):
        collection_hash(source.history.collection, moved)


def test_a_missing_file_without_a_vacuum_is_damage(source: StoredSource) -> None:
    run(source, 2)
    (file,) = source.data(0)
    data = file.read_bytes()
    file.unlink()
    record = source.history.read().records[0]
    source.vacuum()
    with pytest.raises(DamagedError, match=f"{file}, which step 0 .* no version has taken it out"):
        collection_hash(source.history.collection, record)
    file.write_bytes(data)
    source.merge()
    file.unlink()
    with pytest.raises(DamagedError, match="has no VACUUM that would have removed it"):
        collection_hash(source.history.collection, record)
    info = source.collection / "_delta_log" / "_last_vacuum_info"
    info.write_text('{"latestCommitVersionOutsideOfRetentionWindow": 9}')
    with pytest.raises(GoneError, match="the VACUUM has removed it"):
        collection_hash(source.history.collection, record)
