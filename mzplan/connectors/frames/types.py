"""Spark types: those of the user's columns, which exclude types such as VARCHAR, and casts of nested values.

Also rows of files: reading exactly the given files, the order of their rows, and partition values.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from mzplan.connectors.frames import functions as f
from mzplan.schema.columns import Column, spark_type
from mzplan.warehouse.partitions import AS_NULL

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType


def ddl(columns: Sequence[Column]) -> str:
    """Return columns as DDL for Spark, all nullable."""
    return ", ".join(f"{quoted(column.name)} {spark_type(column.type)}" for column in columns)


def ddl_of(type_: DataType) -> str:
    """Return a Spark type as DDL, with quoted names. simpleString() doesn't quote even names with a
    hyphen."""
    from pyspark.sql import types as t

    match type_:
        case t.StructType():
            fields = (f"{quoted(field.name)}: {ddl_of(field.dataType)}" for field in type_.fields)
            return f"STRUCT<{', '.join(fields)}>"
        case t.ArrayType():
            return f"ARRAY<{ddl_of(type_.elementType)}>"
        case t.MapType():
            return f"MAP<{ddl_of(type_.keyType)}, {ddl_of(type_.valueType)}>"
    return type_.simpleString()


def type_of_ddl(type_: str) -> DataType:
    """Return the Spark type of a column that is declared in canonical DDL."""
    from pyspark.sql.types import DataType

    return DataType.fromDDL(spark_type(type_))


def quoted(name: str) -> str:
    """Return the name as a quoted identifier of Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


class FieldsDifferError(ValueError):
    """Raised if two structs have different fields. The message is for people, without a period."""


def cast_by_name(value: Expression, before: DataType, after: DataType) -> Expression:
    """Return the value, of type `before`, cast to `after` by the names of fields. Raises FieldsDifferError.

    Spark's own cast matches the fields of a struct by position, so it would silently swap two fields.
    """
    from pyspark.sql import types as t

    if before == after:
        return value
    match before, after:
        case t.StructType(), t.StructType():
            return f.when(value.isNotNull(), f.struct(*_fields(value, before, after)))
        case t.ArrayType(), t.ArrayType():
            return f.transform(value, lambda item: cast_by_name(item, before.elementType, after.elementType))
        case t.MapType(), t.MapType():

            def entry(item: Any) -> Any:
                key = cast_by_name(item["key"], before.keyType, after.keyType)
                return f.struct(key, cast_by_name(item["value"], before.valueType, after.valueType))

            return f.map_from_entries(f.transform(f.map_entries(value), entry))
    return value.cast(after)


def _fields(value: Expression, before: StructType, after: StructType) -> list[Expression]:
    fields_by_name = {field.name.lower(): field for field in before.fields}
    wanted_names = {field.name.lower() for field in after.fields}
    if fields_by_name.keys() != wanted_names:
        names = ", ".join(sorted(fields_by_name.keys() ^ wanted_names))
        raise FieldsDifferError(f"a STRUCT's fields have changed: {names}")
    return [
        cast_by_name(
            value.getField(fields_by_name[field.name.lower()].name),
            fields_by_name[field.name.lower()].dataType,
            field.dataType,
        ).alias(field.name)
        for field in after.fields
    ]


# Options to read exactly the given files, whatever characters their paths contain. Spark takes a
# path with any of [ ] { } * ? \ as a pattern, unless the first option forbids that. Then it replaces each
# such path with the whole list of files, and reads the rows several times. A recursive lookup reads each file
# once, but finds no partitions. With partitions, Spark reads each file once anyway.
EXACT_PARTITIONED_FILES = {"__globPaths__": "false"}
EXACT_FILES = {**EXACT_PARTITIONED_FILES, "recursiveFileLookup": "true"}


CLOCK = f"mzplan_clock_{secrets.token_hex(8)}"
"""The name of Spark's `reflect` in this process. SQL can't guess it (see spark.sql.unsafe_functions)."""


def read_parquet(spark: SparkSession, files: Sequence[str], schema: str) -> DataFrame:
    """Return the rows of exactly these Parquet files, which may be none. `schema`: the columns as DDL."""
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).options(**EXACT_FILES).parquet(*files)


def row_clock() -> Expression:
    """Return the nanoseconds of a clock that never goes back, to order the rows that one task reads.

    A stream has no row numbers, and Spark refuses `monotonically_increasing_id` in a stream."""
    return f.call_function(CLOCK, f.lit("java.lang.System"), f.lit("nanoTime")).cast("bigint")


def as_stored(rows: DataFrame, columns: Iterable[str]) -> DataFrame:
    """Return the rows as a target with these partition columns stores them (see mzplan.warehouse.partitions).
    Spark does the same when it writes, but a MERGE would look for the original values and not find them."""
    partitions = {name.lower() for name in columns}
    texts = [name for name, type_ in rows.dtypes if type_ == "string" and name.lower() in partitions]
    return rows.withColumns(
        {name: f.when(~f.col(quoted(name)).isin(*AS_NULL), f.col(quoted(name))) for name in texts}
    )
