"""The snapshot of a PostgreSQL source: the tables' rows at one LSN, and the progress of reading them.

A snapshot ends with its session. The remaining rows are then read in another snapshot. The note of each step
records which blocks of which files have been read.
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
from mzplan.connectors.postgres.tables import Table, fetch_row
from mzplan.endpoints.steplog import StepLog
from mzplan.model.losses import FirstCopy

Note = dict[str, Any]
File = tuple[str, str, int, int]
"""A relation with rows of a table: its schema, name, file number, and number of blocks. A partitioned table
has one for each partition."""

_CHUNK_BLOCKS = 8192  # blocks of 8 KiB per task
_FILES = """
SELECT n.nspname, c.relname, coalesce(pg_relation_filenode(c.oid), 0)::bigint,
       (pg_relation_size(c.oid) / current_setting('block_size')::bigint)::bigint
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid IN (SELECT relid FROM pg_partition_tree(%(oid)s) WHERE isleaf)
   OR c.oid = %(oid)s AND c.relkind = 'r' AND NOT EXISTS (SELECT FROM pg_partition_tree(%(oid)s))
ORDER BY 1, 2
"""


class DatabaseSnapshot:
    """The content of a database at one LSN. Other sessions can join it while this object is open."""

    def __init__(self, conninfo: str, names: Names, tables: Sequence[Table]):
        """Open a snapshot. If the slot is missing, create it at exactly the snapshot's LSN.

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
                # This slot only exports a snapshot. It is temporary, and ends with the session.
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
            # Prevent a rewrite of the table's files while tasks read their blocks.
            execute(f"LOCK TABLE {table.sql} IN ACCESS SHARE MODE".encode())
        self.name: str = fetch_row(self._session, "SELECT pg_export_snapshot()")[0]

    def files(self, table: Table) -> list[File]:
        """Return the relations that hold the table's rows now."""
        return self._session.execute(_FILES.encode(), {"oid": table.oid}).fetchall()

    def is_alive(self) -> bool:
        """Return whether the snapshot's session is still open."""
        try:
            self._session.execute("SELECT 1")
        except psycopg.Error:
            return False
        return True

    def close(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self._session.close()


def join_snapshot(name: str) -> tuple[str, str]:
    """Return the statements that begin a transaction in a snapshot."""
    return "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", f"SET TRANSACTION SNAPSHOT '{name}'"


# ── the reading progress


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """One task's part of a step.

    With a `table` (its name in the source), it reads blocks `first` to `end` (excluded) of `relation`, in a
    snapshot whose LSN is `up_to`. Without a table, it reads the log in (after, up_to], for the tables in
    `oids`. Rows of the log may not have the columns in `added_columns`.
    """

    after: Lsn
    up_to: Lsn
    table: str | None = None
    relation: tuple[str, str] = ("", "")
    first: int = 0
    end: int = 0
    snapshot: str = ""
    oids: tuple[tuple[str, int], ...] = ()
    added_columns: tuple[tuple[str, tuple[str, ...]], ...] = ()


def unread_progress(files: Sequence[File]) -> list[Note]:
    """Return the progress of a table before anything is read."""
    return [
        {"relation": [schema, name], "file": file, "blocks": blocks, "next": 0}
        for schema, name, file, blocks in files
    ]


def next_chunk(tables: Mapping[str, Any]) -> Note | None:
    """Return the next unread blocks, or None if all are read."""
    for name in sorted(tables):
        for file in tables[name]:
            if file["next"] < file["blocks"]:
                end = min(file["next"] + _CHUNK_BLOCKS, file["blocks"])
                place = {"table": name, "relation": file["relation"], "file": file["file"]}
                return {**place, "first": file["next"], "end": end}
    return None


def after_chunk(tables: Mapping[str, Any], chunk: Note) -> dict[str, Any]:
    """Return the progress after a chunk is read."""
    return {
        name: [
            {**file, "next": chunk["end"]}
            if name == chunk["table"] and file["relation"] == chunk["relation"]
            else file
            for file in files
        ]
        for name, files in tables.items()
    }


def snapshot_copy(log: StepLog, tables: Sequence[str], next_step: int | None) -> FirstCopy:
    """Return how many blocks of these tables are read. `next_step`: the step after the committed ones.

    Raises OSError."""
    newest = log.newest()
    files = [file for table in tables for file in (newest or {"tables": {}})["tables"].get(table, ())]
    read, total = sum(file["next"] for file in files), sum(file["blocks"] for file in files)
    if newest is None or any(table not in newest["tables"] for table in tables):
        return FirstCopy(read=(read,), ends=(total + 1,))  # nobody has counted its blocks yet
    if newest["kind"] == "snapshot" and (next_step or 0) < log.steps().stop:  # it isn't committed yet
        read -= sum(chunk["end"] - chunk["first"] for chunk in newest["chunks"])
    return FirstCopy(read=(read,), ends=(total,), unit="block")


def continue_progress(before: list[Note], current: list[Note]) -> list[Note]:
    """Return a table's progress in a later snapshot.

    A rewritten file (VACUUM FULL) has its rows in other blocks, so it is read from its start. New blocks
    aren't read, because their rows also arrive as changes.
    """
    by_relation = {tuple(file["relation"]): file for file in before}
    progress = []
    for file in current:
        earlier = by_relation.get(tuple(file["relation"]))
        if earlier is None:
            progress.append(file)  # an attached partition; its rows may not arrive as changes
        elif earlier["file"] != file["file"] and earlier["next"] < earlier["blocks"]:
            progress.append(file)
        else:
            blocks = min(earlier["blocks"], max(file["blocks"], earlier["next"]))
            progress.append({**earlier, "file": file["file"], "blocks": blocks})
    return progress


def adapt_chunks(chunks: list[Note], current: Mapping[str, Sequence[File]]) -> list[Note]:
    """Return an earlier snapshot's chunks for the current files. A rewritten file is read as a whole."""
    adapted: list[Note] = []
    for chunk in chunks:
        schema, name = chunk["relation"]
        matches = [
            (file, blocks) for s, n, file, blocks in current[chunk["table"]] if (s, n) == (schema, name)
        ]
        if not matches:
            continue  # dropped together with its rows
        file, blocks = matches[0]
        whole = {**chunk, "file": file, "first": 0, "end": blocks}
        if file == chunk["file"]:
            adapted.append(chunk)
        elif whole not in adapted:
            adapted.append(whole)
    return adapted
