"""Values as sinks write them in JSON and CSV: a source of the same format reads them back unchanged.

Spark's defaults cut timestamps to milliseconds, and trim text and quote it by backslash in CSV.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mzplan.connectors.api.targets import unfit_target
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.types import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

    from mzplan.connectors.api.queries import Output, ResolvedQuery
    from mzplan.model.diagnostics import Diagnostic

_TIMESTAMP, _TIMESTAMP_NTZ = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_TIMES = {"timestampFormat": _TIMESTAMP, "timestampNTZFormat": _TIMESTAMP_NTZ}
JSON_OPTIONS = {**_TIMES, "ignoreNullFields": "false"}
CSV_OPTIONS = {
    **_TIMES,
    "escape": '"',  # RFC 4180: a quote within quotes is written twice
    "ignoreLeadingWhiteSpace": "false",
    "ignoreTrailingWhiteSpace": "false",
}
WRITER_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "json": JSON_OPTIONS,
    "csv": {**CSV_OPTIONS, "header": "true"},
}
"""The options of Spark's file writers, by format."""
_PLAIN_SCALE = 6  # Spark writes a decimal with more places, such as 0.0000001, with an exponent
_KEYS_NOT_IN_JSON = re.compile(r"\bMAP<(?:BINARY|ARRAY<|MAP<|STRUCT<)")


def unfit_keys(query: ResolvedQuery, outputs: Sequence[Output]) -> list[Diagnostic]:
    """Return MZ053 for columns with maps that JSON can't hold, because the keys of an object are text."""
    wrong = [
        f"{output.name} ({output.type})" for output in outputs if _KEYS_NOT_IN_JSON.search(output.type or "")
    ]
    if not wrong:
        return []
    return [
        unfit_target(
            query,
            f"JSON can't hold the columns of {query.address}",
            f"{', '.join(wrong)}: a key in JSON is text, and a BINARY or nested key has no such form.",
            "convert the keys in `select`: transform_keys(name, (k, v) -> hex(k)) AS name, or to_json(k).",
        )
    ]


def to_json(value: Expression, type_: DataType) -> Expression:
    """Return the JSON text of a struct, array or map."""
    return f.to_json(json_value(value, type_), JSON_OPTIONS)


def row_to_json(rows: DataFrame, names: Sequence[str]) -> Expression:
    """Return the JSON text of an object with these columns."""
    return f.to_json(f.struct(*json_columns(rows, names)), JSON_OPTIONS)


def json_columns(rows: DataFrame, names: Sequence[str]) -> list[Expression]:
    """Return the columns in the form whose values Spark's JSON writer keeps."""
    types = {field.name: field.dataType for field in rows.schema.fields}
    return [json_value(f.col(quoted(name)), types[name]).alias(name) for name in names]


def json_value(value: Expression, type_: DataType) -> Expression:
    """Return the value in a form that Spark's JSON writer keeps; the value itself if it is in that form."""
    from pyspark.sql import types as t

    if not _is_converted(type_):
        return value
    match type_:
        case t.DecimalType():
            return value.cast(t.VariantType())
        case t.ArrayType():
            return f.transform(value, lambda item: json_value(item, type_.elementType))
        case t.StructType():
            fields = (json_value(value.getField(x.name), x.dataType).alias(x.name) for x in type_.fields)
            return f.when(value.isNotNull(), f.struct(*fields))
        case t.MapType():
            texts = f.transform_keys(value, lambda key, _: _key_text(key, type_.keyType))
            return f.transform_values(texts, lambda _, item: json_value(item, type_.valueType))
    raise AssertionError(f"{type_} needs no conversion")


def _is_converted(type_: DataType) -> bool:
    from pyspark.sql import types as t

    match type_:
        case t.DecimalType():
            return type_.scale > _PLAIN_SCALE
        case t.ArrayType():
            return _is_converted(type_.elementType)
        case t.StructType():
            return any(_is_converted(field.dataType) for field in type_.fields)
        case t.MapType():
            return not isinstance(type_.keyType, t.StringType) or _is_converted(type_.valueType)
    return False


def _key_text(key: Expression, type_: DataType) -> Expression:
    """Return a map's key as text. Spark would write the number of days or microseconds of a time."""
    from pyspark.sql import types as t

    match type_:
        case t.TimestampType():
            return f.date_format(key, _TIMESTAMP)
        case t.TimestampNTZType():
            return f.date_format(key, _TIMESTAMP_NTZ)
    return key.cast("string")


def row_to_csv(rows: DataFrame, names: Sequence[str]) -> Expression:
    """Return the line of CSV with these columns."""
    return f.to_csv(f.struct(*_csv_columns(rows, names)), CSV_OPTIONS)


def as_written(rows: DataFrame, format_: str, partitions: Sequence[str]) -> DataFrame:
    """Return the rows in the form whose values Spark's file writer keeps. Leaves partition columns as they
    are."""
    columns_of = {"json": json_columns, "csv": _csv_columns}.get(format_)
    if columns_of is None:
        return rows
    names = [name for name in rows.columns if name not in partitions]
    return rows.withColumns(dict(zip(names, columns_of(rows, names), strict=True)))


def _csv_columns(rows: DataFrame, names: Sequence[str]) -> list[Expression]:
    """Return the columns in the form whose values Spark's CSV writer keeps: decimals as plain text."""
    types = dict(rows.dtypes)
    return [
        (f.col(quoted(name)).cast("string") if types[name].startswith("decimal") else f.col(quoted(name)))
        for name in names
    ]
