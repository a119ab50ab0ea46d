"""The kafka and files sinks: what arrives, in which order, and after a crash before the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import csv, parquet
from pyarrow import json as json_lines

from mzplan.connectors.files.manifest import committed_files
from tests.integration.committed import committed
from tests.integration.spark_lab import Lab
from tests.support import Make, eventually

READERS: dict[str, Callable[[str], Any]] = {
    "json": json_lines.read_json,
    "csv": csv.read_csv,
    "parquet": parquet.read_table,
}


def test_a_topic_gets_every_row_and_of_each_key_the_latest(lab: Lab, topic: Make) -> None:
    """Exactly once, or by Spark's own writer at least once: each row goes to the same partition."""
    name, latest = topic(partitions=1), topic(partitions=1)
    every, again = topic(partitions=5), topic(partitions=5)
    source = lab.kafka_source(name, "id BIGINT, customer STRING, n BIGINT, at TIMESTAMP")
    append: dict[str, Any] = {"key": ["customer"], "where": "id < 100"}
    once = lab.kafka_sink(source, every, **append)
    least = lab.kafka_sink(source, again, **append, delivery="at-least-once")
    upsert = lab.kafka_sink(source, latest, mode="upsert", key=["id", "k"], select=["*", "id % 2 AS k"])
    at = "2024-05-06T07:08:09.123456Z"
    rows = [{"id": n % 2, "customer": f"c{n % 7}", "n": n, "at": at} for n in range(70)]
    lab.produce(name, *rows, {"id": 100})
    assert [lab.codes(sink) for sink in (once, upsert)] == [[], []]
    lab.start(source)
    eventually("the rows are there", lambda: lab.count(source) == 71)
    lab.start(once, least, upsert)

    def sent(to: str) -> list[tuple[int, str | None, Any]]:
        return committed(lab.kafka.bootstrap, to)

    lab.finish(once, least, upsert, source)
    places = []
    for records in (sent(every), sent(again)):
        assert len(records) == 70
        of_key = {f"c{k}": [value for _, key, value in records if key == f"c{k}"] for k in range(7)}
        assert of_key == {f"c{k}": rows[k::7] for k in range(7)}  # in their order
        places.append({(key, partition) for partition, key, _ in records})
    assert places[0] == places[1] and len({partition for _, partition in places[0]}) > 1
    assert sorted(((key, value) for _, key, value in sent(latest)), key=str) == [
        ('{"id":0,"k":0}', {**rows[68], "k": 0}),
        ('{"id":1,"k":1}', {**rows[69], "k": 1}),
        ('{"id":100,"k":0}', {"id": 100, "customer": None, "n": None, "at": None, "k": 0}),
    ]
    # A step whose end Spark did not note down is written again.
    lab.undo_commit(least)
    lab.start(least)
    eventually("they are there again", lambda: len(sent(again)) == 140)


@pytest.mark.parametrize(
    "format_", ["json", *(pytest.param(form, marks=pytest.mark.nightly) for form in ("csv", "parquet"))]
)
def test_files_are_written_once(lab: Lab, topic: Make, tmp_path: Path, format_: str) -> None:
    name = topic(partitions=1)
    source = lab.kafka_source(name)
    out = tmp_path / "out"
    sink = lab.files_sink(source, tmp_path, "out", format={"type": format_}, select=["id", "customer"])
    assert lab.check(sink).ok
    lab.produce(name, *({"id": i, "customer": f"c{i}"} for i in range(20)))
    lab.start(source, sink)

    def ids() -> list[int]:
        """What readers of the list of files see."""
        if not (out / "_spark_metadata").exists():
            return []
        files = [file for file in committed_files(out) if Path(file).stat().st_size]
        return sorted(id_ for file in files for id_ in READERS[format_](file).column("id").to_pylist())

    eventually("twenty rows", lambda: len(ids()) == 20)
    lab.finish(sink)
    lab.undo_commit(sink)
    lab.start(sink)
    lab.produce(name, {"id": 20})
    eventually("one more", lambda: ids() == list(range(21)))
    lab.stop(sink)
    # A reader that follows the list sees each row once, and so does Spark: a killed attempt left this file.
    (out / f"part-left.{format_}").write_text("9")
    assert ids() == list(range(21))
    reader = lab.spark.read.format(format_).schema("id BIGINT, customer STRING")
    assert reader.option("header", "true").load(str(out)).count() == 21

    # Another type for a column: readers refuse a folder of Parquet with both, others don't know types.
    retyped = lab.changed(sink, select=["CAST(id AS STRING) AS id", "customer"])
    assert lab.codes(retyped) == (["MZ053"] if format_ == "parquet" else [])
    assert lab.codes(replace(lab.changed(retyped, on_replace="truncate"), generation=2)) == []

    # A query that begins anew does not go on in a folder of another one.
    other = lab.files_sink(source, tmp_path, "out", format={"type": format_})
    assert lab.refused(other).code == "MZ057"
    emptied = replace(lab.changed(sink, on_replace="truncate"), generation=2)
    (out / "mine.txt").write_text("not of the sink")
    lab.start(emptied)
    eventually("all rows again", lambda: lab.last_step(emptied) >= 0 and ids() == list(range(21)))
    lab.stop(source, emptied)
    assert (out / "mine.txt").exists()


def test_csv_files_hold_simple_values(lab: Lab, tmp_path: Path) -> None:
    source = lab.kafka_source("orders", "id BIGINT, tags ARRAY<STRING>")
    csv_sink: dict[str, Any] = {"format": {"type": "csv"}}
    lab.finds(lab.files_sink(source, tmp_path, "x", **csv_sink), "MZ053", "tags (ARRAY<STRING>)")
    # Spark would write no line at all for a row whose only column is NULL.
    single = lab.files_sink(source, tmp_path, "x", **csv_sink, select=["id"])
    lab.finds(single, "MZ053", "id is the only column of a line, and may be NULL")
    assert lab.codes(lab.changed(single, where="id IS NOT NULL")) == []
    assert lab.codes(lab.changed(single, select=["id", "1 AS one"])) == []


def test_json_has_no_keys_of_bytes(lab: Lab, topic: Make, database: Make, tmp_path: Path) -> None:
    source = lab.kafka_source("orders", "id BIGINT, m MAP<BINARY,INT>")
    shop, reason = database(), "m (MAP<BINARY,INT>): a key in JSON is text"
    lab.execute(shop, "CREATE TABLE orders (id bigint, m jsonb)")
    for sink in (
        lab.files_sink(source, tmp_path, "x", format={"type": "json"}),
        lab.kafka_sink(source, topic(partitions=1)),
        lab.postgres_sink(source, shop, "orders"),
    ):
        lab.finds(sink, "MZ053", reason)
        converted = lab.changed(sink, select=["id", "transform_keys(m, (k, v) -> hex(k)) AS m"])
        assert lab.codes(converted) == []
    assert lab.codes(lab.files_sink(source, tmp_path, "x", format={"type": "parquet"})) == []


def test_a_compacted_topic_takes_no_null_key(lab: Lab, topic: Make) -> None:
    compacted = topic(partitions=1, config={"cleanup.policy": "compact,delete"})
    plain = topic(partitions=1)
    source = lab.kafka_source("orders", "id BIGINT NOT NULL, customer STRING")
    not_null = {"key": ["customer"], "where": "customer IS NOT NULL"}
    accepted = [not_null, {"key": ["id"]}, {"key": ["id", "customer"]}]
    refused = [{}, {"key": ["customer"]}]
    for body in accepted + refused:
        codes = ["MZ055"] if body in refused else []
        assert lab.codes(lab.kafka_sink(source, compacted, **body)) == codes, body
        assert lab.codes(lab.kafka_sink(source, plain, **body)) == [], body
