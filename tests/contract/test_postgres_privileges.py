"""The privileges of a sink's role, without Spark. All missing privileges are found at once, and the printed
script is sufficient to write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest

from mzplan.connectors.api.outputs import outputs_without_spark
from mzplan.connectors.api.queries import ResolvedQuery, resolve
from mzplan.connectors.postgres.client import connect
from mzplan.connectors.postgres.sink.batches import Batches
from mzplan.connectors.postgres.sink.connector import PostgresSink
from mzplan.connectors.postgres.sink.definition import key_of
from mzplan.connectors.postgres.sink.output import PostgresOutput, Target
from mzplan.connectors.postgres.sink.staged_output import StagedOutput
from mzplan.connectors.postgres.sink.staging import Move, can_copy_straight, staging_shape
from mzplan.connectors.postgres.sink.target_table import find_target
from mzplan.connectors.postgres.sink.writer import writer_of
from mzplan.connectors.postgres.tables import Connection
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.schema.description import CollectionRead, Description, InlinedConnection
from mzplan.secrets.references import Secrets
from mzplan.warehouse.content_hash import HASH

if TYPE_CHECKING:
    from examples.servers import PostgresServer

FORMER, ROLE = "former_role", "next_role"
TABLE = """\
CREATE SCHEMA shop; CREATE SCHEMA kinds;
CREATE TYPE kinds.state AS ENUM ('open', 'paid');
CREATE TABLE shop.orders (id bigint PRIMARY KEY, state kinds.state, n serial);
"""


class Server:
    """A database with connections of its superuser and of two roles."""

    def __init__(self, server: PostgresServer, database: str):
        self.port, self.database = server.port, database
        self.admin: Connection = psycopg.connect(server.dsn(database), autocommit=True)

    def run(self, statements: str) -> None:
        self.admin.execute(statements.encode())

    def query(self, user: str, *, keyed: bool = True, generation: int = 1, **body: Any) -> ResolvedQuery:
        told = {
            "type": "postgres",
            "host": "127.0.0.1",
            "port": self.port,
            "database": self.database,
            "user": user,
            "password": "${env:PW}",
        }
        format_ = {"type": "json", "schema": "id BIGINT NOT NULL, state STRING"}
        envelope = {"envelope": {"type": "upsert", "key": ["id"]}} if keyed else {}
        sink = Description(
            address=Address("sink", "k"),
            id="k",
            generation=generation,
            digest="1:a",
            type="postgres",
            body={"from": "s", "connection": "pg", "table": "shop.orders", **body},
            connections={
                "connection": InlinedConnection(
                    address=Address("connection", "pg"), type="postgres", body=told
                )
            },
            reads={
                "s": CollectionRead(
                    address=Address("source", "s"),
                    id="s",
                    generation=1,
                    type="kafka",
                    body={"connection": "c", "topic": "t", "format": format_, **envelope},
                )
            },
        )
        return resolve(sink, Secrets(".", {"PW": "pw"}), ".")


@pytest.fixture
def server(postgres: PostgresServer, database: Callable[..., str]) -> Iterator[Server]:
    made = Server(postgres, database("privileges"))
    for role in (FORMER, ROLE):
        made.run(f"CREATE ROLE {role} LOGIN PASSWORD 'pw'")
    yield made
    for role in (FORMER, ROLE):
        made.run(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")
    made.admin.close()


def probed(query: ResolvedQuery) -> tuple[Diagnostic, ...]:
    return PostgresSink().probe(query, outputs_without_spark(query)).diagnostics


def allow(server: Server, query: ResolvedQuery) -> str:
    """Run the printed script, which must be sufficient, and return it."""
    (found,) = probed(query)
    assert found.code == "MZ054", found.detail
    _, _, script = found.hint.partition("\n")
    server.run(script)
    assert probed(query) == ()
    return script


def write(query: ResolvedQuery, step: int, epoch: int, rows: int = 1) -> None:
    """Write one step with everything that a run does on the server, from the first batch to the expiry."""
    info = f"host=127.0.0.1 port={query.link.body['port']} dbname={query.link.body['database']} "
    info += f"user={query.link.body['user']} password=pw"
    outputs, keys = outputs_without_spark(query), key_of(query)
    with connect(info) as connection:
        table = find_target(connection, query)
        assert table is not None
        targets = tuple(target for output in outputs if (target := table.column(output.name)))
        position = (("offset", "bigint"), ("change", "integer")) if keys else ()
        writer = writer_of(query, epoch, "q")
        move = Move(
            stage=writer.stage_sql,
            table=table,
            targets=targets,
            keys=tuple(target for target in targets if target.name in keys),
            position=position,
            exists_field="change" if query.keys else None,
        )
        straight = can_copy_straight(table, outputs, targets, keys)
        shape = None if straight else staging_shape(outputs, targets, position)
        emptied = table if query.body.get("on_replace") == "truncate" else None
        writer.register(connection, shape, emptied)
        writer.check_target(connection, table)
        columns: dict[str, Any] = {"id": [10 * step + i for i in range(rows)], "state": ["open"] * rows}
        if straight:
            target = Target(conninfo=info, table=(table.schema, table.name), columns=("id", "state"))
            output: Any = PostgresOutput(target, writer.ledger, compare="warn")
        else:
            names = [f"c{i}" for i in range(len(outputs))] + [f"p{i}" for i in range(len(position))]
            target = Target(conninfo=info, table=(writer.ledger.schema, writer.stage), columns=tuple(names))
            output = StagedOutput(connection, writer, move, target, compare="warn")
            columns = dict(zip(names, [*columns.values(), list(range(rows)), [1] * rows], strict=False))
            if keys:
                columns["p1"] = pa.array(columns["p1"], pa.int32())
        with closing(output):
            output.start_step(step)
            output.push_buffer(pa.RecordBatch.from_pydict({**columns, HASH: [1] * rows}))
            output.finish_step()
        writer.expire(connection, 999)
        written = writer.written(connection, step, step)
        assert written is not None and written.rows == rows


def test_the_printed_script_is_sufficient_for_another_user(server: Server) -> None:
    """The staging table and the ledger belong to the former user."""
    server.run(TABLE)
    keyed = {"mode": "upsert", "key": ["id"]}
    first = allow(server, server.query(FORMER, **keyed))
    assert "CREATE ON DATABASE" in first and "stage_" not in first
    write(server.query(FORMER, **keyed), 0, epoch=1)
    query = server.query(ROLE, **keyed)
    script = allow(server, query)
    of_shop = ("ON SCHEMA shop", "ON SCHEMA kinds", "orders_n_seq", "INSERT, SELECT, UPDATE, DELETE ON shop")
    own = (
        "CREATE ON SCHEMA mzplan",
        "UPDATE ON mzplan.writers",
        "UPDATE, DELETE ON mzplan.steps",
        "OWNER TO",
    )
    assert [part for part in (*of_shop, *own) if part not in script] == []
    write(server.query(FORMER, **keyed), 1, epoch=1)  # it goes on until the change is applied
    write(query, 2, epoch=2, rows=6000)  # so many that the staging table is truncated
    assert server.admin.execute("SELECT count(*) FROM shop.orders").fetchone() == (6002,)


def test_objects_of_another_role_created_since_the_probe(server: Server) -> None:
    """At validation, both roles may create schema mzplan. One creates it, and the other then needs grants."""
    server.run(TABLE)
    allow(server, server.query(FORMER))
    query = server.query(ROLE)
    allow(server, query)
    write(server.query(FORMER), 0, epoch=1)
    with pytest.raises(psycopg.errors.InsufficientPrivilege) as denied:
        write(query, 1, epoch=2)
    outputs = outputs_without_spark(query)
    run: Any = SimpleNamespace(query=query, epoch=2, outputs=outputs, interrupt=lambda hang_up: None)
    told = Batches(run).explain(denied.value)
    assert isinstance(told, MzplanError) and told.diagnostics == probed(query)
    assert "USAGE, CREATE ON SCHEMA mzplan" in allow(server, query)
    write(query, 1, epoch=2)


def test_each_line_of_the_script_is_necessary(server: Server) -> None:
    server.run(TABLE)
    keyed = {"mode": "upsert", "key": ["id"]}
    allow(server, server.query(FORMER, **keyed))
    write(server.query(FORMER, **keyed), 0, epoch=1)
    query = server.query(ROLE, **keyed)
    (found,) = probed(query)
    lines = [line for line in found.hint.splitlines()[1:] if f"TO {ROLE}" in line]
    assert len(lines) == 8
    for left_out in lines:
        if "OWNER TO" in left_out:
            continue  # only for other columns
        for line in lines:
            if line != left_out and not ("OWNER TO" in line and "SCHEMA mzplan" in left_out):
                server.run(line)
        with pytest.raises(psycopg.Error, match="permission denied"):
            write(query, 1, epoch=2)
        server.run(f"ALTER TABLE mzplan.{writer_of(query).stage} OWNER TO {FORMER}; DROP OWNED BY {ROLE}")


def test_append_needs_no_select(server: Server) -> None:
    server.run("CREATE SCHEMA shop; CREATE TABLE shop.orders (id bigint, state text)")
    query = server.query(ROLE, keyed=False, mode="append")
    script = allow(server, query)
    assert "GRANT INSERT ON shop.orders" in script and "SELECT" not in script
    write(query, 0, epoch=1)
    server.run("VACUUM FULL shop.orders")  # another file: is it empty?
    write(query, 1, epoch=1)
    # To empty it is another privilege, and only for the first run of a generation.
    anew = server.query(ROLE, keyed=False, generation=2, mode="append", on_replace="truncate")
    assert "GRANT DELETE ON shop.orders" in allow(server, anew)
    write(anew, 0, epoch=1)
    server.run(f"REVOKE DELETE ON shop.orders FROM {ROLE}")
    assert probed(anew) == ()


def test_a_read_only_server(server: Server) -> None:
    server.run(TABLE)
    query = server.query(ROLE, mode="upsert", key=["id"])
    allow(server, query)
    server.run(f"ALTER ROLE {ROLE} SET default_transaction_read_only = on")
    (found,) = probed(query)
    assert found.code == "MZ159"
    server.run(found.hint.rpartition(": ")[2])
    assert probed(query) == ()


def test_tables_are_not_searched_in_the_staging_schema_first(server: Server) -> None:
    """A user with the schema's name has the schema in the search path."""
    body: dict[str, Any] = {"keyed": False, "mode": "append", "staging_schema": ROLE}
    server.run("CREATE TABLE public.steps (id bigint, state text)")
    query = server.query(ROLE, table="steps", **body)
    allow(server, query)
    write(query, 0, epoch=1)
    assert server.admin.execute("SELECT to_regclass(%s)", (f"{ROLE}.steps",)).fetchone() != (None,)
    write(query, 1, epoch=1)  # into public.steps
    assert server.admin.execute("SELECT count(*) FROM public.steps").fetchone() == (2,)
    for name in ("writers", writer_of(query).stage):
        (found,) = probed(server.query(ROLE, table=name, **body))
        assert found.code == "MZ052" and f"CREATE TABLE public.{name} (" in found.hint
    # What was created without a schema has gone into it.
    server.run(f"SET ROLE {ROLE}; CREATE TABLE captured (id bigint, state text); RESET ROLE")
    (found,) = probed(server.query(ROLE, table="captured", **body))
    assert (found.code, found.severity) == ("MZ158", "warning")
    server.run(found.hint)
    assert probed(server.query(ROLE, table="captured", **body)) == ()


def made_there(server: Server) -> set[str]:
    found = server.admin.execute(
        "SELECT n.nspname || coalesce('.' || c.relname, '') FROM pg_namespace n LEFT JOIN pg_class c "
        "ON c.relnamespace = n.oid AND c.relkind = 'r' WHERE n.nspname = 'mzplan'"
    )
    return {name for (name,) in found.fetchall()}


def test_removing_the_last_sink_drops_the_schema(server: Server) -> None:
    server.run(TABLE)
    keyed = {"mode": "upsert", "key": ["id"]}
    first, second, again = (server.query(FORMER, generation=one, **keyed) for one in (1, 2, 3))
    allow(server, first)
    for step, query in enumerate((first, second)):
        write(query, 0, epoch=step + 1)
    PostgresSink().forget(first)
    assert made_there(server) == {"mzplan.writers", "mzplan.steps", f"mzplan.{writer_of(second).stage}"}
    write(second, 1, epoch=2)
    PostgresSink().forget(second)
    assert made_there(server) == set()
    PostgresSink().forget(second)  # again, after a crash
    write(again, 0, epoch=3)
    # What somebody else has put there stays, and the schema with it.
    server.run("CREATE TABLE mzplan.notes (text text)")
    PostgresSink().forget(again)
    assert made_there(server) == {"mzplan.notes"}


def test_a_schema_that_may_not_be_dropped_stays(server: Server) -> None:
    server.run(TABLE)
    keyed = {"mode": "upsert", "key": ["id"]}
    server.run(f"CREATE SCHEMA mzplan AUTHORIZATION {FORMER}")  # a role that could not make it anew
    of_former = server.query(FORMER, **keyed)
    allow(server, of_former)
    write(of_former, 0, epoch=1)
    PostgresSink().forget(of_former)
    assert made_there(server) == {"mzplan"}
    write(of_former, 0, epoch=1)
    another = server.query(ROLE, generation=2, **keyed)
    allow(server, another)
    write(another, 0, epoch=2)
    kept = made_there(server)
    with pytest.raises(MzplanError, match="couldn't be removed") as refused:
        PostgresSink().forget(another)
    assert made_there(server) == kept
    server.run(refused.value.diagnostics[0].hint)
    assert server.admin.execute("SELECT count(*) FROM mzplan.writers").fetchone() == (0,)
