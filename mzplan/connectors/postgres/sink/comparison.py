"""Converts values of a sink and of its table to a common form, in which they can be compared.

PostgreSQL normalizes some values: a uuid to lower case, jsonb to sorted members. No value is cast to a
smaller type, because that could hide a manual change.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from mzplan.connectors.formats.written import to_json
from mzplan.connectors.frames.types import type_of_ddl
from mzplan.connectors.postgres.types import TargetColumn, staged_as_json

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression

Form = Literal["text", "padded", "uuid", "json", "number", "float", "double", "time", "bytes", "array"]

_FORMS: dict[str, Form] = {
    "text": "text",
    "varchar": "text",
    "json": "text",
    "bool": "text",
    "date": "text",
    "bpchar": "padded",
    "uuid": "uuid",
    "jsonb": "json",
    "int2": "number",
    "int4": "number",
    "int8": "number",
    "numeric": "number",
    "float4": "float",
    "float8": "double",
    "timestamptz": "time",
    "timestamp": "time",
    "bytea": "bytes",
}
# Array types whose elements look the same in Spark's JSON and in PostgreSQL's.
_ARRAYS = {"_text", "_varchar", "_bool", "_int2", "_int4", "_int8", "_numeric"}
_ENUM = "E"


def form_of(target: TargetColumn) -> Form | None:
    """Return the form in which a column is compared, or None if its type can't be compared."""
    if target.category == _ENUM:
        return "text"
    if target.type_schema != "pg_catalog":
        return None
    return "array" if target.type in _ARRAYS else _FORMS.get(target.type)


def sql_text(column: str, target: TargetColumn, form: Form) -> str:
    """Return SQL that selects a column as text, for `table_value`. `column`: the quoted name.

    The session's time zone must be UTC.
    """
    match form:
        case "time" if target.type == "timestamp":
            return f"({column} AT TIME ZONE 'UTC')::text"
        case "bytes":
            return f"encode({column}, 'hex')"
        case "array":
            return f"array_to_json({column})::text"
    return f"{column}::text"


def table_value(value: Expression, form: Form) -> Expression:
    """Return the value to compare for a value of the table, which `sql_text` has selected as text."""
    match form:
        case "time":
            return value.try_cast("timestamp")
        case "float" | "double":
            return value.try_cast(form)
    return _text(value, form)


def sink_value(value: Expression, spark_type: str, target: TargetColumn, form: Form) -> Expression:
    """Return the value to compare for a value of the sink: equal to `table_value` if the values agree."""
    from pyspark.sql import functions as f

    match form:
        case "time":
            return value.cast("timestamp")
        case "float" | "double":
            return value.cast(form)
        case "bytes":
            return f.lower(f.hex(value))
        case "array":
            return _text(to_json(value, type_of_ddl(spark_type)), form)
    if staged_as_json(spark_type, target):
        value = to_json(value, type_of_ddl(spark_type))
    return _text(value.cast("string"), form)


def _text(value: Expression, form: Form) -> Expression:
    from pyspark.sql import functions as f

    match form:
        case "padded":
            return f.rtrim(value)
        case "uuid":
            return f.lower(f.regexp_replace(value, "[^0-9A-Fa-f]", ""))
        case "number":  # 1.50 equals 1.5
            short = f.regexp_replace(f.regexp_replace(value, "0+$", ""), r"\.$", "")
            return f.when(value.contains("."), short).otherwise(value)
        case "json" | "array":
            return f.udf(canonical_json, "string")(value)
    return value


def canonical_json(text: str | None) -> str | None:
    """Return JSON in a normal form: equal documents have equal texts. Returns other text unchanged."""
    if text is None:
        return None
    try:
        read = json.loads(text, parse_float=Decimal, parse_int=Decimal)
    except ValueError:
        return text
    return json.dumps(_plain(read), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, Decimal):  # distinct from a string with the same digits
        return {"number": f"{value.normalize():f}" if value.is_finite() else str(value)}
    return value
