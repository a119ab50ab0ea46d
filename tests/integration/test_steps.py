"""Steps of real queries: what is recorded of them, also when a crash came in between, and their replay."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from mzplan.model.observed import Counters
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.paths import local_path
from mzplan.warehouse.rows.content_hash import ContentHash, content_hash
from mzplan.warehouse.rows.replay import collection_batches
from mzplan.warehouse.step_record import StepRecord
from tests.integration.spark_lab import Lab
from tests.support import Make, orders


def test_the_steps_of_a_source_and_its_sink(lab: Lab, topic: Make) -> None:
    name = topic(partitions=1)
    source = lab.kafka_source(name)
    sink = lab.sink(source, "console", None)
    lab.produce(name, *orders(0, 10))
    lab.start(source)
    lab.recorded(source, 1)
    lab.produce(name, *orders(10, 11))  # one record can't be cut into two steps
    first, second = lab.recorded(source, 2)
    assert (first.step, first.rows, first.start, first.end) == (0, 10, {name: {"0": 0}}, {name: {"0": 10}})
    assert (second.step, second.rows) == (1, 1)
    assert (second.start, second.end) == ({name: {"0": 10}}, {name: {"0": 11}})
    for record in (first, second):
        assert record.digest_from == "stream"
        assert record.bytes is not None and record.bytes > 0
        assert record.time is not None and record.version is not None
        again = content_hash(collection_batches(lab.history(source).collection, record))
        assert (str(again), again.rows) == (record.digest, record.rows)
    lab.start(sink)
    (covering,) = lab.recorded(sink, 1)
    assert (covering.step, covering.rows, covering.sources) == (0, 11, (0, 1))
    lab.produce(name, *orders(15, 16))
    following = lab.recorded(sink, 2)[1]
    assert (following.rows, following.sources, following.total) == (1, (2, 2), 12)
    # How old its rows were: from when their records were made, by Kafka's own timestamps.
    third = lab.recorded(source, 3)[2]
    made = {row["id"]: row["_position"]["timestamp"].timestamp() for row in lab.read(source)}
    assert first.oldest == pytest.approx(min(made[n] for n in range(10)), abs=0.001)
    assert third.oldest == pytest.approx(made[15], abs=0.001)
    assert lab.report(source).batch_seconds is not None
    for query, least in ((source, 0.0), (sink, (third.time or 0.0) - made[15])):
        latency = lab.report(query).latency_seconds
        assert latency is not None and least < latency <= time.time() - made[15]
    assert lab.executor.query_counters()[sink.address] == Counters(rows=12, batches=2)
    lab.stop(sink, source)
    lab.produce(name, *orders(20, 23))
    assert lab.waits(source) == {"records": 3}
    assert lab.waits(sink) == {"steps": 0, "rows": 0}


@pytest.mark.nightly
def test_step_records_lost_in_a_crash_are_filled_in(lab: Lab, topic: Make) -> None:
    name = topic(partitions=1)
    source = lab.kafka_source(name)
    for step in range(3):
        lab.produce(name, *orders(step, step + 1))
        lab.start(*[source] * (step == 0))  # not before there is something: that would be a step of its own
        lab.recorded(source, step + 1)
    whole = lab.recorded(source, 3)
    lab.stop(source)
    files = lab.history(source)
    # A line cut short, then nothing at all: as after a power failure.
    segment = lab.checkpoint(source) / "index" / f"{0:020}.jsonl"
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(lines[0] + lines[1][:25])
    seen = files.read().records
    assert [_essence(r)[:-1] for r in seen] == [_essence(r)[:-1] for r in whole]
    assert [r.digest for r in seen] == [whole[0].digest, None, None]
    lab.start(source)
    again = lab.recorded(source, 3)
    assert [r.digest for r in again] == [r.digest for r in whole]
    assert [r.digest_from for r in again] == ["stream", "collection", "collection"]
    lab.produce(name, *orders(3, 4))
    assert lab.recorded(source, 4)[3].digest_from == "stream"
    lab.stop(source)
    shutil.rmtree(segment.parent)
    lab.start(lab.retried(source))
    assert [_essence(r) for r in lab.recorded(source, 4)][:3] == [_essence(r) for r in whole]


def _essence(record: StepRecord) -> tuple[Any, ...]:
    return record.step, record.start, record.end, record.rows, record.version, record.digest


@pytest.mark.nightly
def test_a_step_that_runs_again_after_a_crash_is_recorded_once(lab: Lab, topic: Make) -> None:
    name = topic(partitions=1)
    source = lab.kafka_source(name)
    lab.produce(name, *orders(0, 6))
    lab.start(source)
    (before,) = lab.recorded(source, 1)
    lab.stop(source)
    shutil.rmtree(lab.checkpoint(source) / "index")
    assert lab.undo_commit(source) == 0
    shown = lab.history(source).read()
    assert [(r.step, r.committed) for r in shown.records] == [(0, True)]  # the collection has it
    lab.start(source)
    lab.produce(name, *orders(6, 7))
    first, second = lab.recorded(source, 2)
    assert _essence(first) == _essence(before)
    assert (second.step, second.rows) == (1, 1)


def test_kafka_steps_are_read_again_from_their_offsets(lab: Lab, topic: Make) -> None:
    name = topic(partitions=2)
    schema = "id BIGINT, amount DECIMAL(10,2), at TIMESTAMP, tags ARRAY<STRING>, more MAP<STRING,INT>"
    source = lab.kafka_source(name, schema=schema, include={"timestamp": "came_at"}, on_error="skip")
    row = b'{"id": %d, "amount": "1.50", "tags": ["a", null], "more": {"x": 1}}'
    lab.send(name, *(row % id_ for id_ in range(7)))
    lab.send(name, b"no json", b'{"id": 8, "at": "2026-01-02T03:04:05.678901Z"}')
    lab.start(source)
    lab.recorded(source, 1)
    lab.send(name, b'{"id": 9}')
    records = lab.recorded(source, 2)
    lab.stop(source)
    upstream = lab.upstream(source)
    again = map(upstream.content_hash, records)
    assert [(str(h), h.rows) for h in again] == [(r.digest, r.rows) for r in records]
    assert records[0].rows == 8  # the malformed record is in the range of offsets, and no row
    lab.delete_records(name, 3)
    with pytest.raises(GoneError, match="upstream"):
        upstream.content_hash(records[0])
    assert str(upstream.content_hash(records[1])) == records[1].digest


@pytest.mark.parametrize(
    "format_",
    ["json", *(pytest.param(one, marks=pytest.mark.nightly) for one in ("csv", "parquet"))],
)
def test_steps_of_files_are_read_again_from_the_files_that_were_noted(
    lab: Lab, tmp_path: Path, format_: str
) -> None:
    folder = tmp_path / "in it"
    folder.mkdir()
    wanted = {"type": format_, "schema": "id BIGINT, name STRING"}
    source = lab.files_source(folder, format=wanted, max_files_per_trigger=1)
    for number in range(2):
        rows = [(number, "ann"), (number + 10, "bob, the other")]
        put(folder, format_, f"part [{number}] 5%25.{format_}", rows)
    lab.start(source)
    records = lab.recorded(source, 2)
    lab.stop(source)
    log, upstream = lab.history(source), lab.upstream(source)

    def kept(record: StepRecord) -> ContentHash:
        batches = collection_batches(log.collection, record)
        return content_hash(batch.drop_columns(["_position"]) for batch in batches)

    for record in records:
        assert upstream.content_hash(record) == kept(record)
    first, second = (local_path(next(iter(log.log.files(r.start, r.end)))) for r in records)
    assert first is not None and second is not None
    put(folder, format_, second.name, [(1, "ann"), (11, "carl")])
    changed = upstream.content_hash(records[1])
    assert (changed.rows, changed == kept(records[1])) == (2, False)
    first.unlink()
    with pytest.raises(GoneError, match="upstream"):
        upstream.content_hash(records[0])


def put(folder: Path, format_: str, name: str, rows: list[tuple[int, str]]) -> None:
    """A file that appears whole."""
    fresh = folder / f".{name}"
    if format_ == "parquet":
        table = pa.table({"id": pa.array([i for i, _ in rows], pa.int64()), "name": [n for _, n in rows]})
        parquet.write_table(table, fresh)
    else:
        lines = [json.dumps({"id": i, "name": n}) if format_ == "json" else f'{i},"{n}"' for i, n in rows]
        fresh.write_text("".join(f"{line}\n" for line in lines))
    fresh.rename(folder / name)
