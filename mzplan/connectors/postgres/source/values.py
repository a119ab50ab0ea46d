"""Converts columns of PostgreSQL's text values to Arrow arrays of Spark's types.

A value that can't be converted exactly is an error: a numeric with too many digits, `infinity`, a year beyond
9999, or a TIMESTAMP without a time zone. It is never rounded, and never becomes NULL.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mzplan.connectors.postgres.types import TargetColumn, numeric_size
from mzplan.endpoints.arrow import arrow_type, cast_exactly

if TYPE_CHECKING:
    from pyarrow import Array, StringArray

Nested = list["Nested | str | None"]


class UnfitValueError(ValueError):
    """A value that the declared type can't hold. `row` is its index."""

    def __init__(self, text: str, row: int):
        super().__init__(text)
        self.text = text
        self.row = row


# Spark types to the PostgreSQL types that can be read as them. STRING accepts every value, as PostgreSQL's
# text.
_READABLE = {
    "BOOLEAN": {"bool"},
    "TINYINT": {"int2"},
    "SMALLINT": {"int2"},
    "INT": {"int4", "int2"},
    "BIGINT": {"int8", "int4", "int2", "oid"},
    "FLOAT": {"float4"},
    "DOUBLE": {"float8", "float4"},
    "BINARY": {"bytea"},
    "DATE": {"date"},
    "TIMESTAMP": {"timestamptz"},
    "TIMESTAMP_NTZ": {"timestamp", "date"},
}
_DECIMAL = {"numeric", "int2", "int4", "int8"}
# Types with the same binary COPY format on both sides. Other types are selected as text.
_NATIVE = {"int2", "int4", "int8", "float4", "float8", "bool", "bytea", "text", "varchar"}
_CAST_AS_WRITTEN = _NATIVE - {"bool"} | {
    *("numeric", "uuid", "json", "jsonb", "timestamptz", "timestamp", "date", "time", "timetz", "interval")
}
_NATIVE_AS = {"timestamptz": "TIMESTAMP", "timestamp": "TIMESTAMP_NTZ", "date": "DATE"}
# The years 1 to 9999, in microseconds and in days since 1970.
_TIMES = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_DAYS = (-719_162, 2_932_896)
# A token of an array literal: a brace, a comma, or an element with or without quotes.
_PART = re.compile(r'\{|\}|,|"((?:[^"\\]|\\.)*)"|([^{},"]+)', re.S)
_BOUNDS = re.compile(r"(?:\[[+-]?\d+:[+-]?\d+\])+=")


def is_readable(spark_type: str, column: TargetColumn) -> bool:
    """Return whether the column can be read as this type. Some values may still not fit (see `convert`)."""
    if is_text(spark_type):
        return True
    if spark_type.startswith("ARRAY<"):
        element = spark_type[6:-1]
        while element.startswith("ARRAY<"):  # PostgreSQL does not say how many dimensions an array has
            element = element[6:-1]
        # Arrays of box, and of some extension types, have another delimiter.
        return (
            column.is_array
            and column.delimiter == ","
            and _is_readable(element, column.type.removeprefix("_"))
        )
    return _is_readable(spark_type, column.type)


def _is_readable(spark_type: str, type_: str) -> bool:
    if is_text(spark_type):
        return True
    if spark_type.startswith("DECIMAL("):
        return type_ in _DECIMAL
    return type_ in _READABLE.get(spark_type, ())


def wanted_types(column: TargetColumn) -> str:
    """Return the Spark type with which to declare a column."""
    if column.is_array and column.delimiter != ",":
        return "STRING"
    if column.is_array:
        element = replace(column, type=column.type.removeprefix("_"), category="")
        return f"ARRAY<{wanted_types(element)}>"
    if column.type == "numeric":
        size = numeric_size(column.typmod)
        if size is None:
            return "DECIMAL(38,18)"
        precision, scale = size  # numeric(5,-2) has 7 digits; numeric(2,5) has 5 after the point
        whole, rest = max(precision - scale, 0), max(scale, 0)
        return f"DECIMAL({whole + rest},{rest})" if whole + rest <= 38 else "STRING"
    for spark_type, types in _READABLE.items():
        if column.type in types and spark_type != "TINYINT":
            return spark_type
    return "STRING"


def selected(sql_name: str, spark_type: str, column: TargetColumn) -> str:
    """Return the SQL expression that reads a column for `convert`.

    It is the value itself if both sides have the same binary format, otherwise its text.
    """
    same = column.type in _NATIVE and not spark_type.startswith("DECIMAL(")
    if is_text(spark_type):
        same = column.type in ("text", "varchar")
    if same or _NATIVE_AS.get(column.type) == spark_type:
        return sql_name
    if column.type in _CAST_AS_WRITTEN or column.category in ("A", "E", "R"):
        return f"{sql_name}::text"
    # Use the type's output function, as changes do, because a cast of inet, bpchar or boolean returns other
    # text. Don't use IS NOT NULL, because it is false for a composite value with a NULL field.
    return f"CASE WHEN {sql_name} IS DISTINCT FROM NULL THEN format('%s', {sql_name}) END"


def is_text(spark_type: str) -> bool:
    """Return whether values of the type are PostgreSQL's text."""
    return spark_type == "STRING" or spark_type.startswith(("CHAR(", "VARCHAR("))


def is_single(column: TargetColumn) -> bool:
    """Return whether the values, or an array's elements, are of type real (see `convert`)."""
    return column.type in ("float4", "_float4")


def convert(spark_type: str, values: Array, *, single: bool = False) -> Array:
    """Convert text, or another type that Arrow can cast, to the Spark type.

    Raises UnfitValueError for a value that doesn't fit.

    `single`: the text is that of a `real`. A DOUBLE gets exactly the value of that real.
    """
    import pyarrow as pa
    from pyarrow import compute as pc

    wanted = arrow_type(spark_type)
    if pa.types.is_temporal(values.type):
        _check_range(values, spark_type)
    if values.type == wanted:
        return values
    if not pa.types.is_string(values.type):
        return _cast(values, wanted, spark_type)
    if spark_type == "BOOLEAN":
        true = pc.equal(values, "t")
        wrong = pc.and_(pc.invert(true), pc.not_equal(values, "f"))
        if pc.any(wrong).as_py():
            raise _problem(values, pc.index(wrong, True).as_py(), spark_type)
        return true
    if spark_type == "BINARY":
        return _bytes(values)
    if spark_type.startswith("ARRAY<"):
        return _arrays(values, spark_type, single=single)
    if spark_type == "DOUBLE" and single:
        values = _cast(values, pa.float32(), spark_type)
    converted = _cast(values, wanted, spark_type)
    if pa.types.is_temporal(wanted):
        _check_range(converted, spark_type)
    return converted


def _check_range(values: Array, spark_type: str) -> None:
    """Raise UnfitValueError for values outside the years 1 to 9999, such as `infinity`."""
    import pyarrow as pa
    from pyarrow import compute as pc

    first, last = _DAYS if pa.types.is_date(values.type) else _TIMES
    numbers = values.view(pa.int32() if pa.types.is_date(values.type) else pa.int64())
    wrong = pc.or_(pc.less(numbers, first), pc.greater(numbers, last))
    if pc.any(wrong).as_py():
        row = pc.index(wrong, True).as_py()
        raise UnfitValueError(f"a year outside 1 to 9999, or infinity, doesn't fit {spark_type}", row)


def _cast(values: Array, wanted: Any, spark_type: str) -> Array:
    import pyarrow as pa

    try:
        return cast_exactly(values, wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise _problem(values, _first_unfit(values, wanted), spark_type) from None


def _first_unfit(values: Array, wanted: Any) -> int:
    """Return the index of the first value that can't be cast, found by bisection."""
    import pyarrow as pa

    first, count = 0, len(values)
    while count > 1:
        half = count // 2
        try:
            cast_exactly(values.slice(first, half), wanted)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            count = half
        else:
            first, count = first + half, count - half
    return first


def _problem(values: Array, row: int, spark_type: str) -> UnfitValueError:
    text = str(values[row].as_py())
    shown = text if len(text) <= 60 else text[:59] + "…"
    return UnfitValueError(f"{shown!r} is not a valid {spark_type}", row)


def _bytes(values: StringArray) -> Array:
    import pyarrow as pa

    decoded: list[bytes | None] = []
    for row, text in enumerate(values.to_pylist()):
        if text is not None and not text.startswith("\\x"):
            raise _problem(values, row, "BINARY")
        decoded.append(None if text is None else bytes.fromhex(text[2:]))
    return pa.array(decoded, pa.binary())


def _arrays(values: StringArray, spark_type: str, *, single: bool) -> Array:
    """Convert arrays. The elements of all arrays are converted as one column."""
    import pyarrow as pa

    element = spark_type[6:-1]
    depth = 1
    while element.startswith("ARRAY<"):
        element, depth = element[6:-1], depth + 1
    leaves: list[str | None] = []
    owners: list[int] = []
    offsets: list[list[int | None]] = [[] for _ in range(depth)]
    counts = [0] * depth

    def collect(items: Nested, level: int, row: int) -> None:
        for item in items:
            if level == depth:
                if isinstance(item, list):
                    raise _problem(values, row, spark_type)
                leaves.append(item)
                owners.append(row)
                continue
            if not isinstance(item, list):
                raise _problem(values, row, spark_type)
            offsets[level].append(counts[level])
            counts[level] += len(item)
            collect(item, level + 1, row)

    for row, text in enumerate(values.to_pylist()):
        if text is None:
            offsets[0].append(None)
            continue
        try:
            items = parse_array(text)
        except ValueError:
            raise _problem(values, row, spark_type) from None
        offsets[0].append(counts[0])
        counts[0] += len(items)
        collect(items, 1, row)
    try:
        array = convert(element, pa.array(leaves, pa.string()), single=single)
    except UnfitValueError as problem:
        raise UnfitValueError(problem.text, owners[problem.row]) from None
    for level in reversed(range(depth)):
        array = pa.ListArray.from_arrays(pa.array([*offsets[level], counts[level]], pa.int32()), array)
    return array.cast(arrow_type(spark_type))


def parse_array(text: str) -> Nested:
    """Parse `{1,NULL,{"a b"}}` into nested lists of texts. Raises ValueError for any other text."""
    bounds = _BOUNDS.match(text)  # [0:1]={…} is an array with explicit index bounds
    at = bounds.end() if bounds else 0
    if text[at : at + 1] != "{":
        raise ValueError("not an array")
    stack: list[Nested] = []
    current: Nested = []
    for part in _PART.finditer(text, at):
        sign = part[0]
        if sign == "{":
            inner: Nested = []
            if stack:
                current.append(inner)
            stack.append(current)
            current = inner
        elif sign == "}":
            done, current = current, stack.pop()
            if not stack:
                return done
        elif part[2] is not None:
            current.append(None if sign == "NULL" else sign)
        elif sign != ",":
            current.append(re.sub(r"\\(.)", r"\1", part[1], flags=re.S))
    raise ValueError("the closing brace is missing")
