"""The postgres sink as an OutputEndpoint, where PostgreSQL takes the rows as they are; and the tasks in which
Spark pushes a step into it, or into the staging table of the other way (staged_output).

This module is sent to the executors whole (see task_code).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mzplan.connectors.frames.task_code import one_row, ship
from mzplan.connectors.postgres.sink.copy import Copy, Session
from mzplan.connectors.postgres.sink.ledger import Ledger
from mzplan.endpoints.interface import Step, StepError, checked_step
from mzplan.endpoints.replay import Compare, DiffersError, StepReplay, Written
from mzplan.host.failpoints import Failpoint, failpoint

if TYPE_CHECKING:
    from pyarrow import RecordBatch

log = logging.getLogger("mzplan.endpoints")

REPORT = (
    "outcome STRING, detail STRING, attempt BIGINT, staged BIGINT, row_count BIGINT, content_hash STRING, "
    "told ARRAY<STRING>"
)
"""What a task returns: `written`; `differs` (compare: fail) or `fenced` (nothing was written), and what was
said; of what it staged the attempt and how many rows; of its part of the step count and content hash.
`told` are warnings."""


class FencedError(Exception):
    """Somebody else writes, or has written, or has altered the table: the step could not be claimed."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where rows go. `conninfo` has the password: never shown. `columns` are those of the table (schema,
    name), in the order in which a batch has them; behind them it has HASH. `elsewhere`: see Session.
    `shape`: a query, and what it must give once rows are copied; from then on, nobody can alter the table."""

    conninfo: str
    table: tuple[str, str]
    columns: tuple[str, ...]
    secret: str | None = None
    elsewhere: Callable[[], AbstractContextManager[int]] | None = None
    shape: tuple[str, str] | None = None

    def session(self, *, autocommit: bool) -> Session:
        return Session(self.conninfo, autocommit=autocommit, elsewhere=self.elsewhere)

    def __repr__(self) -> str:
        return f"Target({self.table!r})"


class PostgresOutput:
    """An OutputEndpoint: a step's rows, by one COPY straight into the table, and its note: one transaction.

    The step is claimed after its rows are copied: a task that freezes in the middle holds no lock that a
    newer runner waits for. `sources`: of the step that comes next, the first and last step of its source.
    Raises FencedError and, for what a server did, errors of the driver's.
    """

    def __init__(
        self,
        target: Target,
        ledger: Ledger,
        *,
        compare: Compare,
        sources: tuple[int, int] | None = None,
        tell: Callable[[str], None] = log.warning,
    ):
        self.target, self._ledger = target, ledger
        self._compare, self.tell = compare, tell
        self.sources = sources
        self._session: Session | None = None
        self._replay: StepReplay | None = None
        self._copy: Copy | None = None
        self._last = -1
        self._before: Written | None = None
        self.note = Written(rows=0)

    def start_step(self, step: Step) -> None:
        checked_step(step)
        try:
            session = self._begin()
            ((self._last,),) = session.fetch(self._ledger.last()) or [(None,)]
            if self._last is None:
                raise FencedError("another run of the sink writes")
            known = session.fetch(self._ledger.written(step))
            self._before = Written(rows=known[0][0], digest=known[0][1]) if known else None
            if step == self._last and self._before is None:
                raise StepError(f"what was noted down of step {step}, the last one, is gone")
            self._replay = StepReplay(
                step,
                written=self._before,
                last=self._last if self._last >= 0 else None,
                compare=self._compare,
                tell=self.tell,
            )
            failpoint(Failpoint.TASK_BEGUN)
        except BaseException:
            self.close()
            raise

    def push_buffer(self, batch: RecordBatch) -> None:
        replay, session = self._started()
        try:
            fresh = replay.push(batch)
            if fresh.num_rows:
                self._copy = self._copy or copy_into(session, self.target, fresh)
                self._copy.push(fresh.columns[:-1])
        except BaseException:
            self.close()
            raise

    def finish_step(self) -> None:
        replay, session = self._started()
        try:
            if self._copy is not None:
                self._copy.finish()
                self._copy = None
                self._check_shape(session)
            failpoint(Failpoint.TASK_SENT)
            note = replay.finish()
            if note != self._before:
                step = replay.step
                if session.execute(self._ledger.claim(step, self._last, self._before)) != 1:
                    raise FencedError(f"step {step} could not be claimed")
                session.execute(self._ledger.note(step, note, self.sources))
            failpoint(Failpoint.TASK_NOTED)
            session.connection.commit()
            failpoint(Failpoint.TASK_COMMITTED)
            self.note = note
            self._replay = None
        except BaseException:
            self.close()
            raise

    def expire_step(self, step: Step) -> None:
        """A transaction of its own: a step that is under way is given up."""
        checked_step(step)
        session = self._begin()
        session.execute(self._ledger.expire(step))
        session.connection.commit()

    def close(self) -> None:
        """A step that is under way is rolled back."""
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

    def _started(self) -> tuple[StepReplay, Session]:
        if self._replay is None or self._session is None:
            raise StepError("no step is started")
        return self._replay, self._session


class Part:
    """One task's part of a step on its way through a staging table. Each attempt of a task draws a number of
    its own, and every row carries it as `_attempt`: of a task that was tried twice, or runs twice, the rows
    of the attempt that Spark reported are told from the others."""

    def __init__(self, target: Target, replay: StepReplay):
        import secrets

        self._target, self._replay = target, replay
        self._session: Session | None = None
        self._copy: Copy | None = None
        self.attempt = secrets.randbits(63)
        self.staged = 0

    def push(self, batch: RecordBatch) -> None:
        import pyarrow as pa

        fresh = self._replay.push(batch)
        if not fresh.num_rows:
            return
        if self._copy is None:
            self._session = self._target.session(autocommit=True)
            self._copy = copy_into(self._session, self._target, fresh, [("_attempt", pa.int64())])
            failpoint(Failpoint.TASK_BEGUN)
        # Not by pa.repeat: it needs a scalar, and that imports pandas.
        marked = pa.py_buffer(self.attempt.to_bytes(8, "little") * fresh.num_rows)
        marks = pa.Array.from_buffers(pa.int64(), fresh.num_rows, [None, marked])
        self._copy.push([marks, *fresh.columns[:-1]])
        self.staged += fresh.num_rows

    def finish(self) -> Written:
        """Count and hash of the whole part, staged rows and those that were there. Raises DiffersError."""
        if self._copy is not None:
            self._copy.finish()
            self._copy = None
            failpoint(Failpoint.TASK_SENT)
        return self._replay.finish()

    def close(self) -> None:
        if self._copy is not None:
            self._copy.cancel()
            self._copy = None
        if self._session is not None:
            self._session.close()
            self._session = None


def copy_into(
    session: Session, target: Target, batch: RecordBatch, before: Iterable[tuple[str, Any]] = ()
) -> Copy:
    """A COPY of batches like this one."""
    import pyarrow as pa

    named = zip(target.columns, batch.schema.types[:-1], strict=True)
    return Copy(session, target.table, pa.schema([*before, *named]))


# ── what runs as a task

Task = Callable[[Iterable["RecordBatch"]], Iterator["RecordBatch"]]


def straight_task(output: PostgresOutput, step: Step) -> Task:
    """A function for mapInArrow that pushes the one partition of a step into an output that was not used."""

    def push(batches: Iterable[RecordBatch], told: list[str]) -> dict[str, Any]:
        output.tell = told.append
        try:
            output.start_step(step)
            for batch in batches:
                if batch.num_rows:
                    output.push_buffer(batch)
            output.finish_step()
        finally:
            output.close()
        return {"row_count": output.note.rows, "content_hash": output.note.digest}

    return _task(push, output.target.secret)


def staging_task(
    target: Target, step: Step, written: Written | None, last: Step | None, compare: Compare
) -> Task:
    """A function for mapInArrow that stages one partition of a step: with `written`, its only one."""

    def push(batches: Iterable[RecordBatch], told: list[str]) -> dict[str, Any]:
        replay = StepReplay(step, written=written, last=last, compare=compare, tell=told.append)
        part = Part(target, replay)
        try:
            for batch in batches:
                if batch.num_rows:
                    part.push(batch)
            note = part.finish()
        finally:
            part.close()
        return {
            "attempt": part.attempt,
            "staged": part.staged,
            "row_count": note.rows,
            "content_hash": note.digest,
        }

    return _task(push, target.secret)


def run_here(task: Task) -> dict[str, Any]:
    """What a task without rows reports: a batch without partitions has none."""
    (batch,) = task(())
    (found,) = batch.to_pylist()
    return dict(found)


def _keep_directories() -> None:
    """Before each task, Spark's worker has Python read the directory of every zip on its path again, Spark's
    largest jar among them: a tenth of a second, for files that never change. From here on it does not."""
    import sys
    from zipimport import zipimporter

    class Kept(zipimporter):
        def invalidate_caches(self) -> None:
            pass

    for path, finder in list(sys.path_importer_cache.items()):
        if finder.__class__ is zipimporter:
            sys.path_importer_cache[path] = Kept(path)


def _task(push: Callable[[Iterable[RecordBatch], list[str]], dict[str, Any]], secret: str | None) -> Task:
    ship(
        "mzplan.connectors.postgres.sink.copy",
        "mzplan.connectors.postgres.sink.ledger",
        __name__,
    )

    def write(batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
        import pyarrow as pa

        _keep_directories()
        told: list[str] = []
        # What goes wrong is told in one line of our own: a driver's message may repeat what it was given.
        failure = ""
        found: dict[str, Any] = {"outcome": "written"}
        try:
            found |= push(batches, told)
        except (DiffersError, FencedError) as problem:
            outcome = "differs" if isinstance(problem, DiffersError) else "fenced"
            found = {"outcome": outcome, "detail": str(problem)}
        except Exception as problem:
            text = str(problem)
            text = text.replace(secret, "***") if secret else text
            failure = f"mzplan[COPY]: {' '.join(text.split())}"
        if failure:
            raise RuntimeError(failure)
        types = {
            "outcome": pa.string(),
            "detail": pa.string(),
            "attempt": pa.int64(),
            "staged": pa.int64(),
            "row_count": pa.int64(),
            "content_hash": pa.string(),
            "told": pa.list_(pa.string()),
        }
        yield one_row({**found, "told": told}, types)

    return write
