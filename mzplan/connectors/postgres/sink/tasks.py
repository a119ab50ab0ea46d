"""The tasks in which Spark pushes a step: straight into an output, or into the staging table of the other way
(staged_output).

This module is sent to the executors whole (see task_code).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from mzplan.connectors.frames.task_code import CutShortError, one_row, ship, until_end
from mzplan.connectors.postgres.sink.copy import Copy, Session
from mzplan.connectors.postgres.sink.output import FencedError, PostgresOutput, Target, copy_into
from mzplan.endpoints.interface import Step, Written
from mzplan.endpoints.replay import Compare, DiffersError, StepReplay
from mzplan.host.failpoints import Failpoint, failpoint

if TYPE_CHECKING:
    from pyarrow import RecordBatch

REPORT = (
    "outcome STRING, detail STRING, attempt BIGINT, staged BIGINT, row_count BIGINT, content_hash STRING, "
    "warnings ARRAY<STRING>"
)
"""What a task returns: `written`; `differs` (compare: fail) or `fenced` (nothing was written), and why; of
what it staged the attempt and how many rows; of its part of the step count and content hash; warnings."""

Task = Callable[[Iterable["RecordBatch"]], Iterator["RecordBatch"]]


class Part:
    """One task's part of a step on its way through a staging table. Each attempt of a task draws a number of
    its own, and every row carries it as `_attempt`: of a task that was tried twice, or runs twice, the rows
    of the attempt that Spark reported are known from the others."""

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


def straight_task(output: PostgresOutput, step: Step) -> Task:
    """A function for mapInArrow that pushes the one partition of a step (in_one_task) into an output that was
    not used."""

    def push(batches: Iterable[RecordBatch], warnings: list[str]) -> dict[str, Any]:
        output.warn = warnings.append
        try:
            output.start_step(step)
            for batch in until_end(batches):
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

    def push(batches: Iterable[RecordBatch], warnings: list[str]) -> dict[str, Any]:
        replay = StepReplay(step, written=written, last=last, compare=compare, warn=warnings.append)
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
    (report,) = batch.to_pylist()
    return dict(report)


def _forget_zips() -> None:
    """Before each task, Spark's worker calls importlib.invalidate_caches(), which has the finder of every zip
    on the path read its directory again, of Spark's largest jar, too: up to a fifth of a second, for files
    that never change. Where Python has no finder it makes one, of the directory that it knows."""
    import sys
    from zipimport import zipimporter

    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]


def _told(problem: Exception) -> str:
    """What the server says first, and of which column: its details hold the row's values."""
    told = {
        bytes(name).decode(): bytes(text).decode() for name, text in getattr(problem, "details", None) or ()
    }
    if "PG_DIAG_MESSAGE_PRIMARY" not in told:
        return str(problem)
    _, named, column = told.get("PG_DIAG_CONTEXT", "").partition(", column ")
    return told["PG_DIAG_MESSAGE_PRIMARY"] + (f" (column {column})" if named else "")


def _task(push: Callable[[Iterable[RecordBatch], list[str]], dict[str, Any]], secret: str | None) -> Task:
    ship(
        "mzplan.connectors.postgres.elsewhere",
        "mzplan.connectors.postgres.sink.copy",
        "mzplan.connectors.postgres.sink.ledger",
        "mzplan.connectors.postgres.sink.output",
        "mzplan.connectors.postgres.types",
        "mzplan.host.network",
        __name__,
    )

    def write(batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
        import pyarrow as pa

        warnings: list[str] = []
        # What goes wrong is reported in one line of our own: a driver's message repeats the row.
        failure = ""
        report: dict[str, Any] = {"outcome": "written"}
        try:
            report |= push(batches, warnings)
        except CutShortError:
            raise
        except (DiffersError, FencedError) as problem:
            outcome = "differs" if isinstance(problem, DiffersError) else "fenced"
            report = {"outcome": outcome, "detail": str(problem)}
        except Exception as problem:
            text = _told(problem)
            text = text.replace(secret, "***") if secret else text
            failure = f"mzplan[COPY]: {' '.join(text.split())}"
        finally:
            _forget_zips()
        if failure:
            raise RuntimeError(failure)
        types = {
            "outcome": pa.string(),
            "detail": pa.string(),
            "attempt": pa.int64(),
            "staged": pa.int64(),
            "row_count": pa.int64(),
            "content_hash": pa.string(),
            "warnings": pa.list_(pa.string()),
        }
        yield one_row({**report, "warnings": warnings}, types)

    return write
