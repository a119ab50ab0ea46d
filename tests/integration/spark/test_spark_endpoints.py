"""Durable endpoints under real Spark: the local source as the input, third-party shapes as outputs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mzplan.connectors.adapter.sink import EndpointSink
from mzplan.connectors.local.steps import LocalSteps
from mzplan.endpoints import OutputEndpoint, Step
from mzplan.schema.description import Description
from mzplan.spark.delta_storage import DeltaStorage
from mzplan.warehouse.rows.replay import collection_hash
from mzplan.warehouse.rows.snapshot import snapshot_of
from tests.contract.controllers import appending
from tests.integration.spark_lab import Lab
from tests.support import eventually

COLUMNS = (
    "id BIGINT NOT NULL, name VARCHAR(10), day DATE, at TIMESTAMP, amount DECIMAL(10,2), tags ARRAY<STRING>"
)


def append(lab: Lab, source: Description, *ids: int, id_: str = "") -> None:
    rows = pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{i}" for i in ids]})
    LocalSteps(str(lab.checkpoint(source) / "steps")).append(rows, id_ or f"append {ids}")


def holds(lab: Lab, source: Description, count: int) -> None:
    def enough() -> bool:
        report = lab.report(source)
        if "did not start within 10 s" in (report.error or ""):  # an overloaded machine: as the runner does
            lab.stop(source)
            lab.start(source)
        return lab.count(source) >= count

    eventually(f"the collection has {count} rows", enough, 180)


def test_each_append_is_one_step_and_a_restart_continues_after_the_last(lab: Lab) -> None:
    source = lab.source("local", None, schema=COLUMNS)
    for number in range(20):
        append(lab, source, number)
    assert lab.waits(source) == {"steps": 20, "rows": 20}
    lab.start(source)
    holds(lab, source, 20)
    lab.finish(source)
    assert lab.last_step(source) == 0, "appends that wait are few micro-batches"
    # Once more, as after a kill between the table's commit and Spark's: Delta has the step, and takes no row.
    lab.undo_commit(source)
    append(lab, source, 20)
    append(lab, source, 21, 22)
    again = lab.retried(source)
    lab.start(again)
    holds(lab, again, 23)
    eventually("the step is done", lambda: lab.checkpoint_done(source) and lab.last_step(source) == 1)
    append(lab, source, 23)
    holds(lab, again, 24)
    eventually("nothing waits", lambda: lab.waits(again) == {"steps": 0, "rows": 0})
    lab.finish(again)
    places = [(number, number, 0) for number in range(22)]
    rows = lab.read(source)
    found = sorted((row["id"], row["_position"]["step"], row["_position"]["row"]) for row in rows)
    assert found == [*places, (22, 21, 1), (23, 22, 0)]
    (one,) = (row for row in rows if row["id"] == 4 and row.pop("_position"))
    assert one == {"id": 4, "name": "n4", "day": None, "at": None, "amount": None, "tags": None}
    # Who reads steps: all of the collection's, with the appends that each has.
    history = lab.history(source)
    steps = history.read().records
    assert [(one.start, one.end, one.rows) for one in steps] == [
        (None, {"step": 20}, 20),
        ({"step": 20}, {"step": 22}, 3),
        ({"step": 22}, {"step": 23}, 1),
    ]
    assert [snapshot_of(history, step).count() for step in range(3)] == [20, 23, 24]
    upstream = lab.upstream(source)
    for one in steps:
        assert upstream.content_hash(one) == collection_hash(history.collection, one)
    # A controller's append counts on from the collection.
    storage = DeltaStorage(lab.context.warehouse, lab.executor)
    storage.append([(source, appending(source.id, 3, {"id": 24}))])
    lab.start(again)
    holds(lab, again, 25)
    eventually("the row since the restart is counted", lambda: lab.report(again).run_rows == 1)
    report = lab.report(again)
    assert report.resumed == {"step": 2, "position": {"step": 23}}
    assert report.recent[0].total == 25
    eventually("its step is there", lambda: history.upper() == 4)
    assert snapshot_of(history, 3).count() == 25


def test_lost_steps_are_told_before_and_while_it_runs(lab: Lab) -> None:
    source = lab.source("local", None, schema=COLUMNS)
    append(lab, source, 1)
    lab.start(source)
    holds(lab, source, 1)
    eventually("the batch is noted as done", lambda: lab.report(source).step >= 0)
    for file in (lab.checkpoint(source) / "steps").glob("*.arrow"):
        file.unlink()
    lab.fails(source, "MZ081", "step 1 is needed")
    lab.stop(source)
    assert lab.codes(source) == ["MZ081"]
    # Reclaiming a collection also removes its checkpoint.
    assert lab.checkpoint(source).exists()
    lab.executor.reclaim(source.id, source.generation)
    assert not lab.checkpoint(source).exists()


def test_a_value_that_does_not_fit_names_its_column(lab: Lab) -> None:
    source = lab.source("local", None, schema="id BIGINT, name VARCHAR(1)")
    append(lab, source, 1)
    lab.start(source)
    lab.fails(source, "MZ082", "name is longer than VARCHAR(1)")


class Parts:
    """An output in parts that are written at once: a file for each part and step."""

    def __init__(self, folder: Path, parallelism: int):
        self.folder, self.parallelism = folder, parallelism

    def name(self) -> str:
        return "parts"

    def new_endpoint(self, name: str, config: Mapping[str, Any]) -> OutputEndpoint:
        assert [column["name"] for column in config["columns"]] == ["id", "twice"]
        return Part(self.folder / name)


class Part:
    def __init__(self, folder: Path):
        self.folder = folder

    def start_step(self, step: Step) -> None:
        self.step, self.rows = step, list[Any]()

    def push_buffer(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.to_pylist()
        if any(row["id"] == 13 for row in self.rows):
            raise RuntimeError("13 is no luck")

    def finish_step(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"{self.step}.json"
        if file.exists():
            assert json.loads(file.read_text()) == self.rows, "a repeated part has the same rows"
            (self.folder / f"{self.step}.again").touch()
        file.write_text(json.dumps(self.rows))

    def expire_step(self, step: Step) -> None:
        pass


@pytest.mark.nightly
@pytest.mark.parametrize("parallelism", [1, 3])
def test_an_output_gets_the_same_rows_in_the_same_parts_again(
    lab: Lab, tmp_path: Path, parallelism: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        lab.executor._connectors._by_type, ("sink", "console"), EndpointSink(Parts(tmp_path, parallelism))
    )
    source = lab.source("local", None, schema=COLUMNS)
    sink = lab.sink(source, "console", None, select=["id", "id * 2 AS twice"])
    append(lab, source, *range(100, 160))
    lab.start(source)
    holds(lab, source, 60)
    lab.start(sink)

    def written() -> list[int]:
        files = [file for file in tmp_path.rglob("*.json") if file.stat().st_size]
        return sorted(row["id"] for file in files for row in json.loads(file.read_text()))

    eventually("the rows are written", lambda: len(written()) >= 60)
    eventually("the batch is noted as done", lambda: lab.report(sink).step >= 0)
    lab.stop(sink)
    lab.undo_commit(sink)
    again = lab.retried(sink)
    lab.start(again)
    append(lab, source, 5)
    eventually("the next step is written", lambda: len(written()) >= 61)
    assert written() == [5, *range(100, 160)]
    assert len(list(tmp_path.rglob("*.again"))) == parallelism
    parts = {file.parent for file in tmp_path.rglob("*.json")}
    assert len(parts) == parallelism
    append(lab, source, 13)
    assert "Traceback" not in str(lab.fails(again, "MZ082", "13 is no luck").error)
