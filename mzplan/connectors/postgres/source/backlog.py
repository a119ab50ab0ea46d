"""The rows that a source's tables already have when it starts. Snapshot steps read them.

A database snapshot ends with its session. A later session continues with a later snapshot. The steps' notes
record the progress (see `snapshot`).

An attached partition may already have rows, so the module finds attached partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import psycopg

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.postgres.identity import timeline_of
from mzplan.connectors.postgres.source.continuity import NO_SLOT, Shapes
from mzplan.connectors.postgres.source.replication import LOCK_NOT_AVAILABLE, Lsn, SlotError, lsn_of, lsn_text
from mzplan.connectors.postgres.source.slots import (
    Names,
    find_slot,
    oldest_writer,
    publish,
    session,
    tables_of,
)
from mzplan.connectors.postgres.source.snapshot import (
    DatabaseSnapshot,
    Note,
    ReadTask,
    adapt_chunks,
    after_chunk,
    continue_progress,
    next_chunk,
    unread_progress,
)
from mzplan.connectors.postgres.source.upstream_problems import SLOT_GONE, SLOT_WAITS
from mzplan.connectors.postgres.tables import Connection, fetch_row
from mzplan.connectors.postgres.types import quoted

# For each partition: whether it, or a parent, was attached by a later transaction than the transaction that
# created it. If not, also that transaction, and the number of its command that attached the partition. The
# catalog's rows of a table's system columns reveal this, because they never change.
_LEAVES = """
SELECT c.oid::bigint, n.nspname, c.relname, coalesce(pg_relation_size(c.oid), 0) > 0,
       coalesce(up.later, true), a.xmin::text, up.command
FROM pg_partition_tree(%(table)s) t JOIN pg_class c ON c.oid = t.relid
JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = -1
CROSS JOIN LATERAL (
  SELECT bool_or(age(i.xmin) < age(a.xmin)) AS later,
         max(i.cmin::text::bigint) FILTER (WHERE i.xmin = a.xmin) AS command
  FROM pg_partition_ancestors(c.oid) p JOIN pg_inherits i ON i.inhrelid = p.relid
  WHERE p.relid <> %(table)s AND p.relid IN (SELECT relid FROM pg_partition_tree(%(table)s))
) up
WHERE t.isleaf AND c.oid <> %(table)s ORDER BY 1
"""
_BEFORE = "WHERE ctid < '(8,0)' AND xmin = %s::xid AND cmin::text::bigint < %s"


class LeafPartitions:
    """Tracks partitions (leaf tables), by the name of the source's table.

    - `known`: oids of partitions whose rows have been read or arrive as changes.
    - `attached`: new partitions that may have had rows when they were attached, as {oid: (schema, name)}.
    """

    def __init__(self) -> None:
        self.known: dict[str, list[int]] = {}
        self.attached: dict[str, dict[int, tuple[str, str]]] = {}

    def find_attached(
        self, connection: Connection, tables: Mapping[str, int], recorded: Mapping[str, list[int]]
    ) -> None:
        """Find partitions that were added to tables (given by oid).

        `recorded`: the partitions' oids in a step's note. For a table that isn't recorded, all current
          partitions count as known.
        """
        for name, table in tables.items():
            rows = connection.execute(_LEAVES, {"table": table}).fetchall()
            before = self.known.get(name, recorded.get(name))
            new = {
                oid: (schema, leaf)
                for oid, schema, leaf, has_rows, *attachment in rows
                if before is not None and oid not in before and has_rows
                if _may_have_brought_rows(connection, schema, leaf, *attachment)
            }
            self.known[name] = [oid for oid, *_ in rows if oid not in new]
            self.attached.pop(name, None)
            if new:
                self.attached[name] = new

    def take_attached(self) -> dict[str, set[tuple[str, str]]]:
        """Return the attached partitions by table. They count as known from now on.

        The caller must read them in a snapshot that begins later.
        """
        attached, self.attached = self.attached, {}
        for name, leaves in attached.items():
            self.known[name] = sorted([*self.known[name], *leaves])
        return {name: set(leaves.values()) for name, leaves in attached.items()}


def _may_have_brought_rows(
    connection: Connection, schema: str, leaf: str, later: bool, creator: str, command: int | None
) -> bool:
    """Return whether a partition may have had rows before it was attached.

    Returns False in the usual case, a table created as a partition.
    """
    if later or command is None:
        return True
    # Created and attached in one transaction. Rows inserted in between would be the first rows of its file.
    statement = f"SELECT EXISTS (SELECT 1 FROM ONLY {quoted(schema)}.{quoted(leaf)} {_BEFORE})"
    try:
        return bool(fetch_row(connection, statement, (creator, command))[0])
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedTable):
        return False


class Backlog:
    """Plans the snapshot's steps, and the tasks that read them. Methods raise MzplanError and psycopg.Error.

    `check`: checks that slot and tables still match the notes.
    """

    def __init__(
        self,
        query: ResolvedQuery,
        names: Names,
        leaves: LeafPartitions,
        shapes: Shapes,
        check: Callable[[], None],
    ):
        self._query = query
        self._names = names
        self._leaves = leaves
        self._shapes = shapes
        self._check = check
        self._snapshot: DatabaseSnapshot | None = None

    def has_unread(self, newest: Note) -> bool:
        """Return whether some existing rows are still unread after this step."""
        tables = newest["tables"]
        missing = any(name not in tables for name in self._query.body["tables"])
        return missing or next_chunk(tables) is not None or bool(self._leaves.attached)

    def next(self, newest: Note | None) -> Note:
        """Return the note of the step after the newest one. It has no chunks if everything is read."""
        snapshot = self._open_snapshot(newest)
        tables = dict(newest["tables"]) if newest is not None else {}
        start = newest["to"] if newest is not None else lsn_text(self._start_lsn(snapshot))
        with session(self._query) as (_, connection):
            current = tables_of(connection, self._query)
            timeline = timeline_of(connection)
        recorded = newest["oids"] if newest is not None else {}
        oids = {**{name: table.oid for name, table in current.items()}, **recorded}
        attached = self._leaves.take_attached()
        for name, table in current.items():
            unread_files = unread_progress(snapshot.files(table))
            attached_leaves = attached.get(name, set())
            before = [
                entry for entry in tables.get(name, ()) if tuple(entry["relation"]) not in attached_leaves
            ]
            tables[name] = continue_progress(before, unread_files) if name in tables else unread_files
        chunks = []
        for _ in range(self._query.body["snapshot"]["parallelism"]):
            chunk = next_chunk(tables)
            if chunk is None:
                break
            chunks.append(chunk)
            tables = after_chunk(tables, chunk)
        types = newest["types"] if newest is not None else {}
        self._shapes.look(current, types)
        # Keep the recorded types: the next step of changes compares them and records the new ones.
        types = {**self._shapes.known, **types}
        return {
            "kind": "snapshot",
            "chunks": chunks,
            "after": start,
            "to": start,
            "tables": tables,
            "oids": oids,
            "leaves": self._leaves.known,
            "types": types,
            "timeline": timeline,
        }

    def parts(self, note: Note) -> list[ReadTask]:
        """Return the tasks that read a step. If the step's snapshot has ended, they read a later one."""
        snapshot = self._open_snapshot(note)
        with session(self._query) as (_, connection):
            tables = tables_of(connection, self._query)
        files = {name: snapshot.files(table) for name, table in tables.items()}
        return [
            ReadTask(
                after=lsn_of(note["after"]),
                up_to=snapshot.lsn,
                table=chunk["table"],
                relation=(chunk["relation"][0], chunk["relation"][1]),
                first=chunk["first"],
                end=chunk["end"],
                snapshot=snapshot.name,
            )
            for chunk in adapt_chunks(note["chunks"], files)
        ]

    def close(self) -> None:
        """Release the snapshot, because the server can't remove old row versions while it is open."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            snapshot.close()

    def _open_snapshot(self, newest: Note | None) -> DatabaseSnapshot:
        if self._snapshot is not None and self._snapshot.is_alive():
            return self._snapshot
        with session(self._query) as (info, connection):
            tables = tables_of(connection, self._query)
            if newest is not None:
                self._check()  # before `publish`: a table that left the publication has lost changes
            opened = list(tables.values())
            publish(connection, self._names, opened)
            # Look before the snapshot begins, so that partitions attached later don't count as known.
            recorded = newest["leaves"] if newest is not None else {}
            self._leaves.find_attached(
                connection, {name: table.oid for name, table in tables.items()}, recorded
            )
            try:
                self._snapshot = DatabaseSnapshot(info, self._names, opened)
            except SlotError as problem:
                if problem.state != LOCK_NOT_AVAILABLE:
                    raise
                writer = oldest_writer(connection)
                oldest = f" The oldest is {writer}." if writer is not None else ""
                raise SLOT_WAITS.error(self._query, what=problem, oldest=oldest) from None
        return self._snapshot

    def _start_lsn(self, snapshot: DatabaseSnapshot) -> Lsn:
        """Return the LSN from which a new source needs the changes."""
        if snapshot.created:
            return snapshot.lsn
        with session(self._query) as (_, connection):
            slot = find_slot(connection, self._names.slot)
        if slot is None:
            raise SLOT_GONE.error(self._query, slot=self._names.slot, why=NO_SLOT)
        return slot.confirmed
