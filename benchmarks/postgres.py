"""Collection → PostgreSQL: mzplan's exactly-once sink compared with Spark's own JDBC append.

Both read the same collection from its start, in the same session and with the same trigger, into an empty
table of the same shape. mzplan writes in three ways:

- straight: an append whose columns PostgreSQL accepts as they are.
- staged: an append that needs a cast. `note` becomes jsonb, which JDBC can't write; JDBC writes text.
- upsert: into a table with a unique index.

Spark's JDBC append is at least once: it may write rows twice.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import psycopg

from benchmarks.engine import Engine, describe_sink, describe_source
from benchmarks.figures import Rounds, Table, alternate, rate, ratio, verdict
from benchmarks.stage import Stage
from examples.servers import PostgresServer
from mzplan.connectors.kafka.source import KafkaSource
from mzplan.schema.description import Description
from mzplan.schema.source_columns import columns_of
from mzplan.spark.collections import Collections

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FILES = 4
SCHEMA = "id BIGINT, customer STRING, amount DOUBLE, quantity INT, ts TIMESTAMP, note STRING"
TABLE = "id bigint, customer text, amount double precision, quantity integer, ts timestamptz, note {note}"
DATABASE = "postgres_sink"


def measure(stage: Stage) -> Table:
    records, rounds = (500, Rounds(0, 1)) if stage.small else (2_000_000, Rounds(1, 4))
    engine, server = stage.engine, stage.postgres
    server.create_database(DATABASE)
    source = describe_source(
        "kafka",
        {"type": "kafka", "brokers": ["localhost:1"]},
        topic="t",
        format={"type": "json", "schema": SCHEMA},
    )
    _fill(engine, source, records)

    def ours(note: str = "text", primary: str = "", **body: Any) -> float:
        table = _table(server, note, primary)
        seconds = engine.ours(describe_sink(source, "postgres", _connection(server), table=table, **body))
        _check(server, table, records)
        return seconds

    def jdbc() -> float:
        table = _table(server, "text", "")
        seconds = engine.theirs(lambda: _jdbc(engine, source, server, table))
        _check(server, table, records)
        return seconds

    sides = {
        "append, straight": ours,
        "append, staged (a cast to jsonb)": lambda: ours("jsonb", select=_NOTE_AS_JSON),
        "upsert": lambda: ours(primary="id", mode="upsert", key=["id"]),
        "Spark's JDBC append": jdbc,
    }
    taken = alternate(sides, rounds)
    times = {name: ratio(taken["Spark's JDBC append"], seconds) for name, seconds in taken.items()}
    aims = {"append, straight": verdict("3", times["append, straight"] >= 3)}
    return Table(
        ("sink", "rows/s", "× JDBC", "aim"),
        [(name, rate(records, taken[name]), f"{times[name]:.2f}", aims.get(name, "")) for name in sides],
    )


def _connection(server: PostgresServer) -> dict[str, Any]:
    return {
        "type": "postgres",
        "host": "127.0.0.1",
        "port": server.port,
        "database": DATABASE,
        "user": server.user,
        "password": server.password,
    }


_NOTE_AS_JSON = ["id", "customer", "amount", "quantity", "ts", "to_json(named_struct('n', note)) AS note"]


def _fill(engine: Engine, source: Description, records: int) -> None:
    """Write the source's collection, as its query would write it."""
    path = engine.collection(source)
    Collections().ensure(engine.spark, path, columns_of(source.type, source.body), KafkaSource.position)
    rows = engine.spark.range(0, records, 1, FILES).selectExpr(
        "id",
        "concat('customer ', id % 5000) AS customer",
        "(id % 100000) / 100D AS amount",
        "CAST(id % 7 AS INT) AS quantity",
        "timestamp_seconds(1767600000 + id) AS ts",
        "'left at the door, as always' AS note",
        "named_struct('partition', 0, 'offset', id, 'timestamp', current_timestamp()) AS _position",
    )
    rows.write.format("delta").mode("append").save(path)


def _jdbc(engine: Engine, source: Description, server: PostgresServer, table: str) -> DataStreamWriter:
    properties = {"user": server.user, "password": server.password, "driver": "org.postgresql.Driver"}
    url = f"jdbc:postgresql://127.0.0.1:{server.port}/{DATABASE}"

    def write(batch: Any, step: int) -> None:
        batch.write.jdbc(url, table, "append", properties)

    rows = engine.spark.readStream.format("delta").load(engine.collection(source)).drop("_position")
    return rows.writeStream.foreachBatch(write)


def _table(server: PostgresServer, note: str, key: str) -> str:
    """Drop the earlier tables, create an empty one, and return its name."""
    name = f"public.t_{uuid.uuid4().hex[:8]}"
    columns = TABLE.format(note=note) + (f", PRIMARY KEY ({key})" if key else "")
    with psycopg.connect(server.dsn(DATABASE), autocommit=True) as connection:
        old = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        for (table,) in old:
            connection.execute(f"DROP TABLE public.{table}".encode())
        connection.execute(f"CREATE TABLE {name} ({columns})".encode())
        connection.execute("CHECKPOINT")
    return name


def _check(server: PostgresServer, table: str, records: int) -> None:
    """Check that the table has each row exactly once, with values."""
    with psycopg.connect(server.dsn(DATABASE)) as connection:
        query = f"SELECT count(ts), count(DISTINCT id), count(*) FROM {table}"
        found = connection.execute(query.encode()).fetchone()
    assert found == (records, records, records), found
