"""Backfills: a range of the upstream once more, as a step of the collection (see source_steps)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mzplan.connectors.api.connector import SourceConnector
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.api.upstreams import range_of_backfill
from mzplan.connectors.formats.dead_letters import DeadLetters
from mzplan.connectors.frames.merges import append, naming
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.state import Backfill
from mzplan.spark.tasks.source_steps import finish_step, next_step
from mzplan.warehouse.checkpoints import BackfillStep, Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("mzplan.spark")


def write_backfill(
    spark: SparkSession,
    connector: SourceConnector,
    query: ResolvedQuery,
    checkpoint: Checkpoint,
    collection: str,
    letters: DeadLetters | None,
    backfill: Backfill,
) -> None:
    """Do a backfill of the source; every step of its checkpoint is finished, and no query runs on it. Raises
    MzplanError, OSError, and whatever Spark raises."""
    step = begin_backfill(connector, query, checkpoint, backfill)
    failpoint(Failpoint.BACKFILL_JOURNALED)
    log.info("%s: the backfill %s begins, as step %d", query.address, backfill, step.step)
    _write(spark, connector, query, checkpoint, collection, letters, step)
    failpoint(Failpoint.BACKFILL_WRITTEN)
    finish_step(checkpoint, step)
    log.info("%s: the backfill %s is done", query.address, backfill)


def begin_backfill(
    connector: SourceConnector, query: ResolvedQuery, checkpoint: Checkpoint, backfill: Backfill
) -> BackfillStep:
    """Write down what it is to read, where a killed runner has not. Raises MzplanError, OSError."""
    number, step = next_step(query, checkpoint, backfill)
    if isinstance(step, BackfillStep):
        return step
    start, end = range_of_backfill(connector, query, backfill, checkpoint.position())
    step = BackfillStep(step=number, task=backfill, start=start, end=end)
    checkpoint.task_steps.record(step)
    return step


def _write(
    spark: SparkSession,
    connector: SourceConnector,
    query: ResolvedQuery,
    checkpoint: Checkpoint,
    collection: str,
    letters: DeadLetters | None,
    step: BackfillStep,
) -> None:
    with naming(spark, checkpoint.log.query_id() or ""):  # as the query of the checkpoint does
        rows = connector.replay(spark, query, step.start, step.end, lambda: ())
        if letters is None:
            return append(rows, step.step, collection)
        with letters.apart(rows, step.step) as good:
            return append(good, step.step, collection)
