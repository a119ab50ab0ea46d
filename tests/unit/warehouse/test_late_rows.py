"""The rows behind the watermark bound the late rows of a step that Spark hasn't reported."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.rows.late_rows import rows_behind_watermark
from tests.stored_steps import TABLE, StoredSource

HOUR = 3_600_000  # milliseconds
SCHEMA = pa.schema([("id", pa.int64()), ("TS", pa.timestamp("us", "UTC"))])


def at(hour: int) -> datetime:
    return datetime.fromtimestamp(hour * 3600, UTC)


@pytest.fixture
def view(tmp_path: Path) -> Any:
    """A view that has read three steps of a source. Its watermark was at 0:00, 0:00, 5:00 and 8:00."""
    source = StoredSource(tmp_path, schema=SCHEMA)
    for hours in ([9], [1, 5, 6, None], [2, 2, 7]):
        source.run([{"id": 1, "TS": at(hour) if hour is not None else None} for hour in hours])
    log = Checkpoint.of(str(tmp_path), "view", 1).log
    offsets = Path(log.spark) / "offsets"
    offsets.mkdir(parents=True)
    for step, watermark in enumerate((0, 0, 5, 8)):
        settings = json.dumps({"batchWatermarkMs": watermark * HOUR, "conf": {}})
        end = {"reservoirId": TABLE, "reservoirVersion": min(step, 2) + 2, "index": -1}
        (offsets / str(step)).write_text(f"v1\n{settings}\n{json.dumps(end)}")
    read = SimpleNamespace(place=source.place, type="local", body={"schema": "id BIGINT, TS TIMESTAMP"})
    description = SimpleNamespace(body={"watermarks": {"orders": {"column": "ts"}}}, reads={"orders": read})
    return SimpleNamespace(warehouse=str(tmp_path), description=description, log=log)


def behind(view: Any, step: int) -> int | None:
    return rows_behind_watermark(view.warehouse, view.description, view.log, step)


def move_watermark(view: Any) -> None:
    """Change the watermark of step 1 to 5:00."""
    log = Path(view.log.spark) / "offsets" / "1"
    log.write_text(log.read_text().replace('"batchWatermarkMs": 0', f'"batchWatermarkMs": {5 * HOUR}'))


def test_only_rows_behind_the_watermark_of_the_step_before_count(view: Any) -> None:
    # Step 2 was judged by the watermark of step 1, step 3 has read nothing, and step 4 isn't planned.
    assert [behind(view, step) for step in range(5)] == [0, 0, 0, 0, None]
    move_watermark(view)
    assert behind(view, 2) == 2


def test_a_watermark_on_no_column_of_the_input_is_unknown(view: Any) -> None:
    move_watermark(view)
    view.description.body["watermarks"]["orders"]["column"] = "computed"
    assert behind(view, 2) is None
    view.description.body["watermarks"].clear()
    assert behind(view, 2) == 0
