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
from mzplan.warehouse.rows.content_hash import ContentHash
from mzplan.warehouse.step_record import StepRecord
from tests.stored_steps import StoredSink, StoredSource, named
from tests.support import eventually

SOURCE, SINK = "mzplan:shop:source.orders:g1:1:a", "mzplan:shop:sink.orders_pg:g1:1:a"
CHANGED = SOURCE.replace(":1:a", ":1:b")
ORDERS, ORDERS_PG = Address("source", "orders"), Address("sink", "orders_pg")
BEGAN = 1_000_000.0  # seconds since the epoch


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[StepRecorder]:
    """A recorder that looks at reported steps when a test calls `_look`, and when it is closed."""
    monkeypatch.setattr(step_recorder, "EVERY", 3600.0)
    recorder = StepRecorder()
    yield recorder
    recorder.close()


@pytest.fixture
def source(tmp_path: Path) -> StoredSource:
    return StoredSource(tmp_path)


def progress(step: int, found: ContentHash | None = None, name: str = SOURCE, **more: Any) -> dict[str, Any]:
    """Return a progress event in Spark's form."""
    fields = {"name": name, "batchId": step, "durationMs": {"addBatch": 1}, "observedMetrics": {}}
    if found:
        metrics = {"rows": found.rows, "high": found.digest >> 32, "low": found.digest & 0xFFFFFFFF}
        fields["observedMetrics"] = {"mzplan": metrics}
    return {**fields, **more}


def timed(step: int, at: float, took: float, oldest: float | None = None, name: str = SOURCE) -> Any:
    """Return the progress of a micro-batch that began `at` seconds after BEGAN, with the time of its oldest
    record."""
    began = datetime.fromtimestamp(BEGAN + at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    times = {"mzplan_times": {"oldest": int((BEGAN + oldest) * 1000)}} if oldest is not None else {}
    durations = {"addBatch": 1, "triggerExecution": int(took * 1000)}
    return progress(step, name=name, timestamp=began, durationMs=durations, observedMetrics=times)


def indexed(query: StoredSource | StoredSink) -> list[StepRecord]:
    return list(query.history.index.backwards())[::-1]


def hashes(source: StoredSource) -> list[tuple[int, str | None, str | None]]:
    return [(r.step, r.digest, r.digest_from) for r in indexed(source)]


# --- hashes and rows


def test_hashes_of_the_stream_are_recorded(source: StoredSource, recorder: StepRecorder) -> None:
    found = []
    for step in range(3):  # also by a query that starts again
        recorder.start(SOURCE, source.history)
        found.append(source.run(named(step, step + 2)))
        recorder.record_progress(progress(step, found[step]))
        recorder.stop(SOURCE)
    recorder.start(SOURCE, source.history)
    source.run(named(9, 11))  # it is in the collection, and its progress is still to come
    recorder.record_progress({"name": SOURCE, "batchId": 3, "durationMs": {"triggerExecution": 1}})
    recorder.record_progress(progress(0, name="somebody else's"))
    recorder.close()
    assert hashes(source) == [(i, str(one), "stream") for i, one in enumerate(found)]


def test_a_sink_reports_its_rows(source: StoredSource, recorder: StepRecorder) -> None:
    sink = StoredSink(source)
    for i in range(3):
        source.run(named(i, i + 2))
    sink.run(2)
    recorder.start(SINK, sink.history)
    sink.run(3, 0)
    recorder.record_rows(SINK, 1, 1)
    recorder.record_progress(progress(1, name=SINK, numInputRows=2))  # read twice, and written once
    recorder.close()
    found = [(r.step, r.sources, r.rows, r.total) for r in indexed(sink)]
    assert found == [(0, (0, 0), 2, 2), (1, (1, 2), 1, 3)]
    assert recorder.recorded(SINK).rows == 1, "since it started"
    assert recorder.counted() == {ORDERS_PG: Counters(rows=1, batches=1)}, "the rows that it has written"


def test_late_rows_are_added_up_over_all_steps(source: StoredSource, recorder: StepRecorder) -> None:
    """Late rows of steps that write nothing also count, as do rows with NULL as event time. Without a report,
    the bound of the late rows counts, and the other number is unknown."""
    recorder.start(SOURCE, source.history, bound_late_rows={4: 5}.get)

    def report(step: int, found: ContentHash | None, late: int) -> None:
        told = progress(step, found, stateOperators=[{"numRowsDroppedByWatermark": late}])
        metrics = {**told.get("observedMetrics", {}), "mzplan_null_times:orders": {"rows": 2 * late}}
        recorder.record_progress({**told, "observedMetrics": metrics})
        recorder._look()

    report(0, source.run(named(0, 1)), 0)
    report(1, source.run(named(1, 2)), 2)
    source.pass_over()
    report(2, None, 3)
    report(3, source.run(named(3, 4)), 1)
    source.run(named(4, 5))
    report(5, source.run(named(5, 6)), 0)
    source.run(named(6, 7))
    report(7, source.run(named(7, 8)), 0)
    late = [0, 2, 6, 11, 11, None, None]
    assert [(r.step, r.late) for r in indexed(source)] == list(zip((0, 1, 3, 4, 5, 6, 7), late, strict=True))
    assert [r.null_times for r in indexed(source)] == [0, 4, 12, None, None, None, None]


# --- what a status shows


def test_a_latency_is_from_the_oldest_record_to_the_end_of_the_step(
    source: StoredSource, recorder: StepRecorder
) -> None:
    sink = StoredSink(source)
    recorder.start(SINK, sink.history)  # started first, and recorded after its source nevertheless
    recorder.start(SOURCE, source.history)
    source.run(named(0, 2))
    recorder.record_progress(timed(0, 4.0, 0.5, oldest=1.0))
    sink.run(2)
    recorder.record_progress(timed(0, 5.0, 2.0, name=SINK))
    recorder._look()
    assert recorder.recorded(SOURCE).latency == pytest.approx(3.5)
    assert recorder.recorded(SINK).latency == pytest.approx(6.0)
    assert indexed(source)[0].oldest == BEGAN + 1.0
    # If the upstream has no times, the source has no latency, and its sink's begins with the commit.
    source.run(named(2, 3))
    recorder.record_progress(timed(1, 6.0, 0.5))
    sink.run(3)
    committed = indexed(source)[0].time
    assert committed is not None
    recorder.record_progress(timed(1, committed + 1.0 - BEGAN + 7.25, 0.75, name=SINK))
    recorder._look()
    assert recorder.recorded(SINK).latency == pytest.approx(8.0)


def test_the_latency_of_a_sink_needs_no_source_on_its_runner(
    source: StoredSource, recorder: StepRecorder
) -> None:
    sink, elsewhere = StoredSink(source), StepRecorder()
    source.run(named(0, 2))
    elsewhere.start(SOURCE, source.history)
    elsewhere.record_progress(timed(0, 4.0, 0.5, oldest=1.0))
    recorder.start(SINK, sink.history)
    sink.run(1)
    recorder.record_progress(timed(0, 5.0, 2.0, name=SINK))
    recorder._look()
    assert recorder.recorded(SINK).latency is None, "it covers no step"
    elsewhere.close()
    sink.run(2)
    recorder.record_progress(timed(1, 8.0, 1.0, name=SINK))
    recorder._look()
    assert recorder.recorded(SINK).latency == pytest.approx(8.0)


def test_counters_continue_over_the_runs_of_a_query(source: StoredSource, recorder: StepRecorder) -> None:
    source.run(named(0, 5))  # before this runner: not its own
    recorder.start(SOURCE, source.history)
    recorder._look()
    assert recorder.counted().get(ORDERS, Counters()) == Counters()
    source.run(named(5, 7))
    recorder.record_progress(progress(1))
    recorder.stop(SOURCE)
    recorder.start(CHANGED, source.history)  # before the last step of its first run was recorded
    recorder._look()
    source.run(named(7, 8))
    recorder.record_progress(progress(2, name=CHANGED))
    for _ in range(2):
        recorder._look()
    assert recorder.counted() == {ORDERS: Counters(rows=3, batches=2)}


def test_a_storage_that_fails_is_retried_and_logged_once(
    source: StoredSource, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_recorder, "EVERY", 0.02)
    caplog.set_level(logging.WARNING)
    found = source.run(named(0, 2))
    folder = Path(source.history.index.place)
    folder.write_text("a file where the folder should be")
    recorder = StepRecorder()
    recorder.start(SOURCE, source.history)
    recorder.record_progress(progress(0, found))

    def logged() -> int:
        return sum("could not be recorded" in message for message in caplog.messages)

    eventually("it is logged", lambda: logged() > 0)
    recorder._stopping.wait(0.1)
    assert logged() == 1
    folder.unlink()
    recorder.close()
    assert hashes(source) == [(0, str(found), "stream")]
