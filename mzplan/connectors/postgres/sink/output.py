"""The postgres sink as an OutputEndpoint, if PostgreSQL accepts the rows as they are.

The ledger records every step in mzplan's own tables, in the schema `staging_schema`:

- `writers`: one row per sink and generation, with the allowed writer (epoch, query) and the last step.
- `steps`: one row per step, with the time, the row count, the content hash, and the first and last step of
  the source that it covers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mzplan.connectors.postgres.remote_options import RemoteOptions
from mzplan.connectors.postgres.sink.copy import Copy, Session
from mzplan.connectors.postgres.types import literal, quoted
from mzplan.endpoints.interface import Step, StepError, Written, checked_step
from mzplan.endpoints.replay import Compare, StepReplay
from mzplan.host.failpoints import Failpoint, failpoint

if TYPE_CHECKING:
    from pyarrow import RecordBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The statements of one run for one generation of a sink.

    They find no row if another query, a newer epoch or a newer generation writes now.
    """

    schema: str
    sink: str
    generation: int
    epoch: int
    query_id: str

    @property
    def writers(self) -> str:
        return f"{quoted(self.schema)}.writers"

    @property
    def steps(self) -> str:
        return f"{quoted(self.schema)}.steps"

    @property
    def place(self) -> tuple[str, int]:
        return self.sink, self.generation

    def last(self) -> str:
        """Return the query for the last written step. It has no row if another run writes."""
        return f"SELECT w.step FROM {self.writers} AS w WHERE {self._own_row}"

    def written(self, step: Step) -> str:
        """Return the query for a step's row count and content hash. It has no row for an unknown step."""
        return f"SELECT row_count, content_hash FROM {self.steps} WHERE {self._step(step)}"

    def lock(self) -> str:
        """Return the statement that waits for a transaction that begins a newer generation.

        Run it before `claim`, in the same transaction. If `claim` waited itself, it would continue with the
        rows that it has read before, and not see the newer generation's row.
        """
        return (
            f"SELECT 1 FROM {self.writers} WHERE sink = {literal(self.sink)} "
            f"AND generation = {self.generation} FOR UPDATE"
        )

    def claim(self, step: Step, after: int, before: Written | None) -> str:
        """Return the statement that records this step as the last one.

        Run it in the transaction that wrote the rows. It affects one row. It affects none if this run is
        fenced, if `after` is no longer the last step, or if the step's row count differs from `before`.
        """
        length = ""
        if before is not None:
            unchanged = f"SELECT 1 FROM {self.steps} WHERE {self._step(step)} AND row_count = {before.rows}"
            length = f" AND EXISTS ({unchanged})"
        return (
            f"UPDATE {self.writers} AS w SET step = {step}, updated_at = now() "
            f"WHERE {self._own_row} AND w.step = {after}{length}"
        )

    def note(self, step: Step, note: Written, sources: tuple[int, int] | None) -> str:
        """Return the statement that writes the step's own row. Run it in the transaction of `claim`."""
        hash_ = literal(note.digest) if note.digest is not None else "NULL"
        first, last = sources if sources is not None else ("NULL", "NULL")
        return (
            f"INSERT INTO {self.steps} AS s "
            "(sink, generation, step, row_count, epoch, content_hash, source_first, source_last) VALUES "
            f"({literal(self.sink)}, {self.generation}, {step}, {note.rows}, {self.epoch}, {hash_}, "
            f"{first}, {last}) ON CONFLICT (sink, generation, step) DO UPDATE SET row_count = "
            "EXCLUDED.row_count, epoch = EXCLUDED.epoch, content_hash = EXCLUDED.content_hash, "
            "source_first = EXCLUDED.source_first, source_last = EXCLUDED.source_last, written_at = now()"
        )

    def expire(self, step: Step) -> str:
        """Return the statement that deletes the records of earlier steps, but never of the last step."""
        return (
            f"DELETE FROM {self.steps} AS s USING {self.writers} AS w WHERE {self._own_row} "
            f"AND s.sink = w.sink AND s.generation = w.generation AND s.step < least({step}, w.step)"
        )

    @property
    def _own_row(self) -> str:
        return (
            f"w.sink = {literal(self.sink)} AND w.generation = {self.generation} AND w.epoch = {self.epoch} "
            f"AND w.query_id = {literal(self.query_id)} AND NOT EXISTS (SELECT 1 FROM {self.writers} n "
            "WHERE n.sink = w.sink AND n.generation > w.generation)"
        )

    def _step(self, step: Step) -> str:
        return f"sink = {literal(self.sink)} AND generation = {self.generation} AND step = {step}"


def shape_of(oid: int) -> str:
    """Return a query that gives the names and types of a table's columns, as one text.

    Compare its result before and after a COPY. The COPY is binary, so if somebody alters a column's type
    meanwhile, the server would read other values from the same bytes.
    """
    return (
        "SELECT coalesce(string_agg(format('%I %s %s', attname, atttypid, atttypmod), ', ' ORDER BY attnum), "
        f"'') FROM pg_attribute WHERE attrelid = {oid} AND attnum > 0 AND NOT attisdropped"
    )


log = logging.getLogger("mzplan.endpoints")


class FencedError(Exception):
    """The step couldn't be claimed, because another run writes or the table was altered."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """The table into which rows are copied.

    `conninfo`: contains the password; never show it.
    `table`: schema and name.
    `columns`: the table's columns, in the order of a batch. A batch has HASH as an additional last column.
    `remote_options`: see Session.
    `shape`: a query (see `shape_of`) and its expected result. It is checked after the COPY, whose lock
      prevents an ALTER TABLE.
    """

    conninfo: str
    table: tuple[str, str]
    columns: tuple[str, ...]
    secret: str | None = None
    remote_options: RemoteOptions | None = None
    shape: tuple[str, str] | None = None

    def session(self, *, autocommit: bool) -> Session:
        return Session(self.conninfo, autocommit=autocommit, remote_options=self.remote_options)

    def __repr__(self) -> str:
        return f"Target({self.table!r})"


def copy_into(
    session: Session, target: Target, batch: RecordBatch, before: Iterable[tuple[str, Any]] = ()
) -> Copy:
    """Start a COPY into the target, for batches with the same types as `batch`.

    `before`: names and types of additional columns, which come before the columns of `batch`.
    """
    import pyarrow as pa

    named = zip(target.columns, batch.schema.types[:-1], strict=True)
    return Copy(session, target.table, pa.schema([*before, *named]))


def step_record(row: Sequence[Any] | None, step: Step, last: Step) -> Written | None:
    """Return the ledger's record of a step, or None if there is none.

    Raises StepError if the last step's record is missing.
    """
    if row is None and step == last:
        raise StepError(f"the record of step {step}, the last one, is gone")
    return Written(rows=row[0], digest=row[1]) if row is not None else None


class PostgresOutput:
    """An OutputEndpoint that copies a step into the table and records it in the same transaction.

    The step is claimed after its rows are copied. So a task that freezes during the COPY holds no lock that a
    newer runner needs. Raises FencedError, and the driver's errors for errors of the server.

    `sources`: first and last step of the source that the next step covers.
    `warn`: receives warnings; by default the log.
    """

    def __init__(
        self,
        target: Target,
        ledger: Ledger,
        *,
        compare: Compare,
        sources: tuple[int, int] | None = None,
    ):
        self.target, self._ledger = target, ledger
        self._compare, self._sources = compare, sources
        self.warn: Callable[[str], None] = log.warning
        self._session: Session | None = None
        self._replay: StepReplay | None = None
        self._copy: Copy | None = None
        self._last = -1
        self._written: Written | None = None
        self.note = Written(rows=0)

    def start_step(self, step: Step) -> None:
        checked_step(step)
        try:
            session = self._begin()
            ((self._last,),) = session.fetch(self._ledger.last()) or [(None,)]
            if self._last is None:
                raise FencedError("another run of the sink writes")
            rows = session.fetch(self._ledger.written(step))
            self._written = step_record(rows[0] if rows else None, step, self._last)
            self._replay = StepReplay(
                step,
                written=self._written,
                last=self._last if self._last >= 0 else None,
                compare=self._compare,
                warn=self.warn,
            )
            failpoint(Failpoint.TASK_BEGUN)
        except BaseException:
            self.close()
            raise

    def push_buffer(self, batch: RecordBatch) -> None:
        replay, session = self._current_step()
        try:
            fresh = replay.push(batch)
            if fresh.num_rows:
                self._copy = self._copy or copy_into(session, self.target, fresh)
                self._copy.push(fresh.columns[:-1])
        except BaseException:
            self.close()
            raise

    def finish_step(self) -> None:
        replay, session = self._current_step()
        try:
            if self._copy is not None:
                self._copy.finish()
                self._copy = None
                self._check_shape(session)
            failpoint(Failpoint.TASK_SENT)
            note = replay.finish()
            if note != self._written:
                step = replay.step
                session.fetch(self._ledger.lock())
                if session.execute(self._ledger.claim(step, self._last, self._written)) != 1:
                    raise FencedError(f"step {step} could not be claimed")
                session.execute(self._ledger.note(step, note, self._sources))
            failpoint(Failpoint.TASK_NOTED)
            session.connection.commit()
            failpoint(Failpoint.TASK_COMMITTED)
            self.note = note
            self._replay = None
        except BaseException:
            self.close()
            raise

    def expire_step(self, step: Step) -> None:
        """Delete the records of earlier steps in a separate transaction. Abandons a step in progress."""
        checked_step(step)
        session = self._begin()
        session.execute(self._ledger.expire(step))
        session.connection.commit()

    def close(self) -> None:
        """Close the session, which rolls back a step in progress."""
        copy, self._copy = self._copy, None
        session, self._session = self._session, None
        self._replay = None
        if copy is not None:
            copy.cancel()
        if session is not None:
            session.close()

    def _check_shape(self, session: Session) -> None:
        if self.target.shape is not None:
            query, expected = self.target.shape
            if session.fetch(query) != [(expected,)]:
                raise FencedError("the table was altered while it was written")

    def _begin(self) -> Session:
        if self._copy is not None:
            self.close()
        self._replay = None
        if self._session is None:
            self._session = self.target.session(autocommit=False)
        else:
            self._session.connection.rollback()
        return self._session

    def _current_step(self) -> tuple[StepReplay, Session]:
        if self._replay is None or self._session is None:
            raise StepError("no step is started")
        return self._replay, self._session
