"""The steps of a current view: what they record, and the steps that mzplan plans for Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from mzplan.warehouse.checkpoint_log import CheckpointLog, position_after
from mzplan.warehouse.collection_log import version_read
from mzplan.warehouse.current_steps import CurrentStep, CurrentSteps

STEP = CurrentStep(computed="1:a", versions={"s1/g1": 3})


def test_a_step_is_recorded_before_and_after_it_is_computed(tmp_path: Path) -> None:
    steps = CurrentSteps(str(tmp_path))
    assert steps.at(0) is None and steps.before(1) is None
    steps.record(0, STEP)
    assert steps.at(0) == STEP and steps.before(1) == STEP and STEP.summary() == ""
    done = replace(STEP, refresh="incremental", keys=3, changes=0, seconds=0.5)
    steps.record(0, done)
    assert steps.at(0) == done and done.summary() == "computed 3 affected keys; 0 rows differed"
    every = replace(STEP, refresh="full", why="LIMIT counts all rows", changes=1)
    steps.record(4, every)
    assert steps.before(4) == done and steps.before(5) == every
    assert every.summary() == "computed all rows, because LIMIT counts all rows; 1 row differed"
    steps.record(1004, every)
    assert steps.at(4) is None


def test_a_step_is_planned_without_new_rows(tmp_path: Path) -> None:
    log = CheckpointLog(str(tmp_path / "spark"))
    ends = {"t1": position_after("t1", 4), "t2": position_after("t2", 0)}
    log.set_tables(ends, {})
    log.plan(*log.positions(ends))
    assert log.unfinished() == 0 and log.query_id() is not None
    offsets = [json.loads(line) for line in log.lines(0)[2:]]
    assert [version_read(offset) for offset in offsets] == [4, 0]
    log.finish(0)
    assert log.committed() == log.last_written() == 0
    # A table comes, and another one goes.
    ends = {"t3": position_after("t3", 7), "t1": position_after("t1", 9)}
    log.set_tables(ends, {"t1": 5})
    assert log.lines(0)[2] == "-" and version_read(json.loads(log.lines(0)[3])) == 4
    log.plan(*log.positions(ends))
    read = [version_read(json.loads(line)) for line in log.lines(1)[2:]]
    assert read == [7, 4]
    assert log.is_written(1)
    log.mark_unwritten(1)
    log.finish(1)
    assert not log.is_written(1) and log.last_written() == 0 and log.committed() == 1
    # The log of a table no longer has the version after the last read one.
    log.set_tables(ends, {"t1": 6})
    assert log.lines(1)[3] == "-"
    log.plan(*log.positions(ends))
    assert [version_read(json.loads(line)) for line in log.lines(2)[2:]] == [7, 9]


def test_the_version_that_an_offset_has_read() -> None:
    offset = {"reservoirVersion": 5, "index": -1, "isStartingVersion": False}
    assert version_read(offset) == 4
    assert version_read({**offset, "index": 2}) == 5
    assert version_read({**offset, "isStartingVersion": True}) == 5
    assert version_read(None) is None and version_read({"logOffset": 1}) is None
