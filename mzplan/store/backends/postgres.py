"""The PostgreSQL backend: a row per key, compare-and-swap on its version, and one lock.

The lock ends with its connection, and so with its process. Commits and proposals send notifications, so
runners on other machines look at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from mzplan.host.bounded_postgres import AnswerLimitError, BoundedConnection
from mzplan.host.network import is_loopback, libpq_security
from mzplan.model.diagnostics import MzplanError, ProblemKind, error
from mzplan.store.backends.backend import (
    ANY,
    Blob,
    ConflictError,
    Expected,
    LockInfo,
    locked_error,
    removable,
    resolved_settings,
    unknown_write,
    unreachable,
)
from mzplan.store.backends.postgres_lock import LockSession, PostgresLock

T = TypeVar("T")
log = logging.getLogger("mzplan.store")

CONNECT_S = 5
STATEMENT_MS = 20_000
SILENCE_S = 25.0  # seconds without an answer until mzplan gives up; the server ends a statement earlier
MAX_ANSWER_BYTES = (2 << 30) + (1 << 20)  # bytes; a state of 100,000 resources has about 100 MB
UNACKNOWLEDGED_MS = 10_000
NOTIFIED = ("mzplan.state.json", "proposals/")
_LOCK_ROW = "lock"
_MAX_NAME_BYTES = 63  # bytes of an application name; PostgreSQL truncates longer ones
_KINDS: dict[str, ProblemKind] = {"MZ030": "damaged", "MZ095": "unreachable"}
_CONNECTION_LOST = (psycopg.OperationalError, psycopg.InterfaceError)
_REFUSED = (
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg.errors.DiskFull,
    psycopg.errors.UndefinedTable,
    psycopg.errors.InvalidSchemaName,
)
_READ = "SELECT data, version FROM {t} WHERE project = %s AND key = %s"
_VERSION = "SELECT version FROM {t} WHERE project = %s AND key = %s"
_PUT = (
    "INSERT INTO {t} (project, key, data, version) VALUES (%s, %s, %s, nextval({s})) "
    "ON CONFLICT (project, key) DO UPDATE SET data = excluded.data, version = excluded.version "
    "RETURNING version"
)
_CREATE = (
    "INSERT INTO {t} (project, key, data, version) VALUES (%s, %s, %s, nextval({s})) "
    "ON CONFLICT (project, key) DO NOTHING RETURNING version"
)
_SWAP = (
    "UPDATE {t} SET data = %s, version = nextval({s}) "
    "WHERE project = %s AND key = %s AND version = %s RETURNING version"
)
# Two processes that create the schema at once see these errors: IF NOT EXISTS doesn't wait.
_ALREADY_EXISTS = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DuplicateSchema,
    psycopg.errors.DuplicateTable,
)
_SERVER_HINT = "check the server, and the network to it."
# `state.tls.mode` has gained this default, so a server that worked before may become unreachable.
_DEFAULT_TLS_HINT = (
    " Its certificate is checked (verify-full), because state.tls.mode isn't set. Set state.tls.ca to the "
    "certificate to trust; or set state.tls.mode to prefer, which trusts any server that answers."
)


class PostgresBackend:
    """The store of one project in a database schema. Thread-safe, with a connection per thread."""

    poll_interval = 0.05
    idle_interval = 0.5

    def __init__(self, settings: Mapping[str, Any], directory: str, project: str):
        """`settings`: `state` of mzplan.yaml, with secret references."""
        self.settings = settings
        self.directory = directory
        self.project = project
        self.schema = str(settings.get("schema", "mzplan"))
        digest = hashlib.sha256(f"{self.schema}:{project}".encode()).digest()
        self._application = f"mzplan state of {project}"[:_MAX_NAME_BYTES]
        self._lock = PostgresLock(self.schema, project)
        self.channel = f"mzplan_{digest[:8].hex()}"
        self._local = threading.local()

    def describe(self) -> str:
        s = self.settings
        return f"postgres://{s.get('host')}:{s.get('port', 5432)}/{s.get('database')}/{self.schema}"

    def read(self, key: str) -> Blob | None:
        row = self._read_row(_READ, *self._row_key(key))
        return Blob(bytes(row[0]), str(row[1])) if row else None

    def version(self, key: str) -> str | None:
        row = self._read_row(_VERSION, *self._row_key(key))
        return str(row[0]) if row else None

    def write(self, key: str, data: bytes, *, expected: Expected = ANY, durable: bool = True) -> str:
        # The versions whose COMMIT was sent. Without a COMMIT, nothing is stored.
        sent_versions: list[str] = []

        def attempt(connection: psycopg.Connection[Any]) -> str:
            with connection.transaction():
                if not durable:
                    connection.execute("SET LOCAL synchronous_commit = off")
                row = self._put(connection, key, data, expected)
                if row is None:
                    raise ConflictError(key)
                if key.startswith(NOTIFIED):
                    connection.execute("SELECT pg_notify(%s, %s)", (self.channel, key))
                sent_versions.append(str(row[0]))
            return sent_versions[-1]

        def own_version() -> str | None:
            """Return the key's version if this write made it; otherwise None."""
            return version if sent_versions and (version := self.version(key)) in sent_versions else None

        def retry() -> str:
            """Read the version, then try again under the same condition, so the write happens once.

            If the server still executes the first attempt, that attempt locks the row, and this one waits.
            """
            try:
                return own_version() or attempt(self._connection())
            except ConflictError:
                if version := own_version():
                    return version
                raise

        try:
            try:
                return attempt(self._connection())
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                self._create()
                return attempt(self._connection())
            except _CONNECTION_LOST as problem:
                self._close_connection()
                log.warning("the connection to %s was lost: %s", self.describe(), _first_line(problem))
                return retry()
        except (psycopg.Error, MzplanError) as problem:
            if isinstance(problem, _CONNECTION_LOST):
                self._close_connection()
            if sent_versions:
                raise unknown_write(self.describe(), key, _reason(problem), _SERVER_HINT) from None
            if isinstance(problem, MzplanError):
                raise
            if isinstance(problem, _REFUSED):
                raise self._unwritable(key, problem) from None
            raise self._failed(problem, "MZ035") from None

    def delete(self, key: str) -> None:
        query = self._sql("DELETE FROM {t} WHERE project = %s AND key = %s")
        try:
            self._run(lambda c: c.execute(query, self._row_key(key)), "MZ035")
        except psycopg.errors.UndefinedTable:
            pass
        except MzplanError as problem:
            if problem.kind != "unreachable":
                raise
            raise unknown_write(self.describe(), key, _reason(problem), _SERVER_HINT) from None

    def list(self, prefix: str, after: str = "") -> list[str]:
        query = self._sql(
            'SELECT key FROM {t} WHERE project = %s AND starts_with(key, %s) AND key COLLATE "C" > %s'
        )
        try:
            rows = self._run(lambda c: c.execute(query, (self.project, prefix, after)).fetchall(), "MZ030")
        except psycopg.errors.UndefinedTable:
            return []
        # Sort by code points, as every backend does; a database may sort differently. Omit deeper folders.
        return sorted(str(row[0]) for row in rows if "/" not in str(row[0])[len(prefix) :])

    @contextlib.contextmanager
    def lock(self, info: LockInfo, wait: float) -> Iterator[None]:
        connection = self._open()
        try:
            try:
                session = self._take(connection, info, wait)
            except _REFUSED as problem:
                raise self._unwritable(_LOCK_ROW, problem) from None
            except psycopg.Error as problem:
                raise self._failed(problem, "MZ035") from None
            if session is not None:
                raise self._locked(session)
            self.write(_LOCK_ROW, info.encode())
            yield
        finally:
            connection.close()  # this releases the lock

    def holder(self) -> LockInfo | None:
        session = self._lock_session()
        return self._recorded_holder(session) or _unknown_holder(session) if session else None

    def unlock(self, id_: str) -> LockInfo | None:
        session = self._lock_session()
        if session is None:
            return None
        holder = removable(self._recorded_holder(session) or _unknown_holder(session), id_, self.describe())
        if holder is not None:
            # The holder's machine disappeared and the server keeps its session: terminate it.
            self._run(lambda c: c.execute("SELECT pg_terminate_backend(%s)", (session.pid,)), "MZ035")
        return holder

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` on every commit or proposal; return a function that stops this.

        This is best effort: a runner that isn't woken polls.
        """
        stopping = threading.Event()

        def listen() -> None:
            logged = ""
            while not stopping.is_set():
                try:
                    with self._open() as connection:
                        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self.channel)))
                        logged = ""
                        wake()  # for commits and proposals before LISTEN, which sent no notification here
                        while not stopping.is_set():
                            for _ in connection.notifies(timeout=1.0, stop_after=1):
                                wake()
                except (psycopg.Error, MzplanError) as problem:
                    if str(problem) != logged:  # an outage may last for an hour
                        log.info("not woken by the store for now: %s", problem)
                    logged = str(problem)
                    stopping.wait(2.0)

        threading.Thread(target=listen, name="listen", daemon=True).start()
        return stopping.set

    # --- inside

    def _put(
        self, connection: psycopg.Connection[Any], key: str, data: bytes, expected: Expected
    ) -> tuple[Any, ...] | None:
        if expected is ANY or expected is None:
            query = _PUT if expected is ANY else _CREATE
            return connection.execute(self._sql(query), (*self._row_key(key), data)).fetchone()
        if not str(expected).isdecimal():
            return None  # not a version from this backend
        values = (data, *self._row_key(key), int(str(expected)))
        return connection.execute(self._sql(_SWAP), values).fetchone()

    def _take(self, connection: psycopg.Connection[Any], info: LockInfo, wait: float) -> LockSession | None:
        """Take the lock; return the holder if it is another session. Raises psycopg.Error."""
        try:
            return self._lock.take(connection, _application_name(info), wait)
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            self._create()
            return self._lock.take(connection, _application_name(info), wait)

    def _lock_session(self) -> LockSession | None:
        try:
            return self._run(self._lock.holder, "MZ030")
        except psycopg.errors.UndefinedTable:
            return None  # nothing was ever written

    def _recorded_holder(self, session: LockSession) -> LockInfo | None:
        """Return the holder's lock info; None if the row is a previous holder's or not mzplan's."""
        blob = self.read(_LOCK_ROW)
        try:
            info = LockInfo.decode(blob.data) if blob else None
        except ValueError:
            return None
        return info if info is not None and session.application == _application_name(info) else None

    def _locked(self, session: LockSession) -> MzplanError:
        info = self._recorded_holder(session)
        if info is not None:
            return locked_error(info, self.describe())
        return error(
            "MZ033.state-locked-session-login",
            login=session.login,
            pid=session.pid,
            application=session.application,
            describe=self.describe(),
            id=_unknown_holder(session).id,
        )

    def _read_row(self, query: str, *values: str) -> tuple[Any, ...] | None:
        try:
            return self._run(lambda c: c.execute(self._sql(query), values).fetchone(), "MZ030")
        except psycopg.errors.UndefinedTable:
            return None  # nothing was ever written

    def _run(self, work: Callable[[psycopg.Connection[Any]], T], code: str) -> T:
        """Run idempotent work on this thread's connection, and again if the connection was lost."""
        try:
            try:
                return work(self._connection())
            except AnswerLimitError:  # a retry would get the same endless answer
                self._close_connection()
                raise
            except _CONNECTION_LOST:
                self._close_connection()
                return work(self._connection())
        except psycopg.errors.UndefinedTable:
            raise
        except psycopg.Error as problem:
            raise self._failed(problem, code) from None

    def _row_key(self, key: str) -> tuple[str, str]:
        return (self.project, key)

    def _sql(self, query: str) -> bytes:
        table = sql.Identifier(self.schema, "blobs").as_string(None)
        quoted = sql.Identifier(self.schema, "versions").as_string(None)
        sequence = sql.Literal(quoted).as_string(None)
        return query.replace("{t}", table).replace("{s}", sequence).encode()

    def _create(self) -> None:
        """Create the schema and its table. Try again if another process does the same at once."""
        try:
            self._create_missing()
        except _ALREADY_EXISTS:
            self._create_missing()

    def _create_missing(self) -> None:
        connection = self._connection()
        with connection.transaction():
            name = sql.Identifier(self.schema)
            schemas = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (self.schema,))
            if schemas.fetchone() is None:
                connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
            connection.execute(sql.SQL("CREATE SEQUENCE IF NOT EXISTS {}.versions").format(name))
            connection.execute(
                sql.SQL(
                    "CREATE TABLE IF NOT EXISTS {}.blobs (project text, key text, data bytea NOT NULL, "
                    "version bigint NOT NULL, PRIMARY KEY (project, key))"
                ).format(name)
            )

    def _connection(self) -> psycopg.Connection[Any]:
        connection: psycopg.Connection[Any] | None = getattr(self._local, "connection", None)
        if connection is None or connection.closed:
            connection = self._local.connection = self._open()
        return connection

    def _close_connection(self) -> None:
        connection = getattr(self._local, "connection", None)
        self._local.connection = None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()

    def _open(self) -> psycopg.Connection[Any]:
        settings = resolved_settings(self.settings, self.directory)
        tls, is_remote = settings.get("tls", {}), not is_loopback(str(settings.get("host", "")))
        ca = str(Path(self.directory) / tls["ca"]) if tls.get("ca") else None
        mode = tls.get("mode") or ("verify-full" if is_remote else "prefer")
        parameters = {
            "host": settings.get("host"),
            "port": settings.get("port", 5432),
            "dbname": settings.get("database"),
            "user": settings.get("user"),
            "password": settings.get("password"),
            **libpq_security(
                mode, ca, settings.get("cleartext_login") or ("never" if is_remote else "allow")
            ),
            "application_name": self._application,
            "connect_timeout": CONNECT_S,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 2,
            "tcp_user_timeout": UNACKNOWLEDGED_MS,
        }
        limit = f"{STATEMENT_MS}ms"
        try:
            connection = BoundedConnection.connect(
                make_conninfo("", **{k: v for k, v in parameters.items() if v is not None}), autocommit=True
            )
            connection.max_seconds, connection.max_bytes = SILENCE_S, MAX_ANSWER_BYTES
            connection.begin_session(statement_timeout=limit, lock_timeout=limit)
            return connection
        except UnicodeError:  # psycopg passes on Python's error about the host name
            raise unreachable(
                self.describe(),
                "the host name is invalid: a part of it is empty, or longer than 63 characters",
                "correct the host in mzplan.yaml (state).",
            ) from None
        except psycopg.Error as problem:
            hint = _DEFAULT_TLS_HINT if is_remote and not tls.get("mode") else ""
            raise self._failed(problem, "MZ095", str(parameters["password"] or ""), hint) from None

    def _failed(self, problem: psycopg.Error, code: str, secret: str = "", hint: str = "") -> MzplanError:
        text = _first_line(problem, secret)
        if isinstance(problem, _CONNECTION_LOST) and not isinstance(problem, psycopg.errors.QueryCanceled):
            return unreachable(
                self.describe(),
                text,
                f"check host, user and password in mzplan.yaml (state), and the server.{hint}",
            )
        return error(
            code,
            f"The state in {self.describe()} can't be used",
            f"{text}.",
            "check the server.",
            kind=_KINDS.get(code, ""),
        )

    def _unwritable(self, key: str, problem: psycopg.Error) -> MzplanError:
        return error(
            "MZ035.cannot-write-nothing-changed-what",
            key=key,
            describe=self.describe(),
            first_line=_first_line(problem),
            schema=self.schema,
        )


def _application_name(info: LockInfo) -> str:
    """Return the application name of the lock's session, which identifies its holder."""
    return f"mzplan lock {info.id}"


def _unknown_holder(session: LockSession) -> LockInfo:
    """Return lock info for a session that hasn't recorded its command."""
    return LockInfo(
        id=f"session-{session.pid}", command="?", user=session.login, host="?", pid=session.pid, time="?"
    )


def _reason(problem: psycopg.Error | MzplanError) -> str:
    if isinstance(problem, MzplanError):
        (first, *_) = problem.diagnostics
        return first.detail.partition(". Nothing was changed")[0] or first.summary
    return _first_line(problem)


def _first_line(problem: BaseException, secret: str = "") -> str:
    """Return the first line of the server's message, without the password."""
    text = (str(problem).strip() or type(problem).__name__).splitlines()[0].rstrip(".")
    return text.replace(secret, "***") if secret else text
