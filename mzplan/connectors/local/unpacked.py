"""How much memory a message of Arrow's IPC takes once it is unpacked, before it is: pyarrow does not tell,
and some thousand bytes can be as many gigabytes.

A message says where the buffers of its batch lie in its body, in a FlatBuffer (Message.fbs of Arrow); one
that is compressed begins with the size that it is unpacked to, beyond which Arrow unpacks nothing.
"""

from __future__ import annotations

import struct

_HEADER, _BUFFERS, _COMPRESSION = 2, 2, 3  # fields of Message, and of RecordBatch
_PLAIN = -1  # instead of a size: this buffer is not compressed after all


class _Table:
    """A table of a FlatBuffer. Raises ValueError for what lies outside of it."""

    def __init__(self, data: memoryview, at: int):
        self._data = data
        self._at = at
        self._fields = at - _number(data, "<i", at)

    def place(self, field: int) -> int | None:
        """Where what the field refers to begins; None where it has none."""
        slot = 4 + 2 * field
        if slot >= _number(self._data, "<H", self._fields):
            return None
        offset = _number(self._data, "<H", self._fields + slot)
        return self._at + offset + _number(self._data, "<I", self._at + offset) if offset else None


def unpacked_size(metadata: memoryview, body: memoryview) -> int:
    """The bytes of all buffers of a message that has a record batch. Raises ValueError where it is none."""
    header = _Table(metadata, _number(metadata, "<I", 0)).place(_HEADER)
    if header is None:
        raise ValueError("a message without a header")
    batch = _Table(metadata, header)
    buffers = batch.place(_BUFFERS)
    if buffers is None:
        return 0
    packed = batch.place(_COMPRESSION) is not None
    size = 0
    for number in range(_number(metadata, "<I", buffers)):
        begin, length = (_number(metadata, "<q", buffers + 4 + 16 * number + at) for at in (0, 8))
        unpacked = _number(body, "<q", begin) if packed and length else _PLAIN
        if length < 0 or unpacked < _PLAIN:
            raise ValueError("a buffer of less than nothing")
        size += length if unpacked == _PLAIN else unpacked
    return size


def _number(data: memoryview, form: str, at: int) -> int:
    if not 0 <= at <= len(data) - struct.calcsize(form):
        raise ValueError("an offset that leads out of the message")
    number: int = struct.unpack_from(form, data, at)[0]
    return number
