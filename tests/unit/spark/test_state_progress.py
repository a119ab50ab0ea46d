"""The state of a stateful query in Spark's progress and in `status`, from made-up progress events."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from mzplan.model.state import ProjectStatus, QueryStatus
from mzplan.render.status import render_status
from mzplan.spark.progress import Progress, ProgressListener, parse_progress
from tests.unit.small_projects import at, commit, observe, shop

WATERMARK = "2026-01-01T00:04:00.500Z"
AT = 1_767_225_840.5  # the same, in seconds since the epoch


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
        listener.onQueryProgress(
            SimpleNamespace(progress=lambda text=text: SimpleNamespace(json=lambda: text))
        )
    found = listener.get("r")
    assert found is not None
    return found


def kept(found: Progress) -> tuple[Any, ...]:
    return found.state_rows, found.state_bytes, found.watermark_timestamp_seconds, found.late_rows


@pytest.mark.parametrize(
    ("operators", "found"),
    [
        ([operator()], (2, 1152, AT, 0)),
        ([operator(), FILES], (7, 1152 + 4096, AT, 3)),
        ([operator(customMetrics={"rocksdbSstFileSize": 0})], (2, 1152, AT, 0)),  # in memory only, as yet
        ([], (None, None, None, None)),
    ],
)
def test_the_state_of_all_operators_counts(operators: list[dict[str, Any]], found: tuple[Any, ...]) -> None:
    assert kept(heard(progress(*operators))) == found


@pytest.mark.parametrize(
    "watermark", [None, "1970-01-01T00:00:00.000Z", "+12026-01-01T00:00:00.000Z", "soon"]
)
def test_a_meaningless_watermark_is_unknown(watermark: str | None) -> None:
    assert kept(parse_progress(progress(operator(), watermark=watermark))) == (2, 1152, None, 0)


def test_late_rows_add_up_over_the_micro_batches_of_a_run() -> None:
    late = progress(operator(numRowsDroppedByWatermark=2))
    # Without data, Spark may repeat the last operators.
    idle = progress(operator(numRowsDroppedByWatermark=2), durationMs={"latestOffset": 1})
    assert kept(heard(progress(operator()), late, idle, late)) == (2, 1152, AT, 4)


def test_a_trigger_without_data_keeps_what_is_known() -> None:
    idle = progress(watermark=None, durationMs={"latestOffset": 1})
    assert kept(heard(progress(operator()), idle)) == (2, 1152, AT, 0)


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
    line = "state rows 2; state size 1.1 KiB"
    assert f"\n\nsource.orders: {line}\n" in text(state_rows=2, state_bytes=1152, late_rows=0)
    assert "source.orders: " not in text()
