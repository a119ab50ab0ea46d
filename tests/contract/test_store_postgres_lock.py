"""The lock of a store in PostgreSQL: a read-only login can't hold it, and errors name the holder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.contract import stores
from tests.contract.stores import Make, lock_refusal

if TYPE_CHECKING:
    from examples.servers import PostgresServer


class Database:
    """A database with a store of login `writer`. Login `reader` may read it, as for CI that plans."""

    def __init__(self, folder: Path, server: PostgresServer, name: str):
        self.make: Make = stores.postgres(folder, server, name).make
        self.dsn = server.dsn(name)
        self.writer, self.reader = f"state_{name}", f"reader_{name}"
        self.admin = psycopg.connect(self.dsn, autocommit=True)
        self.run(f"CREATE ROLE {self.reader} LOGIN PASSWORD 'r'")

    def run(self, statement: str) -> None:
        self.admin.execute(statement.encode())

    def grant(self) -> None:
        self.run(f"GRANT USAGE ON SCHEMA mzplan TO {self.reader}")
        self.run(f"GRANT SELECT ON mzplan.blobs TO {self.reader}")

    def connect(self, role: str, **more: Any) -> psycopg.Connection[Any]:
        password = "r" if role == self.reader else f"pw-{role}"
        return psycopg.connect(self.dsn, user=role, password=password, autocommit=True, **more)


@pytest.fixture
def there(tmp_path: Path, postgres: PostgresServer, database: Callable[..., str]) -> Iterator[Database]:
    made = Database(tmp_path, postgres, database("lock"))
    yield made
    made.admin.close()


def test_a_read_only_login_blocks_no_commit(there: Database) -> None:
    with there.connect(there.reader) as reader:
        with there.make().lock("apply") as info:
            assert there.make().holder() == info
        there.grant()
        with there.make().lock("apply"):
            pass
        assert there.make().holder() is None
        for statement in (
            "SELECT 1 FROM mzplan.blobs FOR UPDATE",
            "SELECT 1 FROM mzplan.blobs FOR KEY SHARE",
            "LOCK TABLE mzplan.blobs IN ROW SHARE MODE",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), reader.transaction():
                reader.execute(statement.encode())
        with reader.transaction():
            reader.execute("LOCK TABLE mzplan.blobs IN ACCESS SHARE MODE")
            with there.make().lock("apply"):
                pass


def test_a_session_without_a_command_is_named_and_can_be_ended(there: Database) -> None:
    with there.make().lock("apply") as before:
        pass
    with contextlib.closing(there.connect(there.writer, application_name="psql")) as other:
        other.execute("BEGIN")
        other.execute("SELECT 1 FROM mzplan.blobs WHERE key = 'lock.held' FOR UPDATE")
        problem = lock_refusal(there.make())
        pid = other.info.backend_pid
        assert problem.code == "MZ033" and before.id not in problem.detail
        assert f"login {there.writer} (pid {pid} of the database, application 'psql')" in problem.detail
        assert f"mzplan state unlock session-{pid}" in problem.hint
        ended = there.make().release(f"session-{pid}")
        assert ended is not None and ended.pid == pid
        with there.make().lock("apply", wait=5.0):
            pass


def test_a_server_that_ends_idle_transactions_keeps_the_lock(there: Database) -> None:
    there.run(f"ALTER ROLE {there.writer} SET idle_in_transaction_session_timeout = '300ms'")
    with there.make().lock("apply") as info:
        time.sleep(1.0)
        assert there.make().holder() == info
