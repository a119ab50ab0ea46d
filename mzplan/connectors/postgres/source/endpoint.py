"""A PostgreSQL database as a DurableInputEndpoint: first the tables' rows, then their changes.

A snapshot step reads some ranges of table blocks in parallel. A step of changes reads a range (from, to] of
the server's log, with all transactions that commit in it. A StepLog stores only the bounds of each step. A
step of changes can be read again, because the slot keeps the log until `expire`.

A snapshot row has the snapshot's LSN as its position, and a change has the LSN of its commit. A change that
the snapshot already includes has the lower position, so it is ignored. So several sessions, each with a later
snapshot, can read the existing rows. Between two sessions, an update may move a row to a block that the later
session doesn't read. No row is lost, because the update itself arrives as a change.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mzplan.connectors.adapter.source import step_of
from mzplan.connectors.api.probes import with_time_limit
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.postgres.client import probe_timeout_s
from mzplan.connectors.postgres.identity import timeline_of
from mzplan.connectors.postgres.source.backlog import Backlog, LeafPartitions
from mzplan.connectors.postgres.source.continuity import (
    Shapes,
    check_slot,
    check_tables,
    check_timeline,
)
from mzplan.connectors.postgres.source.reader import PartReader
from mzplan.connectors.postgres.source.replication import Lsn, lsn_of, lsn_text
from mzplan.connectors.postgres.source.slots import LogEnd, Names, advance, session, tables_of
from mzplan.connectors.postgres.source.snapshot import Note, ReadTask
from mzplan.connectors.postgres.source.upstream_problems import explaining
from mzplan.connectors.postgres.source.watch import IdlePosition, Watch
from mzplan.endpoints.interface import InputConsumer, Step, StepError, checked_step
from mzplan.endpoints.steplog import StepLog

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from mzplan.connectors.postgres.tables import Connection

_IDLE_EVERY_S = 10.0
_TABLES_EVERY_S = 10.0
_INHERITED = (
    "tables",
    "oids",
    "leaves",
    "types",
    "timeline",
)  # the fields that a note takes from the previous one


class PostgresInput:
    """The endpoint of one source. Raises MzplanError for errors of the server, and StepError."""

    def __init__(self, query: ResolvedQuery, storage: str):
        self._query = query
        self._names = Names.of(query)
        self._log = StepLog(storage)
        self._idle = IdlePosition(storage)
        self._reader = PartReader(query, self._names)
        self._watch = Watch(query, self._names)
        self._planned: tuple[Step, Note] | None = None
        self._pending: tuple[Step, InputConsumer] | None = None
        self._offered: Step | None = None
        self._checked = False
        self._end = LogEnd()
        self._looked_at = 0.0
        self._tables_seen_at = 0.0
        self._timeline: int | None = None
        self._oids: dict[str, int] = {}
        self._leaves = LeafPartitions()
        self._shapes = Shapes(query)
        self._backlog = Backlog(query, self._names, self._leaves, self._shapes, self._check_slot)
        self._state: Note = {}

    # ── the contract

    def steps(self) -> range:
        return self._log.steps()

    def read(self, step: Step, consumer: InputConsumer) -> None:
        steps = self.steps()
        if checked_step(step) in steps:
            self._feed(self.parts(step), consumer)
            consumer.eoi()
            consumer.committed()
            return
        if step != steps.stop:
            raise StepError(
                f"step {step} can't be read: the first step is {steps.start}, the next one {steps.stop}"
            )
        self._pending = (step, consumer)
        if self.offers(step):
            assert self._planned is not None
            self._feed(self._parts(self._planned[1]), consumer)

    def commit(self, step: Step) -> None:
        steps = self.steps()
        if step in steps:
            return
        planned, self._planned = self._planned, None
        pending, self._pending = self._pending, None
        if step != steps.stop or self._offered != step:
            raise StepError(f"step {step} can't be committed: it isn't the step that was read last")
        note = planned[1] if planned is not None and planned[0] == step else self._empty_note()
        self._log.append(step, note)
        if pending is not None and pending[0] == step:
            pending[1].eoi()
            pending[1].committed()

    def expire(self, step: Step) -> None:
        steps = self.steps()
        if checked_step(step) > steps.stop:
            raise StepError(f"can't expire steps before {step}: the newest is {steps.stop - 1}")
        if step <= steps.start:
            return
        # The end of the last step that expires.
        end = lsn_of(self._log.note(step - 1)["to"])
        # Expire the log first. A slot that is behind the steps is harmless, but a slot that is ahead is
        # refused.
        self._log.expire(step)
        self._watch.close()
        with explaining(self._query), session(self._query) as (_, connection):
            advance(connection, self._names.slot, end)

    # ── for large steps: parts, with one batch at a time in memory

    def offers(self, step: Step) -> bool:
        """Return whether the next step would have rows. If so, the caller may commit it without `read`."""
        self._offered = step
        if self._planned is not None and self._planned[0] == step:
            return True
        note = self._plan()
        self._planned = (step, note) if note is not None else None
        return note is not None

    def parts(self, step: Step) -> list[ReadTask]:
        """Return the tasks that read a durable step.

        If the snapshot of a snapshot step has ended, the tasks read a later snapshot."""
        return self._parts(self._log.note(step))

    def batches(self, part: ReadTask) -> Iterator[RecordBatch]:
        """Yield the rows of a part: the source's columns, `_position` and `_change`."""
        with explaining(self._query):
            if part.table is None and part.after < part.up_to:
                yield from self._reader.changes(
                    part.after, part.up_to, dict(part.oids), self._idle.read()[0], dict(part.added_columns)
                )
            elif part.table is not None:
                yield from self._reader.chunk(
                    part.table, part.relation, part.first, part.end, part.snapshot, part.up_to
                )

    def check(self) -> None:
        """Check that the server still has everything that durable and later steps need.

        Raises MzplanError MZ223, MZ043.
        """
        with contextlib.suppress(TimeoutError), explaining(self._query):  # the probe reports a silent server
            seconds = probe_timeout_s(self._query)
            with_time_limit(lambda: self._check_slot(seconds), seconds)

    def close(self) -> None:
        self._watch.close()
        self._backlog.close()

    # ── planning

    def _parts(self, note: Note) -> list[ReadTask]:
        if note["kind"] == "changes":
            self._watch.close()
            oids = tuple(self._configured_oids(note["oids"]).items())
            after, to = lsn_of(note["after"]), lsn_of(note["to"])
            return [ReadTask(after=after, up_to=to, oids=oids, added_columns=self._added_columns(note))]
        with explaining(self._query):
            return self._backlog.parts(note)

    def _feed(self, parts: list[ReadTask], consumer: InputConsumer) -> None:
        for part in parts:
            for batch in self.batches(part):
                consumer.push(batch)

    def _plan(self) -> Note | None:
        """Return the next step's note, or None if there are no new rows."""
        with explaining(self._query):
            newest = self._log.newest()
            if newest is not None and not self._checked:
                self._check_slot()
            self._checked = True
            if newest is None or self._backlog.has_unread(newest):
                self._watch.close()
                note = self._backlog.next(newest)
                self._state = {name: note[name] for name in ("to", *_INHERITED)}
                if note["chunks"]:
                    return note
                newest = {**(newest or {}), **self._state}
            self._backlog.close()
            return self._next_changes(newest)

    def _empty_note(self) -> Note:
        """Return the note of a step without rows."""
        newest = self._log.newest() or self._state
        at = newest["to"]
        inherited: Note = {name: newest[name] for name in _INHERITED}
        return {"kind": "changes", "after": at, "to": at, **inherited}

    def _added_columns(self, note: Note) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return, by table, the columns that rows of a step may not have.

        They were declared in that step, or since it was recorded.
        """
        later, then = self._shapes.added(note["types"]), note.get("added", {})
        names = sorted({*later, *then})
        return tuple((name, (*later.get(name, ()), *then.get(name, ()))) for name in names)

    # ── the changes

    def _next_changes(self, newest: Note) -> Note | None:
        after, recorded = self._read_position(newest)
        with session(self._query) as (info, connection):
            timeline = timeline_of(connection)
            if timeline != self._timeline:  # promoted in the meantime
                check_timeline(self._query, self._names, info, timeline, recorded, after)
                self._timeline = timeline
            oids = self._oids_of(connection, newest)
            to = self._end.read(connection)
            has_changes = to > after and self._watch.has_changes(after, to, self._configured_oids(oids))
            # Check before each step of changes, because an ALTER TABLE may precede them. Also check once in a
            # while without changes, because a recreated table sends none.
            if has_changes or time.monotonic() - self._tables_seen_at >= _TABLES_EVERY_S:
                self._check_tables(connection, newest)
        if to <= after:
            return None
        if has_changes:
            types = newest["types"]
            return {
                "kind": "changes",
                "after": lsn_text(after),
                "to": lsn_text(to),
                "tables": newest["tables"],
                "oids": oids,
                "leaves": {**newest["leaves"], **self._leaves.known},
                "types": {**types, **self._shapes.known},
                "added": self._shapes.added(types),
                "timeline": timeline,
            }
        self._pass_idle(to, timeline)
        return None

    def _oids_of(self, connection: Connection, newest: Note) -> dict[str, int]:
        """Return the tables' recorded oids, and the current oids of tables without a record."""
        recorded = {**self._oids, **newest["oids"]}
        if not set(self._query.body["tables"]) <= set(recorded):
            tables = tables_of(connection, self._query)
            recorded = self._oids = {**{name: table.oid for name, table in tables.items()}, **recorded}
        return recorded

    def _configured_oids(self, oids: Mapping[str, int]) -> dict[str, int]:
        return {name: oid for name, oid in oids.items() if name in self._query.body["tables"]}

    def _check_tables(self, connection: Connection, newest: Note) -> None:
        read = [name for name in self._query.body["tables"] if name in newest["tables"]]
        tables = check_tables(connection, self._query, self._names, read, newest["oids"])
        self._shapes.look(tables, newest["types"])
        oids = self._oids_of(connection, newest)
        self._leaves.find_attached(connection, {name: oids[name] for name in read}, newest["leaves"])
        self._tables_seen_at = time.monotonic()

    def _read_position(self, newest: Note) -> tuple[Lsn, int | None]:
        """Return the LSN up to which everything is read, and its timeline."""
        idle, to = self._idle.read(), lsn_of(newest["to"])
        return idle if idle[0] > to else (to, newest["timeline"])

    def _pass_idle(self, to: Lsn, timeline: int | None) -> None:
        """Let the server discard its log up to `to`, which has no changes of our tables.

        Does nothing while a step isn't committed downstream.
        """
        if time.monotonic() - self._looked_at < _IDLE_EVERY_S:
            return
        self._looked_at = time.monotonic()
        steps = self.steps()
        if self._committed_step() < steps.stop:
            return
        # Record it first, so that the slot is never ahead of the record.
        self._idle.record(to, timeline)
        self._watch.confirm(to)

    def _committed_step(self) -> Step:
        """Return the step before which all steps are committed downstream.

        This reads the checkpoint's log, because Spark's source learns it only with the next micro-batch.
        """
        checkpoint = self._query.checkpoint
        position = checkpoint.position() if checkpoint is not None else None
        return step_of(position or "") or 0

    def _check_slot(self, within_s: float = math.inf) -> None:
        """Check that the slot has all needed changes, and that the tables are the same.

        Raises MzplanError MZ223, MZ043.
        """
        until = time.monotonic() + within_s
        newest = self._log.newest()
        if newest is None:
            return
        steps = self.steps()
        needed = lsn_of(self._log.note(steps.start)["after"] if steps else newest["to"])
        needed = max(needed, self._idle.read()[0])
        last_read, recorded = self._read_position(newest)
        with session(self._query, within_s) as (info, connection):
            check_slot(self._query, self._names, connection, needed)
            timeline = timeline_of(connection)
            remaining_s = until - time.monotonic()
            check_timeline(self._query, self._names, info, timeline, recorded, last_read, remaining_s)
            self._timeline = timeline
            self._check_tables(connection, newest)


class PostgresInputFactory:
    """Creates the PostgresInputs of one source. It is pickled for Spark's Python processes, with secrets."""

    def __init__(self, query: ResolvedQuery):
        self._query = query

    def name(self) -> str:
        return "postgres"

    def new_endpoint(self, name: str, config: Mapping[str, Any]) -> PostgresInput:
        return PostgresInput(self._query, config["storage"])
