"""Spark types: those of the user's columns, which exclude types such as VARCHAR, and casts of nested
values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mzplan.connectors.frames import functions as f
from mzplan.schema.columns import Column, spark_type

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
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
