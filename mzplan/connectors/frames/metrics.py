"""Metrics in a stream's progress: how many rows a step has written, the time of its oldest record, which the
upstream has set, and how many rows have NULL as event time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.row_hash import OBSERVATION
from mzplan.connectors.frames.types import quoted
from mzplan.schema.columns import POSITION

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

WRITTEN = "mzplan_written"
"""The name of the row count in Spark's progress events. Its one field is `rows`."""
TIMES = "mzplan_times"
"""The name of the metric with the oldest time in progress events, if no other metric contains that time."""
_TIME, _OLDEST = "timestamp", "oldest"
_NULL_TIMES = "mzplan_null_times:"  # begins the names of metrics; the name of an input follows


def with_count(rows: DataFrame) -> DataFrame:
    """Return a stream's rows with a metric: the stream's progress events then report the number of rows.

    For a stream that Spark itself writes."""
    return rows.observe(WRITTEN, f.count(f.lit(1)).alias("rows"))


def with_null_times(rows: DataFrame, name: str, column: str) -> DataFrame:
    """Return the rows of an input with a metric: how many of them have NULL as event time (`column`)."""
    is_null = f.col(quoted(column)).isNull()
    return rows.observe(f"{_NULL_TIMES}{name}", f.count_if(is_null).alias("rows"))


def null_times_of(progress: Mapping[str, Any]) -> int:
    """Return how many rows of all inputs have NULL as event time (see `with_null_times`)."""
    metrics = (progress.get("observedMetrics") or {}).items()
    counts = (values for name, values in metrics if name.startswith(_NULL_TIMES))
    return sum(int((values or {}).get("rows") or 0) for values in counts)


def with_time(rows: DataFrame) -> DataFrame:
    """Return a stream's rows with a metric: the stream's progress events then report the oldest time.

    Returns the rows unchanged if their positions have no time."""
    aggregates = oldest(rows)
    return rows.observe(TIMES, *aggregates) if aggregates else rows


def oldest(rows: DataFrame) -> tuple[Expression, ...]:
    """Return the aggregate for the oldest time, or () if the positions have no time. Spark may compute it
    twice for the same rows. Ignores times before 1970, which Kafka gives to records without a time."""
    from pyspark.sql import types as t

    position = rows.schema[POSITION].dataType
    if not isinstance(position, t.StructType) or _TIME not in position.names:
        return ()
    if not isinstance(position[_TIME].dataType, t.TimestampType):
        return ()
    at = f.unix_millis(f.col(f"{POSITION}.{_TIME}"))
    return (f.min(f.when(at >= 0, at)).alias(_OLDEST),)


def oldest_of(progress: Mapping[str, Any]) -> float | None:
    """Return the oldest time that a stream's progress reports, in seconds since the epoch; None without one.

    `progress`: the JSON of a StreamingQueryProgress."""
    metrics = progress.get("observedMetrics") or {}
    times = [(metrics.get(name) or {}).get(_OLDEST) for name in (OBSERVATION, TIMES)]
    return next((at / 1000 for at in times if at is not None), None)
