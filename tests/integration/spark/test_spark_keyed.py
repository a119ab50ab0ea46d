"""Keyed collections on real servers: the latest row of each key, and sinks that follow its updates and
deletes."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as f

from mzplan.connectors.formats.envelopes import Tombstones
from mzplan.connectors.formats.parsers import parser_of, without_frame
from mzplan.connectors.frames.merges import latest_rows, merge
from mzplan.schema.columns import parse_columns
from mzplan.warehouse.rows.snapshot import snapshot_of
from tests.integration.committed import committed
from tests.integration.spark.test_spark_formats import checked
from tests.integration.spark.test_spark_verify_sinks import verified
from tests.integration.spark_lab import Lab, read_delta
from tests.support import Make, eventually

EVERY = {"interval": "500ms"}  # four queries on two cores
Change = tuple[Any, dict[str, Any] | bytes | None]


class Keyed:
    """A topic of the latest of each id, its collection, and sinks of the orders above 10."""

    def __init__(self, lab: Lab, topic: Make, database: Make, folder: Path):
        self.lab = lab
        self.input, self.output = topic(partitions=1), topic(partitions=1)
        self.shop, self.folder = database(), folder
        lab.execute(self.shop, "CREATE TABLE big (id bigint PRIMARY KEY, twice numeric)")
        self.source = lab.kafka_source(self.input, envelope={"type": "upsert", "key": ["id"]}, trigger=EVERY)
        self.sinks = [
            lab.postgres_sink(self.source, self.shop, "big", **self.body()),
            lab.kafka_sink(self.source, self.output, **self.body()),
            lab.delta_sink(self.source, folder, "big", **self.body()),
        ]
        self.wanted: dict[int, int] = {}
        self.path = lab._collection(self.source)

    def body(self) -> dict[str, Any]:
        select = ["id", "amount * 2 AS twice"]
        return {"mode": "upsert", "key": ["id"], "select": select, "where": "amount > 10", "trigger": EVERY}

    def send(self, *changes: Change) -> None:
        send(self.lab, self.input, *changes)

    def orders(self, **amounts: int | None) -> None:
        """`_1=20`: the amount of id 1; None: a tombstone."""
        for name, amount in amounts.items():
            id_ = int(name.strip("_"))
            if amount is None:
                self.wanted.pop(id_, None)
                self.send((str(id_), None))
            else:
                self.wanted[id_] = amount
                self.send((str(id_), {"id": id_, "customer": f"c{id_}", "amount": amount}))

    def converges(self) -> None:
        """The collection holds what is wanted; the targets what of it is above 10, doubled."""
        big = {id_: Decimal(amount * 2) for id_, amount in self.wanted.items() if amount > 10}
        eventually("the collection is as wanted", lambda: self.collection() == self.wanted)
        eventually("postgres is", lambda: dict(self.lab.rows(self.shop, "SELECT * FROM big")) == big)
        eventually("kafka is", lambda: self.latest() == big)
        eventually("delta is", lambda: self.delta() == big)

    def collection(self) -> dict[int, int]:
        rows = read_delta(self.path)
        assert len(rows) == len({row["id"] for row in rows})
        return {row["id"]: int(row["amount"]) for row in rows}

    def delta(self) -> dict[int, Decimal]:
        return {row["id"]: row["twice"] for row in self.in_delta()}

    def in_delta(self) -> list[dict[str, Any]]:
        return read_delta(self.folder / "big")

    def sent(self) -> list[tuple[int, str | None, Any]]:
        return committed(self.lab.kafka.bootstrap, self.output)

    def latest(self) -> dict[int, Decimal]:
        found = {int(key or ""): value for _, key, value in self.sent()}
        return {key: Decimal(str(value["twice"])) for key, value in found.items() if value is not None}


NO_ROW, NO_ID = "its key must name the row to delete", "id is missing (NOT NULL)"
# By the key's format and its columns, for each record: its key and value, then the row and the change that
# it makes, or why it is malformed.
RECORDS: dict[tuple[str, str], list[tuple[bytes | None, bytes | None, Any]]] = {
    ("text", "id"): [
        (b"1", None, (1, None, "delete")),
        (b" 1 ", None, (1, None, "delete")),
        (b"other", b'{"id": 1, "name": "a"}', (1, "a", "upsert")),
        (b"one", None, NO_ROW),
        (None, None, NO_ROW),
        (b"1", b'{"name": "a"}', NO_ID),
    ],
    ("text", "name"): [
        (b"a", None, (None, "a", "delete")),
        (b"\xff", None, NO_ROW),
        (b"\0\0\0\0\5\6abc", None, NO_ROW),  # an Avro key of the registry's serializer, which is UTF-8
    ],
    ("json", "id"): [
        (b'{"id": 1, "more": 2}', None, (1, None, "delete")),
        (b"1", None, (1, None, "delete")),
        (b'{"id": 1} {"id": 2}', None, NO_ROW),
    ],
    ("json", "name"): [
        (b'"a"', None, (None, "a", "delete")),
        (b'{"other": "a"}', None, NO_ROW),
    ],
    ("json", "name id"): [
        (b'{"id": 1, "name": "a"}', None, (1, "a", "delete")),
        (b'{"id": 1}', None, NO_ROW),
    ],
}


@pytest.mark.parametrize(("format_", "names"), RECORDS)
def test_a_record_changes_the_row_of_its_key_or_is_malformed(lab: Lab, format_: str, names: str) -> None:
    columns = parse_columns("id BIGINT, name STRING")
    records = RECORDS[format_, names]
    listed = [(key, value, i) for i, (key, value, _) in enumerate(records)]
    envelope = Tombstones(
        value=f.col("value"),
        key=f.col("key"),
        columns=tuple(column for column in columns if column.name in names.split()),
        format=format_,
    )
    read = lab.spark.createDataFrame(listed, "key BINARY, value BINARY, offset INT")
    parsed = checked(read, parser_of({"type": "json"}, columns), columns, envelope=envelope)
    rows = parsed.orderBy("_position").collect()
    for (_, _, wanted), (id_, name, _, change, dead) in zip(records, rows, strict=True):
        if isinstance(wanted, str):
            assert wanted in dead.reason
        else:
            assert (id_, name, change, dead) == (*wanted, None)


def test_columns_may_be_called_anything(lab: Lab, tmp_path: Path) -> None:
    """Also what mzplan's own columns might be called, and what SQL takes only in quotes. And JSON may have a
    schema's id before it."""
    spark = lab.spark.newSession()  # a merge names its step in the settings of its session
    columns = parse_columns(
        "row BIGINT, p STRING, `user-id` INT, s STRUCT<`a-b`: INT, j: INT>, x0 INT, n INT"
    )
    values = {"p": "x", "user-id": 2, "s": {"a-b": 3, "j": 4}, "x0": 5, "n": 6}
    one, two = (json.dumps({"row": 1, **values, "n": n}).encode() for n in (6, 7))
    listed = [(b"k", one, 0), (b"k", b"\0\0\0\0\1" + two, 1), (b"k", b"\0\0\0\0\1{", 2)]
    rows = spark.createDataFrame(listed, "key BINARY, came BINARY, offset INT")
    read = rows.select("*", without_frame(f.col("came")).alias("value"))
    included = ((parse_columns("u BINARY")[0], f.col("key")),)
    parser = parser_of({"type": "json"}, columns)
    parsed = checked(read, parser, columns, included=included, original="came")
    good = parsed.where("p IS NOT NULL").drop("_mzplan_dead")
    (found,) = [row.asDict(recursive=True) for row in latest_rows(good, ["row", "p"]).collect()]
    assert found == {"row": 1, **values, "n": 7, "u": b"k"}
    (dead,) = parsed.where("_mzplan_dead IS NOT NULL").collect()
    assert bytes(dead["_mzplan_dead"].value) == listed[2][1], "as it came"
    latest, path = latest_rows(good, ["row"]), str(tmp_path / "odd")
    latest.limit(0).write.format("delta").save(path)
    merge(latest, 0, f"delta.`{path}`", ["row"])
    assert [row["s"] for row in read_delta(tmp_path / "odd")] == [values["s"]]


def send(lab: Lab, topic: str, *changes: Change) -> None:
    for key, value in changes:
        lab.send(topic, json.dumps(value).encode() if isinstance(value, dict) else value, key=key)


@pytest.fixture
def keyed(lab: Lab, topic: Make, database: Make, tmp_path: Path) -> Keyed:
    return Keyed(lab, topic, database, tmp_path)


def test_updates_and_deletes_reach_every_target(keyed: Keyed) -> None:
    lab, all_ = keyed.lab, [keyed.source, *keyed.sinks]
    for description in all_:
        assert lab.check(description).ok, lab.check(description)
    # 1 changes, 2 is deleted, 3 enters the where, 4 leaves it, 5 comes back, 6 never was there, 7 is new.
    keyed.orders(_1=20, _2=30, _3=5, _4=40, _5=None)
    lab.start(*all_)
    keyed.converges()
    # A step that reached the targets and was not noted down runs again, for the source and for the sinks.
    lab.finish(*all_)
    for description in all_:
        lab.undo_commit(description)
    versions = [commit.version for commit in lab.history(keyed.source).collection.after(-1)]
    keyed.orders(_1=21, _2=None, _3=33, _4=4, _5=55, _6=None, _7=70)
    lab.start(*all_)
    keyed.converges()
    assert [commit.version for commit in lab.history(keyed.source).collection.after(-1)][:-1] == versions
    # In Kafka, a row that leaves the sink is a tombstone.
    assert {key for _, key, value in keyed.sent() if value is None} >= {"2", "4"}
    lab.finish(*all_)
    steps(keyed)


@pytest.mark.nightly
def test_a_sink_that_starts_late_and_one_with_an_added_column_follow_the_collection(keyed: Keyed) -> None:
    lab, (postgres, _, delta) = keyed.lab, keyed.sinks
    keyed.orders(_1=20, _2=30, _3=40)
    lab.start(keyed.source, delta)
    eventually("they are there", lambda: keyed.delta() == {1: 40, 2: 60, 3: 80})
    # What a sink has still to read survives that files are merged and old ones removed.
    lab.stop(delta)
    keyed.orders(_1=None, _2=5, _3=50)
    eventually("they are changed", lambda: keyed.collection() == keyed.wanted)
    # Another one begins: with a snapshot of what is there, without what is marked as deleted in its files.
    lab.start(postgres)
    lab.has_rows(keyed.shop, "big", 1)
    lab.executor.merge_files(str(keyed.path))
    lab.executor.reclaim_files(str(keyed.path), 3600.0)
    keyed.orders(_4=70, _2=25)
    lab.has_rows(keyed.shop, "big", 3)
    lab.stop(keyed.source, postgres)

    lab.execute(keyed.shop, "ALTER TABLE big ADD COLUMN note text")
    keyed.source = lab.retried(keyed.source)
    keyed.source.body["format"]["schema"] += ", note STRING"
    select = ["id", "amount * 2 AS twice", "note"]
    later = [lab.changed(one, select=select) for one in (postgres, delta)]
    keyed.sinks += later
    keyed.send(("4", {"id": 4, "amount": 80, "note": "new"}), ("3", None))
    lab.start(keyed.source, *later)
    wanted = {2: [Decimal(50), None], 4: [Decimal(160), "new"]}

    def in_postgres() -> dict[int, Any]:
        return {id_: rest for id_, *rest in lab.rows(keyed.shop, "SELECT id, twice, note FROM big")}

    def in_delta() -> dict[int, Any]:
        return {row["id"]: [row["twice"], row.get("note")] for row in keyed.in_delta()}

    eventually("both have the column", lambda: in_postgres() == in_delta() == wanted)


def steps(keyed: Keyed) -> None:
    """What is recorded of steps, of a keyed collection and its sinks."""
    history = keyed.lab.history(keyed.source)
    records = history.committed(0, None)
    newest = snapshot_of(history, records[-1].step)
    assert {row["id"] for batch in newest.rows()[1] for row in batch.to_pylist()} == set(keyed.wanted)
    assert newest.count() == len(keyed.wanted)
    assert snapshot_of(history, 0).count("amount > 10") == 3
    for sink in keyed.sinks:
        found = verified(keyed.lab, sink)
        assert found.difference is None and not found.problems and found.equal_steps, (sink, found)
