"""The interface of a kind of tasks, and the context of a task.

Backfills, replays of dead letters and recomputes are ordinary steps of the collection. The query doesn't run
meanwhile. The task writes the checkpoint's next step in the same way as the query: one commit that names the
query and the step, so repeated writes have no effect. The checkpoint's position doesn't change. If the runner
is killed, the next start continues with the next of these actions:

    record what to write → commit the rows → advance the checkpoint past the step → record that it is done
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.queries import Output, ResolvedQuery, SinkRun
from mzplan.connectors.api.tasks import require_begun
from mzplan.connectors.catalogue import Connectors
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.tasks import Task
from mzplan.schema.description import Description
from mzplan.spark.expectations import StepExpectations
from mzplan.spark.tasks.progress import TasksUnderWay
from mzplan.warehouse.checkpoints import Checkpoint, TaskRecord
from mzplan.warehouse.collection_log import CollectionLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PassOver = Callable[[int], None]
"""Advances a checkpoint past its next step, whose number it takes. Raises MzplanError and OSError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """The context of one query's tasks. The query doesn't run meanwhile.

    `spark`: a separate session, so that other settings and temporary views can't interfere.
    `collection`: the path or URI of the collection that the query writes, if it writes one.
    `resolve`: resolves another description of the same query.
    `sink_run`: returns the SinkRun for writing these columns.
    `count_malformed`: counts malformed records that are skipped or stored as dead letters.
    `rewriting`: the lock on rewriting the files of the collection.
    `pass_over`: advances the checkpoint past its next step, at an unchanged position.
    `expectations`: check the rows of a step.
    `under_way`: shows how far the tasks are.
    """

    spark: SparkSession
    connectors: Connectors
    query: ResolvedQuery
    checkpoint: Checkpoint
    warehouse: str
    collection: str
    resolve: Callable[[Description], ResolvedQuery]
    sink_run: Callable[[tuple[Output, ...]], SinkRun]
    count_malformed: Callable[[int], None]
    rewriting: AbstractContextManager[Any]
    pass_over: PassOver
    expectations: StepExpectations
    under_way: TasksUnderWay

    def note(self, text: str) -> None:
        """Set what the running task does now, for `status`."""
        self.under_way.note(self.query.address, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKind:
    """The functions of a kind of tasks. Each raises MzplanError, OSError, and Spark's errors.

    `do`: does a task and records that it is done. Every step of the checkpoint is finished before. If the
    runner is killed, the next start calls `do` again, which must not write a row twice.
    `complete`: completes the step of a killed runner, once the step's rows are in the collection. Returns the
    record of the completed step.
    `check`: refuses arguments that Spark doesn't accept, before anything is stopped. Reads nothing.
    """

    do: Callable[[TaskContext, Task], None]
    complete: Callable[[TaskContext, TaskRecord], TaskRecord] = lambda context, record: record
    check: Callable[[SparkSession, ResolvedQuery, Task], None] = lambda spark, query, task: None


def complete_steps(
    checkpoint: Checkpoint,
    collection: str,
    complete: Callable[[TaskRecord], TaskRecord],
    pass_over: PassOver,
) -> None:
    """Complete the tasks that a killed runner left, before any other work on the query.

    A task whose rows are in the table is done. Its step may even have been skipped before the rows arrived,
    for example from a frozen runner. A task without rows has changed nothing. `complete` does the remaining
    work for this kind of task. Raises OSError, and the errors of `complete`.
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
            finish_step(checkpoint, complete(record), pass_over)


def skip_cancelled_step(query: ResolvedQuery, checkpoint: Checkpoint, pass_over: PassOver) -> None:
    """Skip the step of a cancelled task that has written nothing. Raises OSError.

    The step stays reserved: a frozen runner may still write it, and the table accepts that step from no other
    writer.
    """
    started = _next_record(checkpoint)
    if started is not None and started.task not in query.description.tasks:
        pass_over(checkpoint.log.committed() + 1)


def skip_other_step(checkpoint: Checkpoint, task: Task, pass_over: PassOver) -> None:
    """Skip the step of another task that isn't done, which was requested before this one. Raises OSError."""
    started = _next_record(checkpoint)
    if started is not None and started.task != task:
        pass_over(checkpoint.log.committed() + 1)


def next_step(query: ResolvedQuery, checkpoint: Checkpoint, task: Task) -> tuple[int, TaskRecord | None]:
    """Return the step number of a task, and the record that a killed runner left of it, if any.

    Raises MzplanError MZ278, OSError.
    """
    require_begun(query, checkpoint, task)
    return checkpoint.log.committed() + 1, _next_record(checkpoint)


def finish_step(checkpoint: Checkpoint, record: TaskRecord, pass_over: PassOver) -> None:
    """Advance the checkpoint past the step, and record the task as done: to Spark, the step has no data."""
    if record.step is not None and checkpoint.log.committed() < record.step:
        pass_over(record.step)
    failpoint(Failpoint.TASK_PASSED_OVER)
    checkpoint.tasks.record(replace(record, done=True))


def _next_record(checkpoint: Checkpoint) -> TaskRecord | None:
    """Return the record of the unfinished task that the next step belongs to, or None."""
    record = checkpoint.tasks.at(checkpoint.log.committed() + 1)
    return record if record is not None and not record.done else None
