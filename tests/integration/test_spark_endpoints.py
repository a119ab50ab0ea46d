"""Durable endpoints under real Spark: the local source as the input, third-party shapes as outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from mzplan.endpoints.local import LocalSteps
from tests.integration.spark_lab import until

if TYPE_CHECKING:
    from mzplan.inline import Description
    from tests.integration.spark_lab import Lab

COLUMNS = (
    "id BIGINT NOT NULL, name VARCHAR(10), day DATE, at TIMESTAMP, amount DECIMAL(10,2), tags ARRAY<STRING>"
)


def append(lab: Lab, source: Description, *ids: int, id_: str = "") -> None:
    rows = pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{i}" for i in ids]})
    LocalSteps(str(lab.checkpoint(source) / "steps")).append(rows, id_ or f"append {ids}")


def rows(lab: Lab, source: Description) -> list[tuple[int, int, int]]:
    found = lab.collection(source).select("id", "_position.step", "_position.row").collect()
    return sorted((row[0], row[1], row[2]) for row in found)


def holds(lab: Lab, source: Description, count: int) -> None:
    until(f"the collection has {count} rows", lambda: len(rows(lab, source)) >= count)


def test_each_append_is_one_step(lab: Lab) -> None:
    source = lab.source("local", None, schema=COLUMNS)
    append(lab, source, 1, 2, 3)
    lab.start(source)
    holds(lab, source, 3)
    append(lab, source, 4)
    append(lab, source, 5, 6)
    holds(lab, source, 6)
    assert rows(lab, source) == [(1, 0, 0), (2, 0, 1), (3, 0, 2), (4, 1, 0), (5, 2, 0), (6, 2, 1)]
    (one,) = lab.collection(source).where("id = 4").drop("_position").collect()
    assert one.asDict() == {"id": 4, "name": "n4", "day": None, "at": None, "amount": None, "tags": None}
    lab.stop(source)


def test_a_batch_that_was_logged_and_not_done_is_done_once(lab: Lab) -> None:
    source = lab.source("local", None, schema=COLUMNS)
    append(lab, source, 1)
    lab.start(source)
    holds(lab, source, 1)
    append(lab, source, 2)
    holds(lab, source, 2)
    until("the batch is noted as done", lambda: lab.report(source).step >= 1)
    lab.stop(source)
    lab.undo_commit(source)
    append(lab, source, 3)
    again = lab.retried(source)
    lab.start(again)
    holds(lab, source, 3)
    assert rows(lab, source) == [(1, 0, 0), (2, 1, 0), (3, 2, 0)]
    lab.stop(again)


def test_a_restart_goes_on_where_it_stopped(lab: Lab) -> None:
    source = lab.source("local", None, schema=COLUMNS)
    append(lab, source, 1)
    lab.start(source)
    holds(lab, source, 1)
    until("the batch is noted as done", lambda: lab.report(source).step >= 0)
    lab.stop(source)
    append(lab, source, 2)
    append(lab, source, 3)
    again = lab.retried(source)
    lab.start(again)
    holds(lab, source, 3)
    assert rows(lab, source) == [(1, 0, 0), (2, 1, 0), (3, 2, 0)]
    lab.stop(again)


def test_lost_steps_are_told_before_and_while_it_runs(lab: Lab) -> None:
    source = lab.source("local", None, schema=COLUMNS)
    append(lab, source, 1)
    lab.start(source)
    holds(lab, source, 1)
    until("the batch is noted as done", lambda: lab.report(source).step >= 0)
    for file in (lab.checkpoint(source) / "steps").glob("*.arrow"):
        file.unlink()
    failed = lab.ended(source)
    assert failed.error_code == "MZ081" and "step 1 is wanted" in (failed.error or ""), failed
    lab.stop(source)
    assert lab.codes(source) == ["MZ081"]


def test_a_value_that_does_not_fit_names_its_column(lab: Lab) -> None:
    source = lab.source("local", None, schema="id BIGINT, name VARCHAR(1)")
    append(lab, source, 1)
    lab.start(source)
    failed = lab.ended(source)
    assert failed.error_code == "MZ082" and "name is longer than VARCHAR(1)" in (failed.error or ""), failed
    lab.stop(source)


def test_reclaim_takes_the_steps_along(lab: Lab) -> None:
    source = lab.source("local", None, schema=COLUMNS)
    append(lab, source, 1)
    lab.executor.reclaim(source.id, source.generation)
    assert not lab.checkpoint(source).exists()
