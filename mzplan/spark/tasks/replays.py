"""Replays steps: writes rows of a sink's earlier steps to its target again.

The sink's query doesn't run meanwhile. The rows are computed from the collection, as for `verify --content`.
For an upsert, they are the last row of each key that the steps changed, so that no old row replaces a newer
row. They are written atomically; then the task is recorded as done. If the runner is killed in between, the
replay is repeated: an upsert writes the same rows, and a replay of missing rows finds none missing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from mzplan.connectors.api.targets import PLACE, incomparable
from mzplan.connectors.api.tasks import REPLAY_WRITER, ReplayedSteps
from mzplan.connectors.frames.merges import EXISTS, TIME, VERSION
from mzplan.connectors.frames.row_hash import row_hash
from mzplan.connectors.frames.types import quoted
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.tasks import Task, TaskOutcome
from mzplan.model.words import count
from mzplan.schema.columns import CHANGE, DELETE, POSITION, UPSERT
from mzplan.spark.sql.projection import analysed_outputs
from mzplan.spark.tasks.interface import TaskContext, TaskKind
from mzplan.spark.verification.sink_content import Sides, SinkContent
from mzplan.spark.verification.wanted_content import MUST, NOT_BEFORE, ORDER, ROW, STEP
from mzplan.warehouse.checkpoints import TaskRecord
from mzplan.warehouse.damage import GoneError

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

log = logging.getLogger("mzplan.spark")

_HASH, _HELD, _RANK, _ALL = "_hash", "_held", "_rank", "_all"


def _do(context: TaskContext, task: Task) -> None:
    query = context.query
    log.info("%s: the %s begins", query.address, task)
    failpoint(Failpoint.REPLAY_BEGUN)
    rows = _write(context, task)
    failpoint(Failpoint.REPLAY_WRITTEN)
    text = f"{count(rows, 'row was', 'rows were')} written again"
    outcome = TaskOutcome(serial=task.serial, text=text, facts={"rows": rows})
    context.checkpoint.tasks.record(TaskRecord(task=task, outcome=outcome, done=True))
    log.info("%s: the %s is done: %s", query.address, task, text)


REPLAY = TaskKind(do=_do)


def _write(context: TaskContext, task: Task) -> int:
    """Write the task's rows. Return how many."""
    query, spark, connectors = context.query, context.spark, context.connectors
    context.note("computing the rows to write")
    run = context.sink_run(analysed_outputs(spark, query, connectors.position(query.description)))
    content = SinkContent(
        query.description, context.resolve, connectors, context.warehouse, spark, carries=True
    )
    try:
        # Persist the rows, because they compare with the target at one moment, which ends with `leave`.
        rows = rows_again(content, content.sides(), ReplayedSteps.of(task)).persist()
        number = rows.count()
    except GoneError as problem:
        raise incomparable(
            query, str(problem), f"mzplan replay {query.address} --cancel gives it up."
        ) from None
    finally:
        content.leave()
    try:
        if number:
            context.note(f"writing {count(number, 'row')} again")
            name = f"{REPLAY_WRITER}{task.serial} of {context.checkpoint.log.query_id()}"
            connectors.sink(query.description.type).put_again(rows, run, name)
    finally:
        rows.unpersist()
    return number


def rows_again(content: SinkContent, sides: Sides, replay: ReplayedSteps) -> DataFrame:
    """Return the wanted rows to write, in the form that SinkConnector.put_again takes."""
    from pyspark.sql import functions as f

    sides.steps.require_known(replay)
    within = f.lit(True) if content.query.keys else _within(replay)
    wanted = _missing(sides, within) if replay.missing else sides.expected.where(within)
    if content.query.keys:
        return _of_keyed(sides, replay, wanted.select(f"{POSITION}.{ROW}.*"))
    return wanted.select(f"{POSITION}.{ROW}.*", f.col(f"{POSITION}.{ORDER}").alias(POSITION))


def _of_keyed(sides: Sides, replay: ReplayedSteps, wanted: DataFrame) -> DataFrame:
    """Return the rows of a keyed collection whose keys the steps changed.

    Keys that no longer have a row are returned as deletions.
    """
    upserts = _with_change(wanted, UPSERT)
    if replay.is_whole or replay.first < sides.steps.first_current:
        return upserts
    last = replay.last if replay.last is not None else sides.content.frontier
    records = [record for record in sides.steps.records if replay.first <= record.step <= last]
    keys = sides.content.keys
    if not records:
        return upserts.limit(0)
    changed = sides.collection.keys_of(records, keys)
    upserts = _by_key(upserts, changed, keys, "left_semi")
    if replay.missing:
        return upserts
    deletes = _with_change(_by_key(changed, wanted, keys, "left_anti"), DELETE)
    return upserts.unionByName(deletes, allowMissingColumns=True)


def _by_key(rows: DataFrame, others: DataFrame, keys: Sequence[str], how: str) -> DataFrame:
    from pyspark.sql import functions as f

    right = others.select(*(f.col(quoted(key)).alias(f"_key{i}") for i, key in enumerate(keys)))
    same = [f.col(quoted(key)).eqNullSafe(f.col(f"_key{i}")) for i, key in enumerate(keys)]
    return rows.join(right, reduce(lambda condition, equality: condition & equality, same), how)


def _with_change(rows: DataFrame, change: str) -> DataFrame:
    """Add the change to the rows, and an order as in a change feed. Each key has only one row."""
    from pyspark.sql import functions as f

    version, exists = f.lit(0).cast("bigint").alias(VERSION), f.lit(int(change == UPSERT)).alias(EXISTS)
    order = f.struct(version, exists, f.current_timestamp().alias(TIME))
    return rows.select("*", order.alias(POSITION), f.lit(change).alias(CHANGE))


def _within(replay: ReplayedSteps) -> Expression:
    """Return the condition that a row came with one of the steps, or may have, if files were merged."""
    from pyspark.sql import functions as f

    recent = f.lit(True) if replay.first == 0 else f.col(f"{POSITION}.{STEP}") >= replay.first
    return recent if replay.last is None else recent & (f.col(f"{POSITION}.{NOT_BEFORE}") <= replay.last)


def _missing(sides: Sides, within: Expression) -> DataFrame:
    """Return the rows that are missing in the target, as `verify --content` counts them."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    columns = [quoted(name) for name in sides.actual.columns if name != PLACE]
    wanted = sides.expected.where(MUST)
    wanted = wanted.select(*columns, POSITION, row_hash(wanted.select(*columns)).alias(_HASH))
    target = sides.actual.select(row_hash(sides.actual.select(*columns)).alias(_HASH))
    counts = target.groupBy(_HASH).agg(f.count(f.lit(1)).alias(_HELD))
    equal = Window.partitionBy(_HASH)
    ranked = wanted.select(
        "*",
        f.count(f.lit(1)).over(equal).alias(_ALL),
        f.row_number().over(equal.orderBy(f.when(within, 0).otherwise(1))).alias(_RANK),
    ).join(counts, _HASH, "left")
    missing = f.col(_ALL) - f.coalesce(f.col(_HELD), f.lit(0))
    return ranked.where(within & (f.col(_RANK) <= missing)).select(*columns, POSITION)
