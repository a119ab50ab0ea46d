"""A hash of what a step holds that does not depend on the order of its rows, nor on how they are split.

Each row's hash is Spark's xxhash64 over its columns; a step's is their sum modulo 2^64, as 16 hex digits. It
is computed where the rows are read or written, so it costs no pass of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mzplan.connectors.spark_types import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

EMPTY = f"{0:016x}"
_MASK = (1 << 64) - 1


def row_hash(rows: DataFrame, columns: Sequence[str]) -> Expression:
    """The hash of a row, BIGINT."""
    from pyspark.sql import functions as f

    return f.xxhash64(*(_hashable(rows, column) for column in columns)) if columns else f.lit(0)


def as_hex(total: int) -> str:
    """A sum of row hashes, however large or negative, as it is recorded."""
    return f"{total & _MASK:016x}"


def measure(rows: DataFrame, hash_column: str) -> tuple[int, str]:
    """Count and content hash of rows that carry their hash in a column."""
    from pyspark.sql import functions as f

    one = f.col(quoted(hash_column))
    # In halves: under ANSI rules a sum that leaves 64 bits is an error, and not around again.
    halves = (f.sum(f.shiftright(one, 32)), f.sum(one.bitwiseAND(f.lit(0xFFFFFFFF))))
    found: Any = rows.agg(f.count("*"), *halves).first()
    count, high, low = found
    return int(count), as_hex((int(high or 0) << 32) + int(low or 0))


def _hashable(rows: DataFrame, column: str) -> Expression:
    from pyspark.sql import functions as f

    value = f.col(quoted(column))
    type_ = rows.schema[column].dataType.simpleString()
    # Spark has no hash of a map: equal ones may hold their entries in another order.
    return f.to_json(value) if "map<" in type_ else value
