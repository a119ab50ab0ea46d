"""Exact conversion of JSON and CSV values to columns.

Spark's parsers round decimals, read any number as seconds, and read a time of day as a time today. So such
values are read as written, and checked and converted here.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from mzplan.connectors.frames import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql.types import DataType, DecimalType, StructType

_DAY = r"[+-]?\d{4,6}-\d\d?-\d\d?"
# A timestamp has a date, and no digits but zeros after its microseconds.
_TIMES = {
    "date": rf"^{_DAY}$",
    "timestamp": rf"^{_DAY}(?:[T ][\d:]+(?:\.\d{{1,6}}0*)?(?:[^.:\d].*)?)?$",
    "timestamp_ntz": rf"^{_DAY}(?:[T ][\d:]+(?:\.\d{{1,6}}0*)?)?$",
}
_WHOLE, _BOOLEAN = r"^[+-]?\d+$", "^(?i:true|false)$"
# Numbers with so few digits that different numbers are also different doubles.
_WITH_EXPONENT = r"^[+-]?\d(?:\.\d{1,14})?[eE][+-]?\d{1,3}$"
INFINITE = "_mzplan_inf"  # column: whether a JSON record contains a word for infinity
_SHORT = 16  # characters: if a double's text is longer, it may have lost digits


def struct_of(ddl: str) -> StructType:
    """Return columns in DDL as a Spark type."""
    from pyspark.sql.types import DataType, StructType

    type_ = DataType.fromDDL(ddl)
    assert isinstance(type_, StructType)
    return type_


def raw_type(type_: DataType, *, json: bool) -> DataType:
    """Return the type with which Spark's parser reads a column's values without loss.

    In JSON, decimals and text are read as VARIANT, which tells numbers from text and keeps 38 digits. In CSV,
    everything is read as text."""
    from pyspark.sql import types as t

    match type_:
        case t.DecimalType() | t.StringType() if json:
            return t.VariantType()
        case t.DecimalType() | t.DateType() | t.TimestampType() | t.TimestampNTZType():
            return t.StringType()
        case t.NumericType() | t.BooleanType() if not json:
            return t.StringType()
        case t.ArrayType():
            return t.ArrayType(raw_type(type_.elementType, json=json))
        case t.MapType():
            return t.MapType(type_.keyType, raw_type(type_.valueType, json=json))
        case t.StructType():
            fields = (t.StructField(x.name, raw_type(x.dataType, json=json)) for x in type_.fields)
            return t.StructType(list(fields))
    return type_


def convert(value: Expression, type_: DataType, *, json: bool) -> tuple[Expression, Expression | None]:
    """Convert a value from its `raw_type` to its column's type.

    Also returns whether the value isn't exactly of that type, or None if Spark's own parser decides that."""
    from pyspark.sql import types as t

    if not json and raw_type(type_, json=json) != type_:
        value = f.nullif(value, f.lit(""))  # only a text can be empty
    match type_:
        case t.IntegralType() if not json:
            return _with_check(value, f.when(value.rlike(_WHOLE), value.try_cast(type_)), json)
        case t.BooleanType() if not json:
            return _with_check(value, f.when(value.rlike(_BOOLEAN), value.try_cast(type_)), json)
        case t.DecimalType():
            text = f.try_variant_get(value, "$", "string") if json else value
            return _with_check(value, _decimal(value, text, type_, json), json)
        case t.StringType() if json:
            is_text = f.schema_of_variant(value) == "STRING"
            return _with_check(value, f.when(is_text, f.try_variant_get(value, "$", "string")), json)
        case t.DateType() | t.TimestampType() | t.TimestampNTZType():
            name = type_.simpleString()
            return _with_check(value, f.when(value.rlike(_TIMES[name]), value.try_cast(type_)), json=False)
        case t.FloatType() | t.DoubleType():
            return _floating(value, type_, json)
        case t.ArrayType() if _is_checked(type_, json):
            inner = type_.elementType
            return (
                f.transform(value, lambda item: convert(item, inner, json=json)[0]),
                _has_inexact(value, inner, json),
            )
        case t.MapType() if _is_checked(type_, json):
            inner = type_.valueType
            return (
                f.transform_values(value, lambda _, item: convert(item, inner, json=json)[0]),
                _has_inexact(f.map_values(value), inner, json),
            )
        case t.StructType() if _is_checked(type_, json):
            fields = {x.name: convert(value.getField(x.name), x.dataType, json=json) for x in type_.fields}
            row = f.when(
                value.isNotNull(), f.struct(*(made.alias(name) for name, (made, _) in fields.items()))
            )
            return row, reduce(or_, (bad for _, bad in fields.values() if bad is not None), f.lit(False))
    return value, None


def _is_checked(type_: DataType, json: bool) -> bool:
    from pyspark.sql import types as t

    match type_:
        case t.ArrayType():
            return _is_checked(type_.elementType, json)
        case t.MapType():
            return _is_checked(type_.valueType, json)
        case t.StructType():
            return any(_is_checked(field.dataType, json) for field in type_.fields)
        case t.FloatType() | t.DoubleType():
            return True
    return raw_type(type_, json=json) != type_


def _with_check(raw: Expression, value: Expression, json: bool) -> tuple[Expression, Expression]:
    is_given = raw.isNotNull()
    if json:
        is_given = is_given & ~f.is_variant_null(raw)
    return value, is_given & value.isNull()


def _has_inexact(items: Expression, type_: DataType, json: bool) -> Expression:
    def is_bad(item: Expression) -> Expression:
        bad = convert(item, type_, json=json)[1]
        return f.coalesce(bad, f.lit(False)) if bad is not None else f.lit(False)

    return f.coalesce(f.exists(items, is_bad), f.lit(False))


def _decimal(raw: Expression, text: Expression, type_: DecimalType, json: bool) -> Expression:
    """Return the decimal, or NULL if its text has more digits than its column."""
    whole, scale = type_.precision - type_.scale, type_.scale
    plain = text.rlike(rf"^[+-]?0*\d{{0,{whole}}}(?:\.\d{{0,{scale}}}0*)?$")
    if json:
        # A number with an exponent or more than 38 digits arrives as a double.
        plain = plain & ((f.length(text) <= _SHORT) | (f.schema_of_variant(raw) != "DOUBLE"))
    number = text.try_cast(type_)
    is_exact = text.rlike(_WITH_EXPONENT) & (number.cast("double") == text.try_cast("double"))
    return f.when(plain | is_exact, number)


def _floating(value: Expression, type_: DataType, json: bool) -> tuple[Expression, Expression]:
    """Return the nearest number, and whether it is infinite although the written number is finite."""
    infinite = [float("inf"), float("-inf")]
    if json:
        return value, f.coalesce(value.isin(infinite), f.lit(False)) & ~f.col(INFINITE)
    number = value.try_cast(type_)
    has_word = f.lower(value).contains("inf")
    return _with_check(value, f.when(~number.isin(infinite) | has_word, number), json=False)
