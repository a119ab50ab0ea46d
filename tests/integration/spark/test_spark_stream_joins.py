"""Joins of two streams on a real Spark: NULL equals no value, although Spark's state finds it by its key."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mzplan.spark.sql.stream_rules import without_null_matches
from tests.integration.spark_lab import Lab

SCHEMA = "id INT, d DOUBLE, f FLOAT, k INT, s STRING, o STRUCT<d: DOUBLE>, a ARRAY<FLOAT>, ts TIMESTAMP"
NULLS: dict[str, Any] = {"id": 1, "k": 0, "s": "{}", "ts": "2026-01-01T00:00:00Z"}
VALUES: dict[str, Any] = {**NULLS, "id": 2, "d": 1.5, "f": 1.5, "k": 1, "s": '{"x": 1}', "o": {"d": 1.5}}
NEAR = "p.ts BETWEEN o.ts - INTERVAL 1 HOUR AND o.ts + INTERVAL 1 HOUR"
BOTH: list[tuple[int | None, int | None]] = [(2, 2)]
JOINS: dict[str, list[tuple[int | None, int | None]]] = {
    **{f"JOIN p ON o.{key} = p.{key} AND {NEAR}": BOTH for key in ("d", "f", "o", "a", "o.d")},
    f"JOIN p ON nullif(o.k, 0) = nullif(p.k, 0) AND {NEAR}": BOTH,
    f"JOIN p ON get_json_object(o.s, '$.x') = get_json_object(p.s, '$.x') AND {NEAR}": BOTH,
    f"JOIN p ON NOT o.d <> p.d AND {NEAR}": BOTH,
    f"JOIN p ON ((o.d = p.d AND o.k = 1) OR (o.d = p.d AND o.k = 0)) AND {NEAR}": BOTH,
    f"JOIN p WHERE o.d = p.d AND {NEAR}": BOTH,
    "JOIN p USING (d)": BOTH,
    f"LEFT SEMI JOIN p ON o.d = p.d AND {NEAR}": [(2, None)],
    f"LEFT JOIN p ON o.d = p.d AND {NEAR}": [(1, None), (2, 2)],
    f"RIGHT JOIN p ON o.f = p.f AND {NEAR}": [(2, 2), (None, 1)],
    f"FULL JOIN p ON o.o.d = p.o.d AND {NEAR}": [(1, None), (2, 2), (None, 1)],
    f"JOIN p ON o.d <=> p.d AND {NEAR}": [(1, 1), (2, 2)],
    f"LEFT JOIN p ON o.a <=> p.a AND o.k = p.k AND {NEAR}": [(1, 1), (2, 2)],
}


@pytest.fixture
def session(lab: Lab, tmp_path: Path) -> SparkSession:
    """A session with two streams of the same two rows, one with NULLs."""
    session = lab.spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "1")
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/1.json").write_text(
        "\n".join(json.dumps({**row, "a": row.get("o") and [1.5]}) for row in (NULLS, VALUES))
    )
    for name in ("o", "p"):
        rows = session.readStream.schema(SCHEMA).json(str(tmp_path / "rows"))
        rows.withWatermark("ts", "0 seconds").createOrReplaceTempView(name)
    return session


def test_null_equals_nothing_in_a_join_of_streams(session: SparkSession, tmp_path: Path) -> None:
    found: dict[str, list[tuple[int | None, int | None]]] = defaultdict(list)

    def add(rows: Iterable[Any]) -> None:
        for number, left, right in rows:
            found[list(JOINS)[number]].append((left, right))

    selects = (
        f"SELECT {number} AS number, o.id AS a, {'NULL' if 'SEMI' in join else 'p.id'} AS b FROM o {join}"
        for number, join in enumerate(JOINS)
    )
    rows = without_null_matches(session.sql(" UNION ALL ".join(selects)))
    writer = rows.writeStream.foreachBatch(lambda batch, _: add(batch.collect()))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    writer.start().awaitTermination()
    assert {join: sorted(pairs, key=str) for join, pairs in found.items()} == JOINS
