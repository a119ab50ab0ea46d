"""The steps that the runner records in the index, from Spark's progress or else from logs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mzplan.model.address import Address
from mzplan.model.observed import Counters
from mzplan.spark import step_recorder
from mzplan.spark.step_recorder import StepRecorder
from mzplan.warehouse.content_hash import ContentHash
from mzplan.warehouse.step_index import RECENT_STEPS
from mzplan.warehouse.step_record import StepRecord
from tests.stored_steps import StoredSink, StoredSource, named
from tests.support import eventually

NAME = "mzplan:shop:source.orders:g1:1:a"


@pytest.fixture
def recorder() -> Iterator[StepRecorder]:
    recorder = StepRecorder()
    yield recorder
    recorder.close()


def progress(step: int, found: ContentHash | None, name: str = NAME, **more: Any) -> dict[str, Any]:
    """Return a progress event in Spark's form."""
    metrics = (
        {"rows": found.rows, "high": found.digest >> 32, "low": found.digest & 0xFFFFFFFF} if found else None
    )
    return {
        "name": name,
        "batchId": step,
        "durationMs": {"addBatch": 1},
        "observedMetrics": {"mzplan": metrics} if metrics else {},
        **more,
    }


def hashes(source: StoredSource) -> list[tuple[int, str | None, str | None]]:
    return [(r.step, r.digest, r.digest_from) for r in indexed(source)]


def indexed(query: StoredSource | StoredSink) -> list[StepRecord]:
    return list(query.history.index.backwards())[::-1]


def test_what_the_stream_reports_is_written_down(tmp_path: Path, recorder: StepRecorder) -> None:
    source = StoredSource(tmp_path)
    recorder.start(NAME, source.history)
    found = [source.run(named(i, i + 2)) for i in range(3)]
    for step, one in enumerate(found):
        recorder.record_progress(progress(step, one))
    recorder.record_progress({"name": NAME, "batchId": 3, "durationMs": {"triggerExecution": 1}})
    recorder.record_progress(progress(0, None, name="somebody else's"))
    recorder.close()
    assert hashes(source) == [(i, str(one), "stream") for i, one in enumerate(found)]


def test_the_last_steps_are_at_hand_and_bounded(
    tmp_path: Path, recorder: StepRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_recorder, "EVERY", 0.02)
    source = StoredSource(tmp_path)
    for step in range(RECENT_STEPS + 3):
        source.run(named(step, step + 2))
    recorder.start(NAME, source.history)  # those of before it began, too
    last = source.run(named(50, 53))
    recorder.record_progress(progress(RECENT_STEPS + 3, last))
    eventually(
        "it is recorded", lambda: [r.step for r in recorder.recorded(NAME).recent][:1] == [RECENT_STEPS + 3]
    )
    found = recorder.recorded(NAME).recent
    assert [record.step for record in found] == [*range(RECENT_STEPS + 3, 3, -1)]
    assert found[0].rows == 3 and found == source.history.index.recent()


def test_what_a_query_begins_after_is_at_hand_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command waits for the first count of a run. A step that isn't indexed yet waits for its report."""
    monkeypatch.setattr(step_recorder, "EVERY", 3600.0)  # looks are ours
    recorder = StepRecorder()
    source = StoredSource(tmp_path)
    source.run(named(0, 2))
    recorder.start(NAME, source.history)
    recorder._look()
    recorder.stop(NAME)
    changed = NAME.replace(":1:a", ":1:b")
    recorder.start(changed, source.history)
    found = recorder.recorded(changed)
    assert [step.step for step in found.recent] == [0] and found.rows == 0
    source.run(named(2, 5))
    recorder.start(NAME, source.history)
    assert [step.step for step in recorder.recorded(NAME).recent] == [0] and len(indexed(source)) == 1
    recorder.close()


def test_late_rows_are_added_up_over_all_steps(tmp_path: Path, recorder: StepRecorder) -> None:
    """Late rows of steps that write nothing count, too; without any report, the number is unknown."""

    def late(rows: int) -> dict[str, Any]:
        return {"stateOperators": [{"numRowsDroppedByWatermark": rows}]}

    source = StoredSource(tmp_path)
    recorder.start(NAME, source.history)
    for step, rows in enumerate((0, 2)):
        recorder.record_progress(progress(step, source.run(named(step, step + 1)), **late(rows)))
    recorder._look()
    source.pass_over()
    recorder.record_progress(progress(2, None, **late(3)))
    recorder._look()
    recorder.record_progress(progress(3, source.run(named(3, 4)), **late(1)))
    recorder._look()
    source.run(named(4, 5))
    recorder.record_progress(progress(5, source.run(named(5, 6)), **late(0)))
    recorder.close()
    assert [(r.step, r.late) for r in indexed(source)] == [(0, 0), (1, 2), (3, 6), (4, None), (5, None)]


def test_a_step_waits_for_its_report(tmp_path: Path, recorder: StepRecorder) -> None:
    source = StoredSource(tmp_path)
    recorder.start(NAME, source.history)
    first = source.run(named(0, 2))
    source.run(named(2, 4))  # it is in the collection, and its progress is still to come
    recorder.record_progress(progress(0, first))
    recorder.close()
    assert hashes(source) == [(0, str(first), "stream")]


def test_what_a_crash_kept_from_being_reported_is_computed(
    tmp_path: Path, recorder: StepRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_recorder, "_COMPUTED_STEPS", 3)
    source = StoredSource(tmp_path)
    found = [source.run(named(i, i + 2)) for i in range(4)]
    last = source.run(named(9, 12), seen_through=False)  # Spark runs it again, and Delta passes it over
    recorder.start(NAME, source.history)
    recorder.record_progress(progress(4, ContentHash()))
    recorder.close()
    assert hashes(source) == [
        (0, None, None),
        (1, None, None),
        *((i, str(found[i]), "collection") for i in (2, 3)),
        (4, str(last), "collection"),
    ]


def test_a_sink_reports_its_rows(tmp_path: Path, recorder: StepRecorder) -> None:
    source = StoredSource(tmp_path)
    sink = StoredSink(source)
    for i in range(3):
        source.run(named(i, i + 2))
    sink.run(2)
    recorder.start("sink", sink.history)
    sink.run(3, 0)
    recorder.record_rows("sink", 1, 1)
    recorder.record_progress(progress(1, None, name="sink", numInputRows=2))  # read twice, and written once
    recorder.close()
    found = [(r.step, r.sources, r.rows, r.total) for r in indexed(sink)]
    assert found == [(0, (0, 0), 2, 2), (1, (1, 2), 1, 3)]
    assert recorder.recorded("sink").rows == 1  # since it was begun


def test_a_storage_that_fails_is_tried_again_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_recorder, "EVERY", 0.02)
    caplog.set_level(logging.WARNING)
    source = StoredSource(tmp_path)
    found = source.run(named(0, 2))
    folder = Path(source.history.index.place)
    folder.write_text("a file where the folder should be")
    recorder = StepRecorder()
    recorder.start(NAME, source.history)
    recorder.record_progress(progress(0, found))

    def told() -> int:
        return sum("could not be recorded" in message for message in caplog.messages)

    eventually("it is told", lambda: told() > 0)
    recorder._stopping.wait(0.5)
    assert told() == 1
    folder.unlink()
    recorder.close()
    assert hashes(source) == [(0, str(found), "stream")]


def test_a_query_that_begins_again_under_its_name_goes_on(tmp_path: Path, recorder: StepRecorder) -> None:
    source = StoredSource(tmp_path)
    recorder.start(NAME, source.history)
    first = source.run(named(0, 2))
    recorder.record_progress(progress(0, first))
    recorder.stop(NAME)
    recorder.start(NAME, source.history)
    second = source.run(named(2, 3))
    recorder.record_progress(progress(1, second))
    recorder.close()
    assert hashes(source) == [(0, str(first), "stream"), (1, str(second), "stream")]


SINK = "mzplan:shop:sink.orders_pg:g1:1:a"
ORDERS_PG, ORDERS = Address("sink", "orders_pg"), Address("source", "orders")
BEGAN = 1_000_000.0  # seconds since the epoch


def timed(at: float, took: float, oldest: float | None = None) -> dict[str, Any]:
    """Of a micro-batch: when it began after BEGAN, how long it took, and when its oldest record was made."""
    began = datetime.fromtimestamp(BEGAN + at, UTC).isoformat(timespec="milliseconds")
    metrics = {"mzplan_times": {"oldest": int((BEGAN + oldest) * 1000)}} if oldest is not None else {}
    return {
        "timestamp": began.replace("+00:00", "Z"),
        "durationMs": {"addBatch": 1, "triggerExecution": int(took * 1000)},
        "observedMetrics": metrics,
    }


def test_a_latency_is_from_the_oldest_record_to_the_end_of_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_recorder, "EVERY", 3600.0)  # looks are ours
    recorder = StepRecorder()
    source = StoredSource(tmp_path)
    sink = StoredSink(source)
    recorder.start(SINK, sink.history)  # begun first, and written after its source all the same
    recorder.start(NAME, source.history)
    source.run(named(0, 2))
    recorder.record_progress(progress(0, None, **timed(4.0, 0.5, oldest=1.0)))
    sink.run(2)
    recorder.record_progress(progress(0, None, name=SINK, **timed(5.0, 2.0)))
    recorder._look()
    assert recorder.recorded(NAME).latency == pytest.approx(3.5)
    assert recorder.recorded(SINK).latency == pytest.approx(6.0)
    assert indexed(source)[0].oldest == BEGAN + 1.0
    # Of an upstream without times: nothing, and its sink counts from the commit of the step.
    source.run(named(2, 3))
    recorder.record_progress(progress(1, None, **timed(6.0, 0.5)))
    sink.run(3)
    committed = indexed(source)[0].time
    assert committed is not None
    late = committed + 1.0 - BEGAN + 7.25
    recorder.record_progress(progress(1, None, name=SINK, **timed(late, 0.75)))
    recorder._look()
    assert recorder.recorded(SINK).latency == pytest.approx(8.0)
    # Clocks may disagree.
    source.run(named(3, 4))
    recorder.record_progress(progress(2, None, **timed(6.0, 0.5, oldest=60.0)))
    recorder._look()
    assert recorder.recorded(NAME).latency == 0.0
    recorder.close()


def test_a_sink_asks_the_index_for_what_ran_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_recorder, "EVERY", 3600.0)
    source = StoredSource(tmp_path)
    sink = StoredSink(source)
    source.run(named(0, 2))
    there, recorder = StepRecorder(), StepRecorder()
    there.start(NAME, source.history)
    there.record_progress(progress(0, None, **timed(4.0, 0.5, oldest=1.0)))
    recorder.start(SINK, sink.history)
    sink.run(1)
    recorder.record_progress(progress(0, None, name=SINK, **timed(5.0, 2.0)))
    recorder._look()
    assert recorder.recorded(SINK).latency is None  # it covers no step
    there.close()
    sink.run(2)
    recorder.record_progress(progress(1, None, name=SINK, **timed(8.0, 1.0)))
    recorder._look()
    assert recorder.recorded(SINK).latency == pytest.approx(8.0)
    recorder.close()


def test_counters_go_on_over_the_runs_of_a_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_recorder, "EVERY", 3600.0)
    recorder = StepRecorder()
    source = StoredSource(tmp_path)
    sink = StoredSink(source)
    source.run(named(0, 5))  # before this runner: not its own
    recorder.start(NAME, source.history)
    recorder._look()
    assert recorder.counted().get(ORDERS, Counters()) == Counters()
    source.run(named(5, 7))
    recorder.record_progress(progress(1, None))
    recorder.stop(NAME)
    other = NAME.replace(":1:a", ":1:b")  # changed, before the last step of its first run was recorded
    recorder.start(other, source.history)
    recorder._look()
    source.run(named(7, 8))
    recorder.record_progress(progress(2, None, name=other))
    recorder._look()
    recorder._look()
    assert recorder.counted() == {ORDERS: Counters(rows=3, batches=2)}
    # A sink: what it has written, of what it has read.
    recorder.start(SINK, sink.history)
    sink.run(4, 0)
    recorder.record_rows(SINK, 0, 4)
    recorder.record_progress(progress(0, None, name=SINK, numInputRows=16))
    recorder._look()
    assert recorder.counted()[ORDERS_PG] == Counters(rows=4, batches=1)
    recorder.close()
