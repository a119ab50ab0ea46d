"""Collection → PostgreSQL: mzplan's exactly-once sink against Spark's own JDBC append.

Both read the same collection from its start, in the same session and with the same trigger, into an empty
table of the same shape. Three ways of mzplan's: an append whose columns PostgreSQL takes as they are
(straight), one that needs a cast (staged: `note` becomes jsonb, which JDBC can't write; it writes text), and
an upsert into a table with a unique index. Spark's JDBC append is at least once: it may double rows.
"""

from __future__ import annotations

import statistics
import uuid
from typing import Any

import psycopg

from benchmarks.engine import Engine, describe_sink, describe_source
from benchmarks.stage import alternate, postgres_at, ratio, say, scratch, verdict
from examples.servers import PostgresServer
from mzplan.columns_of import columns_of
from mzplan.connectors.kafka import KafkaSource
from mzplan.inline import Description
from mzplan.spark.collections import Collections

RECORDS = 2_000_000
FILES = 4
WARM_UP = 1
ROUNDS = 4
SCHEMA = "id BIGINT, customer STRING, amount DOUBLE, quantity INT, ts TIMESTAMP, note STRING"
TABLE = "id bigint, customer text, amount double precision, quantity integer, ts timestamptz, note {note}"
JDBC = "org.postgresql:postgresql:42.7.4"
PASSWORD = "BENCH_PG_PASSWORD"  # the name of the variable
DATABASE = "bench"
# A machine's default of 128 MB makes both sides wait for the disk, in turns that nobody can compare.
SETTINGS = {"shared_buffers": "1GB", "max_wal_size": "8GB"}


def main() -> None:
    say(f"postgres: {RECORDS:,} rows of six columns, from a collection of {FILES} files")
    with scratch() as folder, postgres_at(folder, SETTINGS) as server:
        server.create_database(DATABASE)
        with Engine(folder, {"spark.jars.packages": JDBC}, {PASSWORD: server.password}) as engine:
            _measure(engine, server)


def _measure(engine: Engine, server: PostgresServer) -> None:
    source = describe_source(
        "kafka",
        {"type": "kafka", "brokers": ["localhost:1"]},
        topic="t",
        format={"type": "json", "schema": SCHEMA},
    )
    _fill(engine, source)
    connection = {
        "type": "postgres",
        "host": "127.0.0.1",
        "port": server.port,
        "database": DATABASE,
        "user": server.user,
        "password": f"${{env:{PASSWORD}}}",
    }

    def ours(note: str = "text", primary: str = "", **body: Any) -> float:
        table = _table(server, note, primary)
        seconds = engine.ours(describe_sink(source, "postgres", connection, table=table, **body))
        _check(server, table)
        return seconds

    def jdbc() -> float:
        table = _table(server, "text", "")
        seconds = engine.theirs(lambda: _jdbc(engine, source, server, table))
        _check(server, table)
        return seconds

    sides = {
        "straight": ours,
        "staged": lambda: ours("jsonb", select=_NOTE_AS_JSON),
        "upsert": lambda: ours(primary="id", mode="upsert", key=["id"]),
        "jdbc": jdbc,
    }
    taken = {name: seconds[WARM_UP:] for name, seconds in alternate(sides, WARM_UP + ROUNDS).items()}
    for name, seconds in taken.items():
        times = ratio(taken["jdbc"], seconds)
        say(f"  {name:<9} {RECORDS / statistics.median(seconds):>9,.0f} rows/s, {times:.2f} × JDBC")
    times = ratio(taken["jdbc"], taken["straight"])
    say(f"  straight append / JDBC {times:.2f}; {verdict(times >= 3)}: 3")


_NOTE_AS_JSON = ["id", "customer", "amount", "quantity", "ts", "to_json(named_struct('n', note)) AS note"]


def _fill(engine: Engine, source: Description) -> None:
    """The source's collection, as its query would have written it."""
    path = engine.collection(source)
    Collections().ensure(engine.spark, path, columns_of(source.type, source.body), KafkaSource.position)
    rows = engine.spark.range(0, RECORDS, 1, FILES).selectExpr(
        "id",
        "concat('customer ', id % 5000) AS customer",
        "(id % 100000) / 100D AS amount",
        "CAST(id % 7 AS INT) AS quantity",
        "timestamp_seconds(1767600000 + id) AS ts",
        "'left at the door, as always' AS note",
        "named_struct('partition', 0, 'offset', id, 'timestamp', current_timestamp()) AS _position",
    )
    rows.write.format("delta").mode("append").save(path)


def _jdbc(engine: Engine, source: Description, server: PostgresServer, table: str) -> Any:
    properties = {"user": server.user, "password": server.password, "driver": "org.postgresql.Driver"}
    url = f"jdbc:postgresql://127.0.0.1:{server.port}/{DATABASE}"

    def write(batch: Any, step: int) -> None:
        batch.write.jdbc(url, table, "append", properties)

    rows = engine.spark.readStream.format("delta").load(engine.collection(source)).drop("_position")
    return rows.writeStream.foreachBatch(write)


def _table(server: PostgresServer, note: str, key: str) -> str:
    """A new, empty table; the earlier ones are gone."""
    name = f"public.t_{uuid.uuid4().hex[:8]}"
    columns = TABLE.format(note=note) + (f", PRIMARY KEY ({key})" if key else "")
    with psycopg.connect(server.dsn(DATABASE), autocommit=True) as connection:
        old = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        for (table,) in old:
            connection.execute(f"DROP TABLE public.{table}".encode())
        connection.execute(f"CREATE TABLE {name} ({columns})".encode())
        connection.execute("CHECKPOINT")
    return name


def _check(server: PostgresServer, table: str) -> None:
    """Each row is there once, with values."""
    with psycopg.connect(server.dsn(DATABASE)) as connection:
        query = f"SELECT count(ts), count(DISTINCT id), count(*) FROM {table}"
        found = connection.execute(query.encode()).fetchone()
    assert found == (RECORDS, RECORDS, RECORDS), found


if __name__ == "__main__":
    main()
