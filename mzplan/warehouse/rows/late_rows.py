"""Bounds the late rows of a view's step without Spark's report, which a killed runner may not have received.

Spark's log has the watermark of each step and the rows that it read, so the bound is the same each time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from mzplan.model.address import Place
from mzplan.schema.description import Description
from mzplan.schema.source_columns import columns_of
from mzplan.warehouse.checkpoint_log import CheckpointLog
from mzplan.warehouse.checkpoints import Checkpoint, collection_path
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.folder import decoding
from mzplan.warehouse.rows.replay import step_batches
from mzplan.warehouse.step_record import StepRecord
from mzplan.warehouse.storage import table_id

_WATERMARK = "batchWatermarkMs"
# Whether Spark judges rows by the watermark of the previous step.
_BY_PREVIOUS = "spark.sql.streaming.statefulOperator.allowMultiple"


def rows_behind_watermark(warehouse: str, view: Description, log: CheckpointLog, step: int) -> int | None:
    """Return how many rows of a step were behind the watermark when the view read them.

    Spark drops no other rows as late. Returns None if that is unknown. Raises OSError."""
    before, now = log.lines(step - 1), log.lines(step)
    if step == 0:
        return 0
    if len(before) < 3 or len(now) != len(before):
        return None
    with decoding(f"{log.spark}/offsets/{step}"):
        settings = json.loads(now[1])
        is_previous = settings.get("conf", {}).get(_BY_PREVIOUS, "true") == "true"
        watermark = int((json.loads(before[1]) if is_previous else settings).get(_WATERMARK, 0))
        if watermark == 0:
            return 0
    total = 0
    for name, start, end in offsets_of_step(warehouse, view, log, step):
        column = _event_time(view, name)
        if name is None or column is None:
            return None
        collection = CollectionLog(collection_path(warehouse, *view.reads[name].place))
        record = StepRecord(step=step, start=start, end=end)
        total += sum(_rows_until(batch, column, watermark) for batch in step_batches(collection, record))
    return total


def offsets_of_step(
    warehouse: str, view: Description, log: CheckpointLog, step: int
) -> Iterator[tuple[str | None, Any, Any]]:
    """Yield the offsets between which a step read each of the view's streams, by the stream's name.

    The name is None for another table. Leaves out streams of which the step read nothing. Raises OSError."""
    inputs = {_table_of(warehouse, read.place): name for name, read in view.reads.items()}
    ends = _offsets(log, step)
    starts = _offsets(log, step - 1) if step > 0 else [None] * len(ends)
    for start, end in zip(starts, ends, strict=True):
        if start != end:
            name = inputs.get(end.get("reservoirId")) if isinstance(end, Mapping) else None
            yield name, start, end


def _table_of(warehouse: str, place: Place) -> str | None:
    return Checkpoint.of(warehouse, *place).collection() or table_id(collection_path(warehouse, *place))


def _offsets(log: CheckpointLog, step: int) -> list[Any]:
    offset, _ = log.offset(step)
    return offset if isinstance(offset, list) else [offset]


def _event_time(view: Description, name: str | None) -> str | None:
    """Return the column of an input's watermark; "" if the input has none, None if it isn't a column."""
    if name is None:
        return None
    column = str(view.body.get("watermarks", {}).get(name, {}).get("column", ""))
    read = view.reads[name]
    names = {declared.name.lower() for declared in columns_of(read.type, read.body)}
    return column.lower() if column.lower() in names or not column else None


def _rows_until(batch: Any, column: str, watermark: int) -> int:
    """Return how many rows have this event time, in milliseconds since the epoch, or an earlier one."""
    import pyarrow as pa
    from pyarrow import compute

    index = next((i for i, name in enumerate(batch.schema.names) if name.lower() == column), None)
    if index is None:  # an input without a watermark, or a file that is older than the column
        return 0
    values = batch.column(index).cast(pa.timestamp("us", batch.schema.types[index].tz)).cast(pa.int64())
    return int(compute.sum(compute.less_equal(values, watermark * 1000)).as_py() or 0)
