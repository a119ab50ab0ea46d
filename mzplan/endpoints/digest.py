"""A content hash of rows that does not depend on how they are cut into batches."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyarrow import Array, DataType, RecordBatch, Schema


class RowDigest:
    """Takes rows one batch after the other. `hexdigest` is of all of them so far, in their order.

    Each column has a few running hashes (which values there are, how long they are, their bytes), so the work
    is done on whole Arrow buffers: about 0.5 GB/s.
    """

    def __init__(self, schema: Schema):
        names = "\0".join(f"{field.name}\0{field.type}" for field in schema)
        self._columns = [_Column(field.type) for field in schema]
        self._rows = 0
        self._head = hashlib.sha256(names.encode())

    def update(self, batch: RecordBatch) -> None:
        for column, array in zip(self._columns, batch.columns, strict=True):
            column.update(array)
        self._rows += batch.num_rows

    def hexdigest(self) -> str:
        whole = self._head.copy()
        whole.update(self._rows.to_bytes(8, "big"))
        for column in self._columns:
            column.digest_into(whole)
        return whole.hexdigest()


class _Column:
    """The running hashes of one column, and those of what it is made of."""

    def __init__(self, type_: DataType):
        import pyarrow as pa
        from pyarrow import types

        self._present, self._lengths, self._bytes = (hashlib.sha256() for _ in range(3))
        self._inner: list[_Column] = []
        if types.is_map(type_):
            type_ = pa.list_(pa.struct([pa.field("key", type_.key_type), pa.field("value", type_.item_type)]))
        if types.is_struct(type_):
            self._inner = [_Column(field.type) for field in type_]
        elif types.is_list(type_) or types.is_large_list(type_):
            self._inner = [_Column(type_.value_type)]

    def update(self, array: Array) -> None:
        import pyarrow as pa
        from pyarrow import types

        if types.is_map(array.type):
            entry = pa.struct([pa.field("key", array.type.key_type), pa.field("value", array.type.item_type)])
            array = array.cast(pa.list_(entry))
        self._present.update(_plain_bytes(array.is_valid().cast(pa.uint8())))
        if types.is_struct(array.type):
            for inner, field in zip(self._inner, array.flatten(), strict=True):
                inner.update(field)
        elif self._inner:
            self._lengths.update(_plain_bytes(_lengths(array)))
            self._inner[0].update(array.flatten())
        else:
            self._update_values(array)

    def _update_values(self, array: Array) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc
        from pyarrow import types

        if types.is_string(array.type) or types.is_large_string(array.type):
            array = array.cast(pa.large_string()).cast(pa.large_binary())
        if types.is_binary(array.type) or types.is_large_binary(array.type):
            array = array.cast(pa.large_binary())
            array = array.fill_null(_zero(array.type))
            self._lengths.update(_plain_bytes(pc.binary_length(array).cast(pa.int64())))
            _, offsets, data = array.buffers()
            bounds = memoryview(offsets).cast("q")
            first, last = bounds[array.offset], bounds[array.offset + len(array)]
            if data is not None:
                self._bytes.update(memoryview(data)[first:last])
        elif types.is_boolean(array.type):
            self._bytes.update(_plain_bytes(array.fill_null(_zero(pa.bool_())).cast(pa.uint8())))
        elif not types.is_null(array.type):
            self._bytes.update(_plain_bytes(array.fill_null(_zero(array.type))))

    def digest_into(self, whole: Any) -> None:
        for part in (self._present, self._lengths, self._bytes):
            whole.update(part.digest())
        for inner in self._inner:
            inner.digest_into(whole)


def _zero(type_: DataType) -> Any:
    """What stands in the place of a missing value."""
    import pyarrow as pa

    # Not by pa.scalar, which would import pandas.
    if pa.types.is_large_binary(type_):
        return pa.Array.from_buffers(type_, 1, [None, pa.py_buffer(bytes(16)), pa.py_buffer(b"")])[0]
    return pa.Array.from_buffers(type_, 1, [None, pa.py_buffer(bytes(max(1, type_.bit_width // 8)))])[0]


def _lengths(array: Array) -> Array:
    """How many items each list of an array has."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.list_value_length(array).cast(pa.int64())
    return found.fill_null(_zero(found.type))


def _plain_bytes(array: Array) -> memoryview:
    """The values of an array of fixed width without nulls."""
    width = array.type.bit_width // 8
    data = array.buffers()[1]
    if data is None:
        return memoryview(b"")
    return memoryview(data)[array.offset * width : (array.offset + len(array)) * width]
