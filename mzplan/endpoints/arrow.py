"""Arrow types for the user's columns, and the conversion of batches to these types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mzplan.schema.columns import Column, longest, map_types, parse_columns

if TYPE_CHECKING:
    from pyarrow import DataType, RecordBatch, Schema

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
