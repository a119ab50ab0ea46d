"""Backfills: read a range of the upstream again, as a step of the collection (see source_steps)."""

from __future__ import annotations

import logging

from mzplan.connectors.api.connector import SourceConnector
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.api.tasks import range_of_backfill
from mzplan.connectors.frames.merges import append, writing_as
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.tasks import Task, TaskOutcome
from mzplan.spark.streams import letters_of, rows_to_write
from mzplan.spark.tasks.interface import TaskContext, TaskKind, finish_step, next_step
from mzplan.warehouse.checkpoints import Checkpoint, TaskRecord

log = logging.getLogger("mzplan.spark")


def _do(context: TaskContext, task: Task) -> None:
    query, checkpoint = context.query, context.checkpoint
    connector = context.connectors.source(query.description.type)
    record = begin_backfill(connector, query, checkpoint, task)
    failpoint(Failpoint.BACKFILL_JOURNALED)
    context.note(f"writing step {record.step}")
    log.info("%s: the %s begins, as step %d", query.address, task, record.step)
    _write(context, connector, record)
    failpoint(Failpoint.BACKFILL_WRITTEN)
    finish_step(checkpoint, record, context.pass_over)
    log.info("%s: the %s is done", query.address, task)


def begin_backfill(
    connector: SourceConnector, query: ResolvedQuery, checkpoint: Checkpoint, task: Task
) -> TaskRecord:
    """Record the range to read, unless a killed runner already did. Raises MzplanError, OSError."""
    number, record = next_step(query, checkpoint, task)
    if record is not None:
        return record
    start, end = range_of_backfill(connector, query, task, checkpoint.position())
    outcome = TaskOutcome(serial=task.serial)
    record = TaskRecord(task=task, outcome=outcome, step=number, start=start, end=end)
    checkpoint.tasks.record(record)
    return record


def _write(context: TaskContext, connector: SourceConnector, record: TaskRecord) -> None:
    assert record.step is not None
    spark, query = context.spark, context.query
    letters = letters_of(connector, query, context.count_malformed)
    with writing_as(spark, context.checkpoint.log.query_id() or ""):  # as the checkpoint's query does
        replayed = connector.replay(spark, query, record.start, record.end, lambda: ())
        with rows_to_write(replayed, record.step, letters, context.expectations) as rows:
            append(rows, record.step, context.collection)


BACKFILL = TaskKind(do=_do)
