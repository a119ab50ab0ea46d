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
from mzplan.connectors.api.upstreams import not_begun
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.observed import LettersReplayed
from mzplan.model.state import Task
from mzplan.warehouse.checkpoints import Checkpoint, LettersStep, TaskStep
from mzplan.warehouse.collection_log import CollectionLog


def settle_steps(checkpoint: Checkpoint, collection: str, clear: Callable[[LettersStep], None]) -> None:
    """What a killed runner has left: a task whose rows are in the table is done, also one that was passed
    over before they came (of a runner that was frozen, say). One whose rows are not has changed nothing.
    Before anything else of the source is looked at. `clear` takes letters that are rows out of their table.
    Raises OSError, and what `clear` raises."""
    left = [step for step in checkpoint.task_steps.all() if not step.done]
    query_id = checkpoint.log.query_id()
    if not left or query_id is None:
        return
    log_ = CollectionLog(collection)
    transactions = {commit.transaction for commit in log_.after(-1)}
    last = log_.last_transaction(query_id)  # also where the log is cut off
    for step in left:
        if last == step.step or (query_id, step.step) in transactions:
            if isinstance(step, LettersStep):
                clear(step)
            finish_step(checkpoint, step)


def pass_over_begun(query: ResolvedQuery, checkpoint: Checkpoint) -> None:
    """A task that has written nothing is not wanted now. Its step stays its own: a runner that was frozen
    may write it yet, and then the table takes that step from nobody else. Raises OSError."""
    begun = _begun(checkpoint)
    if begun is not None and begun.task not in query.description.tasks:
        checkpoint.log.pass_over(begun.step)


def next_step(query: ResolvedQuery, checkpoint: Checkpoint, task: Task) -> tuple[int, TaskStep | None]:
    """The step that a task is to be, and what a killed runner has written down of it. Raises MzplanError
    MZ278, OSError."""
    begun = _begun(checkpoint)
    if begun is not None and begun.task != task:  # it was asked for later than one that is not done
        checkpoint.log.pass_over(begun.step)
        begun = None
    done = checkpoint.log.committed()
    if done < 0:
        raise not_begun(query, task)
    return done + 1, begun


def finish_step(checkpoint: Checkpoint, step: TaskStep) -> None:
    """Behind the step, at the position that it has found: Spark takes it for a step without data."""
    if checkpoint.log.committed() < step.step:
        checkpoint.log.pass_over(step.step)
    failpoint(Failpoint.TASK_PASSED_OVER)
    checkpoint.task_steps.record(replace(step, done=True))


def newest_done(checkpoint: Checkpoint) -> tuple[int, LettersReplayed | None]:
    """The serial of the newest task that is done, 0 for none; and what has become of the letters of the
    newest replay. Raises OSError."""
    done = [step for step in checkpoint.task_steps.all() if step.done]
    letters = [step.found for step in done if isinstance(step, LettersStep)]
    serial = max((step.task.serial for step in done), default=0)
    return serial, max(letters, key=lambda outcome: outcome.serial, default=None)


def _begun(checkpoint: Checkpoint) -> TaskStep | None:
    """The one whose step comes next. Of another the checkpoint has gone on without it."""
    next_ = checkpoint.log.committed() + 1
    return next((step for step in checkpoint.task_steps.all() if not step.done and step.step == next_), None)
