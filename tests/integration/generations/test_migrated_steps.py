"""Steps of a sink that were written before its source has migrated its rows, and structs whose fields lie in
another order: rows are made as they were written, or refused with the reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mzplan.model.diagnostics import MzplanError
from tests.integration.generations.test_row_migration import after, reading, rows
from tests.integration.spark.test_spark_replays import replayed
from tests.integration.spark.test_spark_verify_sinks import compared, numbers
from tests.integration.spark_lab import Lab, read_delta
from tests.support import Make


@pytest.mark.nightly
def test_steps_before_a_migration_are_made_with_the_types_of_then(
    lab: Lab, topic: Make, database: Make
) -> None:
    records, name = topic("then", partitions=1), database("then")
    lab.execute(name, "CREATE TABLE t (id bigint, v text)")
    source = lab.kafka_source(records, "id BIGINT, n INT, gone INT")
    sink = lab.postgres_sink(source, name, "t", select=["id", "cast(n AS STRING) AS v"])
    lab.start(source, sink)
    for count, batch in ((2, rows(1, 2)), (3, rows(3))):
        lab.produce(records, *batch)
        lab.has_rows(name, "t", count)
    lab.finish(source, sink)
    wider = after(source, "id BIGINT, n DECIMAL(12,1)")
    moved = reading(sink, wider)
    lab.start(wider, moved)
    lab.finish(wider, moved)
    assert numbers(compared(lab, moved)) == (0, 0, 0)  # no step has read the new collection yet
    lab.start(wider, moved)
    lab.produce(records, *rows(4, 5))
    lab.has_rows(name, "t", 5)
    lab.finish(wider, moved)
    everything = [(1, "10"), (2, "20"), (3, "30"), (4, "40.0"), (5, "50.0")]
    assert lab.rows(name, "SELECT id, v FROM t ORDER BY id") == everything
    assert numbers(compared(lab, moved)) == (0, 0, 0)
    lab.execute(name, "DELETE FROM t WHERE id IN (2, 4)")
    assert compared(lab, moved).missing == 2
    assert replayed(lab, moved, 7, missing=True) == 2
    assert lab.rows(name, "SELECT id, v FROM t ORDER BY id") == everything
    assert replayed(lab, moved, 8, first=lab.last_step(moved), missing=True) == 0
    with pytest.raises(MzplanError, match="MZ177") as refused:
        replayed(lab, moved, 9, last=0, missing=True)
    assert "came with which step is no longer known" in refused.value.diagnostics[0].detail


def test_steps_before_a_changed_select_and_a_migration_are_refused(
    lab: Lab, topic: Make, database: Make
) -> None:
    records, name = topic("both", partitions=1), database("both")
    lab.execute(name, "CREATE TABLE t (id bigint, v text)")
    source = lab.kafka_source(records, "id BIGINT, n INT")
    sink = lab.postgres_sink(source, name, "t", select=["id", "cast(n AS STRING) AS v"], where="id < 2")
    lab.produce(records, *rows(1, 2))
    lab.start(source, sink)
    lab.has_rows(name, "t", 1)
    lab.finish(sink)
    body = {**sink.body, "select": ["id", "concat(cast(n AS STRING), 'x') AS v"], "where": "id > 0"}
    sink = replace(sink, body=body, digest=f"{sink.digest}changed")
    lab.start(sink)
    lab.produce(records, *rows(3))
    lab.has_rows(name, "t", 2)
    lab.finish(source, sink)
    assert numbers(compared(lab, sink)) == (0, 0, 0)
    wider = after(source, "id BIGINT, n BIGINT")
    moved = reading(sink, wider)
    lab.start(wider, moved)
    lab.produce(records, *rows(4))
    lab.has_rows(name, "t", 3)
    lab.finish(wider, moved)
    assert lab.rows(name, "SELECT id, v FROM t ORDER BY id") == [(1, "10"), (3, "30x"), (4, "40x")]
    with pytest.raises(MzplanError, match="MZ177") as refused:
        compared(lab, moved)
    assert "select or where was changed at step" in refused.value.diagnostics[0].detail
    with pytest.raises(MzplanError, match="MZ177"):
        replayed(lab, moved, 7, missing=True)
    lab.has_rows(name, "t", 3)


def test_fields_of_a_struct_are_matched_by_name(lab: Lab, tmp_path: Path) -> None:
    spark, lake = lab.spark, tmp_path / "lake"
    price = "price STRUCT<net: INT, gross: INT>"
    spark.sql(f"CREATE TABLE delta.`{lake}/orders` (id INT, {price}) USING DELTA")
    spark.sql(f"INSERT INTO delta.`{lake}/orders` VALUES (1, struct(10, 12)), (2, NULL)")
    turned = "price STRUCT<gross: INT, net: INT>"
    for target in ("appended", "merged"):
        spark.sql(f"CREATE TABLE delta.`{lake}/{target}` ({turned}, id INT) USING DELTA")
    disk = {"type": "files", "path": str(lake)}
    swapped = lab.source("delta", disk, path="orders", schema=f"id INT, {turned}")
    assert lab.codes(swapped) == ["MZ230"]
    assert lab.refused(swapped).code == "MZ230"
    source = lab.source("delta", disk, path="orders", schema=f"id INT, {price}")
    select = ["id", "named_struct('net', price.net, 'gross', price.gross) AS price"]
    appended = lab.delta_sink(source, lake, "appended", select=["id", "price"])
    merged = lab.delta_sink(source, lake, "merged", mode="upsert", key=["id"], select=select)
    lab.start(source, appended, merged)
    lab.read_on(source, appended, merged)
    lab.finish(source, appended, merged)
    for sink in (appended, merged):
        found = {row["id"]: row["price"] for row in read_delta(lake / sink.body["path"])}
        assert found[1] == {"net": 10, "gross": 12}, sink.address
        assert numbers(compared(lab, sink)) == (0, 0, 0), sink.address
