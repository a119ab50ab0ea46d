"""An S3 server, the backends that pass the contract of stores, and a database with tables for sources."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.contract import stores
from tests.contract.stores import Case, Make, ObjectServer

if TYPE_CHECKING:
    from examples.servers import PostgresServer
    from tests.contract.postgres_sources import Tables

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def object_server() -> Iterator[ObjectServer]:
    server = ObjectServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["local", "postgres", "object-store"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    match request.param:
        case "postgres":
            server = request.getfixturevalue("postgres")
            return stores.postgres(tmp_path, server, request.getfixturevalue("database")("store"))
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

    made = Tables(postgres.dsn(database()), tmp_path)
    yield made
    made.close()
