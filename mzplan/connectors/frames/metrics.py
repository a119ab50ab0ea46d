"""Metrics that go along with the rows of a stream, and come with its progress: how many rows a step has
written, and when its oldest record was made, as its upstream says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.row_hash import OBSERVATION
from mzplan.schema.columns import POSITION

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

WRITTEN = "mzplan_written"
"""The name of the number of rows in Spark's progress events; its one field is `rows`."""
TIMES = "mzplan_times"
"""The name of the time there, where the rows have no other metric to go along with."""
_TIME, _OLDEST = "timestamp", "oldest"


def with_count(rows: DataFrame) -> DataFrame:
    """The same rows of a stream that Spark itself writes; each of its progress events has their number."""
    return rows.observe(WRITTEN, f.count(f.lit(1)).alias("rows"))


def with_time(rows: DataFrame) -> DataFrame:
    """The same rows of a stream; each of its progress events has the time, where their positions have one."""
    aggregates = oldest(rows)
    return rows.observe(TIMES, *aggregates) if aggregates else rows


def oldest(rows: DataFrame) -> tuple[Expression, ...]:
    """The aggregate, of a stream whose positions have a time; none of any other. It may be computed twice for
    the same rows. A time before 1970 is what Kafka gives a record that has none."""
    from pyspark.sql import types as t

    position = rows.schema[POSITION].dataType
    if not isinstance(position, t.StructType) or _TIME not in position.names:
        return ()
    if not isinstance(position[_TIME].dataType, t.TimestampType):
        return ()
    at = f.unix_millis(f.col(f"{POSITION}.{_TIME}"))
    return (f.min(f.when(at >= 0, at)).alias(_OLDEST),)


def oldest_of(progress: Mapping[str, Any]) -> float | None:
    """The time in the progress of a stream (JSON of a StreamingQueryProgress), in seconds since the epoch;
    None where it has none."""
    metrics = progress.get("observedMetrics") or {}
    times = [(metrics.get(name) or {}).get(_OLDEST) for name in (OBSERVATION, TIMES)]
    return next((at / 1000 for at in times if at is not None), None)
