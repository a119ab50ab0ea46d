"""The snapshot of a PostgreSQL source: what its tables held at one LSN, and how far that is read. A snapshot
is gone with the session that made it, and the rest is then read in another one; which blocks of which files
are read is in the note of a step.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from mzplan.connectors.postgres.client import connect
from mzplan.connectors.postgres.source.replication import SESSION, Lsn, ReplicationLink, create_slot
from mzplan.connectors.postgres.source.slots import Names, find_slot
from mzplan.connectors.postgres.tables import Table

Note = dict[str, Any]
File = tuple[str, str, int, int]
"""A relation that holds rows of a table (a partitioned table has several): its schema and name, which file it
is in, and of how many blocks."""

_CHUNK_BLOCKS = 8192  # of 8 KiB: what one task reads
_FILES = """
SELECT n.nspname, c.relname, coalesce(pg_relation_filenode(c.oid), 0)::bigint,
       (pg_relation_size(c.oid) / current_setting('block_size')::bigint)::bigint
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid IN (SELECT relid FROM pg_partition_tree(%(oid)s) WHERE isleaf)
   OR c.oid = %(oid)s AND c.relkind = 'r' AND NOT EXISTS (SELECT FROM pg_partition_tree(%(oid)s))
ORDER BY 1, 2
"""


class DatabaseSnapshot:
    """What the database held at one LSN, for as long as this is open: other sessions can join it."""

    def __init__(self, conninfo: str, names: Names, tables: Sequence[Table]):
        """Makes the slot, where there is none: then the snapshot is of exactly where it begins.

        Raises psycopg.Error.
        """
        with contextlib.ExitStack() as stack:
            link = ReplicationLink(conninfo)
            stack.callback(link.close)
            with connect(conninfo) as connection:
                self.created = find_slot(connection, names.slot) is None
            if self.created:
                self.lsn, exported = create_slot(link, names.slot)
            else:
                # A name for this session alone; the slot ends with it, and only its snapshot is wanted.
                self.lsn, exported = create_slot(link, f"mzplan_{os.urandom(8).hex()}", temporary=True)
            self._session = connect(make_conninfo(conninfo, application_name="mzplan snapshot"))
            try:
                self._hold(exported, tables)
            except BaseException:
                self._session.close()
                raise

    def _hold(self, exported: str, tables: Sequence[Table]) -> None:
        execute = self._session.execute
        execute(SESSION.encode())
        for command in join_snapshot(exported):
            execute(command.encode())
        for table in tables:
            # Nobody may write the table's files anew while they are read by place.
            execute(f"LOCK TABLE {table.sql} IN ACCESS SHARE MODE".encode())
        row = execute("SELECT pg_export_snapshot()").fetchone()
        assert row is not None
        self.name: str = row[0]

    def files(self, table: Table) -> list[File]:
        """Where a table's rows lie now."""
        return self._session.execute(_FILES.encode(), {"oid": table.oid}).fetchall()

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


# ── how far it is read


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """What one task reads of a step. `table` is the source's name of it, None for changes of all: then it is
    the log in (after, to], of the tables `oids`, where rows may lack the columns `added`; else blocks `first`
    to `end` (excluded) of a relation, in a snapshot of `to`."""

    after: Lsn
    to: Lsn
    table: str | None = None
    relation: tuple[str, str] = ("", "")
    first: int = 0
    end: int = 0
    snapshot: str = ""
    oids: tuple[tuple[str, int], ...] = ()
    added: tuple[tuple[str, tuple[str, ...]], ...] = ()


def unread(files: Sequence[File]) -> list[Note]:
    """A table of which nothing is read."""
    return [
        {"relation": [schema, name], "file": file, "blocks": blocks, "next": 0}
        for schema, name, file, blocks in files
    ]


def next_chunk(tables: Mapping[str, Any]) -> Note | None:
    """The next blocks that are not read."""
    for name in sorted(tables):
        for file in tables[name]:
            if file["next"] < file["blocks"]:
                end = min(file["next"] + _CHUNK_BLOCKS, file["blocks"])
                place = {"table": name, "relation": file["relation"], "file": file["file"]}
                return {**place, "first": file["next"], "end": end}
    return None


def after_chunk(tables: Mapping[str, Any], chunk: Note) -> dict[str, Any]:
    """The progress once a chunk is read."""
    return {
        name: [
            {**file, "next": chunk["end"]}
            if name == chunk["table"] and file["relation"] == chunk["relation"]
            else file
            for file in files
        ]
        for name, files in tables.items()
    }


def carried_on(before: list[Note], there: list[Note]) -> list[Note]:
    """The progress of a table in a later snapshot. A file that was written anew (VACUUM FULL) has its rows in
    other places, so it is read from its start; blocks that were added hold rows that come as changes."""
    known = {tuple(file["relation"]): file for file in before}
    carried = []
    for file in there:
        was = known.get(tuple(file["relation"]))
        if was is None:
            carried.append(file)  # a partition that was attached, perhaps with rows that come as no change
        elif was["file"] != file["file"] and was["next"] < was["blocks"]:
            carried.append(file)
        else:
            blocks = min(was["blocks"], max(file["blocks"], was["next"]))
            carried.append({**was, "file": file["file"], "blocks": blocks})
    return carried


def in_files(chunks: list[Note], there: Mapping[str, Sequence[File]]) -> list[Note]:
    """Chunks that were planned in another snapshot, perhaps. Where the file was written anew since, all of it
    is to be read."""
    planned: list[Note] = []
    for chunk in chunks:
        schema, name = chunk["relation"]
        now = [(file, blocks) for s, n, file, blocks in there[chunk["table"]] if (s, n) == (schema, name)]
        if not now:
            continue  # it was dropped, with its rows
        file, blocks = now[0]
        whole = {**chunk, "file": file, "first": 0, "end": blocks}
        if file == chunk["file"]:
            planned.append(chunk)
        elif whole not in planned:
            planned.append(whole)
    return planned
