"""The order of sources in Spark's log of a query that reads several collections."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mzplan.warehouse.checkpoint_log import CheckpointLog


def offset(table: str, version: int) -> str:
    return json.dumps({"reservoirId": table, "reservoirVersion": version, "index": -1})


def log_of(folder: Path, *steps: list[tuple[str, int]], done: int) -> CheckpointLog:
    """Write a checkpoint whose steps have these offsets. Steps up to `done` are done."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir()
    for step, offsets in enumerate(steps):
        lines = ["v1", "{}", *(offset(*each) for each in offsets)]
        (folder / "offsets" / str(step)).write_text("\n".join(lines))
        if step <= done:
            (folder / "commits" / str(step)).write_text("v1\n{}")
    return CheckpointLog(str(folder))


def read(log: CheckpointLog, step: int) -> list[tuple[str, int]]:
    offsets = map(json.loads, log.lines(step)[2:])
    return [(each["reservoirId"], each["reservoirVersion"]) for each in offsets]


def test_the_offsets_follow_the_order_of_the_query(tmp_path: Path) -> None:
    steps = [[("a", n), ("b", n + 10), ("a", n + 20)] for n in range(5)]
    log = log_of(tmp_path, *steps, done=3)
    log.order_sources(["a", "b", "a"])
    assert [read(log, step) for step in range(5)] == steps
    log.order_sources(["b", "a", "a"])
    assert read(log, 1) == steps[1]  # Spark won't read this step again
    for n in (2, 3, 4):
        assert read(log, n) == [("b", n + 10), ("a", n), ("a", n + 20)]


@pytest.mark.parametrize("tables", [["a"], ["a", "c"], ["a", "b", "b"], ["a", None], []])
def test_other_tables_change_nothing(tmp_path: Path, tables: list[str | None]) -> None:
    log = log_of(tmp_path, [("b", 1), ("a", 2)], done=0)
    log.order_sources(tables)
    assert read(log, 0) == [("b", 1), ("a", 2)]
    log.order_sources(["a", "b"])
    assert read(log, 0) == [("a", 2), ("b", 1)]
