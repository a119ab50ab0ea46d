"""Tasks of a source that are steps of its collection like others: backfills, replays of dead letters.

The source's query does not run meanwhile. The step is the next one of its checkpoint, and is written as the
query writes its own: a commit of the table that names the query and the step, so it is there once however
often it is written. The checkpoint's position stays where it is. Killed anywhere, the next start goes on:

    what is to be written is written down → the rows are committed → the checkpoint is behind the step → done
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.api.tasks import require_begun
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.tasks import Task
from mzplan.warehouse.checkpoints import Checkpoint, TaskRecord
from mzplan.warehouse.collection_log import CollectionLog


def settle_steps(checkpoint: Checkpoint, collection: str, settle: Callable[[TaskRecord], None]) -> None:
    """What a killed runner has left: a task whose rows are in the table is done, also one that was passed
    over before they came (of a runner that was frozen, say). One whose rows are not has changed nothing.
    Before anything else of the source is looked at. `settle` completes what its kind does besides.
    Raises OSError, and what `settle` raises."""
    left = [record for record in checkpoint.tasks.all() if not record.done]
    query_id = checkpoint.log.query_id()
    if not left or query_id is None:
        return
    log_ = CollectionLog(collection)
    transactions = {commit.transaction for commit in log_.after(-1)}
    last = log_.last_transaction(query_id)  # also where the log is cut off
    for record in left:
        if last == record.step or (query_id, record.step) in transactions:
            settle(record)
            finish_step(checkpoint, record)


def pass_over_begun(query: ResolvedQuery, checkpoint: Checkpoint) -> None:
    """A task that has written nothing is not wanted now. Its step stays its own: a runner that was frozen
    may write it yet, and then the table takes that step from nobody else. Raises OSError."""
    begun = _begun(checkpoint)
    if begun is not None and begun.task not in query.description.tasks:
        checkpoint.log.pass_over(checkpoint.log.committed() + 1)


def next_step(query: ResolvedQuery, checkpoint: Checkpoint, task: Task) -> tuple[int, TaskRecord | None]:
    """The step that a task is to be, and what a killed runner has written down of it. Raises MzplanError
    MZ278, OSError."""
    begun = _begun(checkpoint)
    if begun is not None and begun.task != task:  # it was asked for later than one that is not done
        checkpoint.log.pass_over(checkpoint.log.committed() + 1)
        begun = None
    require_begun(query, checkpoint, task)
    return checkpoint.log.committed() + 1, begun


def finish_step(checkpoint: Checkpoint, record: TaskRecord) -> None:
    """Behind the step, at the position that it has found: Spark takes it for a step without data."""
    if record.step is not None and checkpoint.log.committed() < record.step:
        checkpoint.log.pass_over(record.step)
    failpoint(Failpoint.TASK_PASSED_OVER)
    checkpoint.tasks.record(replace(record, done=True))


def _begun(checkpoint: Checkpoint) -> TaskRecord | None:
    """The one whose step comes next. Of another the checkpoint has gone on without it."""
    record = checkpoint.tasks.at(checkpoint.log.committed() + 1)
    return record if record is not None and not record.done else None
