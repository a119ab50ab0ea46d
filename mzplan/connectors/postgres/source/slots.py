"""A PostgreSQL source's publication and replication slot on its server.

Steps of changes are durable, because the slot keeps the server's log (WAL) until a step is committed
downstream.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psycopg

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.api.upstreams import origin_of
from mzplan.connectors.postgres.client import connect, open_conninfo
from mzplan.connectors.postgres.problems import Problem
from mzplan.connectors.postgres.source.replication import Lsn, lsn_of, lsn_text
from mzplan.connectors.postgres.statements import create_publication
from mzplan.connectors.postgres.tables import Connection, Table, fetch_row, find_table
from mzplan.connectors.postgres.types import quoted
from mzplan.model.diagnostics import MzplanError
from mzplan.schema.columns import Column
from mzplan.schema.source_columns import included_columns

log = logging.getLogger("mzplan.connectors")

_SLOT_WAITS = 40
_FLUSH_WAIT_S = 0.2

_SLOT = """
SELECT plugin, database, active_pid, wal_status, confirmed_flush_lsn::text, restart_lsn::text,
       pg_wal_lsn_diff(pg_current_wal_insert_lsn(), restart_lsn)::bigint,
       pg_wal_lsn_diff(pg_current_wal_insert_lsn(), confirmed_flush_lsn)::bigint
FROM pg_replication_slots WHERE slot_name = %s
"""
# Uses locks, because every role can see them and each writing transaction locks its own id.
_OLDEST_WRITER = """
SELECT l.pid, a.application_name, coalesce(a.datname, p.database),
       to_char(coalesce(a.xact_start, p.prepared) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"'), p.gid
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_prepared_xacts p ON p.transaction = l.transactionid
WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
ORDER BY age(l.transactionid) DESC LIMIT 1
"""
_PUBLISHED = "SELECT schemaname, tablename, {limits} FROM pg_publication_tables WHERE pubname = %s"


NO_TABLE = Problem(
    "MZ052",
    "Table {table} does not exist",
    "it has no table {table}.",
    "create it, or correct `tables` in the source.",
)


Limits = dict[tuple[str, str], tuple[list[str] | None, str | None]]
"""By schema and name of a table: the published columns, and the condition of published rows; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The publication and slot of a source, and whether they are mzplan's own."""

    publication: str
    slot: str
    own_publication: bool
    own_slot: bool

    @classmethod
    def of(cls, query: ResolvedQuery) -> Names:
        """Return the configured names, otherwise names from the source's id and its original generation.

        Raises MzplanError.
        """
        id_ = re.sub("[^a-z0-9_]", "_", query.description.id)
        derived = f"mzplan_{id_}_g{origin_of(query)}"
        publication, slot = query.body.get("publication"), query.body.get("slot")
        return cls(
            publication=publication or derived,
            slot=slot or derived,
            own_publication=publication is None,
            own_slot=slot is None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A logical slot as the server describes it.

    `retained`: bytes of log that the slot keeps.
    `lag`: bytes of log written since the confirmed position.
    """

    plugin: str
    database: str
    active_pid: int | None
    lost: bool
    confirmed: Lsn
    retained: int
    lag: int


def find_slot(connection: Connection, name: str) -> Slot | None:
    row = connection.execute(_SLOT, (name,)).fetchone()
    if row is None:
        return None
    plugin, database, pid, status, confirmed, restart, retained, lag = row
    return Slot(
        plugin=plugin or "",
        database=database or "",
        active_pid=pid,
        lost=status == "lost" or restart is None,
        confirmed=lsn_of(confirmed) if confirmed else 0,
        retained=int(retained or 0),
        lag=int(lag or 0),
    )


def insert_lsn(connection: Connection) -> tuple[Lsn, Lsn]:
    """Return the log's insert position, which is the end of a record, and its flush position.

    The flush position may be inside a record. If that record is a commit, advancing a slot to the flush
    position would lose the transaction.
    """
    statement = "SELECT pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn()::text"
    inserted, flushed = fetch_row(connection, statement)
    return lsn_of(inserted), lsn_of(flushed)


def flush_log(connection: Connection) -> None:
    """Flush the server's log by committing a message that nothing reads.

    A server flushes only commits at once. Other records, such as hint bits of a SELECT, wait for the WAL
    writer, which sleeps for seconds on an idle server. Does nothing if the role or server doesn't allow it.
    """
    try:
        connection.execute("SELECT pg_logical_emit_message(true, 'mzplan', '')")
    except psycopg.DatabaseError as problem:
        if connection.closed:
            raise
        log.debug("the server's log can't be flushed: %s", type(problem).__name__)


class LogEnd:
    """The position up to which the server's log can be read."""

    def __init__(self) -> None:
        self._candidate: Lsn = 0

    def read(self, connection: Connection) -> Lsn:
        """Return the newest end of a log record that is on disk, without waiting for long."""
        end, flushed = insert_lsn(connection)
        if flushed >= end:
            return end
        # Some records aren't on disk yet, as usual under load. Wait briefly for other commits, then commit
        # ourselves. If that isn't allowed, return the end from the previous call.
        before, self._candidate = self._candidate, end
        deadline = time.monotonic() + _FLUSH_WAIT_S
        while flushed < end and time.monotonic() < deadline:
            time.sleep(0.02)
            _, flushed = insert_lsn(connection)
        if flushed < end:
            flush_log(connection)
            _, flushed = insert_lsn(connection)
        if flushed >= end:
            return end
        return before if before <= flushed else 0


def advance(connection: Connection, name: str, to: Lsn) -> None:
    """Let the server discard the log before a position. Does nothing while the slot stays busy."""
    slot = find_slot(connection, name)
    if slot is None or slot.confirmed >= to:
        return
    for _ in range(_SLOT_WAITS):
        try:
            connection.execute("SELECT pg_replication_slot_advance(%s, %s)", (name, lsn_text(to)))
            return
        except psycopg.errors.ObjectInUse:
            time.sleep(0.05)


def publish(connection: Connection, names: Names, tables: Sequence[Table]) -> None:
    """Create mzplan's own publication if it is missing, and add missing tables."""
    if not names.own_publication:
        return
    present = published(connection, names.publication)
    existing = connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (names.publication,))
    if existing.fetchone() is None:
        statement = create_publication(names.publication, [table.sql for table in tables])
        connection.execute(statement.encode())
        return
    missing = [table for table in tables if (table.schema, table.name) not in present]
    if missing:
        listed = ", ".join(table.sql for table in missing)
        connection.execute(f"ALTER PUBLICATION {quoted(names.publication)} ADD TABLE {listed}".encode())


def published(connection: Connection, publication: str) -> Limits:
    """Return the tables of a publication."""
    limits = "attnames::text[], rowfilter" if connection.info.server_version >= 150000 else "NULL, NULL"
    rows = connection.execute(_PUBLISHED.format(limits=limits).encode(), (publication,)).fetchall()
    return {(schema, table): (columns, where) for schema, table, columns, where in rows}


def oldest_writer(connection: Connection) -> str | None:
    """Describe the oldest open transaction that has written, but not its statement; None if none."""
    row = connection.execute(_OLDEST_WRITER).fetchone()
    if row is None:
        return None
    pid, application, database, since, prepared = row
    if prepared is not None:
        return f"the prepared transaction {prepared!r}, since {since}"
    parts = [f"process {pid}"]
    parts += [f"application {application}"] if application else []
    parts += [f"database {database}"] if database else []
    parts += [f"since {since}"] if since else []  # hidden from some roles
    return ", ".join(parts)


def unpublish(connection: Connection, names: Names) -> None:
    """Drop the slot and the publication that mzplan created. Raises psycopg.Error."""
    if names.own_slot:
        connection.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
            "WHERE slot_name = %s AND active_pid IS NOT NULL",
            (names.slot,),
        )
        for attempt in range(50):
            try:
                connection.execute(
                    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
                    "WHERE slot_name = %s",
                    (names.slot,),
                )
                break
            except psycopg.errors.ObjectInUse:
                if attempt == 49:
                    raise
                connection.execute("SELECT pg_sleep(0.1)")
    if names.own_publication:
        connection.execute(f"DROP PUBLICATION IF EXISTS {quoted(names.publication)}".encode())


def tables_of(connection: Connection, query: ResolvedQuery) -> dict[str, Table]:
    """Return the source's tables by their configured names. Raises MzplanError MZ052 for a missing one."""
    tables = {name: find_table(connection, name) for name in query.body["tables"]}
    missing = [NO_TABLE.diagnostic(query, table=name) for name, table in tables.items() if table is None]
    if missing:
        raise MzplanError(missing[:1])
    return {name: table for name, table in tables.items() if table is not None}


def table_column(query: ResolvedQuery) -> str | None:
    """Return the column that names a row's table, or None if it isn't included."""
    included = included_columns(query.description.type, query.body)
    return included["table"].name if "table" in included else None


def own_columns(query: ResolvedQuery) -> list[Column]:
    """Return the columns that come from the tables."""
    return [column for column in query.columns if column.name != table_column(query)]


def own_key(query: ResolvedQuery) -> list[str]:
    """Return the key within one table."""
    return [name for name in query.body["key"] if name != table_column(query)]


@contextlib.contextmanager
def session(query: ResolvedQuery, within_s: float = math.inf) -> Iterator[tuple[str, Connection]]:
    """Yield a connection string and a connection (see `connect`), valid inside the `with` block.

    Raises MzplanError for the tunnel, psycopg.Error.
    """
    application = f"mzplan {query.address}"
    with open_conninfo(query, application) as info, connect(info, within_s=within_s) as connection:
        yield info, connection
