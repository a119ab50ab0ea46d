"""Each session with PostgreSQL has the settings that mzplan relies on, whatever the database sets."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from adbc_driver_postgresql import dbapi

from mzplan.connectors.postgres.client import connect
from mzplan.connectors.postgres.sink.content import make_query_reader
from mzplan.connectors.postgres.sink.copy import Copy, Session
from mzplan.connectors.postgres.source.replication import SESSION, ReplicationLink
from mzplan.connectors.postgres.tables import find_table
from mzplan.host.postgres_session import session_statement
from mzplan.store.backends.postgres import PostgresBackend
from tests.contract.postgres_sources import Tables, connection_of
from tests.support import execute, rows_of

if TYPE_CHECKING:
    from examples.servers import PostgresServer

NAME = "Café Müller"
ODD = {
    "client_encoding": "'LATIN1'",
    "datestyle": "'German'",
    "intervalstyle": "'iso_8601'",
    "timezone": "'Asia/Tokyo'",
    "bytea_output": "'escape'",
    "extra_float_digits": "0",
    "standard_conforming_strings": "off",
    "synchronous_commit": "off",
    "default_transaction_isolation": "'serializable'",
    "statement_timeout": "'3s'",
    "search_path": "shadows, pg_catalog, public",
}
WANTED = {
    "client_encoding": "UTF8",
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "standard_conforming_strings": "on",
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
}
SHOW = "SELECT name, setting FROM pg_settings WHERE name IN ('search_path', 'statement_timeout'"
SHOW = f"{SHOW}, {', '.join(repr(name) for name in WANTED)}, 'DateStyle', 'IntervalStyle', 'TimeZone')"


@pytest.fixture
def dsn(postgres: PostgresServer, database: Callable[..., str]) -> str:
    """A LATIN1 database with other settings, and a schema that hides one of PostgreSQL's functions."""
    name = database(encoding="LATIN1")
    for setting, value in ODD.items():
        execute(postgres.dsn(), f"ALTER DATABASE {name} SET {setting} = {value}")
    execute(postgres.dsn(name), "CREATE SCHEMA shadows")
    wrong = "CREATE FUNCTION shadows.current_setting(text) RETURNS text LANGUAGE sql AS $$SELECT 'wrong'$$"
    execute(postgres.dsn(name), wrong)
    return postgres.dsn(name)


def by_psycopg(dsn: str) -> dict[str, str]:
    with connect(dsn) as connection:
        assert connection.execute("SELECT current_setting('port')").fetchone() != ("wrong",)
        return dict(connection.execute(SHOW.encode()).fetchall())


def by_adbc_of_a_sink(dsn: str) -> dict[str, str]:
    with closing(Session(dsn, autocommit=True)) as session:
        return dict(session.fetch(SHOW))


def by_adbc_of_a_source(dsn: str) -> dict[str, str]:
    with dbapi.connect(dsn, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(SESSION)
        cursor.execute(SHOW)
        return dict(cursor.fetchall())


def by_replication(dsn: str) -> dict[str, str]:
    with closing(ReplicationLink(dsn)) as link:
        return {str(name): str(value) for name, value in link.command(SHOW.encode())}


def by_the_store(dsn: str) -> dict[str, str]:
    backend = PostgresBackend(connection_of(dsn), ".", "shop")
    with backend._open() as connection:
        return dict(connection.execute(SHOW.encode()).fetchall())


def by_verify(dsn: str) -> dict[str, str]:
    read = make_query_reader(
        dsn, [session_statement()], [SHOW], 2, SimpleNamespace(add=lambda count: None), None
    )
    (batch,) = read([pa.RecordBatch.from_arrays([pa.array([0])], names=["id"])])
    return dict(zip(*(column.to_pylist() for column in batch.columns), strict=True))


@pytest.mark.parametrize(
    "settings",
    [by_psycopg, by_adbc_of_a_sink, by_adbc_of_a_source, by_replication, by_the_store, by_verify],
)
def test_a_session_sets_what_it_relies_on(dsn: str, settings: Callable[[str], dict[str, str]]) -> None:
    found = {name.lower(): value for name, value in settings(dsn).items()}
    of_a_source = settings in (by_adbc_of_a_source, by_replication)
    path = "pg_catalog" if of_a_source else "shadows, public"  # pg_catalog is first unless it is named
    timeout = "20000" if settings is by_the_store else "0"
    assert found == {**WANTED, "search_path": path, "statement_timeout": timeout}


def test_a_latin1_database_gets_and_gives_the_same_text(dsn: str, tmp_path: Path) -> None:
    execute(dsn, "CREATE TABLE public.t (id bigint PRIMARY KEY, name text)")
    with closing(Tables(dsn, tmp_path)) as tables, closing(Session(dsn, autocommit=True)) as session:
        orders = tables.read()
        for id_ in (1, 2):  # by the snapshot, then by a change
            schema = pa.schema({"id": pa.int64(), "name": pa.string()})
            copy = Copy(session, ("public", "t"), schema)
            copy.push([pa.array([id_]), pa.array([NAME])])
            copy.finish()
            orders.follow()
        assert orders.names == {1: NAME, 2: NAME}
    stored = rows_of(dsn, "SELECT DISTINCT encode(convert_to(name, 'LATIN1'), 'hex') FROM public.t")
    assert stored == [(NAME.encode("latin1").hex(),)]


def test_names_may_have_any_letters_of_the_encoding(dsn: str) -> None:
    with connect(dsn) as connection:
        connection.execute('CREATE TABLE public."Café" (id bigint)')
        assert find_table(connection, "public.Café") is not None
