"""Steps of sinks verified: what each kind of target has recorded, against the collection, on real servers."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyarrow import parquet

from mzplan.connectors.api.targets import ComparisonResult
from mzplan.connectors.files.manifest import committed_files
from mzplan.features.steps.verification import VerificationResult, _compare, _with_target
from mzplan.schema.description import Description
from mzplan.spark.verification.content_comparison import ContentComparison
from mzplan.spark.verification.sink_content import Downstream
from tests.integration.spark_lab import Lab
from tests.support import Make, eventually, refusal
from tests.unit.reporters import SilentReporter

ROWS = 12
STRAIGHT = "CREATE TABLE straight (id bigint, customer text, amount numeric(10,2))"
LATEST = "CREATE TABLE latest (customer text PRIMARY KEY, id numeric, extra text DEFAULT 'x')"
UPSERT: dict[str, Any] = {"mode": "upsert", "key": ["customer"]}


def verified(lab: Lab, sink: Description, first: int = 0) -> VerificationResult:
    target = opened(lab, sink)
    try:
        records = lab.history(sink, sink.input).committed(first, None)
        return _compare(sink.address, records, partial(_with_target, target), SilentReporter())
    finally:
        target._spark = None  # it is the lab's
        target.close()


def opened(lab: Lab, sink: Description) -> Downstream:
    target = Downstream.open(lab.verified(sink))
    target._spark = lab.spark
    return target


@pytest.mark.nightly
def test_verify_compares_each_step_with_the_targets_record(
    lab: Lab, topic: Make, database: Make, tmp_path: Path
) -> None:
    output, keyed, shop = topic(), topic(), database()
    lab.execute(shop, STRAIGHT, "CREATE TABLE latest (customer text PRIMARY KEY, id bigint)")
    orders = Filled(lab, topic(partitions=3))
    source = orders.source
    for _ in range(2):
        orders.produce()
    # The sinks begin with a snapshot of several files, one file in a step: the hard case.
    few: dict[str, Any] = {"max_files_per_trigger": 1}
    sinks = {
        "kafka": lab.kafka_sink(source, output, select=["id", "amount * 2 AS twice"], **few),
        "keyed": lab.kafka_sink(source, keyed, **UPSERT),
        "straight": lab.postgres_sink(source, shop, "straight", where="id % 2 = 0", **few),
        "latest": lab.postgres_sink(source, shop, "latest", **UPSERT, select=["customer", "id"]),
        "delta": lab.delta_sink(source, tmp_path, "delta", **few),
        "merged": lab.delta_sink(source, tmp_path, "merged", **UPSERT),
        "files": lab.files_sink(source, tmp_path, "files"),
        "lines": lab.files_sink(source, tmp_path, "lines", format={"type": "json"}, where="id > 3"),
    }
    orders.run(**sinks)
    orders.wait()
    orders.produce()
    orders.stop()
    for kind, sink in sinks.items():
        found = verified(lab, sink)
        assert (found.difference, found.problems, found.unrecorded) == (None, (), ()), kind
        assert len(found.equal_steps) >= 3, kind
        assert bool(found.by_rows) == (kind in ("merged", "lines")), kind
    assert len(verified(lab, sinks["delta"]).equal_steps) > 5  # one file in a step

    # What the target has recorded is not what the collection makes: the first such step is named.
    ours = f"WHERE sink = '{sinks['latest'].id}'"
    lab.execute(shop, f"UPDATE mzplan.steps SET content_hash = '1:{1:016x}' {ours}")
    difference: Any = verified(lab, sinks["latest"], 1).difference
    assert (difference.step, difference.recorded_hash) == (1, f"1:{1:016x}")
    # A hash of a kind that is not known: its rows are counted.
    lab.execute(shop, f"UPDATE mzplan.steps SET content_hash = '9:x' {ours}")
    assert verified(lab, sinks["latest"]).by_rows
    Path(committed_files(tmp_path / "files")[0]).unlink()
    assert [problem.code for problem in verified(lab, sinks["files"]).problems] == ["MZ091"]
    lab.execute(shop, "DELETE FROM mzplan.steps WHERE step = 0")
    assert verified(lab, sinks["straight"]).unrecorded == (0,)
    lab.execute(shop, "DROP SCHEMA mzplan CASCADE")
    assert [problem.code for problem in verified(lab, sinks["straight"]).problems] == ["MZ091"]
    least = lab.kafka_sink(source, output, delivery="at-least-once")
    for other in (lab.sink(source, "console", None), least):
        assert refusal(lambda other=other: opened(lab, other)).code == "MZ177"  # type: ignore[misc]


# ── --content: what the targets hold


def compared(lab: Lab, sink: Description) -> ComparisonResult:
    comparison = ContentComparison(lab.verified(sink), lab.spark)
    try:
        return comparison.compare()
    finally:
        comparison.leave()


def numbers(found: ComparisonResult) -> tuple[int, int, int]:
    return found.missing, found.doubled, found.more


class Filled:
    """A source of ORDERS from Kafka, and sinks of it."""

    def __init__(self, lab: Lab, topic: str):
        self.lab, self.topic = lab, topic
        self.source = lab.kafka_source(topic)
        self.sinks: dict[str, Description] = {}
        self.produced = 0
        lab.start(self.source)
        self.produce()

    def produce(self) -> None:
        ids = range(self.produced, self.produced + ROWS)
        self.lab.produce(self.topic, *({"id": i, "customer": f"c{i % 5}", "amount": "1.50"} for i in ids))
        self.produced += ROWS
        eventually("the rows are there", lambda: self.lab.count(self.source) == self.produced)

    def run(self, **sinks: Description) -> None:
        """Start them, and let them read two rounds of rows."""
        self.sinks = sinks
        self.lab.start(*sinks.values())
        self.wait()
        self.produce()

    def wait(self) -> None:
        """Until the sinks have read all that there is."""
        self.lab.read_on(self.source, *self.sinks.values())

    def require_equal(self) -> None:
        for kind, sink in self.sinks.items():
            found = compared(self.lab, sink)
            assert (numbers(found), found.first) == ((0, 0, 0), 0), (kind, found)
            assert found.expected_rows == found.target_rows > 0 and found.not_compared == (), (kind, found)

    def stop(self) -> None:
        self.wait()
        self.lab.finish(self.source, *self.sinks.values())


@pytest.mark.nightly
def test_the_content_of_tables(lab: Lab, topic: Make, database: Make, tmp_path: Path) -> None:
    shop = database()
    lab.execute(shop, STRAIGHT, LATEST)
    orders = Filled(lab, topic(partitions=2))
    source, few = orders.source, {"compaction": {"min_files": 2}}
    upsert = {**UPSERT, "select": ["customer", "id"]}
    orders.run(
        straight=lab.postgres_sink(source, shop, "straight", where="id % 2 = 0", max_files_per_trigger=1),
        latest=lab.postgres_sink(source, shop, "latest", **upsert),
        delta=lab.delta_sink(source, tmp_path, "delta", select=["id", "amount * 2 AS twice"], **few),
        merged=lab.delta_sink(source, tmp_path, "merged", **upsert, **few),
    )
    orders.require_equal()  # however far each of them has come by now
    # While they run, their files are merged; they go on, and all that was recorded holds.
    orders.wait()
    assert "merged into" in str(lab.executor.compact(orders.sinks["delta"], lab.secrets))
    lab.executor.compact(orders.sinks["merged"], lab.secrets)
    orders.produce()
    orders.stop()
    orders.require_equal()
    for kind in ("delta", "merged"):
        steps = verified(lab, orders.sinks[kind])
        assert (steps.difference, steps.problems, steps.unrecorded) == (None, (), ()), kind

    # Each step as the sink was when it began.
    straight = orders.sinks["straight"]
    now = {"where": "id % 2 = 1", "select": ["customer", "id + 1000 AS id"]}
    changed = replace(straight, digest="1:b", body={**straight.body, **now})
    lab.start(source, changed)
    orders.produce()
    lab.has_rows(shop, "straight", 18 + 6)
    lab.finish(source, changed)
    found = compared(lab, changed)
    assert (numbers(found), found.expected_rows) == ((0, 0, 0), 24), found

    lab.execute(
        shop,
        "DELETE FROM straight WHERE id = 2",
        "INSERT INTO straight SELECT * FROM straight WHERE id = 4",
        "UPDATE straight SET id = 7 WHERE id = 6",
        "INSERT INTO straight VALUES (-1, 'theirs')",
        "DELETE FROM latest WHERE customer = 'c1'",
        "UPDATE latest SET id = 0 WHERE customer = 'c2'",
    )
    found = compared(lab, changed)
    assert numbers(found) == (2, 1, 2) and not found.is_equal(shared=True), found
    assert all(one.startswith("_position {") and '"offset":' in one for one in found.examples["missing"])
    assert all(one.startswith("(") for one in found.examples["more"] + found.examples["doubled"])
    found = compared(lab, orders.sinks["latest"])
    assert numbers(found) == (2, 0, 1), found
    assert found.examples["more"] == ('{"customer":"c2"}',)

    spark = lab.spark
    for kind, key, value in (("delta", "id = {}", "twice"), ("merged", "customer = 'c{}'", "id")):
        table = f"delta.`{tmp_path / kind}`"
        spark.sql(f"DELETE FROM {table} WHERE {key.format(1)}")
        spark.sql(f"INSERT INTO {table} SELECT * FROM {table} WHERE {key.format(2)}")
        spark.sql(f"UPDATE {table} SET {value} = -1 WHERE {key.format(3)}")
        found = compared(lab, orders.sinks[kind])
        assert numbers(found) == (2, 1, 1), (kind, found)


@pytest.mark.nightly
def test_the_content_of_files(lab: Lab, topic: Make, tmp_path: Path) -> None:
    orders = Filled(lab, topic())
    folder = tmp_path / "pattern [1]"
    folder.mkdir()
    source = orders.source
    at = "timestamp_micros(1700000000123456 + id) AS at"
    some = ["id", "nullif(id, 3) AS n", at]
    quoted = "concat(customer, '\"', char(10), '\",') AS text"

    def sink(path: str, **body: Any) -> Description:
        return lab.files_sink(source, folder, path, **body)

    orders.run(
        parquet=sink("parquet", where="id >= 0", select=["*", at]),
        json=sink("json", format={"type": "json"}, select=some),
        csv=sink("csv", format={"type": "csv"}, select=[*some, quoted]),
        divided=sink("divided", partition_by=["customer"]),
    )
    orders.require_equal()
    orders.stop()
    orders.require_equal()
    del orders.sinks["divided"]
    for kind, each in orders.sinks.items():
        file = next(Path(one) for one in committed_files(folder / kind) if Path(one).stat().st_size > 0)
        (file.parent / f".{file.name}.crc").unlink()
        damage(file, kind)
        found = compared(lab, each)
        assert numbers(found) == (2, 1, 1), (kind, found)
        assert found.examples["more"] == (file.name,)
        file.unlink()
        found = compared(lab, each)
        assert found.missing >= 3 and numbers(found)[1:] == (0, 0)
        assert found.not_compared and str(file) in found.not_compared[0]


def damage(file: Path, kind: str) -> None:
    """Of the first three rows of a file, one is gone, one twice, and one changed."""
    if kind == "parquet":
        table = parquet.read_table(file, coerce_int96_timestamp_unit="us")
        second, third = table.slice(1, 1), table.slice(2, 1).set_column(0, "id", pa.array([-1], pa.int64()))
        parquet.write_table(pa.concat_tables([second, second, third, table.slice(3)]), file)
    elif kind == "csv":
        rows = list(csv.reader(io.StringIO(file.read_text(), newline="")))
        rows = [rows[0], rows[2], rows[2], ["-1", *rows[3][1:]], *rows[4:]]
        with file.open("w", newline="") as out:
            csv.writer(out, lineterminator="\n").writerows(rows)
    else:
        lines = file.read_text().splitlines()
        lines = [lines[1], lines[1], lines[2].replace('"id":', '"id":-', 1), *lines[3:]]
        file.write_text("\n".join(lines) + "\n")


@pytest.mark.nightly
def test_the_content_of_topics(lab: Lab, topic: Make) -> None:
    orders = Filled(lab, topic(partitions=2))
    source = orders.source
    names = {"added": topic(partitions=2), "keyed": topic(partitions=2), "least": topic()}
    added = lab.kafka_sink(source, names["added"], select=["id", "amount * 2 AS twice"])
    keyed = lab.kafka_sink(source, names["keyed"], **UPSERT)
    least = lab.kafka_sink(source, names["least"], delivery="at-least-once")
    orders.run(added=added, keyed=keyed, least=least)
    orders.require_equal()
    orders.stop()
    orders.require_equal()

    send = partial(produce_record, lab)
    send(names["added"], '{"id":3,"twice":3.00}')
    send(names["added"], '{"id":4,"twice":-1.00}')
    found = compared(lab, added)
    assert numbers(found) == (0, 1, 1), found
    assert found.examples["more"][0].startswith("partition ")
    send(names["least"], '{"id":3,"customer":"c3","amount":1.50}')
    found = compared(lab, least)
    assert (found.doubled, found.is_equal(shared=False)) == (1, True), found
    send(names["keyed"], None, "c1")
    send(names["keyed"], "{}", "c2")
    found = compared(lab, keyed)
    assert numbers(found) == (2, 0, 1), found
    assert found.examples["missing"] in (('{"key":"c1"}', '{"key":"c2"}'), ('{"key":"c2"}', '{"key":"c1"}'))

    # Of what the topic has given up, only the steps that are there whole are compared.
    lab.start(source, added)
    orders.sinks = {"added": added}
    orders.produce()
    orders.stop()
    whole = compared(lab, added)

    def delete_records(offset: int) -> ComparisonResult:
        """Delete the records of both partitions before an offset, and compare."""
        admin = AdminClient({"bootstrap.servers": lab.kafka.bootstrap})
        ends = [TopicPartition(names["added"], partition, offset) for partition in range(2)]
        for future in admin.delete_records(ends).values():
            future.result()
        return compared(lab, added)

    found = delete_records(3)
    assert found.first is not None and 0 < found.first <= found.last, found
    assert (found.missing, found.target_rows) == (0, whole.target_rows - 6), found
    found = delete_records(-1)
    assert (found.first, numbers(found), found.target_rows) == (None, (0, 0, 0), 0), found


def produce_record(lab: Lab, name: str, value: str | None, key: str | None = None) -> None:
    lab.send(name, value and value.encode(), key=key, partition=-1)  # -1: Kafka chooses the partition by key


# Of each column: the type in PostgreSQL, the type in Spark, a value as JSON, and another one in SQL.
FORMS: dict[str, tuple[str, str, Any, str]] = {
    "uid": ("uuid", "STRING", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "gen_random_uuid()"),
    "flat": ("numeric(12,4)", "DECIMAL(10,2)", "1.50", "1.5001"),
    "whole": ("numeric", "BIGINT", 120, "120.1"),
    "doc": ("jsonb", "STRUCT<b: INT, a: STRING>", {"b": 1, "a": "x"}, '\'{"a": "x", "b": 1.5}\''),
    "word": ("json", "STRING", '{"z": 1, "a": 2}', ""),
    "at": ("timestamp", "TIMESTAMP", "2024-01-02T03:04:05.678901Z", "at + interval '1 microsecond'"),
    "zoned": ("timestamptz", "TIMESTAMP", "2024-07-02T03:04:05Z", ""),
    "part": ("char(5)", "STRING", "ab", ""),
    "tags": ("text[]", "ARRAY<STRING>", ["a,b", '"', None], "'{a}'"),
    "sums": ("numeric[]", "ARRAY<DECIMAL(10,2)>", ["1.10", "0.00"], ""),
    "raw": ("bytea", "BINARY", "AP8=", ""),
    "ratio": ("float8", "DOUBLE", 0.1, "0.1000001"),
    "short": ("float4", "FLOAT", 0.1, ""),
    "day": ("date", "DATE", "2024-02-29", ""),
    "sure": ("boolean", "BOOLEAN", True, ""),
    "place": ("inet", "STRING", "10.0.0.1/32", ""),
}


@pytest.mark.nightly
def test_values_that_postgres_normalizes_are_equal(lab: Lab, topic: Make, database: Make) -> None:
    shop, name = database(), topic()
    columns = ", ".join(f"{column} {form[0]}" for column, form in FORMS.items())
    lab.execute(shop, f"CREATE TABLE forms ({columns})")
    source = lab.kafka_source(name, ", ".join(f"{column} {form[1]}" for column, form in FORMS.items()))
    sink = lab.postgres_sink(source, shop, "forms")
    lab.start(source, sink)
    lab.produce(name, {column: form[2] for column, form in FORMS.items()}, {"uid": None})
    lab.has_rows(shop, "forms", 2)
    lab.finish(source, sink)
    found = compared(lab, sink)
    assert (numbers(found), found.expected_rows) == ((0, 0, 0), 2), found
    assert found.not_compared == ("columns of these types: place (inet)",)
    lab.execute(shop, "CREATE TABLE kept AS SELECT * FROM forms")
    for column, other in ((column, form[3]) for column, form in FORMS.items() if form[3]):
        lab.execute(shop, f"UPDATE forms SET {column} = {other} WHERE sure")
        assert numbers(compared(lab, sink)) == (1, 0, 1), column
        lab.execute(shop, "DELETE FROM forms", "INSERT INTO forms SELECT * FROM kept")
