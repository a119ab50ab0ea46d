"""An S3 server, the backends that pass the contract of stores, and a database with tables for sources."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.contract import stores
from tests.contract.stores import Case, Make, ObjectServer
from tests.support import execute

if TYPE_CHECKING:
    from examples.servers import PostgresServer
    from tests.contract.postgres_sinks import SinkDatabase
    from tests.contract.postgres_sources import Tables

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def object_server() -> Iterator[ObjectServer]:
    server = ObjectServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def _postgres_store(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Case, str]]:
    postgres.start()
    name = f"store_{next(_numbers)}"
    dsn = postgres.create_database(name)
    yield stores.postgres(tmp_path_factory.mktemp("store"), postgres, name), dsn
    postgres.drop_database(name)


@pytest.fixture
def postgres_store(_postgres_store: tuple[Case, str]) -> tuple[Case, str]:
    """A store in PostgreSQL, and the address of its database, which is empty again for each test."""
    dsn = _postgres_store[1]
    execute(dsn, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename ~ '^state_'")
    execute(dsn, "DROP SCHEMA IF EXISTS mzplan CASCADE")
    return _postgres_store


@pytest.fixture(params=["local", "postgres", "object-store"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    match request.param:
        case "postgres":
            return request.getfixturevalue("postgres_store")[0]  # type: ignore[no-any-return]
        case "object-store":
            server = request.getfixturevalue("object_server")
            return stores.object_store(tmp_path, server, f"bucket-{next(_numbers)}")
        case _:
            return stores.local(tmp_path)


@pytest.fixture
def make(case: Case) -> Make:
    """Opens the same store repeatedly, as separate processes would."""
    return case.make


@pytest.fixture
def shop(database: Callable[..., str], postgres: PostgresServer, tmp_path: Path) -> Iterator[Tables]:
    from tests.contract.postgres_sources import Tables

    with closing(Tables(postgres.dsn(database()), tmp_path)) as made:
        yield made


@pytest.fixture
def sinks(postgres: PostgresServer, database: Callable[..., str]) -> Iterator[Callable[..., SinkDatabase]]:
    """``sinks(columns, table, *roles)``: a new database with sinks of these columns into the table."""
    from tests.contract.postgres_sinks import SinkDatabase

    with ExitStack() as made:
        yield lambda *given: made.enter_context(closing(SinkDatabase(postgres, database(), *given)))
