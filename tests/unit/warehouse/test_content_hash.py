"""The content hash without Spark. test_spark_content_hash.py compares it with Spark's."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from mzplan.warehouse.content_hash import ContentHash, content_hash


def test_the_sum_of_any_parts_is_the_hash_of_the_whole() -> None:
    count = 50
    numbers = range(count)
    rows = pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "text": [None if i % 5 == 0 else "t" * i for i in numbers],
            "list": pa.array([None if i % 7 == 0 else list(range(i % 4)) for i in numbers]),
            "map": pa.array([[(f"k{i}", i)] * (i % 3) for i in numbers], pa.map_(pa.string(), pa.int32())),
            "wide": pa.array([Decimal(i * 10**20) for i in numbers], pa.decimal128(30, 0)),
            "short": pa.array([Decimal(-i) for i in numbers], pa.decimal128(9, 2)),
            "flag": [i % 2 == 0 for i in numbers],
            "struct": pa.array([None if i % 6 == 0 else {"x": str(i), "y": [i] * (i % 3)} for i in numbers]),
        }
    )
    whole = content_hash([rows])
    assert whole.rows == count
    cut = [rows.slice(i, 7) for i in range(0, count, 7)]
    assert content_hash(cut) == whole
    assert content_hash(reversed(cut)) == whole
    assert content_hash([pa.concat_tables(cut)]) == whole
    batches = [batch.slice(3, 20) for batch in rows.to_batches()]
    assert content_hash(batches) == content_hash([rows.slice(3, 20)])


def test_hash_without_rows_its_sums_and_its_stored_text() -> None:
    assert content_hash([]) == ContentHash() == content_hash([pa.table({"a": pa.array([], pa.string())})])
    assert ContentHash.of_sums(0, None, None) == ContentHash()
    found = ContentHash(3, 255)
    assert str(found) == "1:00000000000000ff"
    assert ContentHash.parse(3, str(found)) == found
    assert ContentHash.parse(3, "00000000000000ff") == found  # from a version with only this kind of hash
    for unknown in (None, "", "2:00000000000000ff", "ff" * 32, "1:FF", "1:00000000000000ff\n"):
        assert ContentHash.parse(3, unknown) is None
    # Sums wrap around.
    assert ContentHash(1, 2**64 - 1) + ContentHash(1, 2) == ContentHash(2, 1)
    assert ContentHash.of_sums(2, 2**33, 5) == ContentHash(2, (2**65 + 5) % 2**64)
    with pytest.raises(TypeError, match="duration"):
        content_hash([pa.table({"a": pa.array([1], pa.duration("s"))})])
