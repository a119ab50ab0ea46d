"""A snapshot of a PostgreSQL database, which other sessions can join. It is gone with the session that made
it, and the rest is then read in another one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg.conninfo import make_conninfo

from mzplan.connectors.postgres.source.replication import SESSION, ReplicationLink, create_slot
from mzplan.connectors.postgres.source.slots import Names
from mzplan.connectors.postgres.tables import Table


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
