"""Upserts into a PostgreSQL table, without Spark: NULL in the key, and other unique indexes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from mzplan.connectors.api.outputs import outputs_without_spark
from mzplan.connectors.api.queries import resolve
from mzplan.connectors.postgres.sink.connector import PostgresSink
from mzplan.connectors.postgres.sink.staging import Move
from mzplan.connectors.postgres.tables import Connection, find_table
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.schema.description import CollectionRead, Description, InlinedConnection
from mzplan.secrets.references import Secrets

if TYPE_CHECKING:
    from examples.servers import PostgresServer

UPSERT = {"type": "upsert", "key": ["id"]}


@pytest.fixture
def connection(postgres: PostgresServer, database: Callable[..., str]) -> Iterator[Connection]:
    with psycopg.connect(postgres.dsn(database("keys")), autocommit=True) as connection:
        yield connection


def probed(
    server: PostgresServer, connection: Connection, ddl: str, *, keyed: bool = True, **body: Any
) -> tuple[Diagnostic, ...]:
    """Return the probe's diagnostics for a sink of (id, email) into the table that `ddl` creates."""
    connection.execute(f"DROP TABLE IF EXISTS t, other CASCADE; {ddl}".encode())
    told = {
        "type": "postgres",
        "host": "127.0.0.1",
        "port": server.port,
        "database": connection.info.dbname,
        "user": server.user,
        "password": "${env:PW}",
    }
    format_ = {"type": "json", "schema": "id BIGINT, email STRING, at TIMESTAMP NOT NULL"}
    envelope = {"envelope": UPSERT} if keyed else {}
    sink = Description(
        address=Address("sink", "k"),
        id="k",
        generation=1,
        digest="1:a",
        type="postgres",
        body={"from": "s", "connection": "pg", "table": "t", "mode": "upsert", **body},
        connections={
            "connection": InlinedConnection(address=Address("connection", "pg"), type="postgres", body=told)
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
    query = resolve(sink, Secrets(".", {"PW": server.password}), ".")
    return PostgresSink().probe(query, outputs_without_spark(query)).diagnostics


def test_keys_that_allow_null(postgres: PostgresServer, connection: Connection) -> None:
    table = "CREATE TABLE t (id bigint UNIQUE, email text UNIQUE, at timestamptz)"
    by_email: dict[str, Any] = {"key": ["email"], "select": ["email", "at", "id"]}
    (found,) = (d for d in probed(postgres, connection, table, **by_email) if d.code == "MZ055")
    assert found.severity == "error"
    assert found.hint.startswith("ALTER TABLE t ALTER COLUMN email SET NOT NULL;")
    # What it says mends it.
    assert [d.code for d in probed(postgres, connection, f"{table}; {found.hint}", **by_email)] == []
    # Rows that are only added need no delete, but updates would add others.
    (found,) = probed(postgres, connection, table, keyed=False, **by_email)
    assert (found.code, found.severity) == ("MZ055", "warning")
    # It may be allowed where none comes: a record without its key is malformed; and what says NOT NULL.
    assert probed(postgres, connection, table, key=["id"]) == ()
    alike = "CREATE TABLE t (at timestamptz UNIQUE, id bigint)"
    assert probed(postgres, connection, alike, keyed=False, key=["at"], select=["at", "id"]) == ()
    (found,) = probed(
        postgres, connection, alike, keyed=False, key=["at"], select=["nullif(at, at) AS at", "id"]
    )
    assert found.code == "MZ055"
    # Both statements at once, where there is no index either.
    (found,) = probed(
        postgres, connection, "CREATE TABLE t (id bigint, email text)", key=["email"], select=["email", "id"]
    )
    assert (found.code, len(found.hint.splitlines())) == ("MZ055", 2)


def test_other_unique_indexes(postgres: PostgresServer, connection: Connection) -> None:
    table = "CREATE TABLE t (id bigint PRIMARY KEY, email text UNIQUE, at timestamptz{})"
    told = {
        "": "",
        ", note text": "column note is not written",
    }
    for more, why in told.items():
        found = probed(postgres, connection, table.format(more), key=["id"])
        assert [d.code for d in found] == (["MZ055"] if why else []), found
        assert all(d.severity == "warning" and why in d.detail for d in found)
    refers = f"{table.format('')}; CREATE TABLE other (t bigint REFERENCES t ON DELETE CASCADE)"
    (found,) = probed(postgres, connection, refers, key=["id"])
    assert "another table refers to it (other_t_fkey)" in found.detail
    acts = (
        f"{table.format('')}; CREATE TRIGGER noted AFTER UPDATE ON t "
        "EXECUTE FUNCTION suppress_redundant_updates_trigger()"
    )
    (found,) = probed(postgres, connection, acts, key=["id"])
    assert "it has a trigger (noted)" in found.detail


@pytest.mark.parametrize("refers", [False, True])
def test_rows_that_swap_unique_values(connection: Connection, refers: bool) -> None:
    """Rows pass a unique value on in one step, so that every order of updates violates the index."""
    connection.execute(b"DROP TABLE IF EXISTS t, other, stage CASCADE")
    connection.execute(b"CREATE TABLE t (id bigint PRIMARY KEY, email text UNIQUE)")
    connection.execute(b"INSERT INTO t VALUES (1, 'b'), (2, 'a'), (3, 'z')")
    if refers:
        connection.execute(b"CREATE TABLE other (t bigint REFERENCES t ON DELETE CASCADE)")
        connection.execute(b"INSERT INTO other VALUES (1)")
    connection.execute(b"CREATE TABLE stage (_attempt bigint, c0 bigint, c1 text, p0 bigint, p1 integer)")
    staged = [(2, "a", 2, 0), (2, "c", 2, 1), (1, "b", 3, 0), (1, "a", 3, 1)]
    for row in staged:
        connection.execute("INSERT INTO stage VALUES (1, %s, %s, %s, %s)", row)
    table = find_table(connection, "public.t")
    assert table is not None
    move = Move(
        stage="stage",
        table=table,
        targets=table.columns,
        keys=table.columns[:1],
        position=(("_version", "bigint"), ("_there", "integer")),
        exists_field="_there",
    )
    if refers:  # what refers to them would go with them
        with pytest.raises(psycopg.errors.UniqueViolation), connection.transaction():
            move.move(connection, {1: len(staged)})
    else:
        with connection.transaction():
            assert move.move(connection, {1: len(staged)})
    now = dict(connection.execute("SELECT id, email FROM t").fetchall())
    assert now == ({1: "b", 2: "a", 3: "z"} if refers else {1: "a", 2: "c", 3: "z"})
    assert not refers or connection.execute("SELECT count(*) FROM other").fetchone() == (1,)
    # What is not unique at the end is an error still.
    if not refers:
        connection.execute("INSERT INTO stage VALUES (2, 1, 'z', 9, 1)")
        with pytest.raises(psycopg.errors.UniqueViolation), connection.transaction():
            move.move(connection, {2: 1})
