"""Builds Arrow arrays from Python values, through their buffers.

`pa.array` does the same, but imports pandas if it is installed: a second of CPU for each append.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyarrow import Array, Buffer, DataType

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
