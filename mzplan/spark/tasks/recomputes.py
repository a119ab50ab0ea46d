"""Recomputes a part of a view: writes the difference between its query's rows and its collection's.

The difference is a step of the collection (see interface). A condition over the key selects the rows of both
sides, so no other row changes. The state of the query stays as it is: a recompute is refused unless the state
continues from the recomputed rows (see mzplan.connectors.api.recomputes).
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.api.recomputes import (
    recompute_refused,
    replaced_instead,
    require_recomputable,
)
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.difference import Difference, count_changes, difference
from mzplan.connectors.frames.merges import merge, writing_as
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.tasks import Task, TaskOutcome
from mzplan.model.words import count
from mzplan.schema.columns import POSITION
from mzplan.spark.collections import read_table, table_at
from mzplan.spark.current.affected import computed_digest
from mzplan.spark.sql.projection import empty_rows, row_condition
from mzplan.spark.tasks.interface import TaskContext, TaskKind, finish_step, next_step
from mzplan.spark.verification.recomputed_rows import RecomputedRows
from mzplan.spark.views import is_current_view, is_relational_view
from mzplan.warehouse.checkpoints import TaskRecord
from mzplan.warehouse.current_steps import CurrentStep, CurrentSteps
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.step_index import StepIndex
from mzplan.warehouse.storage import remove_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("mzplan.spark")

_HINT = "write a condition of Spark SQL over the columns of the key, such as \"day >= '2026-11-01'\""


def _do(context: TaskContext, task: Task) -> None:
    query, checkpoint = context.query, context.checkpoint
    require_recomputable(query, checkpoint)
    number, _ = next_step(query, checkpoint, task)
    log.info("%s: the %s begins, as step %d", query.address, task, number)
    context.note("computing its rows again")
    if is_current_view(query) and _step_read(context) is None:
        # The query has changed since the last step. Its first step must not wait for this task.
        outcome = TaskOutcome(serial=task.serial, text="its changed query computes all its rows anyway")
        record = TaskRecord(task=task, outcome=outcome, step=number)
        checkpoint.tasks.record(record)
    else:
        record = _write_difference(context, task, number)
    failpoint(Failpoint.RECOMPUTE_WRITTEN)
    finish_step(checkpoint, record, context.pass_over)
    log.info("%s: the %s is done: %s", query.address, task, record.outcome.text)


def _write_difference(context: TaskContext, task: Task, step: int) -> TaskRecord:
    """Record what the task will write as a step, and write it. Returns the record."""
    address = context.query.address
    _remove_rows(context)
    try:
        changes, outcome = _compared(context, task)
        try:
            record = TaskRecord(task=task, outcome=outcome, step=step)
            context.checkpoint.tasks.record(record)
            failpoint(Failpoint.RECOMPUTE_JOURNALED)
            if changes.count:
                context.note(f"writing {count(changes.count, 'row')} as step {step}")
                _write(context, changes, step)
        finally:
            changes.close()
    except GoneError as problem:
        raise recompute_refused(address, str(problem), replaced_instead(address)) from None
    finally:
        _remove_rows(context)
    return record


def _complete(context: TaskContext, record: TaskRecord) -> TaskRecord:
    """Remove what a killed runner has left beside its step, whose rows are in the collection."""
    _remove_rows(context)
    return record


def _check(spark: SparkSession, query: ResolvedQuery, task: Task) -> None:
    """Raise MzplanError MZ019 for a condition that Spark doesn't accept."""
    _condition(empty_rows(spark, query.columns, "STRUCT<input: STRING>"), query, task)


RECOMPUTE = TaskKind(do=_do, complete=_complete, check=_check)


def _compared(context: TaskContext, task: Task) -> tuple[Difference, TaskOutcome]:
    """Return the rows to write, and the outcome that the task will have."""
    query, computed = context.query, _recomputed(context)
    stored = read_table(context.spark, context.collection)
    condition = _condition(stored, query, task)
    # Each row of a row view has the position of the row that it was computed from.
    own = () if is_relational_view(query) else (POSITION,)
    columns = [*(column.name for column in query.columns), *own]
    found = stored.where(condition)
    changes = difference(computed.where(condition), found, columns, query.keys, query.address)
    try:
        return changes, _outcome(context, task, count_changes(changes, found, query.keys))
    except BaseException:
        changes.close()
        raise


def _recomputed(context: TaskContext) -> DataFrame:
    """Return the rows of the view's query over all rows that it had read up to its last step.

    Raises MzplanError MZ092 or MZ401 if they aren't exact.
    """
    query, checkpoint, last = context.query, context.checkpoint, context.checkpoint.log.committed()
    recomputed = RecomputedRows(
        session=context.spark,
        query=query,
        warehouse=context.warehouse,
        connectors=context.connectors,
        checkpoint=checkpoint,
    )
    if (step := _step_read(context)) is not None:
        rows, exactness = recomputed.of_current(step)
    elif not is_relational_view(query):
        rows, exactness = recomputed.of_row_view(last)
    else:
        rows, exactness = recomputed.of_streams(last, _folder(context))
        if exactness.adds_floats:
            why = (
                "Its query adds up floating-point numbers, whose last digits depend on the order of the "
                "rows. Its state has other digits than a new sum."
            )
            raise recompute_refused(query.address, why, _given_up(query))
    if exactness.problem:
        raise recompute_refused(query.address, exactness.problem, _given_up(query))
    return rows


def _step_read(context: TaskContext) -> CurrentStep | None:
    """Return the last step of a current view; None if another query has computed it, and for other views."""
    query, checkpoint = context.query, context.checkpoint
    if not is_current_view(query):
        return None
    step = CurrentSteps(checkpoint.folder).before(checkpoint.log.committed() + 1)
    return step if step is not None and step.computed == computed_digest(query) else None


def _given_up(query: ResolvedQuery) -> str:
    return f"mzplan recompute {query.address} --cancel gives it up."


def _condition(rows: DataFrame, query: ResolvedQuery, task: Task) -> str:
    return row_condition(rows, str(task.arguments["where"]), query, "--where", _HINT)


def _outcome(context: TaskContext, task: Task, counts: tuple[int, int, int]) -> TaskOutcome:
    deleted, changed, new = counts
    text = f"{deleted:,} deleted, {changed:,} changed, {new:,} new"
    facts = {"deleted": deleted, "changed": changed, "new": new}
    newest = StepIndex(context.checkpoint).last() if "watermarks" in context.query.body else None
    if newest is not None and newest.late:
        text += f"\n{count(newest.late, 'row')} that the view had dropped as late may count now"
        facts["late"] = newest.late
    return TaskOutcome(serial=task.serial, text=text, facts=facts)


def _write(context: TaskContext, changes: Difference, step: int) -> None:
    """Merge the changed rows in one commit that names the checkpoint's query and the step."""
    rows, type_ = changes.rows, read_table(context.spark, context.collection).schema[POSITION].dataType
    if POSITION not in rows.columns:
        rows = rows.withColumn(POSITION, f.lit(None).cast(type_))
    with (
        writing_as(context.spark, context.checkpoint.log.query_id() or ""),
        context.expectations.checked(rows, step, cached=True) as checked,
        context.rewriting,
    ):
        merge(checked, step, table_at(context.collection), context.query.keys)


def _folder(context: TaskContext) -> str:
    """Return the folder for the recomputed rows, which the executors can reach."""
    return f"{context.checkpoint.folder}/recomputed"


def _remove_rows(context: TaskContext) -> None:
    with suppress(OSError):
        remove_folder(_folder(context))
