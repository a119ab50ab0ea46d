"""Replays: what was taken from a target by hand is written once more, and nothing else changes there. Delta
tables that were restored to an older copy: the table of a sink, and a collection."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mzplan.model.address import Address
from mzplan.schema.description import Description
from mzplan.spark.tasks.progress import TasksUnderWay
from mzplan.warehouse.checkpoints import Checkpoint
from tests.integration.spark.test_spark_verify_sinks import (
    LATEST,
    STRAIGHT,
    UPSERT,
    Filled,
    compared,
    numbers,
    produce_record,
    verified,
)
from tests.integration.spark_lab import Lab, read_delta, remove_entry
from tests.support import Make, eventually
from tests.tasks import replay


def replayed(
    lab: Lab, sink: Description, serial: int, first: int = 0, last: int | None = None, missing: bool = False
) -> int:
    """Do one, and run the sink on. Returns how many rows it has written."""
    asked = replay(serial, first=first, last=last, missing=missing)
    described = replace(lab.retried(sink), tasks=(asked,))
    assert lab.codes(described) == []
    lab.start(described)
    assert lab.report(described).tasks_done[-1].serial == serial
    lab.finish(described)
    (done,) = [one for one in Checkpoint(str(lab.checkpoint(sink))).tasks.all() if one.task == asked]
    return int(done.outcome.facts["rows"])


def test_a_task_shows_how_far_its_jobs_are(lab: Lab, tmp_path: Path) -> None:
    address, context, go = Address("sink", "orders"), lab.spark.sparkContext, tmp_path / "go"
    under_way, path = TasksUnderWay(), str(go)

    def wait(number: int) -> None:
        while number and not os.path.exists(path):  # noqa: PTH110
            time.sleep(0.01)

    def work() -> None:
        with under_way.running(lab.spark, address, "replay of step 3"):
            under_way.note(address, "writing 4 rows again")
            context.parallelize(range(4), 4).foreach(wait)

    def shown() -> str:
        under_way.measure(context._jsc.sc().statusTracker())
        return under_way.all()[address].text

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        try:
            text = "writing 4 rows again, 1 of 4 Spark tasks of this job are done"
            eventually("its progress is shown", lambda: address in under_way.all() and shown() == text)
        finally:
            go.touch()
        done.result()
    assert under_way.all() == {}


@pytest.mark.nightly
def test_a_replay_writes_missing_rows_again(lab: Lab, topic: Make, database: Make, tmp_path: Path) -> None:
    shop = database()
    lab.execute(shop, STRAIGHT, LATEST)
    orders = Filled(lab, topic(partitions=2))
    source = orders.source
    upsert = {**UPSERT, "select": ["customer", "id"]}
    orders.run(
        straight=lab.postgres_sink(source, shop, "straight", where="id % 2 = 0", max_files_per_trigger=1),
        latest=lab.postgres_sink(source, shop, "latest", **upsert),
        delta=lab.delta_sink(
            source,
            tmp_path,
            "delta",
            select=["id", "amount * 2 AS twice", "IF(id % 3 = 0, '', customer) AS kind"],
            partition_by=["kind"],
        ),
        merged=lab.delta_sink(source, tmp_path, "merged", partition_by=["Customer"], **upsert),
    )
    orders.stop()
    orders.require_equal()
    spark = lab.spark
    lab.execute(
        shop,
        "DELETE FROM straight WHERE id < 7",
        "DELETE FROM latest WHERE customer = 'c1'",
        "UPDATE latest SET id = 0, extra = 'kept' WHERE customer = 'c2'",
    )
    spark.sql(f"DELETE FROM delta.`{tmp_path / 'delta'}` WHERE id < 3 OR id > 20")
    spark.sql(f"UPDATE delta.`{tmp_path / 'merged'}` SET id = -1 WHERE customer = 'c3'")
    lacking = {kind: compared(lab, sink).missing for kind, sink in orders.sinks.items()}
    assert all(lacking.values()), lacking
    for kind, sink in orders.sinks.items():
        assert replayed(lab, sink, 7, missing=True) == lacking[kind], kind
        assert replayed(lab, sink, 8, missing=True) == 0, kind
    orders.require_equal()
    assert lab.rows(shop, "SELECT customer, extra FROM latest WHERE extra = 'kept'") == [("c2", "kept")]

    # Steps of an upsert: what they should have left there, and nothing older than that.
    for kind, sink in (("latest", orders.sinks["latest"]), ("merged", orders.sinks["merged"])):
        lab.execute(shop, "UPDATE latest SET id = -5")
        spark.sql(f"UPDATE delta.`{tmp_path / 'merged'}` SET id = -5")
        newest = lab.last_step(sink)
        assert replayed(lab, sink, 9, last=0) <= 5
        found = compared(lab, sink)
        assert found.missing == found.more > 0, (kind, "later steps have the newest row of each key")
        assert replayed(lab, sink, 10, first=1, last=newest) > 0
        assert numbers(compared(lab, sink)) == (0, 0, 0), kind

    # They go on from their steps, of which the targets' records are as before.
    lab.start(source, *orders.sinks.values())
    orders.produce()
    orders.stop()
    orders.require_equal()
    for kind, sink in orders.sinks.items():
        found_ = verified(lab, sink)
        assert (found_.difference, found_.problems) == (None, ()), kind
    straight = orders.sinks["straight"]
    beyond = replay(20, first=99, last=99, missing=True)
    assert lab.codes(replace(straight, tasks=(beyond,))) == ["MZ273"]


@pytest.mark.nightly
def test_a_replay_of_steps_repeats_their_updates_and_deletes(
    lab: Lab, topic: Make, database: Make, tmp_path: Path
) -> None:
    shop, name = database(), topic()
    lab.execute(shop, "CREATE TABLE kept (id bigint PRIMARY KEY, customer text)")
    source = lab.kafka_source(name, envelope={"type": "upsert", "key": ["id"]})
    body = {"mode": "upsert", "key": ["id"], "select": ["id", "customer"], "where": "customer <> 'no'"}
    sinks = {
        "postgres": lab.postgres_sink(source, shop, "kept", **body),
        "delta": lab.delta_sink(source, tmp_path, "kept", **body),
    }
    for key, customer in (("1", "a"), ("2", "b"), ("3", "c"), ("4", "d")):
        produce_record(lab, name, f'{{"id":{key},"customer":"{customer}"}}', key)
    lab.start(source, *sinks.values())
    lab.has_rows(shop, "kept", 4)
    eventually("delta has them", lambda: len(read_delta(tmp_path / "kept")) == 4)
    eventually("both are done", lambda: all(map(lab.checkpoint_done, sinks.values())))
    steps = {kind: lab.last_step(sink) for kind, sink in sinks.items()}
    produce_record(lab, name, None, "1")
    produce_record(lab, name, '{"id":2,"customer":"no"}', "2")
    produce_record(lab, name, '{"id":5,"customer":"e"}', "5")
    of_both = "SELECT array_agg(id ORDER BY id) FROM kept"
    eventually("the changes are there", lambda: lab.rows(shop, of_both) == [([3, 4, 5],)])
    eventually("also here", lambda: sorted(r["id"] for r in read_delta(tmp_path / "kept")) == [3, 4, 5])
    lab.finish(source, *sinks.values())
    for sink in sinks.values():
        found = compared(lab, sink)
        assert (numbers(found), found.expected_rows) == ((0, 0, 0), 3)

    spark = lab.spark
    changes = "WHERE id IN (3, 5)", "VALUES (1, 'a'), (2, 'b')"
    lab.execute(shop, f"DELETE FROM kept {changes[0]}", f"INSERT INTO kept {changes[1]}")
    spark.sql(f"DELETE FROM delta.`{tmp_path / 'kept'}` {changes[0]}")
    spark.sql(f"INSERT INTO delta.`{tmp_path / 'kept'}` {changes[1]}")
    for kind, sink in sinks.items():
        found = compared(lab, sink)
        assert numbers(found) == (2, 0, 2), kind
        examples = (found.examples["missing"], found.examples["more"])
        assert [sorted(int(json.loads(one)["id"]) for one in side) for side in examples] == [[3, 5], [1, 2]]
        # What these steps have deleted goes, what they have brought comes; the others stay as they are.
        assert replayed(lab, sink, 7, first=steps[kind] + 1) == 3, kind
        assert numbers(compared(lab, sink)) == (1, 0, 0), kind
        assert replayed(lab, sink, 8, missing=True) == 1, kind
        assert numbers(compared(lab, sink)) == (0, 0, 0), kind


class Shop:
    """A source of orders in files, and sinks of them into Delta tables."""

    def __init__(self, lab: Lab, folder: Path, **body: Any):
        self.lab, self.folder, self.inbox = lab, folder, folder / "orders"
        self.inbox.mkdir()
        self.source = lab.files_source(self.inbox)
        self.append = lab.delta_sink(self.source, folder, "all", **body)
        self.upsert = lab.delta_sink(self.source, folder, "latest", mode="upsert", key=["id"], **body)

    def drop(self, number: int, amount: int = 10) -> None:
        row = f'{{"id": {number}, "customer": "a", "amount": {amount}}}\n'
        (self.inbox / f"{number}.json").write_text(row)

    def write(self, *amounts: int) -> None:
        """One step for each order, in the collection and in the tables."""
        lab = self.lab
        lab.start(self.source)
        for number, amount in enumerate(amounts):
            self.drop(number, amount)
            eventually("the row is read", lambda n=number: lab.count(self.source) == n + 1)  # type: ignore[misc]
            if number == 0:
                lab.start(self.append, self.upsert)
            for sink in (self.append, self.upsert):
                eventually("it is written", lambda n=number, s=sink: lab.last_step(s) >= n)  # type: ignore[misc]

    def appended(self) -> list[int]:
        return sorted(row["id"] for row in read_delta(self.folder / "all"))


def restore(table: Path, commits: int = 1) -> None:
    """As from a copy that is so many commits older."""
    logged = sorted((table / "_delta_log").glob("*.json"))
    for entry in logged[-commits:]:
        remove_entry(entry)


@pytest.mark.nightly
def test_a_restored_table_is_refused(lab: Lab, tmp_path: Path) -> None:
    shop = Shop(lab, tmp_path, where="amount > 10")
    source, append, upsert = shop.source, shop.append, shop.upsert
    shop.write(20, 5, 30)  # step 1 leaves no row in the sinks, and a commit
    lab.finish(source, append, upsert)
    assert lab.codes(source) == lab.codes(append) == lab.codes(upsert) == []
    for sink, name in ((append, "all"), (upsert, "latest")):
        restore(tmp_path / name)
        assert lab.codes(sink) == ["MZ069"]
        found = lab.refused(sink)
        assert found.code == "MZ069" and "is missing step 2," in found.summary
        assert str(tmp_path / name) in found.detail

    # Whoever accepts it goes on: the lost row is lost, and what comes is written once.
    accepting = lab.changed(append, on_target_change="accept")
    assert lab.finds(accepting, "MZ069").severity == "notice"
    lab.start(source, accepting)
    shop.drop(3, 40)
    eventually("it goes on", lambda: shop.appended() == [0, 3])
    lab.finish(source, accepting)
    # Unless it is written once more, as the error says.
    again = replace(lab.retried(accepting), tasks=(replay(5, missing=True),))
    lab.start(again)
    assert shop.appended() == [0, 2, 3]
    lab.finish(again)
    # A gap behind the newest step is a loss, too: the table was restored while its sink ran.
    found = lab.refused(append)
    assert found.code == "MZ069"
    assert found.summary.endswith("is missing step 2, which its checkpoint says were written")

    # Under a source that runs: its next commit takes the version of the lost one, and it ends.
    collection = lab._collection(source)
    lab.start(source)
    restore(collection)
    shop.drop(4, 50)
    lab.fails(source, "MZ161", "is missing step 3")
    lab.stop(source)
    restore(collection, 2)
    (gone,) = lab.executor.missing_storage(source)
    assert gone.code == "MZ161" and str(collection) in gone.detail
    assert "is missing steps 2 to 4" in gone.summary
    assert lab.refused(source).code == "MZ161"


@pytest.mark.nightly
def test_a_table_that_is_restored_under_its_sink(lab: Lab, tmp_path: Path) -> None:
    """The next step takes the version of the lost one, and the sink ends."""
    shop = Shop(lab, tmp_path)
    shop.write(10, 10, 10)
    assert lab.report(shop.append).active and lab.report(shop.upsert).active
    for name in ("all", "latest"):
        restore(tmp_path / name)
    shop.drop(3)
    for sink in (shop.append, shop.upsert):
        lab.fails(sink, "MZ069", "is missing step 2,")
