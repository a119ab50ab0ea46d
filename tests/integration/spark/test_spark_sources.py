"""The sources on real servers and real folders: rows, and which upstream it is. A PostgreSQL source: its
keyed collection, and a sink below it, through changes of all kinds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyarrow import parquet

from examples.servers import KafkaBroker, SshServer, create_topic, delete_topic
from mzplan.model.diagnostics import ExitCode
from mzplan.schema.description import Description
from tests.integration.connections.test_ssh_tunnel import PRIVATE, PUBLIC, bastion
from tests.integration.spark_lab import Lab
from tests.support import Make, Stopwatch, eventually


def test_lost_records_and_another_topic_of_the_same_name_are_refused(lab: Lab, topic: Make) -> None:
    name = topic(partitions=1)
    source = lab.kafka_source(name)
    lab.start(source)
    eventually("it has looked for records", lambda: lab.report(source).triggered)
    lab.send(name, b'{"id": 1}')
    eventually("the row is there", lambda: lab.count(source) == 1)
    assert lab.check(source).ok
    lab.finish(source)

    def is_refused(code: str, detail: str) -> None:
        found = lab.finds(source, code, detail)
        assert (found.exit_code, found.address) == (ExitCode.REFUSED, source.address)
        assert lab.refused(source).code == code

    lab.send(name, *[b'{"id": 2}'] * 5)
    lab.delete_records(name, 4)
    is_refused("MZ067", "partition 0: offsets 1 to 3 are gone")

    delete_topic(lab.kafka.bootstrap, name)
    create_topic(lab.kafka.bootstrap, name, 1)
    is_refused("MZ043", "deleted and created again")


@pytest.mark.nightly
def test_a_broker_that_dies_is_an_error_within_a_minute(lab: Lab, own_kafka: KafkaBroker) -> None:
    create_topic(own_kafka.bootstrap, "doomed", 1)
    doomed = lab.kafka_source("doomed", brokers=own_kafka.bootstrap)
    lab.start(doomed)
    eventually("it has looked for data", lambda: lab.report(doomed).triggered)
    own_kafka.kill()
    time.sleep(1)
    took = Stopwatch()
    assert lab.codes(doomed) == ["MZ050"]
    assert took.seconds < 20
    took = Stopwatch()
    lab.stop(doomed)
    assert took.seconds < 50
    assert lab.refused(doomed).code == "MZ050"


def test_files_are_read_line_by_line_in_order(lab: Lab, tmp_path: Path, database: Make) -> None:
    folder, shop = tmp_path / "incoming files", database()
    source = lab.files_source(folder)
    assert f"mkdir -p '{folder}'" in lab.finds(source, "MZ057").hint
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
    lab.fails(source, "MZ066", "b.json")


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
    source = lab.delta_source(tmp_path / "lake", name, "id BIGINT NOT NULL, name STRING")
    strict = lab.delta_source(tmp_path / "lake", name, "Id BIGINT, name STRING NOT NULL")
    assert lab.check(source).ok and lab.check(source).upstream is not None
    lab.start(source, strict)
    eventually("what it holds is read", lambda: lab.count(source) == 2)
    lab.fails(strict, "MZ066", "name is missing (NOT NULL)")
    lab.stop(strict)
    spark.sql(f"INSERT INTO {table} VALUES (3, 'c', 0)")
    eventually("what is added is read", lambda: lab.count(source) == 3)
    found = [(row["id"], row["name"]) for row in lab.read(source)]
    assert sorted(found) == [(1, "a b/c%"), (2, None), (3, "c")]
    assert all("lake/" in row["_position"]["file"] for row in lab.read(source))

    spark.sql(f"DELETE FROM {table} WHERE id = 2")
    lab.fails(source, "MZ287", "on_change: skip")
    lab.stop(source)
    log = tmp_path / "lake" / name / "_delta_log"
    assert list(log.glob("*.checkpoint.*-*"))  # of Delta's V2
    skips = lab.changed(source, on_change="skip")
    spark.sql(f"INSERT INTO {table} VALUES (4, 'd', 0)")
    lab.start(skips)
    eventually("it goes on behind that", lambda: lab.count(source) == 4)
    add_file_outside(tmp_path, log)
    lab.fails(skips, "MZ283", "part.parquet")
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
    source = lab.delta_source(tmp_path / "lake", "orders", "id BIGINT")
    lab.start(source)
    eventually("what it holds is read", lambda: lab.count(source) == 1)
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN note TO remark")
    spark.sql(f"INSERT INTO {table} VALUES (2, 'b')")
    lab.fails(source, "MZ230", "--replace")
    lab.stop(source)
    anew = replace(source, generation=2)
    lab.start(anew)
    eventually("it reads all", lambda: lab.ids(anew) == [1, 2])


@pytest.mark.nightly
def test_a_delta_table_with_a_key_is_followed(lab: Lab, tmp_path: Path, database: Make) -> None:
    """Updates, deletes and changes of the key itself reach the collection, and a target. No row comes of a
    file outside the table, whatever the folder's name has."""
    name, schema = "or ders%20é+[1]", "(id BIGINT, name STRING) USING DELTA PARTITIONED BY (name)"
    schema += " TBLPROPERTIES (delta.enableChangeDataFeed = true, delta.enableDeletionVectors = true)"
    spark, table = lab.spark, f"delta.`{tmp_path}/lake/{name}`"
    spark.sql(f"CREATE TABLE {table} {schema}")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a b/c%'), (2, NULL), (3, 'c')")
    source = lab.delta_source(tmp_path / "lake", name, "id BIGINT, name STRING", key=["id"])
    shop = database()
    lab.execute(shop, "CREATE TABLE c (id bigint PRIMARY KEY, name text)")
    sink = lab.postgres_sink(source, shop, "c", mode="upsert", key=["id"])
    assert lab.check(source).ok

    def holds(*rows: tuple[int, str | None]) -> None:
        eventually(
            f"the target has {rows}", lambda: lab.rows(shop, "SELECT * FROM c ORDER BY id") == list(rows)
        )

    lab.start(source, sink)
    holds((1, "a b/c%"), (2, None), (3, "c"))
    spark.sql(f"UPDATE {table} SET name = 'A' WHERE id = 1")
    spark.sql(f"DELETE FROM {table} WHERE id = 2")
    spark.sql(f"UPDATE {table} SET id = 5 WHERE id = 3")
    holds((1, "A"), (5, "c"))
    lab.finish(source)
    spark.sql(f"DELETE FROM {table} WHERE id = 1")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'again')")
    second, third = lab.retried(source), lab.retried(source)
    lab.start(second)
    holds((1, "again"), (5, "c"))

    # The log leads out of the table while the source runs, and when it starts.
    add_file_outside(tmp_path, tmp_path / "lake" / name / "_delta_log")
    lab.fails(second, "MZ283")
    lab.stop(second)
    lab.start(third)
    lab.fails(third, "MZ283")
    holds((1, "again"), (5, "c"))


def test_records_of_an_aborted_transaction_are_no_rows(lab: Lab, topic: Make) -> None:
    name = topic(partitions=1)
    source = lab.kafka_source(name, "id BIGINT")
    producer = Producer({"bootstrap.servers": lab.kafka.bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(30)

    def begin(number: int) -> None:
        producer.begin_transaction()
        producer.produce(name, json.dumps({"id": number}).encode(), partition=0)
        producer.flush(30)

    begin(0)
    producer.commit_transaction(30)
    begin(1)
    producer.abort_transaction(30)
    begin(2)
    lab.start(source)
    eventually("the committed row is read", lambda: lab.count(source) == 1)
    # The backlog leaves out the open transaction.
    eventually("all is read", lambda: lab.waits(source) == {"records": 0})
    producer.commit_transaction(30)
    eventually("the row of the open transaction is read", lambda: lab.count(source) == 2)
    assert lab.ids(source) == [0, 2]


SCHEMA = "id BIGINT, customer STRING, amount DECIMAL(12,2), tags ARRAY<STRING>, note STRING"
COLUMNS = "id bigint PRIMARY KEY, customer text, amount numeric(12,2), tags text[], note text"
# In public: below a sink, there may be a schema named like the user.
TABLE = (f"CREATE TABLE public.orders ({COLUMNS})", "ALTER TABLE public.orders REPLICA IDENTITY FULL")


def postgres_source(lab: Lab, database: str) -> Description:
    body = {"schema": SCHEMA, "key": ["id"], "snapshot": {"parallelism": 3}}
    return lab.source("postgres", lab.postgres_body(database), tables=["public.orders"], **body)


def through(server: SshServer, description: Description) -> Description:
    """The same source behind a tunnel that was added to its connection."""
    server.authorize(PUBLIC)
    tunnel = bastion(server, private_key=PRIVATE)
    (role, before), *_ = description.connections.items()
    return replace(description, connections={role: replace(before, connections={"ssh_tunnel": tunnel})})


def test_rows_of_a_table_that_repeat_the_values_of_another_row(lab: Lab, database: Make) -> None:
    shop = database("shop")
    insert = "INSERT INTO orders (id, customer) VALUES"
    lab.execute(shop, *TABLE, f"{insert} (1, 'a'), (2, 'a'), (3, 'b')")
    source = lab.changed(postgres_source(lab, shop), expect={"apart": {"unique": "customer"}})
    lab.start(source)

    def counted() -> int:
        found = lab.report(source).violations.get("apart")
        return found.rows if found is not None else -1

    def follows(wanted: int, *statements: str) -> None:
        lab.execute(shop, *statements)
        rows = dict(lab.rows(shop, "SELECT id, customer FROM orders"))
        eventually(
            "the table is read", lambda: {row["id"]: row["customer"] for row in lab.read(source)} == rows, 180
        )
        eventually("they are counted", lambda: counted() == wanted)

    follows(2)
    swap = ("UPDATE orders SET customer = 'b' WHERE id = 1", "UPDATE orders SET customer = 'a' WHERE id = 3")
    follows(3, "BEGIN", *swap, "COMMIT")  # 3 repeats 2, which isn't written again
    follows(
        3, "BEGIN", "DELETE FROM orders WHERE id < 3", f"{insert} (1, 'c')", f"{insert} (4, 'b')", "COMMIT"
    )
    lab.finish(source)
    lab.undo_commit(source)  # the step runs again
    lab.start(source)
    follows(4, f"{insert} (5, 'b')")
    lab.stop(source)
    lab.executor.release_upstream(source.id, 1)


def test_a_collection_follows_its_tables(
    lab: Lab, database: Make, ssh_servers: Callable[[str], SshServer]
) -> None:
    shop, target = database("shop"), database("target")
    lab.execute(
        shop,
        *TABLE,
        "ALTER TABLE orders ALTER COLUMN note SET STORAGE EXTERNAL",
        "INSERT INTO orders SELECT g, 'c' || g % 10, g / 20.0, ARRAY['a', NULL], repeat('n', 200) "
        "FROM generate_series(1, 400) g",
    )
    lab.execute(target, "CREATE TABLE big (id bigint PRIMARY KEY, amount numeric(12,2))")
    described = postgres_source(lab, shop)
    sink = lab.postgres_sink(
        described, target, "big", mode="upsert", key=["id"], select=["id", "amount"], where="amount > 10"
    )
    assert lab.codes(described) == []

    def holds() -> bool:
        columns = ("id", "customer", "amount", "tags", "note")
        wanted = lab.rows(shop, f"SELECT {', '.join(columns)} FROM orders")
        return sorted(tuple(row[name] for name in columns) for row in lab.read(described)) == sorted(wanted)

    def target_holds() -> bool:
        wanted = lab.rows(shop, "SELECT id, amount FROM orders WHERE amount > 10")
        return sorted(lab.rows(target, "SELECT id, amount FROM big")) == sorted(wanted)

    def steps() -> list[dict[str, Any]]:
        folder = lab.checkpoint(described) / "steps"
        return [json.loads(path.read_text()) for path in sorted(folder.glob("0*.json"))]

    lab.start(described, sink)
    eventually("the snapshot is there", holds, 180)
    lab.execute(
        shop,
        "BEGIN",
        "UPDATE orders SET amount = 500 WHERE id <= 10",
        "UPDATE orders SET amount = 1 WHERE id > 390",
        "UPDATE orders SET id = id + 100000 WHERE id BETWEEN 100 AND 120",
        "DELETE FROM orders WHERE id BETWEEN 200 AND 300",
        "INSERT INTO orders VALUES (200, 'again', 1000, NULL, repeat('x', 50000))",
        "UPDATE orders SET customer = 'large stays' WHERE id = 200",
        "COMMIT",
        "INSERT INTO orders SELECT g, 'many', 200, '{}', 'x' FROM generate_series(30000, 30500) g "
        "ON CONFLICT DO NOTHING",
    )
    eventually("changes are there", holds, 180)
    eventually("and below", target_holds, 180)
    eventually("its slot is measured", lambda: (lab.waits(described) or {}).get("retained_bytes", 0) > 0)
    newest = lab.collection(described).selectExpr("max(_position.lsn)").collect()[0][0]

    # The connection is altered: another role, with its own password, by another name of the host, and through
    # a tunnel. The source continues at its slot.
    role = f"r{described.id}".replace("-", "_")
    lab.stop(described)
    lab.execute(
        shop,
        f"CREATE ROLE {role} SUPERUSER LOGIN PASSWORD 'other'",
        "DELETE FROM orders WHERE id < 5",
        "INSERT INTO orders VALUES (1, 'while down', 7, NULL, NULL)",
    )
    door = ssh_servers("door")
    other = {"host": "localhost", "user": role, "password": "other"}
    moved = through(door, lab.changed(described, other))
    lab.undo_commit(described)  # and the last step had not been noted down
    before = len(steps())
    lab.start(moved)
    eventually("the changes since the stop are there", holds, 180)
    eventually("and below", target_holds, 180)
    assert all(step["kind"] == "changes" for step in [*steps()[before:], steps()[-1]])
    assert door.sessions() > 0
    assert lab.collection(described).where(f"_position.lsn <= {newest}").count() > 700

    # Another database is another upstream, wherever it is.
    lab.execute(target, *TABLE)
    assert lab.codes(lab.changed(moved, {"database": target})) == ["MZ043"]
    lab.stop(moved, sink)
    lab.executor.release_upstream(moved.id, 1)
    assert lab.rows(shop, "SELECT 1 FROM pg_replication_slots WHERE database = current_database()") == []
    assert lab.rows(shop, "SELECT 1 FROM pg_publication") == []
    lab.execute(
        shop, f"REASSIGN OWNED BY {role} TO {lab.postgres.user}", f"DROP OWNED BY {role}", f"DROP ROLE {role}"
    )
