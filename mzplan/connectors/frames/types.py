"""The user's columns as Spark types. Tables and parsers of Spark don't accept some types, such as VARCHAR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mzplan.schema.columns import Column, spark_type

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


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


def quoted(name: str) -> str:
    """Return the name as a quoted identifier of Spark SQL."""
    return "`" + name.replace("`", "``") + "`"
