"""Steps without Spark: the index, its reconstruction from logs, replays, and the steps that a sink needs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mzplan.warehouse import step_index as index_module
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.collection_log import CollectionLog, versions_between
from mzplan.warehouse.content_hash import content_hash
from mzplan.warehouse.damage import DamagedError, GoneError
from mzplan.warehouse.folder import Data, LocalFolder
from mzplan.warehouse.replay import collection_batches, collection_hash, step_hash, versions_of
from mzplan.warehouse.step_history import Steps, oldest_needed_step
from mzplan.warehouse.step_index import SEGMENT, StepIndex
from mzplan.warehouse.step_record import StepRecord
from tests.stored_steps import StoredSink, StoredSource, named


def records(first: int, last: int) -> list[StepRecord]:
    return [StepRecord(step=s, rows=s, digest=f"{s:016x}", digest_from="stream") for s in range(first, last)]


def index_at(folder: Path) -> StepIndex:
    return StepIndex(Checkpoint(str(folder)))


_JSON = st.recursive(st.none() | st.integers(0, 9) | st.text(max_size=3), lambda v: st.lists(v, max_size=2))


@given(
    step=st.integers(0, 2**64 - 1),
    start=_JSON,
    end=_JSON,
    rows=st.none() | st.integers(0),
    sources=st.none() | st.tuples(st.integers(0), st.integers(0)),
    digest=st.none() | st.just("0" * 16),
)
def test_a_line_of_the_index_is_read_as_it_was_written(**known: object) -> None:
    record = StepRecord(**known)  # type: ignore[arg-type]
    assert StepRecord.parse(record.line()) == record
    assert "\n" not in record.line()


def test_the_index_is_read_from_its_end(tmp_path: Path) -> None:
    index = index_at(tmp_path)
    assert index.last() is None
    index.append(records(0, 3 * SEGMENT // 2))
    index.append(records(3 * SEGMENT // 2, 2 * SEGMENT + 2))
    assert [r.step for r in index.backwards()] == list(range(2 * SEGMENT + 1, -1, -1))
    assert index.last() == records(2 * SEGMENT + 1, 2 * SEGMENT + 2)[0]
    assert len(list((tmp_path / "index").iterdir())) == 3


def test_a_line_cut_short_is_left_out_and_written_again(tmp_path: Path) -> None:
    index = index_at(tmp_path)
    index.append(records(0, 3))
    (segment,) = (tmp_path / "index").iterdir()
    segment.write_bytes(segment.read_bytes()[:-9])
    assert index.last() == records(1, 2)[0]
    index.append(records(2, 4))
    assert list(index.backwards())[::-1] == records(0, 4)


def test_a_step_that_is_noted_again_counts_once(tmp_path: Path) -> None:
    index = index_at(tmp_path)
    index.append(records(0, 3))
    index.append([StepRecord(step=1, rows=7)])
    assert [(r.step, r.rows) for r in index.backwards()] == [(2, 2), (1, 7), (0, 0)]


def test_the_index_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "SEGMENTS", 2)
    index = index_at(tmp_path)
    for first in range(0, 5 * SEGMENT, SEGMENT):
        index.append(records(first, first + SEGMENT))
    assert [r.step for r in index.backwards()][-1] == 3 * SEGMENT


def test_what_is_expired_is_gone_and_whole_segments_are_removed(tmp_path: Path) -> None:
    index = index_at(tmp_path)
    assert index.oldest() == (0, None)
    timed = replace(records(SEGMENT + 4, SEGMENT + 5)[0], time=5.0)  # the step before wrote nothing
    index.append([*records(0, SEGMENT + 3), timed, *records(SEGMENT + 5, 2 * SEGMENT)])
    index.expire(SEGMENT + 3)
    index.expire(2)
    assert index.oldest() == (SEGMENT + 3, 5.0)
    assert index.since() == SEGMENT + 3
    assert [r.step for r in index.backwards()][-1] == SEGMENT + 4
    assert len(list((tmp_path / "index").glob("*.jsonl"))) == 1


@pytest.mark.parametrize("there", [False, True])
def test_since_never_goes_back_although_two_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """The runner applies `retention` while somebody runs `mzplan expire`."""
    index = index_at(tmp_path)
    index.append(records(0, 3 * SEGMENT))
    if there:
        index.expire(3)
    write = LocalFolder.write

    def later(self: LocalFolder, name: str, data: Data) -> None:
        monkeypatch.setattr(LocalFolder, "write", write)
        index_at(tmp_path).expire(SEGMENT + 40)  # between its look and its write
        write(self, name, data)

    monkeypatch.setattr(LocalFolder, "write", later)
    index.expire(10)
    assert index.since() == SEGMENT + 40
    assert [r.step for r in index.backwards()][-1] == SEGMENT + 40
    assert len([path for path in (tmp_path / "index").iterdir() if path.name.startswith("since")]) == 1


def test_a_source_without_an_index(tmp_path: Path) -> None:
    source = StoredSource(tmp_path)
    assert source.history.read().records == ()
    source.run(named(0, 3))
    source.alter()
    source.run(named(3, 5))
    steps = source.history.read()
    assert (steps.since, steps.upper) == (0, 2)
    first, second = steps.records
    assert (first.start, first.end, first.rows, first.version) == (
        {"orders": {"0": 0}},
        {"orders": {"0": 3}},
        3,
        1,
    )
    assert (second.start, second.end, second.rows, second.version) == (first.end, {"orders": {"0": 5}}, 2, 3)


def test_a_step_is_committed_when_the_collection_has_it(tmp_path: Path) -> None:
    source = StoredSource(tmp_path)
    source.run(named(0, 3))
    source.run(named(3, 4), seen_through=False)
    assert [r.committed for r in source.history.read().records] == [True, True]
    source.plan(named(4, 6))
    steps = source.history.read()
    assert [(r.step, r.committed, r.rows) for r in steps.records] == [
        (0, True, 3),
        (1, True, 1),
        (2, False, None),
    ]
    assert steps.upper == 2


def test_the_index_and_the_tail_are_one_history(tmp_path: Path) -> None:
    source = StoredSource(tmp_path)
    hashes = [source.run(named(i, i + 1)) for i in range(6)]
    source.record(*hashes)
    for i in range(6, 9):
        source.run(named(i, i + 1))
    whole = source.history.read().records
    assert [r.step for r in whole] == list(range(9))
    assert [r.digest is None for r in whole] == [False] * 6 + [True] * 3
    assert source.history.read(4).records == whole[-4:]
    assert source.history.read(2).records == whole[-2:]
    assert source.history.committed(2, 6) == list(whole[2:7])


def test_of_a_collection_that_has_given_up_all_steps_the_last_one_was_committed(tmp_path: Path) -> None:
    source = StoredSource(tmp_path)
    for number in range(3):
        source.run([{"id": number, "name": "a"}])
    source.history.index.expire(3)
    assert source.history.read() == Steps(since=3, upper=3, records=())
    source.plan([{"id": 3, "name": "a"}])
    assert [(one.step, one.committed) for one in source.history.read().records] == [(3, False)]


def test_offsets_that_spark_has_pruned_are_unknown(tmp_path: Path) -> None:
    source = StoredSource(tmp_path)
    for i in range(4):
        source.run(named(i, i + 1))
    for step in (0, 1):
        (source.checkpoint / "offsets" / str(step)).unlink()
    ends = [(r.start, r.end) for r in source.history.read().records]
    assert ends[1] == (None, None)
    assert ends[2] == (None, {"orders": {"0": 3}})
    assert ends[3] == ({"orders": {"0": 3}}, {"orders": {"0": 4}})


def test_a_log_that_no_longer_reaches_back(tmp_path: Path) -> None:
    source = StoredSource(tmp_path)
    for i in range(4):
        source.run(named(i, i + 1))
    for version in (0, 1, 2):
        (source.collection / "_delta_log" / f"{version:020}.json").unlink()
    assert [r.step for r in source.history.read().records] == [2, 3]


@pytest.mark.parametrize(
    ("start", "end", "covered"),
    [
        (None, (3, -1, False), (0, 2)),
        (None, (3, 4, True), (0, 3)),
        ((3, 4, True), (3, 9, True), (0, 3)),
        ((3, 9, True), (4, -1, False), (0, 3)),
        ((3, -1, False), (5, -1, False), (3, 4)),
        ((3, -1, False), (3, 0, False), (3, 3)),
        ((3, 0, False), (4, -1, False), (3, 3)),
        ((3, -1, False), (3, -1, False), None),
        ((3, -1, False), None, None),
    ],
)
def test_which_versions_a_sink_has_read(
    tmp_path: Path,
    start: tuple[int, int, bool] | None,
    end: tuple[int, int, bool] | None,
    covered: tuple[int, int] | None,
) -> None:
    names = ("reservoirVersion", "index", "isStartingVersion")
    given = [dict(zip(names, one, strict=True)) if one else None for one in (start, end)]
    assert versions_between(*given, CollectionLog(str(tmp_path))) == covered


def test_the_steps_of_a_keyed_collection(tmp_path: Path) -> None:
    source = StoredSource(tmp_path)
    source.change([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    source.change(
        [{"id": 3, "name": "c"}, {"id": 1, "name": "x"}],
        ("update_preimage", {"id": 1, "name": "a"}),
        ("update_postimage", {"id": 1, "name": "x"}),
        ("delete", {"id": 2, "name": "b"}),
        ("insert", {"id": 3, "name": "c"}),
    )
    source.change([])
    records = source.history.read().records
    assert [(r.step, r.version, r.rows) for r in records] == [(0, 1, 2), (1, 2, 3), (2, 3, 0)]
    found = [
        [(row["id"], row["name"], row["_change"]) for row in rows]
        for rows in (
            [row for batch in collection_batches(source.history.collection, r) for row in batch.to_pylist()]
            for r in records
        )
    ]
    assert found == [
        [(1, "a", "upsert"), (2, "b", "upsert")],
        [(1, "x", "upsert"), (2, "b", "delete"), (3, "c", "upsert")],
        [],
    ]
    # A sink stays at the last file of the last version with changes; those behind it are read, too.
    sink = StoredSink(source)
    assert oldest_needed_step(sink.history) == 0
    sink.run(1, 0)
    assert oldest_needed_step(sink.history) == 1
    sink.run(2, 0)
    assert oldest_needed_step(sink.history) is None
    steps = sink.history.read().records
    assert [record.sources for record in steps] == [(0, 0), (1, 1)]
    assert [versions_of(source.history.collection, record) for record in steps] == [(0, 1), (2, 2)]
    sink.run(2, 0, starting=True)
    with pytest.raises(GoneError, match="snapshot"):
        versions_of(source.history.collection, sink.history.read().records[-1])


def test_the_steps_that_a_sink_covers(tmp_path: Path) -> None:
    source = StoredSource(tmp_path)
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
    found = sink.history.read().records
    assert [(r.step, r.sources, r.rows, r.committed) for r in found] == [
        (0, (0, 1), 5, True),
        (1, None, None, True),
        (2, (2, 2), None, True),  # a part of it: the log does not say how many rows
        (3, (2, 2), None, True),
        (4, (3, 3), 1, False),
    ]


def test_a_step_is_replayed_from_exactly_its_files(tmp_path: Path) -> None:
    source = StoredSource(tmp_path)
    hashes = [source.run(named(0, 4), files=2), source.run(named(4, 7)), source.run([])]
    history = source.history
    assert [collection_hash(history.collection, r) for r in history.read().records] == hashes


def test_a_step_that_was_vacuumed_or_whose_log_is_gone_says_so(tmp_path: Path) -> None:
    source = StoredSource(tmp_path)
    for i in range(3):
        source.run(named(i, i + 1))
    vacuumed, unlogged, moved = source.history.read().records
    (file,) = source.data(0)
    source.merge()
    source.vacuum()
    file.unlink()
    (source.collection / "_delta_log" / f"{2:020}.json").unlink()
    log = source.history.collection
    with pytest.raises(GoneError, match=r"version 4 has taken it out .*, and the VACUUM of version 5"):
        collection_hash(log, vacuumed)
    with pytest.raises(GoneError, match=r"log of version 2 .* is gone"):
        collection_hash(log, unlogged)
    other = StepRecord(step=9, version=moved.version)
    with pytest.raises(GoneError, match="holds step 2"):
        collection_hash(log, other)
    source.data(2)[0].write_bytes(b"PAR1 no more")
    with pytest.raises(DamagedError, match="is damaged"):
        collection_hash(source.history.collection, moved)


def test_a_missing_file_is_not_explained_by_a_vacuum_that_the_log_does_not_show(tmp_path: Path) -> None:
    source = StoredSource(tmp_path)
    for i in range(2):
        source.run(named(i, i + 1))
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
    (source.collection / "_delta_log" / "_last_vacuum_info").write_text(
        '{"latestCommitVersionOutsideOfRetentionWindow": 9}'
    )
    with pytest.raises(GoneError, match="the VACUUM has removed it"):
        collection_hash(source.history.collection, record)


def test_what_a_sink_still_needs(tmp_path: Path) -> None:
    source = StoredSource(tmp_path)
    sink = StoredSink(source)
    assert oldest_needed_step(sink.history) == 0
    for i in range(3):
        source.run(named(i, i + 1))
    sink.run(2, 0, starting=True)
    assert oldest_needed_step(sink.history) == 0
    sink.run(2)
    assert oldest_needed_step(sink.history) == 1
    sink.run(3, 0)
    assert oldest_needed_step(sink.history) == 2
    sink.run(4, seen_through=False)
    assert oldest_needed_step(sink.history) == 2
    sink.run(4)
    source.alter()
    assert oldest_needed_step(sink.history) is None
    source.run(named(3, 4))
    assert oldest_needed_step(sink.history) == 3


def test_a_sinks_step_without_spark(tmp_path: Path) -> None:
    source = StoredSource(tmp_path)
    source.run(named(0, 3), files=3)
    source.run([*named(3, 4), {"id": 3, "name": "again"}])
    sink = StoredSink(source)
    sink.run(2)
    sink.run(3)
    log, (first, second) = sink.history.collection, sink.history.read().records
    renamed = pa.table({"key": [0, 1, 2], "name": [row["name"] for row in named(0, 3)]})
    columns = {"key": "ID", "name": "name"}
    assert step_hash(log, first, columns) == content_hash([renamed])
    assert step_hash(log, first, columns, ["KEY"]) == content_hash([renamed])
    assert step_hash(log, second, columns, ["key"]) is None  # one of two rows counts: Spark says which
    assert step_hash(log, second, columns, ["key", "name"]) == step_hash(log, second, columns)
    assert step_hash(log, first, {"name": "name"}, ["key"]) is None


def test_the_files_of_a_step(tmp_path: Path) -> None:
    """The files as Spark's file source records them, with ten entries merged into one."""
    source = StoredSource(tmp_path)
    noted = source.checkpoint / "sources" / "0"
    (noted / "0").unlink()

    def entry(batch: int, name: str) -> str:
        return json.dumps({"path": f"file:///in/{name}", "timestamp": 1, "batchId": batch})

    merged = "\n".join(["v1", *(entry(b, f"{b}%20a.json") for b in range(10))])
    (noted / "9.compact").write_text(merged)
    (noted / "9").write_text("\n".join(["v1", entry(9, "9%20a.json")]))
    (noted / "10").write_text("\n".join(["v1", entry(10, "b.json"), entry(10, "c.json")]))
    log = source.history.log
    assert list(log.files(None, {"logOffset": 0})) == ["file:///in/0%20a.json"]
    assert list(log.files({"logOffset": 8}, {"logOffset": 10})) == [
        "file:///in/9%20a.json",
        "file:///in/b.json",
        "file:///in/c.json",
    ]
