"""The lock of a store in PostgreSQL: a row that a transaction has locked for as long as its connection lives.

Locking a row takes the right to change it, so who may only read can't hold the lock. It ends with the
transaction, and so with the process.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

Connection = psycopg.Connection[Any]

_ROW = "lock.held"  # its content says nothing: `lock` says who holds it
_ENSURE = (
    "INSERT INTO {t} (project, key, data, version) VALUES (%s, %s, '', 0) "
    "ON CONFLICT (project, key) DO NOTHING"
)
_TAKE = "SELECT 1 FROM {t} WHERE project = %s AND key = %s FOR UPDATE SKIP LOCKED"
# A server may end a transaction in which nothing happens; an older one does not know each of these settings.
_UNENDING = (
    "SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN "
    "('idle_in_transaction_session_timeout', 'idle_session_timeout', 'transaction_timeout')"
)
# Any login may see these columns of other sessions.
_SESSION = "SELECT s.pid, pg_get_userbyid(s.usesysid), s.application_name FROM pg_stat_activity AS s "
# A row that is locked names the transaction, which itself is locked as long as it lasts.
_HOLDER = (
    _SESSION + "JOIN pg_locks AS l ON l.pid = s.pid AND l.locktype = 'transactionid' AND l.granted "
    "JOIN {t} AS b ON b.xmax = l.transactionid WHERE b.project = %s AND b.key = %s"
)
_RETRY_S = 0.1
_UNSEEN_S = 1.0  # for which the lock may be held by nobody that is seen: who has just ended, or not yet begun
_NOBODY = "unknown"


@dataclass(frozen=True, slots=True)
class LockSession:
    """Who holds the lock, as the server knows it: the pid of its session there, its login, and what its
    application calls itself."""

    pid: int
    login: str
    application: str


class PostgresLock:
    """The lock of a project in a schema."""

    def __init__(self, schema: str, project: str):
        self._table = sql.Identifier(schema, "blobs").as_string(None)
        self._row = (project, _ROW)

    def take(self, connection: Connection, name: str, wait: float) -> LockSession | None:
        """Take the lock on a connection of its own, which has no transaction, and is called `name` from now
        on. None once it is taken; else who has held it for all of so many seconds. Raises psycopg.Error."""
        connection.execute("SELECT set_config('application_name', %s, false)", (name,))
        connection.execute(_UNENDING)
        connection.execute(self._sql(_ENSURE), self._row)
        until = time.monotonic() + wait
        while True:
            connection.execute("BEGIN")
            if connection.execute(self._sql(_TAKE), self._row).fetchone() is not None:
                return None
            connection.execute("ROLLBACK")
            holder = self.holder(connection)
            if time.monotonic() >= until + (_UNSEEN_S if holder is None else 0.0):
                return holder or LockSession(0, _NOBODY, "")
            time.sleep(_RETRY_S)

    def holder(self, connection: Connection) -> LockSession | None:
        """Who holds it now; None when nobody does. Raises psycopg.Error."""
        held = connection.execute(self._sql(_HOLDER), self._row).fetchone()
        return LockSession(*held) if held is not None else None

    def _sql(self, query: str) -> bytes:
        return query.replace("{t}", self._table).encode()
