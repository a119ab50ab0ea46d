"""Replays dead letters with the source's current definition, and deletes the letters that became rows.

The rows are a step of the collection (see source_steps). The `_position` of the collection's rows shows which
records already are rows. So no record becomes a row twice, even after a killed replay, a backfill, or a new
generation. And no letter is deleted unless its record is in the collection, even if the source's definition
changes before the replay continues.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.api.tasks import ensure_letters
from mzplan.connectors.formats.dead_letters import (
    COLUMNS,
    RECORD,
    ensure_table,
    letters_of,
    records_of,
    remove_letters,
    with_reason,
)
from mzplan.connectors.formats.records import DEAD
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.merges import append, writing_as
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.tasks import Task, TaskOutcome
from mzplan.model.words import count
from mzplan.schema.columns import POSITION
from mzplan.spark.collections import read_table
from mzplan.spark.expectations import rows_that_stay
from mzplan.spark.sql.projection import rows_where
from mzplan.spark.tasks.interface import TaskContext, TaskKind, finish_step, next_step
from mzplan.warehouse.checkpoints import TaskRecord
from mzplan.warehouse.paths import absolute

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("mzplan.spark")

REASONS = 20  # reasons listed for letters that stay; the rest is counted together
_LONGEST = 200  # characters of a reason
_HELD = "_held"


def _do(context: TaskContext, task: Task) -> None:
    query, checkpoint = context.query, context.checkpoint
    connector = context.connectors.source(query.description.type)
    cached: list[DataFrame] = []
    ensure_letters(query.address, query.description.type, query.body)
    number, _ = next_step(query, checkpoint, task)
    log.info("%s: the %s begins, as step %d", query.address, task, number)
    path = str(query.body["dead_letter"]["path"])
    try:
        records = records_of(_letters(context, path, task))
        cached.append(parsed := connector.parse(records, query).persist())
        cached.append(positions := _collected_positions(context, parsed).persist())
        new = parsed.join(positions, f.col(POSITION).eqNullSafe(f.col(_HELD)), "left_anti")
        if (reason := context.expectations.letter_reason(new.drop(DEAD), number)) is not None:
            new = with_reason(new, reason)
        good = new.where(f"{DEAD}.reason IS NULL").drop(DEAD)
        remaining = _reasons(new.where(f"{DEAD}.reason IS NOT NULL").select(f"{DEAD}.reason"))
        written = rows_that_stay(good, query).count()
        dropped = good.count() - written
        remaining += (("an expectation drops its row", dropped),) if dropped else ()
        outcome = outcome_of(task, written, positions.count(), remaining)
        record = TaskRecord(task=task, outcome=outcome, step=number, details={"path": path})
        checkpoint.tasks.record(record)
        failpoint(Failpoint.DEAD_LETTERS_JOURNALED)
        context.note(f"writing {count(int(outcome.facts['rows']), 'row')} as step {number}")
        with (
            writing_as(context.spark, checkpoint.log.query_id() or ""),
            context.expectations.checked(good, number, cached=True) as rows_to_write,
        ):
            append(rows_to_write, number, context.collection)
    finally:
        for rows in cached:
            rows.unpersist()
    failpoint(Failpoint.DEAD_LETTERS_WRITTEN)
    _clear(context, record)
    finish_step(checkpoint, record, context.pass_over)
    log.info("%s: the %s is done: %s", query.address, task, outcome.text.partition("\n")[0])


def _complete(context: TaskContext, record: TaskRecord) -> TaskRecord:
    """Finish a replay whose rows are in the collection.

    If the task was cancelled, its letters may stay, because the next replay finds that they already are rows.
    """
    try:
        _clear(context, record)
    except Exception as problem:
        if record.task in context.query.description.tasks:
            raise
        log.warning("%s: letters that are rows stay in their table: %s", context.query.address, problem)
    return record


def _check(spark: SparkSession, query: ResolvedQuery, task: Task) -> None:
    """Raise MzplanError MZ019 for a condition that Spark doesn't accept."""
    if where := task.arguments.get("where"):
        rows_where(spark.createDataFrame([], COLUMNS), where, query)


DEAD_LETTERS = TaskKind(do=_do, complete=_complete, check=_check)


def outcome_of(task: Task, rows: int, already_rows: int, remaining: Sequence[tuple[str, int]]) -> TaskOutcome:
    """Return the outcome of a replay of dead letters, with each record counted once.

    `rows`: the number of letters that became rows.
    `already_rows`: the number of letters that already were rows, for example after a backfill.
    `remaining`: how many letters remain, by reason.
    """
    remaining_count = sum(number for _, number in remaining)
    parts = [f"{rows:,} became {'a row' if rows == 1 else 'rows'}"]
    if already_rows:
        parts.append(f"{already_rows:,} already {'was one' if already_rows == 1 else 'were rows'}")
    parts.append(f"{remaining_count:,} {'stays' if remaining_count == 1 else 'stay'}")
    read = rows + already_rows + remaining_count
    summary = count(read, "dead letter was read", "dead letters were read")
    lines = [f"{summary}: {', '.join(parts)}" if read else summary]
    lines += [f"{number:,}: {reason}" for reason, number in remaining]
    reasons = [{"reason": reason, "letters": number} for reason, number in remaining]
    facts = {"read": read, "rows": rows, "rows_before": already_rows, "stay": reasons}
    return TaskOutcome(serial=task.serial, text="\n".join(lines), facts=facts)


def _clear(context: TaskContext, record: TaskRecord) -> None:
    path = str(record.details["path"])
    position = f.struct("partition", "offset", "timestamp").alias(POSITION)
    letters = _letters(context, path, record.task).select("query", *RECORD, position)
    positions = _collected_positions(context, letters)
    deletable = letters.join(positions, f.col(POSITION).eqNullSafe(f.col(_HELD)), "left_semi").drop(POSITION)
    if not deletable.isEmpty():
        remove_letters(
            deletable.distinct(), ensure_table(context.spark, absolute(context.query.directory, path))
        )
    failpoint(Failpoint.DEAD_LETTERS_CLEARED)


def _letters(context: TaskContext, path: str, task: Task) -> DataFrame:
    spark, query, where = context.spark, context.query, task.arguments.get("where")
    letters = letters_of(query, spark.table(ensure_table(spark, absolute(query.directory, path))))
    return rows_where(letters, where, query) if where else letters


def _collected_positions(context: TaskContext, rows: DataFrame) -> DataFrame:
    """Return the positions (as `_HELD`) of the records in these rows that are rows of the collection."""
    offset = f"{POSITION}.offset"
    ends = rows.agg(f.min(offset).alias("first"), f.max(offset).alias("last")).first()
    first, last = (ends["first"], ends["last"]) if ends is not None else (None, None)
    table = read_table(context.spark, context.collection)
    # By this range, Delta skips files with other offsets.
    near = table.where(f.col(offset).between(f.lit(first), f.lit(last)))
    held = near.select(f.col(POSITION).alias(_HELD))
    return held.join(rows.select(POSITION), f.col(POSITION).eqNullSafe(f.col(_HELD)), "left_semi").distinct()


def _reasons(letters: DataFrame) -> tuple[tuple[str, int], ...]:
    """Return how many letters stay for each reason, most frequent first."""
    counted = letters.groupBy("reason").count().orderBy(f.desc("count"), "reason").collect()
    shown = [(str(row["reason"])[:_LONGEST], int(row["count"])) for row in counted[:REASONS]]
    other_count = sum(int(row["count"]) for row in counted[REASONS:])
    return (*shown, *([("other reasons", other_count)] if other_count else []))
