"""What the tables of a PostgreSQL source held before their changes are read: steps of a snapshot.

It may be read in several sittings, each in a later snapshot, since one ends with the session that holds it.
What was read in an earlier one is in the notes of the steps (see `snapshot`).
"""

from __future__ import annotations

from collections.abc import Callable

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.postgres.identity import timeline_of
from mzplan.connectors.postgres.source.continuity import NO_SLOT, Leaves, Shapes
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
    after_chunk,
    carried_on,
    in_files,
    next_chunk,
    unread,
)
from mzplan.connectors.postgres.source.upstream_problems import SLOT_GONE, SLOT_WAITS


class Backlog:
    """`check` finds out whether the slot and the tables are still what the notes say. All raise
    MzplanError, psycopg.Error."""

    def __init__(
        self, query: ResolvedQuery, names: Names, leaves: Leaves, shapes: Shapes, check: Callable[[], None]
    ):
        self._query = query
        self._names = names
        self._leaves = leaves
        self._shapes = shapes
        self._check = check
        self._snapshot: DatabaseSnapshot | None = None

    def is_left(self, newest: Note) -> bool:
        """Whether something is to be read of a snapshot after this step."""
        tables = newest["tables"]
        missing = any(name not in tables for name in self._query.body["tables"])
        return missing or next_chunk(tables) is not None or bool(self._leaves.attached)

    def next(self, newest: Note | None) -> Note:
        """The step after the newest; without chunks when all is read."""
        snapshot = self._opened(newest)
        tables = dict(newest["tables"]) if newest is not None else {}
        begins = newest["to"] if newest is not None else lsn_text(self._begins(snapshot))
        with session(self._query) as (_, connection):
            current = tables_of(connection, self._query)
            timeline = timeline_of(connection)
        recorded = newest["oids"] if newest is not None else {}
        oids = {**{name: table.oid for name, table in current.items()}, **recorded}
        attached = self._leaves.take()
        for name, table in current.items():
            unread_files = unread(snapshot.files(table))
            came = attached.get(name, set())
            before = [entry for entry in tables.get(name, ()) if tuple(entry["relation"]) not in came]
            tables[name] = carried_on(before, unread_files) if name in tables else unread_files
        chunks = []
        for _ in range(self._query.body["snapshot"]["parallelism"]):
            chunk = next_chunk(tables)
            if chunk is None:
                break
            chunks.append(chunk)
            tables = after_chunk(tables, chunk)
        types = newest["types"] if newest is not None else {}
        self._shapes.look(current, types)
        # Of a table that was read before, changes are still to come: what is new of it is theirs to record.
        types = {**self._shapes.known, **types}
        return {
            "kind": "snapshot",
            "chunks": chunks,
            "after": begins,
            "to": begins,
            "tables": tables,
            "oids": oids,
            "leaves": self._leaves.known,
            "types": types,
            "timeline": timeline,
        }

    def parts(self, note: Note) -> list[ReadTask]:
        """What the tasks are to read of a step, in another snapshot if that one has ended."""
        snapshot = self._opened(note)
        with session(self._query) as (_, connection):
            tables = tables_of(connection, self._query)
        files = {name: snapshot.files(table) for name, table in tables.items()}
        return [
            ReadTask(
                after=lsn_of(note["after"]),
                to=snapshot.lsn,
                table=chunk["table"],
                relation=(chunk["relation"][0], chunk["relation"][1]),
                first=chunk["first"],
                end=chunk["end"],
                snapshot=snapshot.name,
            )
            for chunk in in_files(note["chunks"], files)
        ]

    def close(self) -> None:
        """Let the snapshot go: it keeps the server from tidying up what is seen in it."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            snapshot.close()

    def _opened(self, newest: Note | None) -> DatabaseSnapshot:
        if self._snapshot is not None and self._snapshot.is_alive():
            return self._snapshot
        with session(self._query) as (info, connection):
            tables = tables_of(connection, self._query)
            if newest is not None:
                self._check()  # first: a table that lost its place in the publication lost changes, too
            opened = list(tables.values())
            publish(connection, self._names, opened)
            # Before the snapshot begins: what is attached later is not known by it.
            recorded = newest["leaves"] if newest is not None else {}
            self._leaves.look(connection, {name: table.oid for name, table in tables.items()}, recorded)
            try:
                self._snapshot = DatabaseSnapshot(info, self._names, opened)
            except SlotError as problem:
                if problem.state != LOCK_NOT_AVAILABLE:
                    raise
                which = oldest_writer(connection)
                oldest = f" The oldest is {which}." if which is not None else ""
                raise SLOT_WAITS.error(self._query, what=problem, oldest=oldest) from None
        return self._snapshot

    def _begins(self, snapshot: DatabaseSnapshot) -> Lsn:
        """From where on the changes are wanted, when nothing is recorded yet."""
        if snapshot.created:
            return snapshot.lsn
        with session(self._query) as (_, connection):
            slot = find_slot(connection, self._names.slot)
        if slot is None:
            raise SLOT_GONE.error(self._query, slot=self._names.slot, why=NO_SLOT)
        return slot.confirmed
