"""A new generation of a source that begins with the rows of the former one: `replace: from-collection`. Steps
of a sink from before that, and structs whose fields lie in another order: rows are made as they were written,
or refused with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mzplan.model.state import Predecessor
from mzplan.schema.description import Description
from mzplan.warehouse.step_history import oldest_needed_step
from tests.integration.spark.test_spark_replays import replayed
from tests.integration.spark.test_spark_verify_sinks import compared, numbers
from tests.integration.spark_lab import Lab, read_delta
from tests.support import Make, eventually, refusal


def after(source: Description, schema: str, **body: Any) -> Description:
    """The next generation of a source, of other columns, that begins with its rows."""
    columns: dict[str, Any] = {"schema": schema}
    if "format" in source.body:
        columns = {"format": {**source.body["format"], "schema": schema}}
    return replace(
        source,
        generation=source.generation + 1,
        digest=f"1:{source.generation + 1}",
        body={**source.body, **columns, **body},
        predecessor=Predecessor(
            generation=source.generation, body=source.body, predecessor=source.predecessor
        ),
    )


def reading(sink: Description, source: Description) -> Description:
    """Return the sink that continues with another generation of its source."""
    name, generation = source.address.name, source.generation
    read = replace(sink.reads[name], generation=generation, body=source.body, predecessor=source.predecessor)
    return replace(sink, reads={name: read}, digest=f"{sink.digest}{generation}")


def rows(*ids: int) -> Iterator[Mapping[str, Any]]:
    return ({"id": id_, "n": id_ * 10} for id_ in ids)


def pairs(lab: Lab, source: Description) -> list[tuple[int, int]]:
    """Return the columns `id` and `n` of a collection, sorted."""
    return sorted((row["id"], row["n"]) for row in lab.read(source))


@pytest.mark.nightly
def test_rows_are_cast_and_no_record_is_read_twice(
    lab: Lab, topic: Make, database: Make, tmp_path: Path
) -> None:
    records, name = topic("migrated", partitions=2), database("migrated")
    lab.execute(name, "CREATE TABLE t (id bigint, n text)")
    source = lab.kafka_source(records, "id BIGINT, n INT, gone STRING")
    sink = lab.postgres_sink(source, name, "t", select=["id", "cast(n AS STRING) AS n"])
    idle = lab.postgres_sink(source, name, "t2", select=["id"])
    lab.execute(name, "CREATE TABLE t2 (id bigint)")
    lab.produce(records, *rows(1, 2, 3))
    lab.start(source, sink, idle)
    lab.has_rows(name, "t", 3)
    lab.has_rows(name, "t2", 3)
    lab.finish(idle)
    lab.produce(records, *rows(4, 5))
    lab.has_rows(name, "t", 5)
    lab.finish(source, sink)

    wide = after(source, "id BIGINT, n BIGINT")
    assert lab.codes(wide) == []
    lab.produce(records, *rows(6))
    wide_sink = reading(sink, wide)
    lab.start(wide, wide_sink)
    lab.has_rows(name, "t", 6)
    assert pairs(lab, wide) == [(i, i * 10) for i in range(1, 7)]
    assert all(row["_position"] is not None and "gone" not in row for row in lab.read(wide))
    assert oldest_needed_step(lab.history(idle, wide)) == 1
    lab.finish(wide, wide_sink)
    lab.start(wide, wide_sink)  # as after any restart
    lab.produce(records, *rows(7))
    lab.has_rows(name, "t", 7)
    lab.finish(wide, wide_sink)

    wider = after(wide, "n DECIMAL(20,0), id BIGINT")
    # Two generations behind: it reads the rest of the first, and goes over twice.
    late = reading(idle, wider)
    lab.start(wider, late)
    lab.produce(records, *rows(8))
    lab.has_rows(name, "t2", 8)
    assert sorted(row[0] for row in lab.rows(name, "SELECT id FROM t2")) == list(range(1, 9))
    lab.finish(wider, late)
    (first, *more) = lab.history(wider).read().records
    assert (first.step, first.rows, first.migrated) == (0, 7, 2)
    assert [one.migrated for one in more] == [None] * len(more)
    history = lab.history(late, wider)
    assert sum(one.rows or 0 for one in history.read().records if one.sources is not None) <= 8
    assert oldest_needed_step(history) is None


def test_a_migration_that_would_change_values_is_refused_and_nothing_is_lost(lab: Lab, topic: Make) -> None:
    records = topic("uncast", partitions=1)
    columns = "id BIGINT, n INT, s STRUCT<net: INT, gross: INT>, a ARRAY<DOUBLE>, d DOUBLE"
    source = lab.kafka_source(records, columns, envelope={"type": "upsert", "key": ["id"]})
    values = {"s": {"net": 10, "gross": 12}, "a": [1.5], "d": 0.1}
    lab.produce(records, {"id": 1, "n": 1, **values}, {"id": 2, **values}, {"id": 3, "n": 1, **values})
    lab.start(source)
    eventually("all are there", lambda: lab.count(source) == 3)
    lab.finish(source)
    by_n = {"type": "upsert", "key": ["n"]}
    for schema, body, words in (
        ("id BIGINT, n SMALLINT", {}, "Column n has values of type INT, not SMALLINT"),
        ("id BIGINT, n STRING", {}, "Column n has values of type INT, not STRING"),
        ("id BIGINT, d FLOAT", {}, "Column d has values of type DOUBLE, not FLOAT"),
        ("id BIGINT, s STRUCT<gross: INT, net: INT>", {}, "Column s has values of type STRUCT<net: INT"),
        ("id BIGINT, s STRUCT<net: BIGINT, gross: BIGINT>", {}, "Column s"),
        ("id BIGINT, s STRUCT<net: INT, tax: INT>", {}, "Column s"),
        ("id BIGINT, a ARRAY<INT>", {}, "Column a has values of type ARRAY<DOUBLE>, not ARRAY<INT>"),
        ("n INT", {"envelope": by_n}, "The row at partition 0, offset 1, timestamp"),
        ("n INT", {"envelope": by_n}, "has no value for the key (n)"),
    ):
        wanted = after(source, schema, **body)
        (found,) = [one for one in lab.check(wanted).diagnostics if one.severity == "error"]
        assert found.code == "MZ294" and words in found.detail, (schema, found)
        assert lab.refused(wanted).code == "MZ294"
    # The former generation goes on, and none that was refused has begun.
    lab.start(source)
    lab.produce(records, {"id": 4, "n": 4, **values})
    eventually("it goes on", lambda: lab.count(source) == 4)
    lab.finish(source)
    # The columns are put back: the rows are still those of the first generation.
    back = after(after(source, "n INT", envelope=by_n), columns, envelope={"type": "upsert", "key": ["id"]})
    assert lab.codes(back) == []
    lab.start(back)
    eventually("they are there", lambda: lab.count(back) == 4)
    assert {row["id"]: row["s"] for row in lab.read(back)} == dict.fromkeys(range(1, 5), values["s"])
    lab.finish(back)
    over = lab.refused(source)
    assert over.code == "MZ063" and "Generation 3 has begun with the rows of generation 1" in over.detail


@pytest.mark.nightly
def test_a_source_that_never_ran_begins_with_nothing(lab: Lab, topic: Make) -> None:
    records = topic("never", partitions=1)
    lab.produce(records, *rows(1))
    wide = after(lab.kafka_source(records, "id BIGINT, n INT"), "id BIGINT, n BIGINT")
    for count in (1, 2):  # what is written down is read at each start
        lab.start(wide)
        eventually("they are there", lambda count=count: lab.count(wide) == count)  # type: ignore[misc]
        lab.finish(wide)
        lab.produce(records, *rows(2))


@pytest.mark.nightly
def test_another_key_keeps_the_row_that_was_read_last(lab: Lab, topic: Make, database: Make) -> None:
    records, name = topic("rekeyed", partitions=1), database("rekeyed")  # one order of the records
    lab.execute(name, "CREATE TABLE t (id bigint PRIMARY KEY, n bigint)")
    keyed = {"type": "upsert", "key": ["id"]}
    source = lab.kafka_source(records, "id BIGINT, n INT", envelope=keyed)
    sink = lab.postgres_sink(source, name, "t", mode="upsert", key=["id"])
    lab.produce(records, {"id": 1, "n": 7}, {"id": 2, "n": 7}, {"id": 3, "n": 8}, {"id": 3, "n": 9})
    lab.start(source, sink)
    lab.has_rows(name, "t", 3)
    lab.finish(source, sink)
    wide = after(source, "id BIGINT, n BIGINT")
    wide_sink = reading(sink, wide)
    lab.start(wide, wide_sink)
    lab.produce(records, {"id": 4, "n": 10}, {"id": 1, "n": 11})
    lab.has_rows(name, "t", 4)
    assert lab.rows(name, "SELECT id, n FROM t ORDER BY id") == [(1, 11), (2, 7), (3, 9), (4, 10)]
    lab.finish(wide, wide_sink)
    other = after(wide, "id BIGINT, n BIGINT", envelope={"type": "upsert", "key": ["n"]})
    lab.start(other)
    lab.produce(records, {"id": 5, "n": 7})
    eventually("it goes on", lambda: pairs(lab, other) == [(1, 11), (3, 9), (4, 10), (5, 7)])
    lab.finish(other)


@pytest.mark.nightly
def test_files_that_were_read_are_not_read_again(lab: Lab, tmp_path: Path) -> None:
    folder, target = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    (folder / "one.json").write_text('{"id": 1, "n": 1}\n{"id": 2, "n": 2}\n')
    source = lab.files_source(folder, "id BIGINT, n INT")
    sink = lab.delta_sink(source, tmp_path, "out", select=["id"])
    lab.start(source, sink)
    eventually("both are there", lambda: sorted(r["id"] for r in read_delta(target)) == [1, 2])
    lab.finish(source, sink)
    wider = after(source, "id BIGINT, n BIGINT")
    wider_sink = reading(sink, wider)
    (folder / "two.json").write_text('{"id": 3, "n": 3}\n')
    lab.start(wider, wider_sink)
    eventually("the new one as well", lambda: sorted(r["id"] for r in read_delta(target)) == [1, 2, 3])
    assert pairs(lab, wider) == [(1, 1), (2, 2), (3, 3)]
    lab.finish(wider, wider_sink)


@pytest.mark.nightly
def test_a_followed_delta_table_migrates_to_another_key(lab: Lab, tmp_path: Path) -> None:
    spark, table = lab.spark, f"delta.`{tmp_path}/lake/customers`"
    feed = "USING DELTA TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    spark.sql(f"CREATE TABLE {table} (id BIGINT, n BIGINT) {feed}")
    spark.sql(f"INSERT INTO {table} VALUES (1, 10), (2, 20), (3, 30)")
    lake = {"type": "files", "path": str(tmp_path / "lake")}
    source = lab.source("delta", lake, path="customers", schema="id BIGINT, n BIGINT", key=["id"])

    def holds(of: Description, *rows: tuple[int, int]) -> None:
        eventually(f"there are {rows}", lambda: pairs(lab, of) == list(rows))

    lab.start(source)
    holds(source, (1, 10), (2, 20), (3, 30))
    spark.sql(f"DELETE FROM {table} WHERE id = 2")
    holds(source, (1, 10), (3, 30))
    lab.finish(source)
    spark.sql(f"UPDATE {table} SET n = 31 WHERE id = 3")
    other = after(source, "id BIGINT, n BIGINT", key=["n"])
    assert lab.codes(other) == []
    lab.start(other)
    holds(other, (1, 10), (3, 31))
    eventually("that is one step", lambda: lab.last_step(other) == 1)
    lab.finish(other)


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
    told = refusal(lambda: replayed(lab, moved, 9, last=0, missing=True))
    assert told.code == "MZ177" and "came with which step is no longer known" in told.detail


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
    told = refusal(lambda: compared(lab, moved))
    assert told.code == "MZ177" and "select or where was changed at step" in told.detail
    assert refusal(lambda: replayed(lab, moved, 7, missing=True)).code == "MZ177"
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
