"""Builds Arrow arrays of a wanted type from Python values, or says why a schema doesn't fit the type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyarrow import Array, DataType

Read = Callable[[Sequence[Any]], "Array"]
"""Takes values as written, without logical types (None: null), and returns an array of the wanted type.
Raises ArrowException, ArithmeticError, ValueError or TypeError for a value that doesn't fit."""

_DDL = {
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INT",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "binary": "BINARY",
    "date32[day]": "DATE",
    "timestamp[us]": "TIMESTAMP_NTZ",
    "timestamp[us, tz=UTC]": "TIMESTAMP",
}


class UnfitSchemaError(Exception):
    """A schema's values can't be read as a type. Message: `its field … is …, but the column is …`."""


def ddl_of(type_: DataType) -> str:
    """Return an Arrow type as a Spark type, for people."""
    from pyarrow import types

    if types.is_decimal(type_):
        return f"DECIMAL({type_.precision},{type_.scale})"
    nested = {"list": "ARRAY", "map": "MAP", "struct": "STRUCT"}
    return _DDL.get(str(type_)) or nested[str(type_).partition("<")[0]]


def plain(type_: str, wanted: DataType, ddl: str) -> Read | None:
    """Return the reader of a type without its logical type, or None if it doesn't fit."""
    import pyarrow as pa

    match (type_, ddl):
        case ("int" | "long", "FLOAT" | "DOUBLE"):
            return lambda values: pa.array(values, pa.int64()).cast(wanted, safe=False)
        case ("float" | "double", "DOUBLE") | ("float", "FLOAT"):
            return built(wanted)
        case ("int", "TINYINT" | "SMALLINT" | "INT" | "BIGINT" | "DECIMAL"):
            return built(wanted)
        case ("long", "BIGINT" | "DECIMAL"):
            return built(wanted)
        case ("boolean", "BOOLEAN") | ("string" | "enum", "STRING") | ("bytes" | "fixed", "BINARY"):
            return built(wanted)
    return None


def built(*types: DataType) -> Read:
    """Return a reader that builds the first type, then casts to the next ones."""
    import pyarrow as pa

    def read(values: Sequence[Any]) -> Array:
        array = pa.array(values, types[0])
        for type_ in types[1:]:
            array = array.cast(type_)
        return array

    return read


def mapped(convert: Callable[[Any], Any], wanted: DataType) -> Read:
    import pyarrow as pa

    return lambda values: pa.array([None if v is None else convert(v) for v in values], wanted)


def list_of(inner: Read, wanted: DataType) -> Read:
    import pyarrow as pa

    def read(values: Sequence[Any]) -> Array:
        items = inner([item for value in values for item in value or ()])
        buffers = [_present(values), _offsets(values)]
        return pa.Array.from_buffers(wanted, len(values), buffers, -1, children=[items])

    return read


def struct_of(fields: Sequence[Read], wanted: DataType, empty: Any) -> Read:
    """Return the reader of structs from readers that take records. `empty` takes the place of NULL."""
    import pyarrow as pa

    def read(values: Sequence[Any]) -> Array:
        records = [empty if value is None else value for value in values]
        children = [read_field(records) for read_field in fields]
        mask = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=mask)

    return read


def map_of(read_keys: Read, read_items: Read, wanted: DataType) -> Read:
    import pyarrow as pa

    def read(values: Sequence[Any]) -> Array:
        pairs = [pair for value in values for pair in (value or {}).items()]
        entry = pa.struct([wanted.key_field, wanted.item_field])
        parts = [read_keys([key for key, _ in pairs]), read_items([item for _, item in pairs])]
        entries = pa.Array.from_buffers(entry, len(pairs), [None], 0, children=parts)
        buffers = [_present(values), _offsets(values)]
        return pa.Array.from_buffers(wanted, len(values), buffers, -1, children=[entries])

    return read


def _present(values: Sequence[Any]) -> Any:
    """Return the validity bitmap of an Arrow array."""
    import pyarrow as pa

    return pa.array([value is not None for value in values], pa.bool_()).buffers()[1]


def _offsets(values: Sequence[Any]) -> Any:
    import pyarrow as pa

    lengths = (len(value) if value is not None else 0 for value in values)
    return pa.array(list(accumulate(lengths, initial=0)), pa.int32()).buffers()[1]
