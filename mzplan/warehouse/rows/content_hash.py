"""The content hash of a step, without Spark: the same as mzplan.connectors.frames.row_hash.

The hash of a row is Spark's `xxhash64` (seed 42) over its columns, including `_position`, in the order of
their lower-cased names. Each value is hashed with the hash so far as its seed. NULL leaves the hash
unchanged, so a row keeps its hash when its collection gains a column. The hash of a step is the sum of its
rows' hashes modulo 2^64. It doesn't depend on the rows' order or on how they are spread over files.

The hash detects accidents, not attacks. It doesn't notice if a value moves to a neighbouring column that was
NULL.

A hash is stored as text: `1:`, which is the kind of hash, and 16 hexadecimal digits. Older versions of mzplan
wrote only the digits of the same hash. This version can't compute any other kind, and doesn't compare it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Hashes = np.ndarray[Any, np.dtype[np.uint64]]

VERSION = "1"
HASH = "_mzplan_hash"
"""The column that carries a row's precomputed hash to a target."""
SEED = 42
_STORED = re.compile(rf"(?:{VERSION}:)?([0-9a-f]{{16}})", re.ASCII)
_MASK = (1 << 64) - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_LONG_DECIMAL = 18  # digits: Spark hashes a decimal up to this precision as a long, a wider one as bytes


@dataclass(frozen=True, slots=True)
class ContentHash:
    """A number of rows, and the sum of their hashes modulo 2^64. The hash of a step is the sum of its
    parts."""

    rows: int = 0
    digest: int = 0

    def __add__(self, other: ContentHash) -> ContentHash:
        return ContentHash(self.rows + other.rows, (self.digest + other.digest) & _MASK)

    def __str__(self) -> str:
        """Return the digest as it is stored."""
        return f"{VERSION}:{self.digest:016x}"

    @classmethod
    def parse(cls, rows: int, stored: str | None) -> ContentHash | None:
        """Parse a stored hash. Returns None for None and for another kind of hash."""
        match = _STORED.fullmatch(stored) if stored is not None else None
        return cls(rows, int(match[1], 16)) if match else None

    @classmethod
    def of_sums(cls, rows: int, high: int | None, low: int | None) -> ContentHash:
        """Combine Spark's sums of the upper and lower halves of the hashes. Both are NULL if there are no
        rows.

        Spark can't sum up whole hashes, because in ANSI SQL an overflow is an error."""
        return cls(rows, (((high or 0) << 32) + (low or 0)) & _MASK)


def content_hash(parts: Iterable[pa.Table | pa.RecordBatch]) -> ContentHash:
    """Return the hash of all rows. Raises TypeError for a type that no collection has."""
    import numpy as np

    total = ContentHash()
    for part in parts:
        hashes = row_hashes(part)
        with np.errstate(over="ignore"):
            total += ContentHash(len(hashes), int(hashes.sum(dtype=np.uint64)))
    return total


def hash_of(rows: pa.RecordBatch) -> ContentHash:
    """Return the hash of a batch. Takes the rows' hashes from the column HASH if the batch has it.

    Raises TypeError for a type that no collection has."""
    import numpy as np

    if HASH in rows.schema.names:
        carried = _buffer(rows.column(HASH), "u8")
        return ContentHash(rows.num_rows, int(carried.sum(dtype=np.uint64)))
    return content_hash([rows])


def hash_order(names: Iterable[str]) -> list[str]:
    """Return the columns in the order in which they are hashed."""
    return sorted(names, key=str.lower)


def row_hashes(rows: pa.Table | pa.RecordBatch) -> Hashes:
    """Return the hash of each row. Raises TypeError for a type that no collection has."""
    import numpy as np
    import pyarrow as pa

    hashes = np.full(rows.num_rows, SEED, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for name in hash_order(rows.schema.names):
            column = rows.column(name)
            if isinstance(column, pa.ChunkedArray):
                column = column.combine_chunks()
            if isinstance(column, pa.ChunkedArray):  # still, because the text is too long for 32-bit offsets
                column = pa.concat_arrays([c.cast(_large(c.type)) for c in column.chunks])
            hashes = _hashed(column, hashes)
    return hashes


def _large(type_: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    return {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(type_, type_)


def _hashed(values: pa.Array, seeds: Hashes) -> Hashes:
    """Return the hash of each value, each with its own seed."""
    from pyarrow import types

    if len(values) == 0 or values.null_count == len(values):
        return seeds
    present = None if values.null_count == 0 else _present(values)
    if present is not None and not types.is_struct(values.type):
        hashed = seeds.copy()
        hashed[present] = _hashed(values.drop_null(), seeds[present])
        return hashed
    return _hash_of(values.type)(values, seeds)


def _present(values: pa.Array) -> Any:
    """Return a mask of the values that aren't NULL."""
    import pyarrow as pa

    return _buffer(values.is_valid().cast(pa.uint8()), "u1") != 0


def _hash_of(type_: pa.DataType) -> Callable[[pa.Array, Hashes], Hashes]:
    from pyarrow import types

    by_type: dict[Callable[[Any], bool], Callable[[pa.Array, Hashes], Hashes]] = {
        types.is_int64: lambda v, s: _longs(_words(v, "i8"), s),
        types.is_string: _texts,
        types.is_large_string: _texts,
        types.is_binary: _texts,
        types.is_large_binary: _texts,
        types.is_timestamp: _timestamps,
        types.is_decimal: _decimals,
        types.is_struct: _structs,
        types.is_signed_integer: lambda v, s: _ints(_words(v, "i4"), s),  # shorter than 64 bits
        types.is_floating: _floats,
        types.is_boolean: lambda v, s: _ints(_words(v.cast("int8"), "i4"), s),
        types.is_date32: lambda v, s: _ints(_words(v.cast("int32"), "i4"), s),
        types.is_map: lambda v, s: _sequences((v.keys, v.items), v.offsets, s),
        types.is_list: lambda v, s: _sequences((v.values,), v.offsets, s),
        types.is_large_list: lambda v, s: _sequences((v.values,), v.offsets, s),
    }
    for holds, hashed in by_type.items():
        if holds(type_):
            return hashed
    raise TypeError(f"no collection has values of type {type_}")


# ── Hashes of values of one type. Only structs may be NULL


def _words(values: pa.Array, dtype: str) -> Any:
    """Return the numbers of a fixed-width array as this type."""
    kind = "f" if dtype.startswith("f") else "i"
    return _buffer(values, f"{kind}{values.type.bit_width // 8}").astype(dtype, copy=False)


def _buffer(values: pa.Array, dtype: str) -> Any:
    """Return the values of a fixed-width array without NULLs.

    `to_numpy` isn't used because it imports pandas, which takes a second of CPU."""
    import numpy as np

    data = values.buffers()[1]
    if data is None or not len(values):
        return np.empty(0, dtype)
    width = np.dtype(dtype).itemsize
    return np.frombuffer(data, dtype=dtype, count=len(values), offset=values.offset * width)


def _floats(values: pa.Array, seeds: Hashes) -> Hashes:
    """Hash floats by their bits, with a single NaN and a single zero."""
    import numpy as np

    numbers = _buffer(values, f"f{values.type.bit_width // 8}")
    plain = np.where(np.isnan(numbers), np.array(np.nan, numbers.dtype), numbers)
    plain = np.where(plain == 0, np.array(0, numbers.dtype), plain)
    if numbers.dtype == np.float64:
        return _longs(plain.view("i8"), seeds)
    return _ints(plain.astype("f4").view("i4"), seeds)


def _timestamps(values: pa.Array, seeds: Hashes) -> Hashes:
    """Hash microseconds since the epoch; without a time zone, of the wall clock."""
    import pyarrow as pa

    micros = values.cast(pa.timestamp("us", values.type.tz)).cast("int64")
    return _longs(_words(micros, "i8"), seeds)


def _decimals(values: pa.Array, seeds: Hashes) -> Hashes:
    import numpy as np
    import pyarrow as pa

    wide = values.cast(pa.decimal128(values.type.precision, values.type.scale))
    words = np.frombuffer(wide.buffers()[1], dtype="<i8")[2 * wide.offset : 2 * (wide.offset + len(wide))]
    low, high = words[0::2], words[1::2]
    if values.type.precision <= _LONG_DECIMAL:
        return _longs(low, seeds)
    unscaled = ((int(h) << 64) | (int(w) & _MASK) for h, w in zip(high, low, strict=True))
    return _bytes((_shortest(n) for n in unscaled), seeds)


def _shortest(number: int) -> bytes:
    """Return Java's BigInteger.toByteArray: the shortest big-endian two's complement."""
    bits = number.bit_length() if number >= 0 else (~number).bit_length()
    return number.to_bytes(bits // 8 + 1, "big", signed=True)


def _texts(values: pa.Array, seeds: Hashes) -> Hashes:
    import numpy as np
    from pyarrow import types

    wide = types.is_large_string(values.type) or types.is_large_binary(values.type)
    buffers = values.buffers()
    offsets = np.frombuffer(buffers[1], dtype="i8" if wide else "i4")
    ends = offsets[values.offset : values.offset + len(values) + 1].tolist()
    data = memoryview(buffers[2]) if buffers[2] is not None else memoryview(b"")
    return _bytes((data[a:b] for a, b in pairwise(ends)), seeds)


def _bytes(values: Iterable[bytes | memoryview], seeds: Hashes) -> Hashes:
    import numpy as np
    from xxhash import xxh64_intdigest

    hashed = (xxh64_intdigest(value, seed) for value, seed in zip(values, seeds.tolist(), strict=True))
    return np.fromiter(hashed, dtype=np.uint64, count=len(seeds))


def _structs(values: pa.Array, seeds: Hashes) -> Hashes:
    """Hash one field after the other. If a struct is NULL, so are its fields, and its seed doesn't change."""
    for field in values.flatten():
        seeds = _hashed(field, seeds)
    return seeds


def _sequences(parts: tuple[pa.Array, ...], offsets: pa.Array, seeds: Hashes) -> Hashes:
    """Hash the n-th element of all rows at once, then the next (in a map: key, value)."""
    import numpy as np
    import pyarrow as pa

    ends = _buffer(offsets, f"i{offsets.type.bit_width // 8}")
    starts, lengths = ends[:-1], np.diff(ends)
    hashes = seeds.copy()
    for n in range(int(lengths.max(initial=0))):
        rows = np.flatnonzero(lengths > n)
        chosen = np.ascontiguousarray(starts[rows] + n, dtype=np.int64)
        places = pa.Array.from_buffers(pa.int64(), len(chosen), [None, pa.py_buffer(chosen)])
        for part in parts:
            hashes[rows] = _hashed(part.take(places), hashes[rows])
    return hashes


# ── xxHash64 of 4 and of 8 bytes, for whole arrays


def _ints(values: Any, seeds: Hashes) -> Hashes:
    import numpy as np

    words = values.view(np.uint32).astype(np.uint64)
    hashes = seeds + np.uint64((_P5 + 4) & _MASK)
    hashes ^= words * np.uint64(_P1)
    return _mixed(_rotated(hashes, 23) * np.uint64(_P2) + np.uint64(_P3))


def _longs(values: Any, seeds: Hashes) -> Hashes:
    import numpy as np

    words = np.ascontiguousarray(values).view(np.uint64)
    hashes = seeds + np.uint64((_P5 + 8) & _MASK)
    hashes ^= _rotated(words * np.uint64(_P2), 31) * np.uint64(_P1)
    return _mixed(_rotated(hashes, 27) * np.uint64(_P1) + np.uint64(_P4))


def _rotated(words: Hashes, bits: int) -> Hashes:
    import numpy as np

    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


def _mixed(hashes: Hashes) -> Hashes:
    import numpy as np

    hashes ^= hashes >> np.uint64(33)
    hashes *= np.uint64(_P2)
    hashes ^= hashes >> np.uint64(29)
    hashes *= np.uint64(_P3)
    return hashes ^ (hashes >> np.uint64(32))
