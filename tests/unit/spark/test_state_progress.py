"""The state of a stateful query in Spark's progress and in `status`, from made-up progress events."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from mzplan.model.address import Address
from mzplan.model.observed import Observation, RunFacts
from mzplan.model.state import ProjectStatus, QueryStatus, ResourceState
from mzplan.render.status import render_status, status_to_json
from mzplan.spark.progress import Progress, ProgressListener, parse_progress

VIEW = Address("view", "revenue")
WATERMARK = "2026-01-01T00:04:00.500Z"
AT = 1_767_225_840.5  # the same, in seconds since the epoch
KEYS = ("state_rows", "state_bytes", "watermark", "late_rows")


def operator(**more: Any) -> dict[str, Any]:
    counts = {"numRowsTotal": 2, "memoryUsedBytes": 1152, "numRowsDroppedByWatermark": 0}
    return {"operatorName": "stateStoreSave", **counts, "customMetrics": {}, **more}


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


def test_all_operators_count() -> None:
    files = operator(numRowsTotal=5, customMetrics={"rocksdbSstFileSize": 4096}, numRowsDroppedByWatermark=3)
    assert kept(parse_progress(progress(operator(), files))) == (7, 1152 + 4096, AT, 3)


def test_files_that_are_not_written_yet_leave_the_memory() -> None:
    assert parse_progress(progress(operator(customMetrics={"rocksdbSstFileSize": 0}))).state_bytes == 1152


@pytest.mark.parametrize(
    "watermark", [None, "1970-01-01T00:00:00.000Z", "+12026-01-01T00:00:00.000Z", "soon"]
)
def test_a_watermark_that_says_nothing_is_none(watermark: str | None) -> None:
    assert kept(parse_progress(progress(operator(), watermark=watermark))) == (2, 1152, None, 0)


def test_a_query_without_state_has_nothing() -> None:
    assert kept(heard(progress())) == (None, None, None, None)


def test_late_rows_add_up_over_the_micro_batches_of_a_run() -> None:
    late = progress(operator(numRowsDroppedByWatermark=2))
    # Without data, Spark may repeat the last operators.
    idle = progress(operator(numRowsDroppedByWatermark=2), durationMs={"latestOffset": 1})
    assert kept(heard(progress(operator()), late, idle, late)) == (2, 1152, AT, 4)


def test_a_trigger_without_data_keeps_what_is_known() -> None:
    idle = progress(watermark=None, durationMs={"latestOffset": 1})
    assert kept(heard(progress(operator()), idle)) == (2, 1152, AT, 0)


def status_of(**facts: Any) -> ProjectStatus:
    resource = ResourceState(address=VIEW, id="i", type="sql", body={})
    seen = Observation(
        address=VIEW,
        generation=1,
        digest="1:a",
        wanted_digest="1:a",
        wanted_generation=1,
        condition="running",
        **facts,
    )
    return ProjectStatus(serial=1, instances=(), queries=(QueryStatus(resource=resource, observation=seen),))


def test_status_has_one_line_of_it() -> None:
    status = status_of(state_rows=1234, state_bytes=5_452_595, watermark_timestamp_seconds=AT, late_rows=3)
    line = "state rows 1,234; state size 5.2 MiB; watermark 2026-01-01T00:04:00.500Z; late rows 3"
    assert f"\n\nview.revenue: {line}\n" in render_status(status)
    (query,) = status_to_json(status)["queries"]
    assert [query[key] for key in KEYS] == [1234, 5_452_595, WATERMARK, 3]


def test_status_leaves_out_what_is_zero_or_unknown() -> None:
    shown = render_status(status_of(state_rows=2, state_bytes=1152, late_rows=0))
    assert "\n\nview.revenue: state rows 2; state size 1.1 KiB\n" in shown


def test_status_says_nothing_of_a_query_without_state() -> None:
    assert "view.revenue: " not in render_status(status_of())
    (query,) = status_to_json(status_of())["queries"]
    assert [query[key] for key in KEYS] == [None] * 4
    assert [RunFacts().state_rows, RunFacts().late_rows] == [None, None]
