"""PostgreSQL sinks without Spark: a database, sinks that write into it, and rows in a staging table."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa

from mzplan.connectors.api.outputs import outputs_without_spark
from mzplan.connectors.api.queries import ResolvedQuery, resolve
from mzplan.connectors.postgres.client import connect
from mzplan.connectors.postgres.definition import key_of
from mzplan.connectors.postgres.sink.connector import PostgresSink
from mzplan.connectors.postgres.sink.output import PostgresOutput, Target
from mzplan.connectors.postgres.sink.staged_output import StagedOutput
from mzplan.connectors.postgres.sink.staging import Move, can_copy_straight, staging_shape
from mzplan.connectors.postgres.sink.target_table import find_target
from mzplan.connectors.postgres.sink.writer import writer_of
from mzplan.connectors.postgres.tables import Connection, find_table
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.schema.description import CollectionRead, Description, InlinedConnection
from mzplan.secrets.references import Secrets
from mzplan.warehouse.rows.content_hash import HASH
from tests.contract.postgres_sources import connection_of

if TYPE_CHECKING:
    from examples.servers import PostgresServer

PG = Address("connection", "pg")
SINK = Address("sink", "k")


class SinkDatabase:
    """A database with a connection of its superuser, roles, and sinks of a collection with key `id`."""

    def __init__(self, server: PostgresServer, name: str, columns: str, table: str, *roles: str):
        self.dsn, self.columns, self.table, self.roles = server.dsn(name), columns, table, roles
        self.password = "pw" if roles else server.password
        self.admin: Connection = psycopg.connect(self.dsn, autocommit=True)
        for role in roles:
            self.run(f"CREATE ROLE {role} LOGIN PASSWORD 'pw'")

    def close(self) -> None:
        for role in self.roles:
            self.run(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")
        self.admin.close()

    def run(self, statements: str) -> None:
        self.admin.execute(statements.encode())

    def rows(self, query: str) -> list[Any]:
        return self.admin.execute(query.encode()).fetchall()

    def query(
        self, user: str | None = None, *, keyed: bool = True, generation: int = 1, **body: Any
    ) -> ResolvedQuery:
        """Return a sink that connects as this user. `keyed`: the collection has one row for each key."""
        format_ = {"type": "json", "schema": self.columns}
        envelope = {"envelope": {"type": "upsert", "key": ["id"]}} if keyed else {}
        source = CollectionRead(
            address=Address("source", "s"),
            id="s",
            generation=1,
            type="kafka",
            body={"connection": "c", "topic": "t", "format": format_, **envelope},
        )
        link = connection_of(self.dsn, password="${env:PW}", **({"user": user} if user else {}))
        sink = Description(
            address=SINK,
            id="k",
            generation=generation,
            digest="1:a",
            type="postgres",
            body={"from": "s", "connection": "pg", "table": self.table, **body},
            connections={"connection": InlinedConnection(address=PG, type="postgres", body=link)},
            reads={"s": source},
        )
        return resolve(sink, Secrets(".", {"PW": self.password}), ".")


def probed(query: ResolvedQuery) -> tuple[Diagnostic, ...]:
    return PostgresSink().probe(query, outputs_without_spark(query)).diagnostics


def write(query: ResolvedQuery, step: int, epoch: int, rows: int = 1) -> None:
    """Write a step of (id, state) with everything that a run does on the server, including the expiry."""
    link = query.link.body
    info = f"host=127.0.0.1 port={link['port']} dbname={link['database']} user={link['user']} password=pw"
    outputs, keys = outputs_without_spark(query), key_of(query)
    with connect(info) as connection:
        table = find_target(connection, query)
        assert table is not None
        targets = tuple(target for output in outputs if (target := table.column(output.name)))
        writer = writer_of(query, epoch, "q")
        move = Move(
            stage=writer.stage_sql,
            table=table,
            targets=targets,
            keys=tuple(target for target in targets if target.name in keys),
            position=(("offset", "bigint"), ("change", "integer")) if keys else (),
            exists_field="change" if query.keys else None,
        )
        straight = can_copy_straight(table, outputs, targets, move.keys)
        shape = None if straight else staging_shape(outputs, targets, move.position)
        writer.register(connection, shape, table if query.body.get("on_replace") == "truncate" else None)
        writer.check_target(connection, table)
        columns: dict[str, Any] = {"id": [10 * step + i for i in range(rows)], "state": ["open"] * rows}
        if straight:
            target = Target(conninfo=info, table=(table.schema, table.name), columns=("id", "state"))
            output: Any = PostgresOutput(target, writer.ledger, compare="warn")
        else:
            columns = {f"c{i}": values for i, values in enumerate(columns.values())}
            if keys:
                columns |= {"p0": list(range(rows)), "p1": pa.array([1] * rows, pa.int32())}
            target = Target(conninfo=info, table=(writer.ledger.schema, writer.stage), columns=tuple(columns))
            output = StagedOutput(connection, writer, move, target, compare="warn")
        with closing(output):
            output.start_step(step)
            output.push_buffer(pa.RecordBatch.from_pydict({**columns, HASH: [1] * rows}))
            output.finish_step()
        writer.expire(connection, 999)
        written = writer.written(connection, step, step)
        assert written is not None and written.rows == rows


def stage(connection: Connection, table: str, staged: Iterable[tuple[Any, ...]]) -> Move:
    """Stage rows of (attempt, two columns, version, 1 or 0 if deleted), and return their move into a table
    whose first column is the key."""
    connection.execute("DROP TABLE IF EXISTS stage")
    connection.execute("CREATE TABLE stage (_attempt bigint, c0 bigint, c1 text, p0 bigint, p1 integer)")
    for row in staged:
        connection.execute("INSERT INTO stage VALUES (%s, %s, %s, %s, %s)", row)
    found = find_table(connection, f"public.{table}")
    assert found is not None
    return Move(
        stage="stage",
        table=found,
        targets=found.columns,
        keys=found.columns[:1],
        position=(("_version", "bigint"), ("_there", "integer")),
        exists_field="_there",
    )
