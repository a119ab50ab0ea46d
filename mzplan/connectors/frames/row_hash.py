"""The content hash of a step, computed by Spark. mzplan.warehouse.content_hash defines it, and computes it
without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.types import quoted
from mzplan.warehouse.content_hash import ContentHash, hash_order

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

OBSERVATION = "mzplan"  # the name under which a stream reports it


def row_hash(rows: DataFrame) -> Expression:
    """The hash of a row, over all columns of `rows`: a BIGINT."""
    types = {field.name: field.dataType for field in rows.schema.fields}
    return f.xxhash64(*(_hashable(f.col(quoted(name)), types[name]) for name in hash_order(types)))


def sums(hash_: Expression) -> dict[str, Expression]:
    """The aggregates, by name, from which `of_sums` makes the content hash."""
    return {
        "rows": f.count(f.lit(1)),
        "high": f.sum(f.shiftrightunsigned(hash_, 32)),
        "low": f.sum(hash_.bitwiseAND(0xFFFFFFFF)),
    }


def of_sums(found: Mapping[str, Any]) -> ContentHash:
    """The content hash from the values of the aggregates `sums`."""
    return ContentHash.of_sums(int(found["rows"]), found["high"], found["low"])


def content_hash(rows: DataFrame) -> ContentHash:
    """The content hash of a DataFrame: a Spark job."""
    row = rows.agg(*_aggregates(rows)).first()
    assert row is not None
    return of_sums(row.asDict())


def observed(rows: DataFrame, *more: Expression) -> DataFrame:
    """The same rows; each micro-batch reports its content hash among its observed metrics, and `more`
    aggregates with it: one look at each row is cheaper than two."""
    return rows.observe(OBSERVATION, *_aggregates(rows), *more)


def _aggregates(rows: DataFrame) -> list[Expression]:
    """Each of them hashes a row anew: to keep its hash would cost two copies of the row, which are dearer."""
    return [expression.alias(name) for name, expression in sums(row_hash(rows)).items()]


def of_progress(progress: Mapping[str, Any]) -> ContentHash | None:
    """The content hash in the progress of an `observed` stream (JSON of a StreamingQueryProgress)."""
    metric = (progress.get("observedMetrics") or {}).get(OBSERVATION)
    return of_sums(metric) if metric else None


def _hashable(value: Expression, type_: DataType) -> Expression:
    """Maps as arrays of their entries: Spark hashes no maps, as equal ones may differ in order. Here they are
    hashed in the order in which they were read and are stored."""
    from pyspark.sql import types as t

    if not _has_map(type_):
        return value
    match type_:
        case t.MapType():
            return _hashable(
                f.map_entries(value),
                t.ArrayType(
                    t.StructType(
                        [t.StructField("key", type_.keyType), t.StructField("value", type_.valueType)]
                    )
                ),
            )
        case t.ArrayType():
            return f.transform(value, lambda element: _hashable(element, type_.elementType))
        case t.StructType():
            fields = [
                _hashable(value.getField(field.name), field.dataType).alias(f"c{i}")
                for i, field in enumerate(type_.fields)
            ]
            return f.when(value.isNotNull(), f.struct(*fields))
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
