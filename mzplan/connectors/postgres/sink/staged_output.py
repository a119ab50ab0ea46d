"""The postgres sink as an OutputEndpoint that goes through a staging table.

This is necessary if values must be cast, or if the latest row of each key must be found. Rows are copied into
the staging table. One transaction then moves them into the table and records the step.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mzplan.connectors.postgres.sink.output import FencedError, Target, step_record
from mzplan.connectors.postgres.sink.staging import Move
from mzplan.connectors.postgres.sink.tasks import Part, Task, staging_task
from mzplan.connectors.postgres.sink.writer import Writer
from mzplan.connectors.postgres.tables import Connection
from mzplan.endpoints.interface import Step, StepError, Written, checked_step
from mzplan.endpoints.replay import Compare, StepReplay, combine_parts

if TYPE_CHECKING:
    from pyarrow import RecordBatch

log = logging.getLogger("mzplan.endpoints")


class EmptiedError(Exception):
    """The staging table has fewer rows than were staged. Nothing was written."""


class StagedOutput:
    """An OutputEndpoint on the driver that moves staged rows.

    A batch's rows come through `push_buffer`, or from Spark tasks that stage them in parallel. Each task runs
    `task`, and `record_parts` gets their reports. A step that was written before needs a single task, because
    its rows must come in order.

    Raises psycopg.Error and the driver's errors for errors of the server, FencedError, EmptiedError, and
    MzplanError if another run writes now.
    """

    def __init__(
        self,
        connection: Connection,
        writer: Writer,
        move: Move,
        target: Target,
        *,
        compare: Compare,
        sources: tuple[int, int] | None = None,
    ):
        self._connection = connection
        self._writer, self._move, self._target = writer, move, target
        self._compare, self._sources = compare, sources
        self._step: Step | None = None
        self._last = -1
        self._written: Written | None = None
        self._part: Part | None = None
        self._attempts: dict[int, int] = {}
        self._note = Written(rows=0)

    def start_step(self, step: Step) -> None:
        checked_step(step)
        self.close()
        self._last = self._writer.lock(self._connection, for_update=False)
        row = self._connection.execute(self._writer.ledger.written(step).encode()).fetchone()
        self._written = step_record(row, step, self._last)
        # Create it here, so that a step that can't be written is refused before its rows come.
        last = self._last if self._last >= 0 else None
        replay = StepReplay(step, written=self._written, last=last, compare=self._compare, warn=log.warning)
        self._part = Part(self._target, replay)
        self._step = step

    @property
    def repeats(self) -> bool:
        """Return whether the step was written before."""
        return self._written is not None

    def push_buffer(self, batch: RecordBatch) -> None:
        self._current_step()
        assert self._part is not None
        try:
            self._part.push(batch)
        except BaseException:
            self.close()
            raise

    def task(self) -> Task:
        """Return a function for mapInArrow that stages a partition of the step."""
        last = self._last if self._last >= 0 else None
        return staging_task(self._target, self._current_step(), self._written, last, self._compare)

    def record_parts(self, parts: Iterable[tuple[int, int, Written]]) -> None:
        """Record the rows that the tasks staged. Call `finish_step` afterwards.

        `parts` are tuples of the attempt, its number of staged rows, and the count and hash of its part of
        the step.
        """
        listed = list(parts)
        self._part = None
        self._attempts = {attempt: rows for attempt, rows, _ in listed if rows}
        self._note = combine_parts(note for _, _, note in listed)

    def finish_step(self) -> None:
        step, part = self._current_step(), self._part
        try:
            if part is not None:
                note = part.finish()
                self.record_parts([(part.attempt, part.staged, note)])
                part.close()
            if self._note != self._written:
                self._move_rows(step)
            self._step = None
        finally:
            self.close()

    def expire_step(self, step: Step) -> None:
        checked_step(step)
        self.close()
        self._connection.execute(self._writer.ledger.expire(step).encode())

    def close(self) -> None:
        """Abandon a step in progress. Its staged rows are never used."""
        self._step = None
        self._attempts = {}
        if self._part is not None:
            self._part.close()
            self._part = None

    def _move_rows(self, step: Step) -> None:
        """Move the rows and write the note in one transaction that locks the sink's row in `writers`."""
        ledger, connection = self._writer.ledger, self._connection
        with connection.transaction():
            self._writer.lock(connection)
            claimed_rows = connection.execute(ledger.claim(step, self._last, self._written).encode()).rowcount
            if claimed_rows != 1:
                raise FencedError(f"step {step} could not be claimed")
            has_rows = self._attempts or self._move.replaces
            if has_rows and not self._move.move(connection, self._attempts):
                raise EmptiedError
            connection.execute(ledger.note(step, self._note, self._sources).encode())

    def _current_step(self) -> Step:
        if self._step is None:
            raise StepError("no step is started")
        return self._step
