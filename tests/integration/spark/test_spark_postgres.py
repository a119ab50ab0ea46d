"""The postgres sink on a real server: exactly once, whatever is repeated, retried or broken."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.integration.spark_lab import SECONDS, until

if TYPE_CHECKING:
    from examples.servers import PostgresServer
    from tests.integration.spark_lab import Lab

Make = Callable[..., str]
TABLE = "CREATE TABLE orders (id bigint, customer text, amount numeric(10,2))"
KEYED = "CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount numeric(10,2))"


def orders(first: int, last: int, customer: str = "ann") -> list[dict[str, Any]]:
    return [{"id": i, "customer": customer, "amount": "1.50"} for i in range(first, last)]


def test_tasks_run_with_the_packages_of_the_driver(lab: Lab) -> None:
    """And not with the archive of PySpark's source, which each Python worker would compile."""
    import pyspark
    from pyspark.sql import SparkSession

    lab.executor.open()
    session = SparkSession.active()
    (found,) = (
        session.sparkContext.parallelize([0], 1).map(lambda _: __import__("pyspark").__file__).collect()
    )
    assert found == pyspark.__file__


def test_append_is_exactly_once_over_stops_and_a_repeated_batch(
    lab: Lab, topic: Make, database: Make
) -> None:
    name, shop = topic(), database()
    lab.execute(shop, TABLE)
    source = lab.kafka_source(name)
    sink = lab.postgres_sink(source, shop, "public.orders")
    lab.produce(name, *orders(0, 100))
    lab.start(source, sink)
    lab.has_rows(shop, "orders", 100)
    lab.produce(name, *orders(100, 105))
    lab.has_rows(shop, "orders", 105)
    until("the step is done", lambda: lab.checkpoint_done(sink))
    lab.stop(source, sink)

    lab.undo_commit(sink)
    lab.produce(name, *orders(105, 110))
    lab.start(source, sink, epoch=2)
    lab.has_rows(shop, "orders", 110)
    until("both are done", lambda: lab.checkpoint_done(source) and lab.checkpoint_done(sink))
    steps = lab.rows(
        shop, "SELECT step, row_count, source_first, source_last FROM mzplan.steps ORDER BY step"
    )
    assert sum(rows for _, rows, _, _ in steps) == 110
    assert [step for step, _, _, _ in steps] == list(range(len(steps)))
    # The steps of the source that each one covers: all of them, in order.
    covered = [range(first, last + 1) for _, rows, first, last in steps if rows]
    assert [step for steps in covered for step in steps] == list(range(lab.last_step(source) + 1))
    assert lab.rows(shop, "SELECT count(DISTINCT id), count(*) FROM orders") == [(110, 110)]
    assert lab.rows(shop, "SELECT epoch FROM mzplan.writers") == [(2,)]
    lab.stop(source, sink)


def test_upsert_keeps_the_latest_row_of_each_key(lab: Lab, topic: Make, database: Make) -> None:
    name, shop = topic(partitions=1), database()
    lab.execute(shop, KEYED)
    source = lab.kafka_source(name)
    sink = lab.postgres_sink(
        source,
        shop,
        "orders",
        mode="upsert",
        key=["id"],
        select=["id", "upper(customer) AS customer", "amount"],
        where="amount > 0",
    )
    changes = [{"id": i % 10, "customer": f"c{i}", "amount": 1 + i} for i in range(500)]
    lab.produce(name, *changes, {"id": 3, "customer": "dropped", "amount": -1})
    lab.start(source, sink)
    lab.has_rows(shop, "orders", 10)
    lab.produce(
        name, {"id": 3, "customer": "newest", "amount": 7}, {"id": 77, "customer": "new", "amount": 7}
    )
    lab.has_rows(shop, "orders", 11)
    lab.stop(source, sink)
    found = dict(lab.rows(shop, "SELECT id, customer FROM orders"))
    assert found == {**{i: f"C{490 + i}" for i in range(10)}, 3: "NEWEST", 77: "NEW"}


def test_upsert_into_a_table_of_nothing_but_its_key(lab: Lab, topic: Make, database: Make) -> None:
    name, shop = topic(), database()
    lab.execute(shop, 'CREATE TABLE "Odd Keys" ("Id" bigint, "user" text, PRIMARY KEY ("user", "Id"))')
    source = lab.kafka_source(name, "id BIGINT, user STRING")
    sink = lab.postgres_sink(source, shop, "orders", mode="upsert", key=["id", "user"])
    sink.body["table"] = "public.Odd Keys"  # type: ignore[index]
    lab.produce(name, *({"id": i % 3, "user": "u"} for i in range(30)))
    lab.start(source, sink)
    lab.has_rows(shop, '"Odd Keys"', 3)
    lab.stop(source, sink)


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["straight", "staged"])
def test_a_task_that_is_tried_twice_doubles_nothing(
    lab: Lab, topic: Make, database: Make, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    from mzplan.connectors.postgres.sink import batches as postgres
    from mzplan.connectors.postgres.sink import staged_output

    module, function = (staged_output, "staging_task") if way == "staged" else (postgres, "straight_task")
    made = getattr(module, function)

    def failing_once(*arguments: Any) -> Any:
        push = made(*arguments)

        def push_twice(batches: Any) -> Any:
            from pyspark import TaskContext

            reports = list(push(batches))
            if TaskContext.get().attemptNumber() == 0:  # type: ignore[union-attr]
                raise RuntimeError("after the COPY")
            yield from reports

        return push_twice

    monkeypatch.setattr(module, function, failing_once)
    name, shop = topic(), database()
    lab.execute(
        shop,
        "CREATE TABLE orders (id bigint, customer jsonb, amount numeric(10,2))" if way == "staged" else TABLE,
    )
    source = lab.kafka_source(name)
    sink = lab.postgres_sink(source, shop, "orders")
    lab.produce(name, *orders(0, 20, customer='"ann"'))
    lab.start(source, sink)
    lab.has_rows(shop, "orders", 20)
    lab.stop(source, sink)
    assert lab.rows(shop, "SELECT sum(row_count) FROM mzplan.steps") == [(20,)]
    stages = lab.rows(shop, "SELECT tablename FROM pg_tables WHERE tablename LIKE 'stage%'")
    assert len(stages) == (1 if way == "staged" else 0)
    for (stage,) in stages:
        assert lab.rows(shop, f'SELECT count(*) FROM mzplan."{stage}"') == [(0,)]


@pytest.mark.nightly
def test_a_crash_of_the_server_loses_and_doubles_nothing(
    lab: Lab, topic: Make, own_postgres: PostgresServer
) -> None:
    name = topic()
    own_postgres.create_database("shop")
    dsn = own_postgres.dsn("shop")

    def count() -> int:
        with psycopg.connect(dsn) as connection:
            return int(connection.execute("SELECT count(*) FROM orders").fetchone()[0])  # type: ignore[index]

    with psycopg.connect(dsn) as connection:
        connection.execute(TABLE.encode())
    lab.secrets.environment["OWN_PASSWORD"] = own_postgres.password
    source = lab.kafka_source(name)
    body = lab.postgres_body("shop", port=own_postgres.port, password="${env:OWN_PASSWORD}")
    sink = lab.sink(source, "postgres", body, table="orders")
    lab.produce(name, *orders(0, 50))
    lab.start(source, sink)
    until("the first rows are there", lambda: count() == 50)

    own_postgres.kill()
    lab.produce(name, *orders(50, 60))
    ended = lab.ended(sink)
    assert ended.error_code == "MZ050", ended.error
    assert ended.error is not None
    assert f"127.0.0.1:{own_postgres.port}" in ended.error
    assert own_postgres.password not in ended.error
    assert [d.code for d in lab.check(sink).diagnostics] == ["MZ050"]

    own_postgres.start()
    lab.start(sink)
    until("the others are there, too", lambda: count() == 60)
    lab.stop(source, sink)
    assert count() == 60


@pytest.mark.nightly
def test_an_older_runner_is_fenced(lab: Lab, topic: Make, database: Make) -> None:
    name, shop = topic(), database()
    lab.execute(shop, TABLE)
    source = lab.kafka_source(name)
    sink = lab.postgres_sink(source, shop, "orders")
    lab.produce(name, *orders(0, 5))
    lab.start(source, sink, epoch=7)
    lab.has_rows(shop, "orders", 5)
    lab.execute(shop, "UPDATE mzplan.writers SET epoch = 8")  # a newer runner has taken over
    lab.produce(name, *orders(5, 10))
    ended = lab.ended(sink)
    assert ended.error_code == "MZ068", ended.error
    lab.has_rows(shop, "orders", 5)
    lab.stop(source, sink)


@pytest.mark.nightly
def test_a_table_or_a_checkpoint_from_a_backup_is_noticed(lab: Lab, topic: Make, database: Make) -> None:
    name, shop = topic(), database()
    lab.execute(shop, TABLE)
    source = lab.kafka_source(name)
    sink = lab.postgres_sink(source, shop, "orders")
    lab.produce(name, *orders(0, 5))
    lab.start(source, sink)
    lab.has_rows(shop, "orders", 5)
    lab.execute(shop, "UPDATE mzplan.writers SET step = step - 1")
    lab.produce(name, *orders(5, 10))
    ended = lab.ended(sink)
    assert ended.error_code == "MZ069", ended.error
    lab.stop(source, sink)


@pytest.mark.nightly
def test_a_batch_that_waits_for_a_lock_can_be_stopped(lab: Lab, topic: Make, database: Make) -> None:
    name, shop = topic(), database()
    lab.execute(shop, TABLE)
    source = lab.kafka_source(name)
    sink = lab.postgres_sink(source, shop, "orders")
    lab.produce(name, *orders(0, 5))
    lab.start(source, sink)
    lab.has_rows(shop, "orders", 5)
    with psycopg.connect(lab.postgres.dsn(shop)) as blocker:
        blocker.execute("LOCK TABLE orders")
        lab.produce(name, *orders(5, 10))
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'orders'::regclass"
        until("the sink waits", lambda: lab.rows(shop, waiting) == [(1,)])
        began = time.monotonic()
        lab.stop(sink)
        assert time.monotonic() - began < 18, "it waited for the lock, which it gives up after 20 s"
    lab.start(sink)
    lab.has_rows(shop, "orders", 10)
    lab.stop(source, sink)


def test_a_value_that_does_not_fit_says_which_table_and_why(lab: Lab, topic: Make, database: Make) -> None:
    name, shop = topic(), database()
    lab.execute(shop, "CREATE TABLE orders (id bigint, customer varchar(3), amount numeric(10,2))")
    source = lab.kafka_source(name)
    sink = lab.postgres_sink(source, shop, "orders")
    assert lab.check(sink).diagnostics == ()
    lab.produce(name, *orders(0, 5, customer="anna"))
    lab.start(source, sink)
    ended = lab.ended(sink)
    assert ended.error_code == "MZ059", ended.error
    assert "too long for type character varying(3)" in str(ended.error)
    assert "its column customer is character varying(3), and the sink writes STRING" in str(ended.error)
    assert "ALTER COLUMN customer TYPE text" in str(ended.error)
    assert "orders" in str(ended.error)
    assert "anna" not in str(ended.error), ended.error
    lab.execute(shop, "ALTER TABLE orders ALTER customer TYPE text")
    lab.start(sink)
    lab.has_rows(shop, "orders", 5, SECONDS)
    lab.stop(source, sink)


def test_steps_long_past_are_forgotten(lab: Lab, topic: Make, database: Make) -> None:
    from mzplan.connectors.postgres.sink.ledger import Ledger
    from mzplan.connectors.postgres.sink.writer import Writer

    name, shop = topic(), database()
    lab.execute(shop, TABLE)
    source = lab.kafka_source(name)
    sink = lab.postgres_sink(source, shop, "orders")
    lab.produce(name, *orders(0, 5))
    lab.start(source, sink)
    lab.has_rows(shop, "orders", 5)
    lab.stop(source, sink)
    ((query_id,),) = lab.rows(shop, "SELECT query_id FROM mzplan.writers")
    ledger = Ledger(schema="mzplan", sink=sink.id, generation=1, epoch=1, query_id=query_id)
    writer = Writer(address=str(sink.address), ledger=ledger)
    # As if it were far on: the last step is never forgotten.
    lab.execute(shop, "UPDATE mzplan.writers SET step = 300000")
    with psycopg.connect(lab.postgres.dsn(shop), autocommit=True) as connection:
        for step, left in ((999, True), (200_998, True), (200_999, False)):
            writer.expire(connection, step)
            assert (lab.rows(shop, "SELECT count(*) FROM mzplan.steps")[0][0] > 0) is left


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["straight", "staged"])
def test_a_step_that_is_pushed_again(lab: Lab, topic: Make, database: Make, way: str) -> None:
    name, shop = topic(partitions=1), database()
    customer = "jsonb" if way == "staged" else "text"
    lab.execute(shop, f"CREATE TABLE orders (id bigint, customer {customer}, amount numeric(10,2))")
    source = lab.kafka_source(name)
    sink = lab.postgres_sink(source, shop, "orders", where="id < 10")
    lab.produce(name, *orders(0, 20, customer='"ann"'))
    lab.start(source)
    until("the rows are there", lambda: lab.count(source) == 20)
    lab.start(sink)
    lab.has_rows(shop, "orders", 10)

    def again(**body: Any) -> None:
        """As after a crash between the target and the checkpoint, and a change of the sink."""
        nonlocal sink
        until("the step is done", lambda: lab.report(sink).step >= 0)
        lab.stop(sink)
        lab.undo_commit(sink)
        lab.forget_begun(sink)
        sink = replace(sink, digest=f"1:{body}", body={**sink.body, **body})
        lab.start(sink)
        until("it is pushed again", lambda: not lab.report(sink).active or lab.report(sink).step >= 0)

    def steps() -> list[tuple[Any, ...]]:
        return lab.rows(shop, "SELECT step, row_count, content_hash FROM mzplan.steps ORDER BY step")

    ((_, _, first),) = steps()
    again(where="id < 15")  # the same rows, and more behind them
    lab.has_rows(shop, "orders", 15)
    ((_, count, second),) = steps()
    assert (count, lab.report(sink).warning) == (15, None)
    assert first != second
    again()
    assert lab.report(sink).warning is None
    again(where="id >= 5")
    assert "[MZ088]" in (lab.report(sink).warning or "")
    again(where="id < 3", compare="off")
    assert lab.report(sink).warning is None
    again(where="id < 3", compare="fail")
    assert lab.ended(sink).error_code == "MZ088"
    assert steps() == [(0, 15, second)]
    lab.has_rows(shop, "orders", 15)
    lab.stop(source, sink)


@pytest.mark.nightly
@pytest.mark.parametrize("statement", ["TRUNCATE orders", "DROP TABLE orders; " + TABLE])
def test_a_table_that_lost_its_rows_is_noticed(lab: Lab, topic: Make, database: Make, statement: str) -> None:
    name, shop = topic(), database()
    lab.execute(shop, TABLE)
    source = lab.kafka_source(name)
    sink = lab.postgres_sink(source, shop, "orders")
    lab.produce(name, *orders(0, 5))
    lab.start(source, sink)
    lab.has_rows(shop, "orders", 5)
    lab.execute(shop, "VACUUM FULL orders")  # another file with the same rows is nothing
    lab.produce(name, *orders(5, 6))
    lab.has_rows(shop, "orders", 6)
    lab.execute(shop, *statement.split("; "))
    lab.produce(name, *orders(6, 7))
    ended = lab.ended(sink)
    assert ended.error_code == "MZ069", ended.error
    lab.start(sink)
    ended = lab.ended(sink)
    assert "was truncated" in str(ended.error) or "recreated" in str(ended.error)
    lab.execute(shop, f"UPDATE mzplan.writers SET target = NULL WHERE sink = '{sink.id}'")
    lab.start(sink)
    lab.has_rows(shop, "orders", 1)
    lab.stop(source, sink)


@pytest.mark.nightly
def test_a_table_that_is_altered_or_dropped_meanwhile(lab: Lab, topic: Make, database: Make) -> None:
    name, shop = topic(), database()
    lab.execute(shop, TABLE)
    source = lab.kafka_source(name)
    sink = lab.postgres_sink(source, shop, "orders")
    lab.produce(name, *orders(0, 5))
    lab.start(source, sink)
    lab.has_rows(shop, "orders", 5, 3 * SECONDS)
    # Of the same width: copied as it is, a number would become another one, in silence.
    lab.execute(shop, "ALTER TABLE orders ALTER id TYPE double precision")
    lab.produce(name, *orders(5, 10))
    ended = lab.ended(sink, 3 * SECONDS)
    assert ended.error_code == "MZ053" and "its column id is double precision" in str(ended.error)
    lab.execute(shop, "ALTER TABLE orders ALTER id TYPE bigint")
    lab.start(sink)
    lab.has_rows(shop, "orders", 10, 3 * SECONDS)
    # One that fits needs no start: the next batch is staged, and cast.
    lab.execute(shop, "ALTER TABLE orders ALTER id TYPE numeric, ALTER amount TYPE numeric(12,3)")
    lab.produce(name, *orders(10, 12))
    lab.has_rows(shop, "orders", 12, 3 * SECONDS)
    found = lab.rows(shop, "SELECT id, amount FROM orders ORDER BY id")
    assert found == [(i, Decimal("1.5")) for i in range(12)]
    lab.execute(shop, "ALTER TABLE orders RENAME customer TO client")
    lab.produce(name, *orders(12, 15))
    ended = lab.ended(sink, 3 * SECONDS)
    assert ended.error_code == "MZ053", ended.error
    assert "customer" in str(ended.error)
    lab.execute(shop, "ALTER TABLE orders RENAME client TO customer")
    lab.start(sink)
    lab.has_rows(shop, "orders", 15, 3 * SECONDS)
    lab.execute(shop, "DROP TABLE orders")
    lab.produce(name, *orders(15, 20))
    ended = lab.ended(sink, 3 * SECONDS)
    assert ended.error_code == "MZ069" and "was dropped" in str(ended.error), ended.error
    lab.start(sink)
    ended = lab.ended(sink, 3 * SECONDS)
    assert ended.error_code == "MZ052" and "CREATE TABLE" in str(ended.error), ended.error
    lab.stop(source, sink)


@pytest.mark.nightly
def test_a_checkpoint_that_is_behind_its_table_is_told(lab: Lab, topic: Make, database: Make) -> None:
    name, shop = topic(partitions=1), database()
    lab.execute(shop, TABLE)
    source = lab.kafka_source(name)
    sink = lab.postgres_sink(source, shop, "orders")
    lab.start(source, sink)
    for step in range(3):
        lab.produce(name, *orders(step, step + 1))
        lab.has_rows(shop, "orders", step + 1)
    until("all is done", lambda: lab.checkpoint_done(sink))
    lab.stop(sink)
    lab.undo_commit(sink)
    last = lab.undo_commit(sink)
    (lab.checkpoint(sink) / "spark" / "offsets" / str(last + 1)).unlink()
    lab.start(sink)
    until("it is told", lambda: "[MZ069]" in (lab.report(sink).warning or ""))
    lab.has_rows(shop, "orders", 3)
    lab.stop(source, sink)


def test_a_text_with_nul_is_refused_by_its_row_and_column(lab: Lab, topic: Make, database: Make) -> None:
    name, shop = topic(partitions=1), database()
    lab.execute(
        shop,
        "CREATE TABLE a (id bigint PRIMARY KEY, customer text)",
        "CREATE TABLE j (id bigint PRIMARY KEY, customer jsonb)",
        "CREATE TABLE s (id bigint PRIMARY KEY, customer text)",
    )
    source = lab.kafka_source(name, "id BIGINT NOT NULL, customer STRING")
    upsert = {"mode": "upsert", "key": ["id"]}
    text, json_ = (lab.postgres_sink(source, shop, f"public.{table}", **upsert) for table in "aj")
    select = ["id", "replace(customer, chr(0), '') AS customer"]
    without = lab.postgres_sink(source, shop, "public.s", select=select, **upsert)
    lab.produce(name, {"id": 1, "customer": '"x"'}, {"id": 2, "customer": '"x\0y"'})
    lab.start(source, text, json_, without)
    for sink in (text, json_):
        ended = lab.ended(sink)
        assert ended.error_code == "MZ059"
        assert "has that character in column customer" in str(ended.error)
        assert '"offset":1' in str(ended.error), ended.error
        assert "replace(customer, chr(0), '') AS customer" in str(ended.error)
    lab.has_rows(shop, "s", 2)
    assert lab.rows(shop, "SELECT customer FROM s ORDER BY id") == [('"x"',), ('"xy"',)]
    lab.stop(source, text, json_, without)
