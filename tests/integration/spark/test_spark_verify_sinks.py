"""Steps of sinks verified: what each kind of target has recorded, against the collection, on real servers."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyarrow import parquet

from mzplan.connectors.api.targets import ComparisonResult
from mzplan.connectors.files.manifest import committed_files
from mzplan.features.steps.verification import VerificationResult, _compare, _with_target
from mzplan.model.diagnostics import MzplanError
from mzplan.schema.description import Description
from mzplan.spark.verification.content_comparison import ContentComparison
from mzplan.spark.verification.sink import Downstream
from mzplan.warehouse.paths import absolute
from mzplan.warehouse.step_history import StepHistory
from tests.integration.spark_lab import until
from tests.unit.reporters import SilentReporter

if TYPE_CHECKING:
    from tests.integration.spark_lab import Lab

Make = Callable[..., str]
ROWS = 12


def verified(lab: Lab, sink: Description, first: int = 0) -> VerificationResult:
    target = opened(lab, sink)
    assert sink.input is not None
    source = sink.input.place
    history = StepHistory(str(lab.folder / "warehouse"), (sink.id, sink.generation), source)
    try:
        records = history.committed(first, None)
        return _compare(sink.address, records, partial(_with_target, target), SilentReporter())
    finally:
        target._spark = None  # it is the lab's
        target.close()


def opened(lab: Lab, sink: Description) -> Downstream:
    warehouse = absolute(str(lab.folder), str(lab.folder / "warehouse"))
    target = Downstream.open(sink, lab.secrets, str(lab.folder), warehouse)
    target._spark = lab.executor._spark
    return target


@pytest.mark.nightly
def test_every_sink_is_as_its_target_has_recorded_it(
    lab: Lab, topic: Make, database: Make, tmp_path: Path
) -> None:
    name, output, keyed, shop = topic(partitions=3), topic(), topic(), database()
    lab.execute(
        shop,
        "CREATE TABLE straight (id bigint, customer text, amount numeric(10,2))",
        "CREATE TABLE latest (customer text PRIMARY KEY, id bigint)",
    )
    source = lab.kafka_source(name)
    produced = 0

    def produce() -> None:
        nonlocal produced
        rows = range(produced, produced + ROWS)
        lab.produce(name, *({"id": i, "customer": f"c{i % 5}", "amount": "1.50"} for i in rows))
        produced += ROWS
        until("the rows are there", lambda: lab.count(source) == produced)

    lab.start(source)
    for _ in range(3):
        produce()
    # The sinks begin with a snapshot of several files, one file in a step: the hard case.
    few: dict[str, Any] = {"max_files_per_trigger": 1}
    broker = {"type": "kafka", "brokers": [lab.kafka.bootstrap]}
    disk = {"type": "files", "path": str(tmp_path)}
    sinks = {
        "kafka": lab.sink(source, "kafka", broker, topic=output, select=["id", "amount * 2 AS twice"], **few),
        "keyed": lab.sink(source, "kafka", broker, topic=keyed, mode="upsert", key=["customer"]),
        "straight": lab.postgres_sink(source, shop, "straight", where="id % 2 = 0", **few),
        "latest": lab.postgres_sink(
            source, shop, "latest", mode="upsert", key=["customer"], select=["customer", "id"]
        ),
        "delta": lab.sink(source, "delta", disk, path="delta", **few),
        "merged": lab.sink(source, "delta", disk, path="merged", mode="upsert", key=["customer"]),
        "files": lab.sink(source, "files", disk, path="files"),
        "lines": lab.sink(source, "files", disk, path="lines", format={"type": "json"}, where="id > 3"),
    }
    lab.start(*sinks.values())
    histories = {
        kind: StepHistory(str(lab.folder / "warehouse"), (sink.id, 1), (source.id, 1))
        for kind, sink in sinks.items()
    }

    def has_read_all() -> bool:
        if not lab.checkpoint_done(source):
            return False
        newest = lab.last_step(source)
        ends = [history.committed(0, None)[-1:] for history in histories.values()]
        return all(end and end[0].sources and end[0].sources[1] == newest for end in ends)

    until("they have read the snapshot", has_read_all, 120)
    for _ in range(2):
        produce()
        until("they have read on", has_read_all, 120)
    lab.stop(source, *sinks.values())

    for kind, sink in sinks.items():
        found = verified(lab, sink)
        assert (found.difference, found.problems, found.unrecorded) == (None, (), ()), kind
        assert len(found.equal_steps) >= 3, kind
        counted = kind in ("merged", "lines")
        assert bool(found.by_rows) == counted, kind
    assert len(verified(lab, sinks["delta"]).equal_steps) > 5  # one file in a step

    # What the target has recorded is not what the collection makes: the first such step is named.
    ours = f"WHERE sink = '{sinks['latest'].id}'"
    lab.execute(shop, f"UPDATE mzplan.steps SET content_hash = '1:{1:016x}' {ours}")
    difference = verified(lab, sinks["latest"], 1).difference
    assert difference is not None
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
    for type_, connection, body in (
        ("console", None, {}),
        ("kafka", broker, {"topic": output, "delivery": "at-least-once"}),
    ):
        with pytest.raises(MzplanError) as refused:
            opened(lab, lab.sink(source, type_, connection, **body))
        assert refused.value.diagnostics[0].code == "MZ177"


# ── --content: what the targets hold


def compared(lab: Lab, sink: Description) -> ComparisonResult:
    warehouse = absolute(str(lab.folder), str(lab.folder / "warehouse"))
    assert lab.executor._spark is not None
    comparison = ContentComparison(sink, lab.secrets, str(lab.folder), warehouse, lab.executor._spark)
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
        until("the rows are there", lambda: self.lab.count(self.source) == self.produced)

    def run(self, **sinks: Description) -> None:
        """Start them, and let them read two rounds of rows."""
        self.sinks = sinks
        self.lab.start(*sinks.values())
        self.wait()
        self.produce()

    def wait(self) -> None:
        """Until the sinks have read all that there is."""
        place = self.source.id, self.source.generation

        def have_read() -> bool:
            if not self.lab.checkpoint_done(self.source):  # first: rows are there before their step is done
                return False
            newest = self.lab.last_step(self.source)
            for sink in self.sinks.values():
                history = StepHistory(str(self.lab.folder / "warehouse"), (sink.id, 1), place)
                ends = history.committed(0, None)[-1:]
                if not (ends and ends[0].sources and ends[0].sources[1] == newest):
                    return False
            return True

        until("the sinks have read all", have_read, 120)

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
    shop, disk = database(), {"type": "files", "path": str(tmp_path)}
    lab.execute(
        shop,
        "CREATE TABLE straight (id bigint, customer text, amount numeric(10,2))",
        "CREATE TABLE latest (customer text PRIMARY KEY, id numeric, extra text DEFAULT 'x')",
    )
    orders = Filled(lab, topic(partitions=2))
    source, few = orders.source, {"compaction": {"min_files": 2}}
    upsert = {"mode": "upsert", "key": ["customer"], "select": ["customer", "id"]}
    orders.run(
        straight=lab.postgres_sink(source, shop, "straight", where="id % 2 = 0", max_files_per_trigger=1),
        latest=lab.postgres_sink(source, shop, "latest", **upsert),
        delta=lab.sink(source, "delta", disk, path="delta", select=["id", "amount * 2 AS twice"], **few),
        merged=lab.sink(source, "delta", disk, path="merged", **upsert, **few),
    )
    orders.require_equal()  # however far each of them has come by now
    # While they run, their files are merged; they go on, and all that was recorded holds.
    orders.wait()
    assert "merged into" in str(lab.executor.compact(orders.sinks["delta"], lab.secrets))
    lab.executor.compact(orders.sinks["merged"], lab.secrets)
    orders.produce()
    orders.stop()
    orders.require_equal()
    found = [verified(lab, orders.sinks[kind]) for kind in ("delta", "merged")]
    assert all((one.difference, one.problems, one.unrecorded) == (None, (), ()) for one in found)

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

    spark = lab.executor._spark
    assert spark is not None
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
    source, disk = orders.source, {"type": "files", "path": str(folder)}
    at = "timestamp_micros(1700000000123456 + id) AS at"
    orders.run(
        parquet=lab.sink(source, "files", disk, path="parquet", where="id >= 0", select=["*", at]),
        json=lab.sink(
            source,
            "files",
            disk,
            path="json",
            format={"type": "json"},
            select=["id", "nullif(id, 3) AS n", at],
        ),
        csv=lab.sink(
            source,
            "files",
            disk,
            path="csv",
            format={"type": "csv"},
            select=["id", "nullif(id, 3) AS n", "concat(customer, '\"', char(10), '\",') AS text", at],
        ),
        divided=lab.sink(source, "files", disk, path="divided", partition_by=["customer"]),
    )
    orders.require_equal()
    orders.stop()
    orders.require_equal()
    del orders.sinks["divided"]
    for kind, sink in orders.sinks.items():
        file = next(Path(one) for one in committed_files(folder / kind) if Path(one).stat().st_size > 0)
        (file.parent / f".{file.name}.crc").unlink()
        damage(file, kind)
        found = compared(lab, sink)
        assert numbers(found) == (2, 1, 1), (kind, found)
        assert found.examples["more"] == (file.name,)
        file.unlink()
        found = compared(lab, sink)
        assert found.missing >= 3 and numbers(found)[1:] == (0, 0)
        assert found.not_compared and str(file) in found.not_compared[0]


def damage(file: Path, kind: str) -> None:
    """Of the first three rows of a file, one is gone, one twice, and one changed."""
    if kind == "parquet":
        table = parquet.read_table(file, coerce_int96_timestamp_unit="us")
        third = table.slice(2, 1).set_column(0, "id", pa.array([-1], pa.int64()))
        parquet.write_table(
            pa.concat_tables([table.slice(1, 1), table.slice(1, 1), third, table.slice(3)]), file
        )
        return
    if kind == "csv":
        rows = list(csv.reader(io.StringIO(file.read_text(), newline=""), escapechar="\\", doublequote=False))
        rows = [rows[0], rows[2], rows[2], ["-1", *rows[3][1:]], *rows[4:]]
        with file.open("w", newline="") as out:
            csv.writer(out, escapechar="\\", doublequote=False, lineterminator="\n").writerows(rows)
        return
    lines = file.read_text().splitlines()
    lines = [lines[1], lines[1], lines[2].replace('"id":', '"id":-', 1), *lines[3:]]
    file.write_text("\n".join(lines) + "\n")


@pytest.mark.nightly
def test_the_content_of_topics(lab: Lab, topic: Make) -> None:
    orders = Filled(lab, topic(partitions=2))
    source, broker = orders.source, {"type": "kafka", "brokers": [lab.kafka.bootstrap]}
    names = {"added": topic(partitions=2), "keyed": topic(partitions=2), "least": topic()}
    added = lab.sink(source, "kafka", broker, topic=names["added"], select=["id", "amount * 2 AS twice"])
    keyed = lab.sink(source, "kafka", broker, topic=names["keyed"], mode="upsert", key=["customer"])
    least = lab.sink(source, "kafka", broker, topic=names["least"], delivery="at-least-once")
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
    admin = AdminClient({"bootstrap.servers": lab.kafka.bootstrap})
    for future in admin.delete_records([TopicPartition(names["added"], p, 3) for p in range(2)]).values():
        future.result()
    found = compared(lab, added)
    assert found.first is not None and 0 < found.first <= found.last, found
    assert (found.missing, found.target_rows) == (0, whole.target_rows - 6), found
    for future in admin.delete_records([TopicPartition(names["added"], p, -1) for p in range(2)]).values():
        future.result()
    found = compared(lab, added)
    assert (found.first, numbers(found), found.target_rows) == (None, (0, 0, 0), 0), found


def produce_record(lab: Lab, name: str, value: str | None, key: str | None = None) -> None:
    producer = Producer({"bootstrap.servers": lab.kafka.bootstrap})
    producer.produce(name, value, key)
    assert producer.flush(30) == 0


@pytest.mark.nightly
def test_the_content_of_a_keyed_collection(lab: Lab, topic: Make, database: Make) -> None:
    shop, name = database(), topic()
    lab.execute(shop, "CREATE TABLE kept (id bigint PRIMARY KEY, customer text)")
    source = lab.kafka_source(name, envelope={"type": "upsert", "key": ["id"]})
    body = {"mode": "upsert", "key": ["id"], "select": ["id", "customer"], "where": "customer <> 'no'"}
    sink = lab.postgres_sink(source, shop, "kept", **body)
    for key, customer in (("1", "a"), ("2", "b"), ("3", "c")):
        produce_record(lab, name, f'{{"id":{key},"customer":"{customer}"}}', key)
    lab.start(source, sink)
    lab.has_rows(shop, "kept", 3)
    produce_record(lab, name, None, "1")
    produce_record(lab, name, '{"id":2,"customer":"no"}', "2")
    produce_record(lab, name, '{"id":4,"customer":"d"}', "4")
    of_both = "SELECT array_agg(id ORDER BY id) FROM kept"
    until("the changes are there", lambda: lab.rows(shop, of_both) == [([3, 4],)])
    lab.finish(source, sink)
    found = compared(lab, sink)
    assert (numbers(found), found.expected_rows) == ((0, 0, 0), 2), found
    lab.execute(shop, "DELETE FROM kept WHERE id = 3", "INSERT INTO kept VALUES (1, 'a')")
    found = compared(lab, sink)
    assert numbers(found) == (1, 0, 1), found
    assert (found.examples["missing"], found.examples["more"]) == (('{"id":"3"}',), ('{"id":"1"}',))


def test_what_can_not_be_compared_says_so(lab: Lab, topic: Make) -> None:
    source = lab.kafka_source(topic())
    with pytest.raises(MzplanError) as refused:
        compared(lab, lab.sink(source, "console", None))
    assert refused.value.diagnostics[0].code == "MZ177"
    assert "type console" in refused.value.diagnostics[0].detail


@pytest.mark.nightly
def test_values_that_postgres_keeps_in_a_form_of_its_own(lab: Lab, topic: Make, database: Make) -> None:
    shop, name = database(), topic()
    lab.execute(
        shop,
        "CREATE TABLE forms (uid uuid, flat numeric(12,4), whole numeric, doc jsonb, word json, "
        "at timestamp, zoned timestamptz, part char(5), tags text[], sums numeric[], raw bytea, "
        "ratio float8, short float4, day date, sure boolean, place inet)",
    )
    schema = (
        "uid STRING, flat DECIMAL(10,2), whole BIGINT, doc STRUCT<b: INT, a: STRING>, word STRING, "
        "at TIMESTAMP, zoned TIMESTAMP, part STRING, tags ARRAY<STRING>, sums ARRAY<DECIMAL(10,2)>, "
        "raw BINARY, ratio DOUBLE, short FLOAT, day DATE, sure BOOLEAN, place STRING"
    )
    source = lab.kafka_source(name, schema)
    sink = lab.postgres_sink(source, shop, "forms")
    lab.start(source, sink)
    lab.produce(
        name,
        {
            "uid": "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
            "flat": "1.50",
            "whole": 120,
            "doc": {"b": 1, "a": "x"},
            "word": '{"z": 1, "a": 2}',
            "at": "2024-01-02T03:04:05.678901Z",
            "zoned": "2024-07-02T03:04:05Z",
            "part": "ab",
            "tags": ["a,b", '"', None],
            "sums": ["1.10", "0.00"],
            "raw": "AP8=",
            "ratio": 0.1,
            "short": 0.1,
            "day": "2024-02-29",
            "sure": True,
            "place": "10.0.0.1/32",
        },
        {"uid": None},
    )
    lab.has_rows(shop, "forms", 2)
    lab.finish(source, sink)
    found = compared(lab, sink)
    assert (numbers(found), found.expected_rows) == ((0, 0, 0), 2), found
    assert found.not_compared == ("columns of these types: place (inet)",)
    for column, value in (
        ("uid", "gen_random_uuid()"),
        ("flat", "1.5001"),
        ("whole", "120.1"),
        ("doc", '\'{"a": "x", "b": 1.5}\''),
        ("at", "at + interval '1 microsecond'"),
        ("tags", "'{a}'"),
        ("ratio", "0.1000001"),
    ):
        lab.execute(
            shop,
            "CREATE TABLE kept AS SELECT * FROM forms",
            f"UPDATE forms SET {column} = {value} WHERE sure",
        )
        assert numbers(compared(lab, sink)) == (1, 0, 1), column
        lab.execute(shop, "DELETE FROM forms", "INSERT INTO forms SELECT * FROM kept", "DROP TABLE kept")
