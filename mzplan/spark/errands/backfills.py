"""Backfills: a range of the upstream once more, as a step of the collection like any other.

The source's query does not run meanwhile. The step is the next one of its checkpoint, and is written as the
query writes its own: a commit of the table that names the query and the step, so it is there once however
often it is written. The checkpoint's position stays where it is. Killed anywhere, the next start goes on:

    the range, as offsets, is written down → the rows are committed → the checkpoint is behind the step → done
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from mzplan.connectors.api.connector import SourceConnector
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.api.upstreams import backfills_to_do, not_begun, range_of_backfill
from mzplan.connectors.formats.dead_letters import DeadLetters
from mzplan.connectors.frames.merges import append, naming
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.state import Backfill
from mzplan.warehouse.checkpoints import BackfillStep, Checkpoint
from mzplan.warehouse.collection_log import CollectionLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("mzplan.spark")


def settle_backfills(checkpoint: Checkpoint, collection: str) -> None:
    """What a killed runner has left: a backfill whose rows are in the table is done, also one that was passed
    over before they came (of a runner that was frozen, say). One whose rows are not has changed nothing.
    Before anything else of the source is looked at. Raises OSError."""
    left = [one for one in checkpoint.backfills.all() if not one.done]
    query_id = checkpoint.log.query_id()
    if not left or query_id is None:
        return
    log_ = CollectionLog(collection)
    there = {commit.transaction for commit in log_.after(-1)}
    last = log_.last_transaction(query_id)  # also where the log is cut off
    for one in left:
        if last == one.step or (query_id, one.step) in there:
            _finish(checkpoint, one)


def pass_over_begun(query: ResolvedQuery, checkpoint: Checkpoint) -> None:
    """A backfill that has written nothing is not wanted now. Its step stays its own: a runner that was frozen
    may write it yet, and then the table takes that step from nobody else. Raises OSError."""
    begun = _begun(checkpoint)
    if begun is not None and begun.backfill not in query.description.backfills:
        checkpoint.log.pass_over(begun.step)


def write_backfills(
    spark: SparkSession,
    connector: SourceConnector,
    query: ResolvedQuery,
    checkpoint: Checkpoint,
    collection: str,
    letters: DeadLetters | None,
) -> None:
    """Do what is still to be done of the source's backfills; every step of its checkpoint is finished, and no
    query runs on it. Raises MzplanError, OSError, and whatever Spark raises."""
    spark = spark.newSession()  # for its temporary views: others write at the same time
    for backfill in backfills_to_do(query, checkpoint):
        step = _begun(checkpoint)
        if step is not None and step.backfill != backfill:  # it was asked for later than one that is not done
            checkpoint.log.pass_over(step.step)
            step = None
        step = step or _begin(connector, query, checkpoint, backfill)
        failpoint(Failpoint.BACKFILL_JOURNALED)
        log.info("%s: the backfill %s begins, as step %d", query.address, backfill, step.step)
        _write(spark, connector, query, checkpoint, collection, letters, step)
        failpoint(Failpoint.BACKFILL_WRITTEN)
        _finish(checkpoint, step)
        log.info("%s: the backfill %s is done", query.address, backfill)


def newest_done(checkpoint: Checkpoint) -> int:
    """The serial of the newest backfill that is done; 0 for none. Raises OSError."""
    return max((one.backfill.serial for one in checkpoint.backfills.all() if one.done), default=0)


def _begun(checkpoint: Checkpoint) -> BackfillStep | None:
    """The one whose step comes next. Of another the checkpoint has gone on without it."""
    next_ = checkpoint.log.committed() + 1
    return next((one for one in checkpoint.backfills.all() if not one.done and one.step == next_), None)


def _begin(
    connector: SourceConnector, query: ResolvedQuery, checkpoint: Checkpoint, backfill: Backfill
) -> BackfillStep:
    done = checkpoint.log.committed()
    if done < 0:
        raise not_begun(query)
    start, end = range_of_backfill(connector, query, backfill, checkpoint.position())
    step = BackfillStep(step=done + 1, backfill=backfill, start=start, end=end)
    checkpoint.backfills.record(step)
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


def _finish(checkpoint: Checkpoint, step: BackfillStep) -> None:
    """Behind the step, at the position that it has found: Spark takes it for a step without data."""
    if checkpoint.log.committed() < step.step:
        checkpoint.log.pass_over(step.step)
    checkpoint.backfills.record(replace(step, done=True))
