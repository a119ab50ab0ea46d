"""The Spark tasks that write a step: straight into the table, or into the staging table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from mzplan.connectors.frames.task_code import CutShortError, one_row, until_end
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
"""A task's report.

`outcome`: `written`, `differs` (with `compare: fail`) or `fenced`; the last two wrote nothing.
`detail`: why the step differs or is fenced.
`attempt`, `staged`: the attempt, and the number of rows that it staged.
`row_count`, `content_hash`: count and hash of the task's part of the step.
"""

Task = Callable[[Iterable["RecordBatch"]], Iterator["RecordBatch"]]


class Part:
    """One task's part of a step on its way through a staging table.

    Each attempt of a task has a random number, stored in each of its rows as `_attempt`. If a task is retried
    or runs twice, the number identifies the rows of the attempt that Spark reported.
    """

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
        # Not with pa.repeat, whose scalar would import pandas.
        marked = pa.py_buffer(self.attempt.to_bytes(8, "little") * fresh.num_rows)
        marks = pa.Array.from_buffers(pa.int64(), fresh.num_rows, [None, marked])
        self._copy.push([marks, *fresh.columns[:-1]])
        self.staged += fresh.num_rows

    def finish(self) -> Written:
        """Return count and hash of the whole part, including rows written before. Raises DiffersError."""
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
    """Return a function for mapInArrow that pushes a step with a single partition into an output."""

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
    """Return a function for mapInArrow that stages a partition of a step.

    With `written`, the partition is the step's only one.
    """

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


def run_on_driver(task: Task) -> dict[str, Any]:
    """Run the task on the driver without rows, for a batch that has no partitions."""
    (batch,) = task(())
    (report,) = batch.to_pylist()
    return dict(report)


def _drop_zip_importers() -> None:
    """Drop the import system's cached readers of zip files.

    Before each task, Spark's worker calls importlib.invalidate_caches(). Each cached reader then reads its
    zip directory again, even of Spark's largest jar, which takes up to a fifth of a second. A new reader uses
    the directory that Python has cached. The files never change.
    """
    import sys
    from zipimport import zipimporter

    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]


def _primary_message(problem: Exception) -> str:
    """Return the server's primary message and the column, without the details, which contain values."""
    fields = {
        bytes(name).decode(): bytes(text).decode() for name, text in getattr(problem, "details", None) or ()
    }
    if "PG_DIAG_MESSAGE_PRIMARY" not in fields:
        return str(problem) or type(problem).__name__
    _, has_column, column = fields.get("PG_DIAG_CONTEXT", "").partition(", column ")
    return fields["PG_DIAG_MESSAGE_PRIMARY"] + (f" (column {column})" if has_column else "")


def _task(push: Callable[[Iterable[RecordBatch], list[str]], dict[str, Any]], secret: str | None) -> Task:
    def write(batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
        import pyarrow as pa

        warnings: list[str] = []
        # Report errors in one line of our own, because the driver's message repeats the row.
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
            text = _primary_message(problem)
            text = text.replace(secret, "***") if secret else text
            failure = f"mzplan[COPY]: {' '.join(text.split())}"
        finally:
            _drop_zip_importers()
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
