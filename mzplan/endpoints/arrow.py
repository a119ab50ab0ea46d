"""Arrow types for the user's columns, and the conversion of batches to these types.

Arrays are built from Python values through their buffers. `pa.array` does the same, but imports pandas if it
is installed: a second of CPU for each append.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from mzplan.schema.columns import Column, longest, map_types, parse_columns

if TYPE_CHECKING:
    from pyarrow import Array, Buffer, DataType, RecordBatch, Schema

_CODES = {"int8": "b", "int16": "h", "int32": "i", "int64": "q", "float": "f", "double": "d"}
_DIGITS = Context(prec=100)  # Python's default rounds a DECIMAL to 28 digits
_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)


def build_array(values: Sequence[Any], type_: DataType) -> Array:
    """Return the array of the values; None is NULL.

    The values have the Python types that mzplan.connectors.local.row_values returns for this type.
    """
    import pyarrow as pa
    from pyarrow import types

    count = len(values)
    nulls = sum(value is None for value in values)
    present = _bits([value is not None for value in values]) if nulls else None
    if types.is_string(type_) or types.is_binary(type_):
        parts = [b"" if v is None else v.encode() if isinstance(v, str) else v for v in values]
        buffers = [present, _offsets(map(len, parts)), pa.py_buffer(b"".join(parts))]
        return pa.Array.from_buffers(type_, count, buffers, nulls)
    if types.is_struct(type_):
        fields = [build_array([None if v is None else v[f.name] for v in values], f.type) for f in type_]
        return pa.Array.from_buffers(type_, count, [present], nulls, children=fields)
    if types.is_list(type_) or types.is_map(type_):
        items = [item for value in values for item in value or ()]
        inner = build_array(items, type_.value_type) if types.is_list(type_) else _entries(items, type_)
        buffers = [present, _offsets(0 if v is None else len(v) for v in values)]
        return pa.Array.from_buffers(type_, count, buffers, nulls, children=[inner])
    return pa.Array.from_buffers(type_, count, [present, _fixed(values, type_)], nulls)


def _entries(items: list[tuple[Any, Any]], type_: Any) -> Array:
    import pyarrow as pa

    children = [
        build_array([k for k, _ in items], type_.key_type),
        build_array([v for _, v in items], type_.item_type),
    ]
    entry = pa.struct([type_.key_field, type_.item_field])
    return pa.Array.from_buffers(entry, len(items), [None], 0, children=children)


def _fixed(values: Sequence[Any], type_: DataType) -> Buffer:
    import pyarrow as pa
    from pyarrow import types

    if types.is_boolean(type_):
        return _bits([bool(value) for value in values])
    if types.is_decimal(type_):
        scale = type_.scale
        numbers = (0 if v is None else int(v.scaleb(scale, _DIGITS)) for v in values)
        return pa.py_buffer(b"".join(number.to_bytes(16, "little", signed=True) for number in numbers))
    convert: Callable[[Any], Any] = lambda value: value  # noqa: E731
    code = _CODES.get(str(type_), "q")
    if types.is_date32(type_):
        code, convert = "i", _days
    elif types.is_timestamp(type_):
        convert = _microseconds
    return pa.py_buffer(array(code, [0 if value is None else convert(value) for value in values]))


def _days(value: date) -> int:
    return value.toordinal() - _EPOCH.toordinal()


def _microseconds(value: datetime) -> int:
    if value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    return (value - _EPOCH) // _MICROSECOND


def _bits(flags: Sequence[bool]) -> Buffer:
    import pyarrow as pa

    wide = pa.Array.from_buffers(pa.uint8(), len(flags), [None, pa.py_buffer(bytes(flags))])
    return wide.cast(pa.bool_()).buffers()[1]


def _offsets(lengths: Any) -> Buffer:
    """Raises OverflowError for more than 2 GiB in one batch."""
    import pyarrow as pa

    return pa.py_buffer(array("i", accumulate(lengths, initial=0)))


_SIMPLE = {
    "BOOLEAN": "bool_",
    "TINYINT": "int8",
    "SMALLINT": "int16",
    "INT": "int32",
    "BIGINT": "int64",
    "FLOAT": "float32",
    "DOUBLE": "float64",
    "STRING": "string",
    "BINARY": "binary",
    "DATE": "date32",
}

_DECIMAL_DIGITS, _MOST_DIGITS = 38, 76  # limits of Spark's and of Arrow's decimals


class FitError(ValueError):
    """Records don't fit the columns. `column` and `row` are the place, if known; the batch's first row is
    0."""

    def __init__(self, message: str, column: str, row: int | None = None):
        super().__init__(message)
        self.column = column
        self.row = row


def columns_of_config(config: Mapping[str, Any]) -> tuple[Column, ...]:
    """Return the columns of an endpoint's configuration: `{"columns": [{"name", "type", "nullable"}]}`."""
    return tuple(Column(column["name"], column["type"], column["nullable"]) for column in config["columns"])


def arrow_schema(columns: Sequence[Column]) -> Schema:
    """Return the Arrow schema of the columns, as Spark reads and writes it."""
    import pyarrow as pa

    return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in columns])


def arrow_type(type_: str) -> DataType:
    """Return the Arrow type for canonical Spark DDL, such as `DECIMAL(10,2)` (see mzplan.schema.columns)."""
    import pyarrow as pa

    word, _, rest = type_.partition("<")
    if type_ in _SIMPLE:
        return getattr(pa, _SIMPLE[type_])()
    match word.partition("(")[0]:
        case "DECIMAL":
            precision, scale = (int(part) for part in type_[8:-1].split(","))
            return pa.decimal128(precision, scale)
        case "CHAR" | "VARCHAR":
            return pa.string()
        case "TIMESTAMP":
            return pa.timestamp("us", "UTC")
        case "TIMESTAMP_NTZ":
            return pa.timestamp("us")
        case "ARRAY":
            return pa.list_(arrow_type(rest[:-1]))
        case "MAP":
            key, value = map_types(type_)
            return pa.map_(arrow_type(key), arrow_type(value))
        case "STRUCT":
            return pa.struct([pa.field(c.name, arrow_type(c.type)) for c in parse_columns(rest[:-1])])
    raise AssertionError(f"no type {type_!r}: columns are parsed before")


def fit(batch: RecordBatch, columns: Sequence[Column]) -> RecordBatch:
    """Return the batch with exactly these columns, in this order and of these types.

    A missing column is NULL, and an undeclared column is dropped. As in Spark, names ignore case. Raises
    FitError for a value that doesn't fit, or for NULL in a NOT NULL column.
    """
    import pyarrow as pa

    positions: dict[str, int] = {}
    for index, name in enumerate(batch.schema.names):
        positions.setdefault(name.lower(), index)
    arrays = []
    for column in columns:
        index = positions.get(column.name.lower(), -1)
        wanted = arrow_type(column.type)
        missing = index < 0
        array = pa.nulls(batch.num_rows, wanted) if missing else _cast(batch.column(index), wanted, column)
        _check(array, column)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def cast_exactly(array: Any, wanted: DataType) -> Any:
    """Return the array cast to a type.

    Arrow's own cast corrupts decimals with too many digits, and crashes at some exponents, so this
    function doesn't allow exponents in strings. Raises pa.ArrowInvalid if a value doesn't fit, and
    pa.ArrowNotImplementedError.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_decimal(wanted):
        return array.cast(wanted)
    if pa.types.is_decimal(array.type):
        array = array.cast(pa.decimal256(_MOST_DIGITS, wanted.scale))
    elif pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        whole, places = wanted.precision - wanted.scale, wanted.scale
        fits = pc.match_substring_regex(array, rf"\A-?0*[0-9]{{0,{whole}}}(\.[0-9]{{0,{places}}}0*)?\z")
        if pc.any(pc.invert(fits)).as_py():
            raise pa.ArrowInvalid(f"not all values are of type {wanted}")
        if pc.less(_DECIMAL_DIGITS, pc.max(pc.binary_length(array))).as_py():
            array = pc.replace_substring_regex(array, rf"(\.[0-9]{{{places}}})0+\z", r"\1")
    return array.cast(wanted)


def _cast(array: Any, wanted: DataType, column: Column) -> Any:
    import pyarrow as pa

    if array.type == wanted:
        return array
    try:
        return cast_exactly(array, wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        row = next(_first_unfit(array, wanted), None)
        raise FitError(f"{column.name} is not a {column.type} ({array.type})", column.name, row) from None


def _first_unfit(array: Any, wanted: DataType) -> Iterator[int]:
    """Yield the index of the first value that can't be cast, found by bisection.

    Yields nothing if Arrow has no cast between the types."""
    import pyarrow as pa

    def fits(part: Any) -> bool:
        try:
            cast_exactly(part, wanted)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return False
        return True

    first, count = 0, len(array)
    if fits(array.slice(0, 0)):
        while count > 1:
            half = count // 2
            if fits(array.slice(first, half)):
                first, count = first + half, count - half
            else:
                count = half
        yield first


def _check(array: Any, column: Column) -> None:
    import pyarrow.compute as pc

    if not column.nullable and array.null_count:
        row = pc.index(array.is_null(), True).as_py()
        raise FitError(f"{column.name} is missing (NOT NULL)", column.name, row)
    limit = longest(column.type)
    if limit is not None:
        lengths = pc.utf8_length(array)
        if (pc.max(lengths).as_py() or 0) > limit:
            row = next(i for i, length in enumerate(lengths.to_pylist()) if (length or 0) > limit)
            raise FitError(f"{column.name} is longer than {column.type}", column.name, row)
