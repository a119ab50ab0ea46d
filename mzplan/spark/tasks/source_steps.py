"""Source tasks that are ordinary steps of the collection: backfills and replays of dead letters.

The source's query doesn't run meanwhile. The task writes the checkpoint's next step in the same way as the
query: one commit that names the query and the step, so repeated writes have no effect. The checkpoint's
position doesn't change. If the runner is killed, the next start continues with the next of these actions:

    record what to write → commit the rows → advance the checkpoint past the step → record that it is done
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
    """Complete the tasks that a killed runner left, before any other work on the source.

    A task whose rows are in the table is done. Its step may even have been skipped before the rows arrived,
    for example from a frozen runner. A task without rows has changed nothing. `settle` does the remaining
    work for this kind of task. Raises OSError, and the errors of `settle`.
    """
    unfinished = [record for record in checkpoint.tasks.all() if not record.done]
    query_id = checkpoint.log.query_id()
    if not unfinished or query_id is None:
        return
    log_ = CollectionLog(collection)
    transactions = {commit.transaction for commit in log_.after(-1)}
    last = log_.last_transaction(query_id)  # also if the log was cut off
    for record in unfinished:
        if last == record.step or (query_id, record.step) in transactions:
            settle(record)
            finish_step(checkpoint, record)


def skip_cancelled_step(query: ResolvedQuery, checkpoint: Checkpoint) -> None:
    """Skip the step of a cancelled task that has written nothing. Raises OSError.

    The step stays reserved: a frozen runner may still write it, and the table accepts that step from no other
    writer.
    """
    started = _next_record(checkpoint)
    if started is not None and started.task not in query.description.tasks:
        checkpoint.log.skip(checkpoint.log.committed() + 1)


def next_step(query: ResolvedQuery, checkpoint: Checkpoint, task: Task) -> tuple[int, TaskRecord | None]:
    """Return the step number of a task, and the record that a killed runner left of it, if any.

    Raises MzplanError MZ278, OSError.
    """
    started = _next_record(checkpoint)
    if started is not None and started.task != task:  # the task was requested after a task that isn't done
        checkpoint.log.skip(checkpoint.log.committed() + 1)
        started = None
    require_begun(query, checkpoint, task)
    return checkpoint.log.committed() + 1, started


def finish_step(checkpoint: Checkpoint, record: TaskRecord) -> None:
    """Advance the checkpoint past the step, at an unchanged position: to Spark, the step has no data."""
    if record.step is not None and checkpoint.log.committed() < record.step:
        checkpoint.log.skip(record.step)
    failpoint(Failpoint.TASK_PASSED_OVER)
    checkpoint.tasks.record(replace(record, done=True))


def _next_record(checkpoint: Checkpoint) -> TaskRecord | None:
    """Return the record of the unfinished task that the next step belongs to, or None."""
    record = checkpoint.tasks.at(checkpoint.log.committed() + 1)
    return record if record is not None and not record.done else None
