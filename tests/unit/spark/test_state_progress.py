"""The state of a stateful query in Spark's progress and in `status`, from made-up progress events."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mzplan.model.observed import RunFacts
from mzplan.model.state import ProjectStatus, QueryStatus
from mzplan.render.status import render_status
from mzplan.render.status_notes import awaited_rows
from mzplan.spark.progress import Progress, ProgressListener
from tests.unit.small_projects import at, commit, observe, shop

WATERMARK = "2026-01-01T00:04:00.500Z"
AT = 1_767_225_840.5  # the same, in seconds since the epoch
MARKS = {"a": {"column": "ts", "delay": "1m"}, "b": {"column": "at", "delay": "0s"}}


def operator(**more: Any) -> dict[str, Any]:
    counts = {"numRowsTotal": 2, "memoryUsedBytes": 1152, "numRowsDroppedByWatermark": 0}
    return {"operatorName": "stateStoreSave", **counts, "customMetrics": {}, **more}


FILES = operator(numRowsTotal=5, customMetrics={"rocksdbSstFileSize": 4096}, numRowsDroppedByWatermark=3)


def progress(*operators: dict[str, Any], watermark: str | None = WATERMARK, **more: Any) -> dict[str, Any]:
    event_time = {"eventTime": {"watermark": watermark}} if watermark is not None else {}
    fields = {"runId": "r", "batchId": 4, "durationMs": {"addBatch": 5}, "stateOperators": list(operators)}
    return {**fields, **event_time, **more}


def heard(*events: dict[str, Any]) -> Progress:
    """Return the newest progress after these events of one run."""
    listener = ProgressListener()
    for event in events:
        text = json.dumps(event)
        told = SimpleNamespace(json=lambda text=text: text)
        listener.onQueryProgress(SimpleNamespace(progress=lambda told=told: told))
    found = listener.get("r")
    assert found is not None
    return found


def kept(found: Progress) -> tuple[Any, ...]:
    return found.state_rows, found.state_bytes, found.watermark_timestamp_seconds, found.late_rows


def null_times(**rows: int) -> dict[str, Any]:
    """The metrics of inputs in a progress event."""
    return {"observedMetrics": {f"mzplan_null_times:{name}": {"rows": n} for name, n in rows.items()}}


@pytest.mark.parametrize(
    ("operators", "watermark", "found"),
    [
        ([operator(), FILES], WATERMARK, (7, 1152 + 4096, AT, 3)),
        ([operator(customMetrics={"rocksdbSstFileSize": 0})], WATERMARK, (2, 1152, AT, 0)),  # only in memory
        ([operator()], None, (2, 1152, None, 0)),
        ([operator()], "1970-01-01T00:00:00.000Z", (2, 1152, None, 0)),
        ([operator()], "soon", (2, 1152, None, 0)),
        ([], WATERMARK, (None, None, None, None)),
    ],
)
def test_the_state_of_all_operators_counts(
    operators: list[dict[str, Any]], watermark: str | None, found: tuple[Any, ...]
) -> None:
    assert kept(heard(progress(*operators, watermark=watermark))) == found


def test_late_and_skipped_rows_add_up_over_the_micro_batches_of_a_run() -> None:
    """Without data, Spark may repeat the last counts or leave them out."""
    skipped = {"observedMetrics": {"mzplan_left_out": {"records": 1200}}}
    late, idle = operator(numRowsDroppedByWatermark=2), {"durationMs": {"latestOffset": 1}}
    again = progress(late, **skipped)
    repeated, nothing = progress(late, **skipped, **idle), progress(watermark=None, **idle)
    found = heard(progress(operator()), again, repeated, again, nothing)
    assert kept(found) == (2, 1152, AT, 4) and found.left_out == 2400


def test_rows_with_null_as_event_time_add_up_over_inputs_and_micro_batches() -> None:
    first, second = (progress(operator(), **null_times(**rows)) for rows in ({"a": 2, "b": 3}, {"a": 1}))
    assert heard(first, second, progress(operator())).null_time_rows == 6
    assert heard(progress(**null_times(a=2))).null_time_rows is None  # nothing waits for a time


def test_status_has_one_line_for_the_state_of_a_query() -> None:
    state = commit(shop())
    record = state.resources[at("source.orders")]

    def text(**facts: Any) -> str:
        seen = observe(state, orders=facts)["local"].observations[record.address]
        queries = (QueryStatus(resource=record, observation=seen),)
        return render_status(ProjectStatus(serial=1, instances=(), queries=queries))

    known = {"state_rows": 1234, "state_bytes": 5_452_595, "watermark_timestamp_seconds": AT}
    line = f"state rows 1,234; state size 5.2 MiB; watermark {WATERMARK}; late rows 3"
    assert f"\n\nsource.orders: {line}\n" in text(**known, late_rows=3)
    assert "source.orders: rows with NULL as event time 2\n" in text(null_time_rows=2)
    assert "source.orders: " not in text()
    skipped = "source.orders: 2,400 malformed records skipped since it was started\n"
    assert skipped in text(left_out=2400)


@pytest.mark.parametrize(
    ("body", "rows", "awaited"),
    [
        ({"watermarks": MARKS}, 1, "the watermark waits for a later a.ts and a later b.at; rows that WHERE"),
        ({"watermarks": MARKS}, 0, ""),
        ({"watermarks": MARKS, "output": "update"}, 1, ""),
        ({}, 1, ""),
    ],
)
def test_an_open_window_names_the_columns_that_the_watermark_waits_for(
    body: dict[str, Any], rows: int, awaited: str
) -> None:
    record = replace(commit(shop()).resources[at("source.orders")], body=body)
    found = awaited_rows(record, RunFacts(state_rows=rows))
    assert found.startswith(awaited) and bool(found) == bool(awaited)
