"""The sources on a real broker and real folders: rows, and which upstream it is."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from pyarrow import parquet

from examples.servers import create_topic, delete_topic
from examples.servers.topics import admin
from mzplan.model.diagnostics import ExitCode, MzplanError
from tests.integration.spark_lab import until

if TYPE_CHECKING:
    from examples.servers import KafkaBroker
    from tests.integration.spark_lab import Lab

Make = Callable[..., str]


def test_lost_records_and_another_topic_of_the_same_name_are_refused(lab: Lab, topic: Make) -> None:
    name = topic(partitions=1)
    source = lab.kafka_source(name)
    lab.start(source)
    until("it has looked for records", lambda: lab.report(source).triggered)
    lab.send(name, b'{"id": 1}')
    until("the row is there", lambda: lab.count(source) == 1)
    assert lab.check(source).ok
    lab.finish(source)

    def is_refused(code: str, detail: str) -> None:
        (found,) = lab.check(source).diagnostics
        assert (found.code, found.exit_code, found.address) == (code, ExitCode.REFUSED, source.address)
        assert detail in found.detail
        with pytest.raises(MzplanError) as caught:
            lab.start(source)
        assert caught.value.diagnostics[0].code == code

    lab.send(name, *[b'{"id": 2}'] * 5)
    client = admin(lab.kafka.bootstrap)
    client.delete_records([TopicPartition(name, 0, 4)])[TopicPartition(name, 0)].result(10)
    is_refused("MZ067", "partition 0: offsets 1 to 3 are gone")

    delete_topic(lab.kafka.bootstrap, name)
    create_topic(lab.kafka.bootstrap, name, 1)
    is_refused("MZ043", "deleted and created again")


@pytest.mark.nightly
def test_another_cluster_is_refused(lab: Lab, topic: Make, own_kafka: KafkaBroker) -> None:
    name = topic(partitions=1)
    create_topic(own_kafka.bootstrap, name, 1)
    source = lab.kafka_source(name)
    lab.send(name, b'{"id": 1}')
    lab.start(source)
    until("the row is there", lambda: lab.count(source) == 1)
    lab.stop(source)

    moved = lab.retried(source)
    moved.connections["connection"].body["brokers"] = [lab.kafka.bootstrap2]  # type: ignore[index]
    assert lab.check(moved).ok
    moved.connections["connection"].body["brokers"] = [own_kafka.bootstrap]  # type: ignore[index]
    (found,) = lab.check(moved).diagnostics
    assert found.code == "MZ043"
    assert own_kafka.cluster_id in found.detail
    assert own_kafka.bootstrap in found.detail

    # A broker that dies: bounded, whatever is asked of the query.
    create_topic(own_kafka.bootstrap, "doomed", 1)
    doomed = lab.kafka_source("doomed", brokers=own_kafka.bootstrap)
    lab.start(doomed)
    until("it has looked for data", lambda: lab.report(doomed).triggered)
    own_kafka.kill()
    time.sleep(1)
    began = time.monotonic()
    assert lab.codes(doomed) == ["MZ050"]
    assert time.monotonic() - began < 20
    began = time.monotonic()
    lab.stop(doomed)
    assert time.monotonic() - began < 50
    with pytest.raises(MzplanError) as caught:
        lab.start(doomed)
    assert caught.value.diagnostics[0].code == "MZ050"


def test_files_are_read_line_by_line_in_order(lab: Lab, tmp_path: Path, database: Make) -> None:
    folder, shop = tmp_path / "incoming files", database()
    source = lab.files_source(folder)
    (missing,) = lab.check(source).diagnostics
    assert missing.code == "MZ057"
    assert f"mkdir -p '{folder}'" in missing.hint
    folder.mkdir()
    assert lab.check(source).ok
    lab.execute(shop, "CREATE TABLE o (id bigint PRIMARY KEY, customer text, amount numeric(10,2))")
    lines = [json.dumps({"id": i % 3, "customer": f"c{i}"}) for i in range(60)]
    (folder / "a.json").write_text("\n\n".join(lines) + "\n")
    sink = lab.postgres_sink(source, shop, "o", mode="upsert", key=["id"])
    lab.start(source, sink)
    lab.has_rows(shop, "o", 3)
    assert lab.rows(shop, "SELECT customer FROM o ORDER BY id") == [("c57",), ("c58",), ("c59",)]

    (tmp_path / "b.json").write_text('{"id": "x"}\n')
    (tmp_path / "b.json").rename(folder / "b.json")
    ended = lab.ended(source)
    assert ended.error_code == "MZ066"
    assert "b.json" in str(ended.error)
    lab.stop(source, sink)


def test_a_delta_table_is_read_as_it_grows(lab: Lab, tmp_path: Path) -> None:
    """What it holds, then what is added; a commit that changes rows ends the query, or is passed over. No row
    comes of a file outside the table."""
    name = "or ders é+"
    spark, table = lab.spark, f"delta.`{tmp_path}/lake/{name}`"
    spark.sql(
        f"CREATE TABLE {table} (id INT, name STRING, X INT) USING DELTA PARTITIONED BY (name) "
        "TBLPROPERTIES (delta.checkpointPolicy = 'v2', delta.checkpointInterval = 2)"
    )
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a b/c%', 0), (2, NULL, 0)")
    lake = {"type": "files", "path": str(tmp_path / "lake")}
    source = lab.source("delta", lake, path=name, schema="id BIGINT NOT NULL, name STRING")
    strict = lab.source("delta", lake, path=name, schema="Id BIGINT, name STRING NOT NULL")
    assert lab.check(source).ok and lab.check(source).upstream is not None
    lab.start(source, strict)
    until("what it holds is read", lambda: lab.count(source) == 2)
    ended = lab.ended(strict)
    assert ended.error_code == "MZ066" and "name is missing (NOT NULL)" in str(ended.error)
    lab.stop(strict)
    spark.sql(f"INSERT INTO {table} VALUES (3, 'c', 0)")
    until("what is added is read", lambda: lab.count(source) == 3)
    found = [(row["id"], row["name"]) for row in lab.read(source)]
    assert sorted(found) == [(1, "a b/c%"), (2, None), (3, "c")]
    assert all("lake/" in row["_position"]["file"] for row in lab.read(source))

    spark.sql(f"DELETE FROM {table} WHERE id = 2")
    ended = lab.ended(source)
    assert ended.error_code == "MZ287" and "on_change: skip" in str(ended.error)
    lab.stop(source)
    log = tmp_path / "lake" / name / "_delta_log"
    assert list(log.glob("*.checkpoint.*-*"))  # of Delta's V2
    skips = replace(lab.retried(source), body={**source.body, "on_change": "skip"})
    spark.sql(f"INSERT INTO {table} VALUES (4, 'd', 0)")
    lab.start(skips)
    until("it goes on behind that", lambda: lab.count(source) == 4)
    add_file_outside(tmp_path, log)
    ended = lab.ended(skips)
    assert ended.error_code == "MZ283" and "part.parquet" in str(ended.error)
    lab.stop(skips)
    assert lab.count(source) == 4


def add_file_outside(folder: Path, log: Path) -> None:
    """Commit a file that is not in the table's folder."""
    secret = folder / "secret" / "part.parquet"
    secret.parent.mkdir()
    parquet.write_table(pa.table({"id": pa.array([42], pa.int32())}), secret)
    added = {"path": secret.as_uri(), "size": secret.stat().st_size, "partitionValues": {"name": "x"}}
    added |= {"modificationTime": 1, "dataChange": True}
    version = len(list(log.glob(f"{'[0-9]' * 20}.json")))
    (log / f"{version:020}.json").write_text(json.dumps({"add": added}))


@pytest.mark.nightly
def test_a_renamed_column_of_a_delta_table_ends_its_source(lab: Lab, tmp_path: Path) -> None:
    """Delta doesn't stream across it, whether the column is declared or not; a new generation reads on."""
    spark, table = lab.spark, f"delta.`{tmp_path}/lake/orders`"
    spark.sql(
        f"CREATE TABLE {table} (id BIGINT, note STRING) USING DELTA "
        "TBLPROPERTIES (delta.columnMapping.mode = 'name')"
    )
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a')")
    source = lab.source(
        "delta", {"type": "files", "path": str(tmp_path / "lake")}, path="orders", schema="id BIGINT"
    )
    lab.start(source)
    until("what it holds is read", lambda: lab.count(source) == 1)
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN note TO remark")
    spark.sql(f"INSERT INTO {table} VALUES (2, 'b')")
    ended = lab.ended(source)
    assert ended.error_code == "MZ230" and "--replace" in str(ended.error)
    lab.stop(source)
    anew = replace(source, generation=2)
    lab.start(anew)
    until("it reads all", lambda: sorted(row["id"] for row in lab.read(anew)) == [1, 2])
    lab.stop(anew)


@pytest.mark.nightly
def test_no_row_of_a_table_with_a_key_comes_of_a_file_outside_it(lab: Lab, tmp_path: Path) -> None:
    """Where the log leads out of it while it runs, and when it starts; whatever the folder's name has."""
    name = "or ders%20é+[1]"
    spark, table = lab.spark, f"delta.`{tmp_path}/lake/{name}`"
    spark.sql(
        f"CREATE TABLE {table} (id BIGINT, name STRING) USING DELTA PARTITIONED BY (name) "
        "TBLPROPERTIES (delta.enableChangeDataFeed = true, delta.enableDeletionVectors = true)"
    )
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a b/c%'), (2, NULL)")
    lake = {"type": "files", "path": str(tmp_path / "lake")}
    source = lab.source("delta", lake, path=name, schema="id BIGINT, name STRING", key=["id"])
    lab.start(source)
    until("what it holds is read", lambda: lab.count(source) == 2)
    spark.sql(f"UPDATE {table} SET id = 3 WHERE id = 1")
    spark.sql(f"INSERT INTO {table} VALUES (4, 'd')")
    until("what is added is read", lambda: {row["id"] for row in lab.read(source)} == {2, 3, 4})
    add_file_outside(tmp_path, tmp_path / "lake" / name / "_delta_log")
    assert lab.ended(source).error_code == "MZ283"
    lab.stop(source)
    again = lab.retried(source)
    lab.start(again)
    assert lab.ended(again).error_code == "MZ283"
    lab.stop(again)


@pytest.mark.nightly
def test_a_delta_table_with_a_key_is_followed(lab: Lab, tmp_path: Path, database: Make) -> None:
    """Updates, deletes and changes of the key itself reach the collection, and a target."""
    spark, table = lab.spark, f"delta.`{tmp_path}/lake/customers`"
    feed = "USING DELTA TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    spark.sql(f"CREATE TABLE {table} (id BIGINT, name STRING) {feed}")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    lake = {"type": "files", "path": str(tmp_path / "lake")}
    source = lab.source("delta", lake, path="customers", schema="id BIGINT, name STRING", key=["id"])
    shop = database()
    lab.execute(shop, "CREATE TABLE c (id bigint PRIMARY KEY, name text)")
    sink = lab.postgres_sink(source, shop, "c", mode="upsert", key=["id"])
    assert lab.check(source).ok

    def holds(*rows: tuple[int, str]) -> None:
        until(f"the target has {rows}", lambda: lab.rows(shop, "SELECT * FROM c ORDER BY id") == list(rows))

    lab.start(source, sink)
    holds((1, "a"), (2, "b"), (3, "c"))
    spark.sql(f"UPDATE {table} SET name = 'A' WHERE id = 1")
    spark.sql(f"DELETE FROM {table} WHERE id = 2")
    spark.sql(f"UPDATE {table} SET id = 5 WHERE id = 3")
    holds((1, "A"), (5, "c"))
    lab.finish(source)
    spark.sql(f"DELETE FROM {table} WHERE id = 1")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'again')")
    lab.start(lab.retried(source))
    holds((1, "again"), (5, "c"))
    lab.stop(source, sink)

    shutil.rmtree(tmp_path / "lake" / "customers")
    spark.sql(f"CREATE TABLE {table} (id BIGINT, name STRING) {feed}")
    assert lab.codes(source) == ["MZ043"]


def test_records_of_an_aborted_transaction_are_no_rows(lab: Lab, topic: Make) -> None:
    name = topic(partitions=1)
    source = lab.kafka_source(name, "id BIGINT")
    producer = Producer({"bootstrap.servers": lab.kafka.bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(30)
    for number, end in enumerate((producer.commit_transaction, producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(name, json.dumps({"id": number}).encode(), partition=0)
        producer.flush(30)
        end(30)
    producer.begin_transaction()
    producer.produce(name, json.dumps({"id": 2}).encode(), partition=0)
    producer.flush(30)
    lab.start(source)
    until("the committed row is read", lambda: lab.count(source) == 1)
    # The backlog leaves out the open transaction.
    until("all is read", lambda: lab.waits(source) == {"records": 0})
    producer.commit_transaction(30)
    until("the row of the open transaction is read", lambda: lab.count(source) == 2)
    assert sorted(row["id"] for row in lab.read(source)) == [0, 2]
    lab.stop(source)
