"""Finds steps that a table has lost, by comparing its log with the checkpoint's."""

from __future__ import annotations

from pathlib import Path

from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.lost_steps import HeldStep, lost_steps, newest_held
from tests.stored_steps import StoredSource


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
    by_hand.run([{"id": 1}])  # a query whose commits don't have the steps' numbers
    assert lost(by_hand, checkpoint) is None
    source, checkpoint = stored(tmp_path / "begun", 1)
    (Path(checkpoint.spark) / "metadata").unlink()
    assert lost(source, checkpoint) is None
    nothing, checkpoint = stored(tmp_path / "nothing", 0)
    assert lost(nothing, checkpoint) is None
