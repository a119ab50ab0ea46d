"""The postgres sink on a real server: exactly once, whatever is repeated, retried or broken."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import psycopg
import pytest

from examples.servers import PostgresServer
from mzplan.connectors.postgres.sink.output import Ledger
from mzplan.connectors.postgres.sink.writer import Writer
from tests.integration.spark_lab import Lab
from tests.support import Make, Stopwatch, eventually, execute, ids_in

TABLE = "CREATE TABLE orders (id bigint, customer text, amount numeric(10,2))"


def orders(first: int, last: int, customer: str = "ann") -> list[dict[str, Any]]:
    return [{"id": i, "customer": customer, "amount": "1.50"} for i in range(first, last)]


class Flow:
    """A source of orders, and a sink of them into a table."""

    def __init__(self, lab: Lab, topic: Make, database: Make):
        self.lab, self.topic, self.shop = lab, topic(partitions=1), database()
        lab.execute(self.shop, TABLE)
        self.source = lab.kafka_source(self.topic)
        self.sink = lab.postgres_sink(self.source, self.shop, "orders")
        self.produced = 0

    def produce(self, count: int = 5) -> None:
        first, self.produced = self.produced, self.produced + count
        self.lab.produce(self.topic, *orders(first, self.produced))

    def writes(self, count: int = 5) -> None:
        """Produce so many orders, and wait until the table has all."""
        self.produce(count)
        self.lab.has_rows(self.shop, "orders", self.produced)

    def fails(self, code: str, *texts: str) -> None:
        self.lab.fails(self.sink, code, *texts)

    def finish(self) -> None:
        self.lab.finish(self.source, self.sink)

    def execute(self, *statements: str) -> None:
        self.lab.execute(self.shop, *statements)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.lab.rows(self.shop, query)


@pytest.fixture
def flow(lab: Lab, topic: Make, database: Make) -> Flow:
    """It runs, and has written five orders."""
    flow = Flow(lab, topic, database)
    lab.start(flow.source, flow.sink, epoch=7)
    flow.writes()
    return flow


def test_tasks_run_with_the_packages_of_the_driver(lab: Lab) -> None:
    """And not with the archive of PySpark's source, which each Python worker would compile."""
    import pyspark

    tasks = lab.spark.sparkContext.parallelize([0], 1)
    assert tasks.map(lambda _: __import__("pyspark").__file__).collect() == [pyspark.__file__]


def test_append_is_exactly_once_over_stops_and_a_repeated_batch(
    lab: Lab, topic: Make, database: Make
) -> None:
    flow = Flow(lab, topic, database)
    flow.produce(100)
    lab.start(flow.source, flow.sink)
    lab.has_rows(flow.shop, "orders", 100)
    flow.finish()
    lab.undo_commit(flow.sink)
    flow.produce(10)
    lab.start(flow.source, flow.sink, epoch=8)
    lab.has_rows(flow.shop, "orders", 110)
    flow.finish()
    steps = flow.rows("SELECT step, row_count, source_first, source_last FROM mzplan.steps ORDER BY step")
    assert sum(rows for _, rows, _, _ in steps) == 110
    assert [step for step, _, _, _ in steps] == list(range(len(steps)))
    # The steps of the source that each one covers: all of them, in order.
    covered = [range(first, last + 1) for _, rows, first, last in steps if rows]
    assert [step for steps in covered for step in steps] == list(range(lab.last_step(flow.source) + 1))
    assert flow.rows("SELECT count(DISTINCT id), count(*) FROM orders") == [(110, 110)]
    assert flow.rows("SELECT epoch FROM mzplan.writers") == [(8,)]
    # The records of old steps go, all but the last, however far it is.
    ((query_id,),) = flow.rows("SELECT query_id FROM mzplan.writers")
    ledger = Ledger(schema="mzplan", sink=flow.sink.id, generation=1, epoch=8, query_id=query_id)
    writer = Writer(address=str(flow.sink.address), ledger=ledger)
    flow.execute("UPDATE mzplan.writers SET step = 300000")
    with psycopg.connect(lab.postgres.dsn(flow.shop), autocommit=True) as connection:
        for step, left in ((999, True), (200_998, True), (200_999, False)):
            writer.expire(connection, step)
            assert bool(flow.rows("SELECT 1 FROM mzplan.steps")) is left


def test_upsert_keeps_the_latest_row_of_each_key(lab: Lab, topic: Make, database: Make) -> None:
    """Also in a table that has nothing but its key."""
    name, shop = topic(partitions=1), database()
    lab.execute(
        shop,
        "CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount numeric(10,2))",
        'CREATE TABLE "Odd Keys" ("Id" bigint, "user" text, PRIMARY KEY ("user", "Id"))',
    )
    source = lab.kafka_source(name)
    sink = lab.postgres_sink(source, shop, "orders", mode="upsert", key=["id"])
    keys = ["id % 3 AS id", "'u' AS user"]
    odd = lab.postgres_sink(source, shop, "public.Odd Keys", mode="upsert", key=["id", "user"], select=keys)
    lab.produce(name, *({"id": i % 10, "customer": f"c{i}"} for i in range(500)))
    lab.start(source, sink, odd)
    lab.has_rows(shop, "orders", 10)
    lab.produce(name, {"id": 3, "customer": "newest"}, {"id": 77, "customer": "new"})
    lab.has_rows(shop, "orders", 11)
    lab.has_rows(shop, '"Odd Keys"', 3)
    found = dict(lab.rows(shop, "SELECT id, customer FROM orders"))
    assert found == {**{i: f"c{490 + i}" for i in range(10)}, 3: "newest", 77: "new"}


@pytest.mark.nightly
def test_only_the_staged_rows_of_the_successful_attempt_are_moved(
    lab: Lab, topic: Make, database: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second attempt without staging is in test_spark_task_kills.py."""
    from mzplan.connectors.postgres.sink.tasks import staging_task

    def failing_once(*arguments: Any) -> Any:
        push = staging_task(*arguments)

        def push_twice(batches: Any) -> Any:
            from pyspark import TaskContext

            reports = list(push(batches))
            if TaskContext.get().attemptNumber() == 0:  # type: ignore[union-attr]
                raise RuntimeError("after the COPY")
            yield from reports

        return push_twice

    monkeypatch.setattr("mzplan.connectors.postgres.sink.staged_output.staging_task", failing_once)
    name, shop = topic(), database()
    lab.execute(shop, "CREATE TABLE orders (id bigint, customer jsonb, amount numeric(10,2))")
    source = lab.kafka_source(name)
    sink = lab.postgres_sink(source, shop, "orders")
    lab.produce(name, *orders(0, 20, customer='"ann"'))
    lab.start(source, sink)
    lab.has_rows(shop, "orders", 20)
    lab.stop(source, sink)
    assert lab.rows(shop, "SELECT sum(row_count) FROM mzplan.steps") == [(20,)]
    ((stage,),) = lab.rows(shop, "SELECT tablename FROM pg_tables WHERE tablename LIKE 'stage%'")
    assert lab.rows(shop, f'SELECT count(*) FROM mzplan."{stage}"') == [(0,)]


@pytest.mark.nightly
def test_a_crash_of_the_server_loses_and_doubles_nothing(
    lab: Lab, topic: Make, own_postgres: PostgresServer
) -> None:
    name, dsn = topic(), own_postgres.create_database("shop")
    execute(dsn, TABLE)
    lab.secrets.environment["OWN_PASSWORD"] = own_postgres.password
    source = lab.kafka_source(name)
    body = lab.postgres_body("shop", port=own_postgres.port, password="${env:OWN_PASSWORD}")
    sink = lab.sink(source, "postgres", body, table="orders")
    lab.produce(name, *orders(0, 50))
    lab.start(source, sink)
    eventually("the first rows are there", lambda: len(ids_in(dsn, "orders")) == 50)

    own_postgres.kill()
    lab.produce(name, *orders(50, 60))
    ended = lab.fails(sink, "MZ050", f"127.0.0.1:{own_postgres.port}")
    assert own_postgres.password not in str(ended.error)
    assert lab.codes(sink) == ["MZ050"]

    own_postgres.start()
    lab.start(sink)
    eventually("the others are there, too", lambda: len(ids_in(dsn, "orders")) == 60)
    lab.stop(source, sink)
    assert ids_in(dsn, "orders") == list(range(60))


@pytest.mark.nightly
def test_an_older_runner_is_fenced(lab: Lab, flow: Flow) -> None:
    flow.execute("UPDATE mzplan.writers SET epoch = 8")  # a newer runner has taken over
    flow.produce()
    flow.fails("MZ068")
    lab.has_rows(flow.shop, "orders", 5)


@pytest.mark.nightly
def test_a_table_older_than_the_checkpoint_is_refused(flow: Flow) -> None:
    """As one from a backup."""
    flow.execute("UPDATE mzplan.writers SET step = step - 1")
    flow.produce()
    flow.fails("MZ069")


@pytest.mark.nightly
def test_a_batch_that_waits_for_a_lock_can_be_stopped(lab: Lab, flow: Flow) -> None:
    with psycopg.connect(lab.postgres.dsn(flow.shop)) as blocker:
        blocker.execute("LOCK TABLE orders")
        flow.produce()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'orders'::regclass"
        eventually("the sink waits", lambda: flow.rows(waiting) == [(1,)])
        took = Stopwatch()
        lab.stop(flow.sink)
        assert took.seconds < 18, "it waited for the lock, which it gives up after 20 s"
    lab.start(flow.sink, epoch=7)
    lab.has_rows(flow.shop, "orders", 10)


@pytest.mark.nightly
def test_a_repeated_step_is_compared_with_the_written_rows(lab: Lab, topic: Make, database: Make) -> None:
    """A staged table is in test_spark_target_change.py."""
    name, shop = topic(partitions=1), database()
    lab.execute(shop, TABLE)
    source = lab.kafka_source(name)
    sink = lab.postgres_sink(source, shop, "orders", where="id < 10")
    lab.produce(name, *orders(0, 20))
    lab.start(source)
    eventually("the rows are there", lambda: lab.count(source) == 20)
    lab.start(sink)
    lab.has_rows(shop, "orders", 10)

    def again(**body: Any) -> None:
        """As after a crash between the target and the checkpoint, and a change of the sink."""
        nonlocal sink
        eventually("the step is done", lambda: lab.report(sink).step >= 0)
        lab.stop(sink)
        lab.undo_commit(sink)
        lab.forget_begun(sink)
        sink = lab.changed(sink, **body)
        lab.start(sink)
        eventually("it is pushed again", lambda: not lab.report(sink).active or lab.report(sink).step >= 0)

    def steps() -> list[tuple[Any, ...]]:
        return lab.rows(shop, "SELECT step, row_count, content_hash FROM mzplan.steps ORDER BY step")

    again(where="id < 15")  # the same rows, and more behind them
    lab.has_rows(shop, "orders", 15)
    grown = steps()
    assert [step[:2] for step in grown] == [(0, 15)] and lab.report(sink).warning is None
    again()
    assert lab.report(sink).warning is None
    again(where="id >= 5")
    assert "[MZ088]" in (lab.report(sink).warning or "")
    again(where="id < 3", compare="off")
    assert lab.report(sink).warning is None
    again(where="id < 3", compare="fail")
    lab.fails(sink, "MZ088")
    assert steps() == grown
    lab.has_rows(shop, "orders", 15)


@pytest.mark.nightly
@pytest.mark.parametrize("statement", ["TRUNCATE orders", "DROP TABLE orders; " + TABLE])
def test_a_table_that_lost_its_rows_is_refused(lab: Lab, flow: Flow, statement: str) -> None:
    flow.execute("VACUUM FULL orders")  # another file with the same rows is nothing
    flow.writes(1)
    flow.execute(*statement.split("; "))
    flow.produce(1)
    flow.fails("MZ069")
    lab.start(flow.sink, epoch=7)
    flow.fails("MZ069", "was truncated" if statement.startswith("TRUNCATE") else "recreated")
    flow.execute(f"UPDATE mzplan.writers SET target = NULL WHERE sink = '{flow.sink.id}'")
    lab.start(flow.sink, epoch=7)
    lab.has_rows(flow.shop, "orders", 1)


@pytest.mark.nightly
def test_a_table_may_be_altered_while_its_sink_runs_if_the_rows_still_fit(lab: Lab, flow: Flow) -> None:
    # Of the same width: copied as it is, a number would become another one, in silence.
    flow.execute("ALTER TABLE orders ALTER id TYPE double precision")
    flow.produce()
    flow.fails("MZ053", "its column id is double precision")
    flow.execute("ALTER TABLE orders ALTER id TYPE bigint")
    lab.start(flow.sink, epoch=7)
    lab.has_rows(flow.shop, "orders", 10)
    # One that fits needs no start: the next batch is staged, and cast.
    flow.execute("ALTER TABLE orders ALTER id TYPE numeric, ALTER amount TYPE numeric(12,3)")
    flow.writes(2)
    assert flow.rows("SELECT id, amount FROM orders ORDER BY id") == [(i, Decimal("1.5")) for i in range(12)]
    flow.execute("ALTER TABLE orders RENAME customer TO client")
    flow.produce(3)
    flow.fails("MZ053", "customer")
    flow.execute("ALTER TABLE orders RENAME client TO customer")
    lab.start(flow.sink, epoch=7)
    lab.has_rows(flow.shop, "orders", 15)
    flow.execute("DROP TABLE orders")
    flow.produce()
    flow.fails("MZ069", "was dropped")
    lab.start(flow.sink, epoch=7)
    flow.fails("MZ052", "CREATE TABLE")


@pytest.mark.nightly
def test_a_checkpoint_behind_its_table_is_a_warning(lab: Lab, flow: Flow) -> None:
    for _ in range(2):
        flow.writes(1)
    eventually("all is done", lambda: lab.checkpoint_done(flow.sink))
    lab.stop(flow.sink)
    lab.undo_commit(flow.sink)
    last = lab.undo_commit(flow.sink)
    (lab.checkpoint(flow.sink) / "spark" / "offsets" / str(last + 1)).unlink()
    lab.start(flow.sink, epoch=7)
    eventually("it warns", lambda: "[MZ069]" in (lab.report(flow.sink).warning or ""))
    lab.has_rows(flow.shop, "orders", 7)


def test_a_value_that_the_table_refuses_is_told_by_its_column(lab: Lab, topic: Make, database: Make) -> None:
    name, shop = topic(partitions=1), database()
    for table, type_ in {"plain": "text", "json": "jsonb", "narrow": "varchar(3)"}.items():
        lab.execute(shop, f"CREATE TABLE {table} (id bigint PRIMARY KEY, customer {type_})")
    source = lab.kafka_source(name, "id BIGINT NOT NULL, customer STRING")
    upsert: dict[str, Any] = {"mode": "upsert", "key": ["id"]}
    plain, json_ = (lab.postgres_sink(source, shop, table, **upsert) for table in ("plain", "json"))
    select = ["id", "replace(customer, chr(0), '') AS customer"]
    narrow = lab.postgres_sink(source, shop, "narrow", select=select)
    assert lab.check(narrow).diagnostics == ()
    lab.produce(name, {"id": 1, "customer": '"x"'}, {"id": 2, "customer": '"x\0y"'})
    lab.start(source, plain, json_, narrow)
    for sink in (plain, json_):
        lab.fails(sink, "MZ059", "has that character in column customer", '"offset":1', select[1])
    named = "its column customer is character varying(3)"
    ended = lab.fails(narrow, "MZ059", named, "narrow", "ALTER COLUMN customer TYPE text")
    assert "xy" not in str(ended.error), ended.error
    lab.execute(shop, "ALTER TABLE narrow ALTER customer TYPE text")
    lab.start(narrow)
    lab.has_rows(shop, "narrow", 2)
    assert lab.rows(shop, "SELECT customer FROM narrow ORDER BY id") == [('"x"',), ('"xy"',)]


def test_a_character_that_the_encoding_does_not_have_is_told_by_row_and_column(
    lab: Lab, topic: Make, database: Make
) -> None:
    name, shop = topic(partitions=1), database(encoding="LATIN1")
    lab.execute(shop, "CREATE TABLE plain (id bigint, customer text)")
    for table in ("json", "escaped"):
        lab.execute(shop, f"CREATE TABLE {table} (id bigint PRIMARY KEY, customer jsonb)")
    source = lab.kafka_source(name, "id BIGINT NOT NULL, customer STRING")
    upsert: dict[str, Any] = {"mode": "upsert", "key": ["id"]}
    plain = lab.postgres_sink(source, shop, "plain")
    nested = lab.postgres_sink(source, shop, "json", select=["id", "array(customer) AS customer"], **upsert)
    escaped_json = r"""'"' || replace(customer, 'Ω', '\\u03A9') || '"' AS customer"""
    escaped = lab.postgres_sink(source, shop, "escaped", select=["id", escaped_json], **upsert)
    lab.produce(name, {"id": 1, "customer": "Café"}, {"id": 2, "customer": "aΩ"})
    lab.start(source, plain, nested, escaped)
    why = ("U+03A9 (Ω)", '{"id":2}', "in column customer", "encoding LATIN1")
    for sink in (plain, nested, escaped):
        lab.fails(sink, "MZ059", *why)
    lab.stop(plain)
    fixed = lab.postgres_sink(source, shop, "plain", select=["id", "replace(customer, 'Ω', '?') AS customer"])
    lab.start(fixed)
    lab.has_rows(shop, "plain", 2)
    rows = lab.rows(shop, "SELECT encode(convert_to(customer, 'UTF8'), 'escape') FROM plain ORDER BY id")
    assert rows == [(r"Caf\303\251",), ("a?",)]
