"""The content hash of a step, computed by Spark, and the metrics in a stream's progress.

mzplan.warehouse.rows.content_hash defines the hash, and computes it without Spark.

The metrics are how many rows a step has written, the time of its oldest record, which the upstream has set,
and how many rows have NULL as event time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.types import quoted
from mzplan.schema.columns import POSITION
from mzplan.warehouse.rows.content_hash import ContentHash, hash_order

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

OBSERVATION = "mzplan"  # the metric's name in a stream's progress


def row_hash(rows: DataFrame) -> Expression:
    """Return the hash of a row, over all columns of `rows`: a BIGINT."""
    types = {field.name: field.dataType for field in rows.schema.fields}
    return f.xxhash64(*(without_maps(f.col(quoted(name)), types[name]) for name in hash_order(types)))


def content_hash(rows: DataFrame) -> ContentHash:
    """Return the content hash of a DataFrame. Runs a Spark job."""
    row = rows.agg(*_aggregates(rows)).first()
    assert row is not None
    return _hash_from_sums(row.asDict())


def with_content_hash(rows: DataFrame, *more: Expression) -> DataFrame:
    """Return a stream's rows with a metric: each micro-batch then reports the content hash of its rows.

    `more`: aggregates to report in the same metric, because one pass over the rows is cheaper than two."""
    return rows.observe(OBSERVATION, *_aggregates(rows), *more)


def _aggregates(rows: DataFrame) -> list[Expression]:
    """Return the aggregates from which `_hash_from_sums` makes the content hash. Each hashes a row again,
    because keeping its hash would cost two copies of the row."""
    hash_ = row_hash(rows)
    return [
        f.count(f.lit(1)).alias("rows"),
        f.sum(f.shiftrightunsigned(hash_, 32)).alias("high"),
        f.sum(hash_.bitwiseAND(0xFFFFFFFF)).alias("low"),
    ]


def _hash_from_sums(values: Mapping[str, Any]) -> ContentHash:
    return ContentHash.of_sums(int(values["rows"]), values["high"], values["low"])


def hash_from_progress(progress: Mapping[str, Any]) -> ContentHash | None:
    """Return the content hash in a stream's progress (JSON of a StreamingQueryProgress), or None. See
    `with_content_hash`."""
    metric = (progress.get("observedMetrics") or {}).get(OBSERVATION)
    return _hash_from_sums(metric) if metric else None


def without_maps(value: Expression, type_: DataType, *, is_sorted: bool = False) -> Expression:
    """Return the value with maps as arrays of their entries, because Spark neither hashes nor compares maps.

    `is_sorted`: sort the entries, so that equal maps have equal arrays. Otherwise, their stored order stays.
    """
    from pyspark.sql import types as t

    if not _has_map(type_):
        return value
    match type_:
        case t.MapType():
            fields = [t.StructField("key", type_.keyType), t.StructField("value", type_.valueType)]
            entries = t.ArrayType(t.StructType(fields))
            plain = without_maps(f.map_entries(value), entries, is_sorted=is_sorted)
            return f.array_sort(plain) if is_sorted else plain
        case t.ArrayType():
            element = type_.elementType
            return f.transform(value, lambda item: without_maps(item, element, is_sorted=is_sorted))
        case t.StructType():
            inner = [
                without_maps(value.getField(one.name), one.dataType, is_sorted=is_sorted).alias(f"c{i}")
                for i, one in enumerate(type_.fields)
            ]
            return f.when(value.isNotNull(), f.struct(*inner))
    raise AssertionError(f"{type_} holds no map")


def _has_map(type_: DataType) -> bool:
    from pyspark.sql import types as t

    match type_:
        case t.MapType():
            return True
        case t.ArrayType():
            return _has_map(type_.elementType)
        case t.StructType():
            return any(_has_map(field.dataType) for field in type_.fields)
    return False


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
