"""The store's lock in PostgreSQL: a row that a transaction locks while its connection lives.

Locking a row needs the right to change it, so a read-only user can't hold the lock. The lock ends with the
transaction, and so with the process.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

Connection = psycopg.Connection[Any]

_ROW = "lock.held"  # its content is empty: the row `lock` names the holder
_ENSURE = (
    "INSERT INTO {t} (project, key, data, version) VALUES (%s, %s, '', 0) "
    "ON CONFLICT (project, key) DO NOTHING"
)
_TAKE = "SELECT 1 FROM {t} WHERE project = %s AND key = %s FOR UPDATE SKIP LOCKED"
# A server may end an idle transaction. Older servers don't have all of these settings.
_UNENDING = (
    "SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN "
    "('idle_in_transaction_session_timeout', 'idle_session_timeout', 'transaction_timeout')"
)
# Every login may read these columns of other sessions.
_SESSION = "SELECT s.pid, pg_get_userbyid(s.usesysid), s.application_name FROM pg_stat_activity AS s "
# A locked row names its transaction, and pg_locks shows which session runs that transaction.
_HOLDER = (
    _SESSION + "JOIN pg_locks AS l ON l.pid = s.pid AND l.locktype = 'transactionid' AND l.granted "
    "JOIN {t} AS b ON b.xmax = l.transactionid WHERE b.project = %s AND b.key = %s"
)
_RETRY_S = 0.1
_UNSEEN_S = 1.0  # how long the lock may have no visible holder, while a session starts or ends
_NOBODY = "unknown"


@dataclass(frozen=True, slots=True)
class LockSession:
    """The session that holds the lock, as the server sees it.

    `pid` is on the server; `application` is the session's application name.
    """

    pid: int
    login: str
    application: str


class PostgresLock:
    """The lock of a project in a schema."""

    def __init__(self, schema: str, project: str):
        self._table = sql.Identifier(schema, "blobs").as_string(None)
        self._row = (project, _ROW)

    def take(self, connection: Connection, name: str, wait: float) -> LockSession | None:
        """Take the lock on a dedicated connection without a transaction.

        `name` becomes the connection's application name. Returns None if this process has the lock now, or
        the session that held it throughout `wait` seconds. Raises psycopg.Error.
        """
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
        """Return the session that holds the lock, or None. Raises psycopg.Error."""
        held = connection.execute(self._sql(_HOLDER), self._row).fetchone()
        return LockSession(*held) if held is not None else None

    def _sql(self, query: str) -> bytes:
        return query.replace("{t}", self._table).encode()
