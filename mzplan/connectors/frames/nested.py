"""Casts nested values to another type by the names of their fields.

Spark's own cast matches the fields of a struct by position, so it would silently swap two fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mzplan.connectors.frames import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql.types import DataType, StructType


class FieldsDifferError(ValueError):
    """Raised if two structs have different fields. The message is for people, without a period."""


def cast_by_name(value: Expression, before: DataType, after: DataType) -> Expression:
    """Return the value, of type `before`, cast to `after`. Raises FieldsDifferError."""
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
