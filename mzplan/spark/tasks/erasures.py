"""Erasures: delete the rows that meet a condition, as one step of the collection (see interface).

The condition is in a file of the checkpoint, because nothing that stays may contain it: neither the State,
nor the journal of the task, nor the log of the table. The step deletes the rows that have the same values in
the columns of the condition, so the log has only the names of these columns. The file is removed before the
task is recorded as done.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.formats.dead_letters import (
    RECORD,
    WORD,
    ensure_table,
    letters_of,
    records_of,
    remove_letters,
)
from mzplan.connectors.formats.letter_folder import folder_of
from mzplan.connectors.formats.records import DEAD
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.merges import delete_matching, purge, writing_as
from mzplan.connectors.frames.types import quoted
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.tasks import CONDITION, Task, TaskOutcome
from mzplan.model.tasks import ERASURE as ERASURE_TASK
from mzplan.model.words import count
from mzplan.schema.columns import POSITION
from mzplan.schema.sql.expressions import parse_where
from mzplan.spark.collections import read_table, table_at
from mzplan.spark.sql.projection import empty_rows, row_condition
from mzplan.spark.tasks.interface import TaskContext, TaskKind, finish_step, next_step
from mzplan.warehouse.checkpoints import Checkpoint, TaskRecord
from mzplan.warehouse.erased_steps import ERASED_AT
from mzplan.warehouse.erasures import MARK, EraseConditions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("mzplan.spark")

_HINT = "write a condition of Spark SQL over the source's columns, such as \"customer = 'ann'\""


def _do(context: TaskContext, task: Task) -> None:
    query, checkpoint = context.query, context.checkpoint
    number, begun = next_step(query, checkpoint, task)
    condition = _condition(checkpoint, task)
    if condition is None:
        # A kill after its step was passed over, and before it was recorded as done.
        passed = (record for record in checkpoint.tasks.all() if record.task == task)
        begun = begun or next(passed, None)
        if begun is None:
            raise error("MZ402.condition-gone", address=query.address)
        # It had no rows, so its commit is missing.
        finish_step(checkpoint, _complete(context, begun), context.pass_over)
        return
    log.info("%s: the %s begins, as step %d", query.address, task, number)
    with _without_values(query):
        record = _erase_rows(context, task, number, condition)
    failpoint(Failpoint.ERASURE_WRITTEN)
    finish_step(checkpoint, _complete(context, record), context.pass_over)
    outcome = record.outcome
    log.info("%s: the %s is done: %s", query.address, task, outcome.text.partition("\n")[0])


def _erase_rows(context: TaskContext, task: Task, number: int, condition: str) -> TaskRecord:
    """Count and delete the rows that meet the condition, as a step. Return the record of the step."""
    query, checkpoint = context.query, context.checkpoint
    context.note("looking for the rows")
    rows = read_table(context.spark, context.collection)
    columns = map(quoted, _columns(condition, query))
    found = rows.where(_sql(rows, condition, query)).select(*columns).persist()
    try:
        letters, unreadable = _count_letters(context, condition)
        outcome = outcome_of(task, number, found.count(), letters, unreadable)
        record = TaskRecord(task=task, outcome=outcome, step=number)
        checkpoint.tasks.record(record)
        failpoint(Failpoint.ERASURE_JOURNALED)
        if outcome.facts["rows"]:
            context.note(f"erasing {count(int(outcome.facts['rows']), 'row')} as step {number}")
            mark = "" if query.keys else MARK
            with writing_as(context.spark, checkpoint.log.query_id() or ""), context.rewriting:
                delete_matching(found, number, table_at(context.collection), mark)
    finally:
        found.unpersist()
    return record


@contextmanager
def _without_values(query: ResolvedQuery) -> Iterator[None]:
    """Raise Spark's errors without their texts, which may have values of the condition.

    The error becomes part of the Status and of the events, which stay.
    """
    try:
        yield
    except OSError:
        raise
    except Exception as problem:
        condition = getattr(problem, "getCondition", lambda: None)() or type(problem).__name__
        if isinstance(problem, MzplanError):
            condition = problem.diagnostics[0].code
        raise error("MZ402.failed", address=query.address, condition=condition) from None


def _complete(context: TaskContext, record: TaskRecord) -> TaskRecord:
    """Complete an erasure whose step is in the collection: its files, its dead letters, its condition.

    The step only marks rows of a keyed collection as deleted. Their files are rewritten, also because of
    earlier values of the erased rows.
    """
    query = context.query
    if query.keys:
        with context.rewriting:
            purge(context.spark, table_at(context.collection))
    failpoint(Failpoint.ERASURE_PURGED)
    record = replace(record, details={ERASED_AT: time.time()})
    condition = _condition(context.checkpoint, record.task)
    if condition is None:
        return record
    with _without_values(query):
        matching = _letters(context, condition)
        if matching is not None and not (matched := matching[0]).isEmpty():
            folder = folder_of(query)
            assert folder is not None
            remove_letters(matched.distinct(), ensure_table(context.spark, folder))
    failpoint(Failpoint.ERASURE_CLEARED)
    EraseConditions(context.checkpoint.folder).remove(str(record.task.arguments[CONDITION]))
    failpoint(Failpoint.ERASURE_FORGOTTEN)
    return record


def forget_cancelled(query: ResolvedQuery, checkpoint: Checkpoint) -> None:
    """Remove the conditions of cancelled erasures, which `complete` doesn't need any more. Raises OSError."""
    for record in checkpoint.tasks.all():
        if record.task.kind == ERASURE_TASK and record.task not in query.description.tasks:
            EraseConditions(checkpoint.folder).remove(str(record.task.arguments[CONDITION]))


def _check(spark: SparkSession, query: ResolvedQuery, task: Task) -> None:
    """Raise MzplanError MZ402 for a condition that Spark doesn't accept."""
    condition = _condition(query.checkpoint, task) if query.checkpoint is not None else None
    if condition is not None:
        try:
            _sql(empty_rows(spark, query.columns, "STRING"), condition, query)
        except MzplanError as problem:  # Spark's message quotes the condition
            code = problem.diagnostics[0].code
            raise error("MZ402.refused-by-spark", address=query.address, code=code) from None


ERASURE = TaskKind(do=_do, complete=_complete, check=_check)


def outcome_of(task: Task, step: int, rows: int, letters: int, unreadable: int) -> TaskOutcome:
    """Return the outcome of an erasure. It has no value of the erased rows.

    `letters`: the number of erased dead letters.
    `unreadable`: the number of dead letters whose columns can't be read, so that they stay.
    """
    parts = [f"{count(rows, 'row')} erased from its collection" + (f" (step {step})" if rows else "")]
    if letters:
        parts.append(f"{count(letters, 'dead letter')} erased")
    lines = [", ".join(parts)]
    if unreadable:
        verb = "stays" if unreadable == 1 else "stay"
        lines.append(f"{count(unreadable, 'dead letter')} {verb}: their columns can't be read")
    facts = {"rows": rows, "step": step, "dead_letters": letters, "unreadable_dead_letters": unreadable}
    return TaskOutcome(serial=task.serial, text="\n".join(lines), facts=facts)


def _condition(checkpoint: Checkpoint, task: Task) -> str | None:
    return EraseConditions(checkpoint.folder).read(str(task.arguments[CONDITION]))


def _columns(condition: str, query: ResolvedQuery) -> list[str]:
    """Return the columns that decide which rows meet a condition."""
    named = {name.lower() for name, _ in parse_where(condition).columns}
    return [column.name for column in query.columns if column.name.lower() in named]


def _sql(rows: DataFrame, condition: str, query: ResolvedQuery) -> str:
    return row_condition(rows, condition, query, "--where", _HINT)


def _count_letters(context: TaskContext, condition: str) -> tuple[int, int]:
    """Return how many dead letters meet the condition, and how many can't be read."""
    letters = _letters(context, condition)
    return (letters[0].distinct().count(), letters[1].count()) if letters is not None else (0, 0)


def _letters(context: TaskContext, condition: str) -> tuple[DataFrame, DataFrame] | None:
    """Return the dead letters that meet the condition, by record, and the ones that can't be read.

    A letter can be read if it became one because of an expectation, or if the columns fit it by now.
    """
    query, spark = context.query, context.spark
    folder = folder_of(query) if query.body.get("on_error") == WORD else None
    if folder is None:
        return None
    letters = letters_of(query, spark.table(ensure_table(spark, folder)))
    parsed = context.connectors.source(query.description.type).parse(records_of(letters), query)
    readable = parsed.where(f"{DEAD}.reason IS NULL")
    names = ("partition", "offset", "timestamp")
    found = readable.where(_sql(readable, condition, query)).select(
        *(f.col(f"{POSITION}.{name}").alias(f"_{name}") for name in names)
    )
    same = [f.col(name).eqNullSafe(f.col(f"_{name}")) for name in names]
    matching = letters.join(found, same, "left_semi").select("query", *RECORD)
    return matching, parsed.where(f"{DEAD}.reason IS NOT NULL")
