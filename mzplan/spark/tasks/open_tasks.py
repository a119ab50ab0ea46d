"""Runs open tasks before their query starts, each once, in the order of their requests.

If the runner is killed, the next start repeats only tasks that weren't recorded as done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.api.tasks import tasks_to_do
from mzplan.model.address import Address
from mzplan.model.tasks import Task, TaskOutcome
from mzplan.spark import failures
from mzplan.spark.tasks.backfills import BACKFILL
from mzplan.spark.tasks.dead_letters import DEAD_LETTERS
from mzplan.spark.tasks.erasures import ERASURE, forget_cancelled
from mzplan.spark.tasks.interface import (
    TaskContext,
    TaskKind,
    complete_steps,
    skip_cancelled_step,
    skip_other_step,
)
from mzplan.spark.tasks.recomputes import RECOMPUTE
from mzplan.spark.tasks.replays import REPLAY
from mzplan.warehouse.checkpoints import TaskRecord

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KINDS: Mapping[str, TaskKind] = {
    "backfill": BACKFILL,
    "dead-letters": DEAD_LETTERS,
    "erasure": ERASURE,
    "recompute": RECOMPUTE,
    "replay": REPLAY,
}


def do_open_tasks(context: TaskContext, prepare: Callable[[], None]) -> tuple[TaskOutcome, ...]:
    """Do the open tasks of a stopped query, and return the outcomes of the newest finished tasks.

    `prepare`: called before the first task. Raises MzplanError and OSError.
    """
    query, checkpoint = context.query, context.checkpoint

    def complete(record: TaskRecord) -> TaskRecord:
        with _failing(query.address, record.task):
            return _KINDS[record.task.kind].complete(context, record)

    complete_steps(checkpoint, context.collection, complete, context.pass_over)
    skip_cancelled_step(query, checkpoint, context.pass_over)
    forget_cancelled(query, checkpoint)
    todo = tasks_to_do(query, checkpoint)
    if todo:
        prepare()
    for task in todo:
        with (
            _failing(query.address, task),
            context.under_way.running(context.spark, query.address, str(task)),
        ):
            skip_other_step(checkpoint, task, context.pass_over)
            _KINDS[task.kind].do(context, task)
    return checkpoint.tasks.done()


def check_arguments(spark: SparkSession, query: ResolvedQuery) -> None:
    """Raise MzplanError for a task whose arguments Spark doesn't accept. Reads nothing."""
    for task in query.description.tasks:
        _KINDS[task.kind].check(spark, query, task)


def _failing(address: Address, task: Task) -> AbstractContextManager[None]:
    return failures.raised_as(
        "MZ279",
        f"The {task.command} of {address} could not be done",
        address,
        f"nothing to do: mzplan retries. To cancel it: mzplan {task.command} {address} --cancel.",
    )
