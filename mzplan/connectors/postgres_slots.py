"""What a PostgreSQL source has on its server: a publication, a slot, and a snapshot while it is read.

The slot keeps the server's log (WAL) from the end of what is committed downstream, so it is what makes steps
of changes durable; a snapshot is gone with the session that made it, and the rest is then read in another.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psycopg
from psycopg.conninfo import make_conninfo

from mzplan.connectors.interface import ResolvedQuery
from mzplan.connectors.postgres_client import connect, reached
from mzplan.connectors.postgres_stream import SESSION, Lsn, ReplicationLink, create_slot, lsn_of
from mzplan.connectors.postgres_target import Connection, Table, find_table
from mzplan.connectors.postgres_types import quoted
from mzplan.model.diagnostics import error

log = logging.getLogger("mzplan.connectors")

_SLOT = """
SELECT slot_type, plugin, database, active_pid, wal_status, confirmed_flush_lsn::text, restart_lsn::text,
       pg_wal_lsn_diff(pg_current_wal_insert_lsn(), restart_lsn)::bigint,
       pg_wal_lsn_diff(pg_current_wal_insert_lsn(), confirmed_flush_lsn)::bigint
FROM pg_replication_slots WHERE slot_name = %s
"""
# From the locks: these everybody may see, and each transaction that writes holds one of its own number.
_OLDEST_WRITER = """
SELECT l.pid, a.application_name, coalesce(a.datname, p.database),
       to_char(coalesce(a.xact_start, p.prepared) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"'), p.gid
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_prepared_xacts p ON p.transaction = l.transactionid
WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
ORDER BY age(l.transactionid) DESC LIMIT 1
"""
_PUBLISHED = "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The publication and the slot of one generation of a source, and which of them are mzplan's own."""

    publication: str
    slot: str
    own_publication: bool
    own_slot: bool

    @classmethod
    def of(cls, query: ResolvedQuery) -> Names:
        """Adopted, or named after the source's id, which it keeps for life, and its generation."""
        id_ = re.sub("[^a-z0-9_]", "_", query.description.id)
        derived = f"mzplan_{id_}_g{query.description.generation}"
        publication, slot = query.body.get("publication"), query.body.get("slot")
        return cls(
            publication=publication or derived,
            slot=slot or derived,
            own_publication=publication is None,
            own_slot=slot is None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A logical slot as the server describes it. `retained`: bytes of log that it keeps; `lag`: bytes that
    were written since what it has confirmed."""

    plugin: str
    database: str
    active_pid: int | None
    lost: bool
    confirmed: Lsn
    retained: int
    lag: int


def find_slot(connection: Connection, name: str) -> Slot | None:
    """The logical slot of that name; None if there is none."""
    found = connection.execute(_SLOT, (name,)).fetchone()
    if found is None:
        return None
    _, plugin, database, pid, status, confirmed, restart, retained, lag = found
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
    """The end of the log as it was written last, which is the end of a record, and how much is on disk.

    The latter alone may lie within a record: a slot that is advanced to there loses the transaction whose
    commit that record is.
    """
    found = connection.execute(
        "SELECT pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn()::text"
    ).fetchone()
    assert found is not None
    return lsn_of(found[0]), lsn_of(found[1])


def flush_log(connection: Connection) -> None:
    """Have what is written of the log put on disk, by a commit of our own, of a message that nobody reads.
    A server does so only for commits: what else is written (hint bits by a SELECT, if pages have checksums)
    waits for its WAL writer, which sleeps for seconds where little is to do. Nothing where the role or the
    server does not allow it."""
    try:
        connection.execute("SELECT pg_logical_emit_message(true, 'mzplan', '')")
    except psycopg.DatabaseError as problem:
        if connection.closed:
            raise
        log.debug("the server's log can't be flushed: %s", type(problem).__name__)


def publish(connection: Connection, names: Names, tables: Sequence[Table]) -> None:
    """See that mzplan's own publication is there and has these tables."""
    if not names.own_publication:
        return
    there = {tuple(row) for row in connection.execute(_PUBLISHED, (names.publication,)).fetchall()}
    known = connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (names.publication,))
    name = quoted(names.publication)
    if known.fetchone() is None:
        listed = ", ".join(table.sql for table in tables)
        connection.execute(
            f"CREATE PUBLICATION {name} FOR TABLE {listed} WITH (publish_via_partition_root = true)".encode()
        )
        return
    missing = [table for table in tables if (table.schema, table.name) not in there]
    if missing:
        listed = ", ".join(table.sql for table in missing)
        connection.execute(f"ALTER PUBLICATION {name} ADD TABLE {listed}".encode())


def oldest_writer(connection: Connection) -> str | None:
    """Which transaction that has written something is open for longest, in words; never what it runs."""
    found = connection.execute(_OLDEST_WRITER).fetchone()
    if found is None:
        return None
    pid, application, database, since, prepared = found
    if prepared is not None:
        return f"the prepared transaction {prepared!r}, since {since}"
    which = [f"process {pid}"]
    which += [f"application {application}"] if application else []
    which += [f"database {database}"] if database else []
    which += [f"since {since}"] if since else []  # a role that may not see it is not told
    return ", ".join(which)


def unpublish(connection: Connection, names: Names) -> None:
    """Drop what mzplan made for a generation that is given up. Raises psycopg.Error."""
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
    """The source's tables, by the names it gives them. Raises MzplanError MZ052 where one is missing."""
    found: dict[str, Table] = {}
    for name in query.body["tables"]:
        table = find_table(connection, name)
        if table is None:
            raise error(
                "MZ052",
                f"Table {name} does not exist",
                f"{query.link.address}, database {query.link.body['database']}, has no table {name}.",
                "create it, or correct tables of the source.",
                address=query.address,
            )
        found[name] = table
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Where the rows of a table lie: each relation that holds them (a partitioned table has several), as
    (schema, name), which file it is in, and of how many blocks."""

    files: tuple[tuple[str, str, int, int], ...]


class Snapshot:
    """What the database held at one LSN, for as long as this is open: other sessions can join it."""

    def __init__(self, conninfo: str, names: Names, tables: Sequence[Table]):
        """Makes the slot, where there is none: then the snapshot is of exactly where it begins.

        Raises psycopg.Error.
        """
        with contextlib.ExitStack() as stack:
            link = ReplicationLink(conninfo)
            stack.callback(link.close)
            self.created = not _has_slot(conninfo, names.slot)
            if self.created:
                self.lsn, exported = create_slot(link, names.slot)
            else:
                # A name for this session alone; the slot ends with it, and only its snapshot is wanted.
                self.lsn, exported = create_slot(link, f"mzplan_{os.urandom(8).hex()}", temporary=True)
            self._session = psycopg.connect(
                make_conninfo(conninfo, application_name="mzplan snapshot"), autocommit=True
            )
            stack_of_session = contextlib.ExitStack()
            stack_of_session.callback(self._session.close)
            with stack_of_session:
                self._hold(exported, tables)
                stack_of_session.pop_all()

    def _hold(self, exported: str, tables: Sequence[Table]) -> None:
        execute = self._session.execute
        execute(SESSION.encode())
        for command in join_snapshot(exported):
            execute(command.encode())
        for table in tables:
            # Nobody may write the table's files anew while they are read by place.
            execute(f"LOCK TABLE {table.sql} IN ACCESS SHARE MODE".encode())
        found = execute("SELECT pg_export_snapshot()").fetchone()
        assert found is not None
        self.name: str = found[0]

    def extent(self, table: Table) -> Extent:
        """Where a table's rows lie now."""
        rows = self._session.execute(
            "SELECT n.nspname, c.relname, coalesce(pg_relation_filenode(c.oid), 0)::bigint, "
            "(pg_relation_size(c.oid) / current_setting('block_size')::bigint)::bigint "
            "FROM pg_partition_tree(%(oid)s) AS t JOIN pg_class c ON c.oid = t.relid "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE t.isleaf "
            "UNION ALL "
            "SELECT n.nspname, c.relname, pg_relation_filenode(c.oid)::bigint, "
            "(pg_relation_size(c.oid) / current_setting('block_size')::bigint)::bigint "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %(oid)s "
            "AND c.relkind = 'r' AND NOT EXISTS (SELECT 1 FROM pg_partition_tree(%(oid)s)) "
            "ORDER BY 1, 2",
            {"oid": table.oid},
        ).fetchall()
        return Extent(files=tuple((schema, name, file, blocks) for schema, name, file, blocks in rows))

    def is_alive(self) -> bool:
        """Whether it is still held."""
        try:
            self._session.execute("SELECT 1")
        except psycopg.Error:
            return False
        return True

    def close(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self._session.close()


def join_snapshot(name: str) -> tuple[str, str]:
    """Statements that begin a transaction which sees what a snapshot holds."""
    return "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", f"SET TRANSACTION SNAPSHOT '{name}'"


def _has_slot(conninfo: str, name: str) -> bool:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        found = connection.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", (name,))
        return found.fetchone() is not None


@contextlib.contextmanager
def session(query: ResolvedQuery) -> Iterator[tuple[str, Connection]]:
    """How to connect while this lasts, and a connection. Raises MzplanError for its tunnel, psycopg.Error."""
    with reached(query, f"mzplan {query.address}") as info, connect(info) as connection:
        yield info, connection
