"""A PostgreSQL database as a DurableInputEndpoint: first what its tables hold, then what changes in them.

A step of a snapshot is some ranges of blocks of the tables, read side by side; a step of changes is a range
of the server's log, (from, to], with all transactions whose commit lies in it. Both are only bounds, noted in
a StepLog: what makes a step of changes readable again is the slot, which keeps the log until `expire`.

Rows of a snapshot carry the LSN that they are of as their position, and changes that of their commit: so the
changes since the slot was made may come on top of rows that have them already, and are ignored there. That is
what lets a snapshot be read in several sittings, each with a later one: a row that moved between them to
where it is not read any more was changed, and comes with the changes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from mzplan.connectors.interface import ResolvedQuery
from mzplan.connectors.postgres_leaves import Leaves
from mzplan.connectors.postgres_noted import check_tables, check_timeline, timeline_of
from mzplan.connectors.postgres_problems import explaining, slot_gone, slot_moved, slot_waits
from mzplan.connectors.postgres_progress import Note, after_chunk, carried_on, in_files, next_chunk, unread
from mzplan.connectors.postgres_reading import Reading
from mzplan.connectors.postgres_shapes import Shapes
from mzplan.connectors.postgres_slots import (
    Names,
    Snapshot,
    find_slot,
    flush_log,
    insert_lsn,
    oldest_writer,
    publish,
    session,
    tables_of,
)
from mzplan.connectors.postgres_stream import LOCK_NOT_AVAILABLE, Lsn, SlotError, lsn_of, lsn_text
from mzplan.connectors.postgres_watch import Watch
from mzplan.endpoints.folder import open_folder
from mzplan.endpoints.interface import InputConsumer, Step, StepError, checked_step
from mzplan.endpoints.steplog import StepLog

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from mzplan.connectors.postgres_target import Connection

_IDLE = "idle.json"
_IDLE_EVERY_S = 10.0
_TABLES_EVERY_S = 10.0
_SLOT_WAITS = 40
_MARKS = ("tables", "oids", "leaves", "types", "timeline")  # of a note: what is the same for the step after
_FLUSH_WAIT_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
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


class PostgresInput:
    """Raises MzplanError for what a server did, and StepError."""

    def __init__(self, query: ResolvedQuery, storage: str):
        self._query = query
        self._names = Names.of(query)
        self._storage = storage
        self._log = StepLog(storage)
        self._reading = Reading(query, self._names)
        self._watch = Watch(query, self._names)
        self._snapshot: Snapshot | None = None
        self._planned: tuple[Step, Note] | None = None
        self._pending: tuple[Step, InputConsumer] | None = None
        self._asked: Step | None = None
        self._checked = False
        self._candidate: Lsn = 0
        self._looked_at = 0.0
        self._tables_seen_at = 0.0
        self._timeline: int | None = None
        self._oids: dict[str, int] = {}
        self._leaves = Leaves()
        self._shapes = Shapes(query)
        self._state: Note = {}

    # ── the contract

    def steps(self) -> range:
        return self._log.steps()

    def read(self, step: Step, consumer: InputConsumer) -> None:
        there = self.steps()
        if checked_step(step) in there:
            self._feed(step, consumer)
            consumer.eoi()
            consumer.committed()
            return
        if step != there.stop:
            raise StepError(
                f"step {step} can't be read: steps {there.start} to {there.stop} (excluded) are there"
            )
        self._pending = (step, consumer)
        if self.offers(step):
            assert self._planned is not None
            for part in self._parts(self._planned[1]):
                for batch in self.batches(part):
                    consumer.push(batch)

    def commit(self, step: Step) -> None:
        there = self.steps()
        if step in there:
            return
        planned, self._planned = self._planned, None
        pending, self._pending = self._pending, None
        if step != there.stop or self._asked != step:
            raise StepError(f"step {step} can't be committed: it is not the one that was read last")
        note = planned[1] if planned is not None and planned[0] == step else self._nothing()
        self._log.append(step, note)
        if pending is not None and pending[0] == step:
            pending[1].eoi()
            pending[1].committed()

    def expire(self, step: Step) -> None:
        there = self.steps()
        if checked_step(step) > there.stop:
            raise StepError(f"can't expire steps before {step}: the newest is {there.stop - 1}")
        if step <= there.start:
            return
        # Everything before the end of the last step that is not needed any more.
        done = lsn_of(self._log.note(step - 1)["to"])
        # In this order: a slot that has stayed behind is harmless, one that is ahead of the steps is refused.
        self._log.expire(step)
        self._watch.close()
        with explaining(self._query), session(self._query) as (_, connection):
            self._advance(connection, done)

    # ── what makes it fit for much: parts, and no more in memory than a batch

    def offers(self, step: Step) -> bool:
        """Whether the step just beyond would have rows. `commit` of it is then possible without `read`."""
        self._asked = step
        if self._planned is not None and self._planned[0] == step:
            return True
        note = self._plan()
        self._planned = (step, note) if note is not None else None
        return note is not None

    def parts(self, step: Step) -> list[Part]:
        """What the tasks are to read of a durable step, in another snapshot if that one has ended."""
        return self._parts(self._log.note(step))

    def batches(self, part: Part) -> Iterator[RecordBatch]:
        """The rows of a part: the source's columns, `_position` and `_change`."""
        with explaining(self._query):
            if part.table is None and part.after < part.to:
                yield from self._reading.changes(
                    part.after, part.to, dict(part.oids), self._passed(), dict(part.added)
                )
            elif part.table is not None:
                yield from self._reading.chunk(
                    part.table, part.relation, part.first, part.end, part.snapshot, part.to
                )

    def check(self) -> None:
        """Whether the server still has what the durable steps and those after them need. Raises MzplanError
        MZ223, MZ224, MZ236."""
        with explaining(self._query):
            if self._log.newest() is not None:
                self._check_slot()

    def close(self) -> None:
        self._watch.close()
        self._leave_snapshot()

    # ── how

    def _feed(self, step: Step, consumer: InputConsumer) -> None:
        for part in self.parts(step):
            for batch in self.batches(part):
                consumer.push(batch)

    def _plan(self) -> Note | None:
        """What the next step would be; None while there is nothing."""
        with explaining(self._query):
            newest = self._log.newest()
            tables = {} if newest is None else newest["tables"]
            if newest is not None and not self._checked:
                self._check_slot()
            self._checked = True
            missing = [name for name in self._query.body["tables"] if name not in tables]
            if newest is None or missing or next_chunk(tables) is not None or self._leaves.attached:
                self._watch.close()
                note = self._next_of_snapshot(newest)
                self._state = {one: note[one] for one in ("to", *_MARKS)}
                if note["chunks"]:
                    return note
                newest = {**(newest or {}), **self._state}
            self._leave_snapshot()
            return self._next_changes(newest)

    def _nothing(self) -> Note:
        """A step without rows."""
        newest = self._log.newest() or self._state
        at = newest["to"]
        marks: Note = {one: newest[one] for one in _MARKS if one in newest}
        return {"kind": "changes", "after": at, "to": at, **marks}

    # ── the snapshot

    def _next_of_snapshot(self, newest: Note | None) -> Note:
        """The next step of a snapshot; without chunks when all is read."""
        snapshot = self._opened(newest)
        tables = dict(newest["tables"]) if newest is not None else {}
        begins = newest["to"] if newest is not None else lsn_text(self._begins(snapshot))
        with session(self._query) as (_, connection):
            found = tables_of(connection, self._query)
            timeline = timeline_of(connection)
        noted = newest.get("oids", {}) if newest is not None else {}
        oids = {**{name: table.oid for name, table in found.items()}, **noted}
        attached = self._leaves.take()
        for name, table in found.items():
            there = unread(snapshot.extent(table))
            came = attached.get(name, set())
            before = [one for one in tables.get(name, ()) if tuple(one["relation"]) not in came]
            tables[name] = carried_on(before, there) if name in tables else there
        chunks = []
        for _ in range(self._query.body["snapshot"]["parallelism"]):
            chunk = next_chunk(tables)
            if chunk is None:
                break
            chunks.append(chunk)
            tables = after_chunk(tables, chunk)
        bounds = {"after": begins, "to": begins}
        types = newest.get("types", {}) if newest is not None else {}
        self._shapes.look(found, types)
        # Of a table that was read before, changes are still to come: what is new of it is theirs to note.
        types = {**self._shapes.known, **types}
        leaves = self._leaves.known
        marks: Note = {"tables": tables, "oids": oids, "leaves": leaves, "types": types}
        marks["timeline"] = timeline
        return {"kind": "snapshot", "chunks": chunks, **bounds, **marks}

    def _opened(self, newest: Note | None) -> Snapshot:
        if self._snapshot is not None and self._snapshot.is_alive():
            return self._snapshot
        with session(self._query) as (info, connection):
            tables = tables_of(connection, self._query)
            if newest is not None:
                self._check_slot()  # first: a table that lost its place in the publication lost changes, too
            opened = list(tables.values())
            publish(connection, self._names, opened)
            # Before the snapshot begins: what is attached later is not known by it.
            noted = newest.get("leaves", {}) if newest is not None else {}
            self._leaves.look(connection, {name: table.oid for name, table in tables.items()}, noted)
            try:
                self._snapshot = Snapshot(info, self._names, opened)
            except SlotError as problem:
                if problem.state != LOCK_NOT_AVAILABLE:
                    raise
                raise slot_waits(self._query, str(problem), oldest_writer(connection)) from None
        return self._snapshot

    def _begins(self, snapshot: Snapshot) -> Lsn:
        """From where on the changes are wanted, when nothing is noted yet."""
        if snapshot.created:
            return snapshot.lsn
        with session(self._query) as (_, connection):
            slot = find_slot(connection, self._names.slot)
        if slot is None:
            raise slot_gone(self._query, self._names.slot)
        return slot.confirmed

    def _parts(self, note: Note) -> list[Part]:
        after, to = lsn_of(note["after"]), lsn_of(note["to"])
        if note["kind"] == "changes":
            self._watch.close()
            oids = tuple(self._ours(note.get("oids", {})).items())
            return [Part(after=after, to=to, oids=oids, added=self._added(note))]
        with explaining(self._query), session(self._query) as (_, connection):
            snapshot = self._opened(note)
            found = tables_of(connection, self._query)
            there = {name: snapshot.extent(table).files for name, table in found.items()}
        return [
            Part(
                after=after,
                to=snapshot.lsn,
                table=chunk["table"],
                relation=(chunk["relation"][0], chunk["relation"][1]),
                first=chunk["first"],
                end=chunk["end"],
                snapshot=snapshot.name,
            )
            for chunk in in_files(note["chunks"], there)
        ]

    def _added(self, note: Note) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """By table, the columns that rows of a step may lack: those that were declared only then, or are
        since it was noted."""
        later, then = self._shapes.added(note.get("types", {})), note.get("added", {})
        names = sorted({*later, *then})
        return tuple((name, (*later.get(name, ()), *then.get(name, ()))) for name in names)

    def _leave_snapshot(self) -> None:
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            snapshot.close()

    # ── the changes

    def _next_changes(self, newest: Note) -> Note | None:
        after, noted = self._reached(newest)
        with session(self._query) as (info, connection):
            timeline = timeline_of(connection)
            if timeline != self._timeline:  # promoted meanwhile
                check_timeline(self._query, self._names, info, timeline, noted, after)
                self._timeline = timeline
            self._look_at_tables(connection, newest)
            oids = self._oids_of(connection, newest)
            to = self._bound(connection)
        if to <= after:
            return None
        if self._watch.finds(after, to, self._ours(oids)):
            bounds = {"after": lsn_text(after), "to": lsn_text(to)}
            types = newest.get("types", {})
            marks: Note = {
                "tables": newest["tables"],
                "oids": oids,
                "leaves": {**newest.get("leaves", {}), **self._leaves.known},
                "types": {**types, **self._shapes.known},
                "added": self._shapes.added(types),
                "timeline": timeline,
            }
            return {"kind": "changes", **bounds, **marks}
        self._pass_idle(to, timeline)
        return None

    def _oids_of(self, connection: Connection, newest: Note) -> dict[str, int]:
        """Which tables they are: as it was noted, else as it is now."""
        noted = {**self._oids, **newest.get("oids", {})}
        if not set(self._query.body["tables"]) <= set(noted):
            found = tables_of(connection, self._query)
            noted = self._oids = {**{name: table.oid for name, table in found.items()}, **noted}
        return noted

    def _ours(self, oids: Mapping[str, int]) -> dict[str, int]:
        return {name: oid for name, oid in oids.items() if name in self._query.body["tables"]}

    def _look_at_tables(self, connection: Connection, newest: Note) -> None:
        """Now and then, also while there are changes of other tables: one that was made anew has none."""
        if time.monotonic() - self._tables_seen_at >= _TABLES_EVERY_S:
            self._check_tables(connection, newest)

    def _check_tables(self, connection: Connection, newest: Note) -> None:
        read = [name for name in self._query.body["tables"] if name in newest["tables"]]
        there = check_tables(connection, self._query, self._names, read, newest.get("oids", {}))
        self._shapes.look(there, newest.get("types", {}))
        oids = self._oids_of(connection, newest)
        self._leaves.look(connection, {name: oids[name] for name in read}, newest.get("leaves", {}))
        self._tables_seen_at = time.monotonic()

    def _reached(self, newest: Note) -> tuple[Lsn, int | None]:
        """Up to where all is read, and on which timeline of the server that is."""
        idle = self._idle()
        to = lsn_of(newest["to"])
        if idle is None or lsn_of(idle["to"]) <= to:
            return to, newest.get("timeline")
        return lsn_of(idle["to"]), idle.get("timeline")

    def _bound(self, connection: Connection) -> Lsn:
        """The end of a record of the log that is on disk, as new as can be had without waiting."""
        end, flushed = insert_lsn(connection)
        if flushed >= end:
            return end
        # There is more written than is on disk, under load always. Soon it is, unless nobody commits: then we
        # do. Where we may not, it is what was the end when we asked the last time.
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

    def _pass_idle(self, to: Lsn, timeline: int | None) -> None:
        """Nothing of ours is in the log up to there: once all steps are committed downstream, the server need
        not keep it."""
        if time.monotonic() - self._looked_at < _IDLE_EVERY_S:
            return
        self._looked_at = time.monotonic()
        there = self.steps()
        if self._done() < there.stop:
            return
        # Noted before it is done: where the slot stands must never be a surprise.
        idle = {"to": lsn_text(to), "timeline": timeline}
        open_folder(self._storage).write(_IDLE, json.dumps(idle).encode())
        self._watch.confirm(to)

    def _idle(self) -> Note | None:
        data = open_folder(self._storage).read(_IDLE)
        return dict(json.loads(data)) if data is not None else None

    def _passed(self) -> Lsn:
        """Up to where the slot may have been advanced without a step."""
        idle = self._idle()
        return lsn_of(idle["to"]) if idle is not None else 0

    def _done(self) -> Step:
        """The steps before this one are committed downstream: Spark tells a source of it only with its next
        micro-batch, but notes it down at once."""
        checkpoint = self._query.checkpoint
        position = checkpoint.position() if checkpoint is not None else None
        try:
            return int(json.loads(position or "")["step"])
        except (ValueError, KeyError, TypeError):
            return 0

    def _advance(self, connection: Connection, to: Lsn) -> None:
        """Let the server forget what is before. It may come later, so a slot that is busy is left alone."""
        slot = find_slot(connection, self._names.slot)
        if slot is None or slot.confirmed >= to:
            return
        for _ in range(_SLOT_WAITS):
            try:
                connection.execute(
                    "SELECT pg_replication_slot_advance(%s, %s)", (self._names.slot, lsn_text(to))
                )
                return
            except psycopg.errors.ObjectInUse:
                time.sleep(0.05)

    def _check_slot(self) -> None:
        """The slot still has all that is needed, and the tables are the same. Raises MzplanError MZ223,
        MZ224, MZ236."""
        newest = self._log.newest()
        if newest is None:
            return
        there = self.steps()
        needed = lsn_of(self._log.note(there.start)["after"] if there else newest["to"])
        needed = max(needed, self._passed())
        reached, noted = self._reached(newest)
        with session(self._query) as (info, connection):
            check_slot(self._query, self._names, connection, needed)
            timeline = timeline_of(connection)
            check_timeline(self._query, self._names, info, timeline, noted, reached)
            self._timeline = timeline
            self._check_tables(connection, newest)


def check_slot(query: ResolvedQuery, names: Names, connection: Connection, needed: Lsn) -> None:
    """Whether a slot holds the changes since an LSN. Raises MzplanError MZ223, MZ224."""
    slot = find_slot(connection, names.slot)
    if slot is None:
        raise slot_gone(query, names.slot)
    if slot.lost:
        raise slot_gone(query, names.slot, lost=True)
    end, _ = insert_lsn(connection)
    if end < needed:
        raise slot_moved(query, names.slot, f"the server's log ends at {lsn_text(end)}", needed)
    if slot.confirmed > needed:
        raise slot_moved(query, names.slot, f"it begins at {lsn_text(slot.confirmed)}", needed)


class PostgresInputFactory:
    """Makes PostgresInputs of one source. Pickled into Spark's Python processes: it holds the secrets."""

    def __init__(self, query: ResolvedQuery):
        self._query = query

    def name(self) -> str:
        return "postgres"

    def new_endpoint(self, name: str, config: Mapping[str, Any]) -> PostgresInput:
        return PostgresInput(self._query, config["storage"])
