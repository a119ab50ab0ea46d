"""The content hash without Spark is the one that Spark computes, for every type of a collection."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from mzplan.connectors.frames import row_hash as spark_side
from mzplan.warehouse.rows.content_hash import content_hash, row_hashes
from mzplan.warehouse.rows.replay import read_batches
from tests.integration.spark_lab import Lab

_MOMENTS = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))
_UTC = _MOMENTS.map(lambda moment: moment.replace(tzinfo=dt.UTC))


def _int(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _decimal(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    top = 10**precision - 1
    # Not by arithmetic, which would round to the context's 28 digits.
    return st.integers(-top, top).map(lambda unscaled: Decimal(f"{unscaled}E-{scale}"))


_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=80)
TYPES: dict[str, st.SearchStrategy[Any]] = {
    "BOOLEAN": st.booleans(),
    "TINYINT": _int(8),
    "SMALLINT": _int(16),
    "INT": _int(32),
    "BIGINT": _int(64),
    "FLOAT": st.one_of(st.floats(width=32), st.sampled_from([0.0, -0.0, math.nan, math.inf])),
    "DOUBLE": st.one_of(st.floats(), st.sampled_from([0.0, -0.0, math.nan, -math.inf])),
    "DECIMAL(5,2)": _decimal(5, 2),
    "DECIMAL(18,0)": _decimal(18, 0),
    "DECIMAL(19,4)": _decimal(19, 4),
    "DECIMAL(38,10)": st.one_of(_decimal(38, 10), _decimal(3, 1)),
    "STRING": _TEXT,
    "BINARY": st.binary(max_size=100).map(bytearray),
    "DATE": st.dates(),
    "TIMESTAMP": _UTC,
    "TIMESTAMP_NTZ": _MOMENTS,
    "ARRAY<BIGINT>": st.lists(st.none() | _int(64), max_size=5),
    "ARRAY<ARRAY<STRING>>": st.lists(st.none() | st.lists(st.none() | _TEXT, max_size=3), max_size=3),
    "STRUCT<a: INT, b: STRUCT<c: STRING, d: ARRAY<DATE>>>": st.tuples(
        st.none() | _int(32),
        st.none() | st.tuples(st.none() | _TEXT, st.none() | st.lists(st.none() | st.dates(), max_size=3)),
    ),
    "MAP<STRING,INT>": st.dictionaries(_TEXT, st.none() | _int(32), max_size=4),
    "ARRAY<MAP<INT,ARRAY<DECIMAL(20,1)>>>": st.lists(
        st.none() | st.dictionaries(_int(32), st.none() | st.lists(_decimal(20, 1), max_size=2), max_size=3),
        max_size=3,
    ),
    "STRUCT<m: MAP<STRING,STRUCT<n: MAP<BIGINT,BOOLEAN>>>, x: DOUBLE>": st.tuples(
        st.none()
        | st.dictionaries(
            _TEXT,
            st.none()
            | st.tuples(st.none() | st.dictionaries(_int(64), st.none() | st.booleans(), max_size=2)),
            max_size=2,
        ),
        st.none() | st.floats(),
    ),
}
DDL = ", ".join(f"`c {i}` {type_}" for i, type_ in enumerate(TYPES))
ROW = st.tuples(*(st.none() | values for values in TYPES.values()))


@settings(
    max_examples=12,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # each example is a Spark job: few of many rows
    suppress_health_check=list(HealthCheck),
)
@pytest.mark.nightly
@example(rows=[])
@given(rows=st.lists(ROW, min_size=15, max_size=25))
def test_the_same_hashes_as_spark_for_any_rows(lab: Lab, tmp_path: Path, rows: list[Any]) -> None:
    """Written by Spark as a collection's files are, and read without it."""
    spark = lab.spark
    frame = spark.createDataFrame(rows, DDL)
    place = tmp_path / "rows"
    frame.coalesce(1).write.mode("overwrite").parquet(str(place))
    tables = [batch for path in sorted(place.glob("*.parquet")) for batch in read_batches(str(path))]
    expected = sorted(row[0] % 2**64 for row in frame.select(spark_side.row_hash(frame)).collect())
    assert sorted(int(h) for table in tables for h in row_hashes(table)) == expected
    assert content_hash(tables) == spark_side.content_hash(frame)


def test_texts_of_any_length(lab: Lab) -> None:
    spark = lab.spark
    lengths = [0, 1, 3, 4, 5, 7, 8, 9, 31, 32, 33, 63, 64, 65, 100_000]
    texts = [None, *(("ü0123456789" * (length // 11 + 1))[:length] for length in lengths)]
    numbers = list(range(len(texts)))
    table = pa.table({"b": texts, "a": pa.array(numbers, pa.int64())})
    frame = spark.createDataFrame(list(zip(texts, numbers, strict=True)), "b STRING, a BIGINT")
    hashes = frame.select(spark_side.row_hash(frame), "a").orderBy("a").collect()
    assert [row[0] % 2**64 for row in hashes] == [int(one) for one in row_hashes(table.to_batches()[0])]


def test_neither_order_of_rows_nor_of_columns_nor_an_added_column_changes_it(lab: Lab) -> None:
    spark = lab.spark
    frame = spark.range(1000).selectExpr("id", "concat('n', id) AS name", "struct(id AS offset) AS _position")
    found = spark_side.content_hash(frame)
    assert found.rows == 1000
    turned = frame.orderBy("name").select("_position", "name", "id")
    assert spark_side.content_hash(turned) == found
    wider = frame.selectExpr("*", "CAST(NULL AS STRING) AS more", "CAST(NULL AS MAP<INT,INT>) AS a_map")
    assert spark_side.content_hash(wider) == found
    assert spark_side.content_hash(frame.where("id <> 7")) != found
    assert spark_side.content_hash(frame.withColumn("id", frame["id"] + 1)) != found
