"""Replays of dead letters: records that a source has kept aside, read once more as the source is now, and
those that are rows now taken out of the table of letters.

The rows are a step of the collection (see source_steps). Whether a record is a row the collection itself
says, by its `_position`. So no record becomes a row twice, whoever has made it one before (a replay that was
killed, a backfill, a generation that has read everything again); and no letter goes whose record is not
there, under whatever description the next start goes on.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mzplan.connectors.api.connector import SourceConnector
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.api.repairs import ensure_letters
from mzplan.connectors.formats.dead_letters import (
    COLUMNS,
    RECORD,
    ensure_table,
    letters_of,
    records_of,
    remove,
)
from mzplan.connectors.formats.records import DEAD
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.merges import append, naming
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.observed import LettersReplayed
from mzplan.model.state import Replay
from mzplan.schema.columns import POSITION
from mzplan.spark.projection import rows_where
from mzplan.spark.tasks.source_steps import finish_step, next_step
from mzplan.warehouse.checkpoints import Checkpoint, LettersStep
from mzplan.warehouse.paths import absolute

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("mzplan.spark")

WHERE = "--where"  # of the command, for people
REASONS = 20  # of letters that stay; the others are counted together
_LONGEST = 200  # characters of a reason
_HELD = "_held"


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersReplays:
    """Those of one source. `spark`: a session of its own. Raises MzplanError, OSError, and whatever Spark
    raises."""

    spark: SparkSession
    connector: SourceConnector
    query: ResolvedQuery
    checkpoint: Checkpoint
    collection: str

    def write(self, replay: Replay) -> None:
        """Do a replay; every step of the checkpoint is finished, and no query runs on it."""
        query = self.query
        kept: list[DataFrame] = []
        ensure_letters(query.address, query.description.type, query.body)
        number, _ = next_step(query, self.checkpoint, replay)
        log.info("%s: the replay %s begins, as step %d", query.address, replay, number)
        path = str(query.body["dead_letter"]["path"])
        try:
            records = records_of(self._letters(path, replay.where))
            kept.append(parsed := self.connector.parse(records, query).persist())
            kept.append(held := self._held(parsed).persist())
            new = parsed.join(held, f.col(POSITION).eqNullSafe(f.col(_HELD)), "left_anti")
            good = new.where(f"{DEAD} IS NULL").drop(DEAD)
            stay = _reasons(new.where(f"{DEAD} IS NOT NULL").select(f"{DEAD}.reason"))
            outcome = LettersReplayed(serial=replay.serial, rows=good.count(), before=held.count(), stay=stay)
            step = LettersStep(step=number, task=replay, path=path, found=outcome)
            self.checkpoint.task_steps.record(step)
            failpoint(Failpoint.DEAD_LETTERS_JOURNALED)
            with naming(self.spark, self.checkpoint.log.query_id() or ""):
                append(good, number, self.collection)
        finally:
            for rows in kept:
                rows.unpersist()
        failpoint(Failpoint.DEAD_LETTERS_WRITTEN)
        self._clear(step)
        finish_step(self.checkpoint, step)
        log.info(
            "%s: the replay %s is done: of %d dead letters %d have become rows, and %d stay",
            *(query.address, replay, outcome.read, outcome.rows, outcome.stays),
        )

    def clear(self, step: LettersStep) -> None:
        """Finish a replay whose rows are in the collection. Where it was given up, its letters may stay: the
        next replay finds that they are rows."""
        try:
            self._clear(step)
        except Exception as problem:
            if step.task in self.query.description.replays:
                raise
            log.warning("%s: letters that are rows stay in their table: %s", self.query.address, problem)

    def _clear(self, step: LettersStep) -> None:
        position = f.struct("partition", "offset", "timestamp").alias(POSITION)
        letters = self._letters(step.path, step.task.where).select("query", *RECORD, position)
        held = self._held(letters)
        gone = letters.join(held, f.col(POSITION).eqNullSafe(f.col(_HELD)), "left_semi").drop(POSITION)
        if not gone.isEmpty():
            remove(gone.distinct(), ensure_table(self.spark, self._folder(step.path)))
        failpoint(Failpoint.DEAD_LETTERS_CLEARED)

    def _folder(self, path: str) -> str:
        return absolute(self.query.directory, path)

    def _letters(self, path: str, where: str) -> DataFrame:
        folder = self._folder(path)
        letters = letters_of(self.query, self.spark.table(ensure_table(self.spark, folder)))
        return rows_where(letters, where, WHERE, self.query) if where else letters

    def _held(self, rows: DataFrame) -> DataFrame:
        """Of the records of these rows those that are rows of the collection: their positions, as `_HELD`."""
        offset = f"{POSITION}.offset"
        ends = rows.agg(f.min(offset).alias("first"), f.max(offset).alias("last")).first()
        first, last = (ends["first"], ends["last"]) if ends is not None else (None, None)
        table = self.spark.read.format("delta").load(self.collection)
        # By the range, Delta passes over files of other offsets.
        near = table.where(f.col(offset).between(f.lit(first), f.lit(last)))
        held = near.select(f.col(POSITION).alias(_HELD))
        return held.join(
            rows.select(POSITION), f.col(POSITION).eqNullSafe(f.col(_HELD)), "left_semi"
        ).distinct()


def check_conditions(spark: SparkSession, query: ResolvedQuery) -> None:
    """Raise MzplanError MZ019 for a replay of which Spark does not accept `where`. Reads nothing."""
    empty = spark.createDataFrame([], COLUMNS)
    for replay in query.description.replays:
        if replay.where:
            rows_where(empty, replay.where, WHERE, query)


def _reasons(letters: DataFrame) -> tuple[tuple[str, int], ...]:
    """How many letters stay for which reason, the most frequent first."""
    counted = letters.groupBy("reason").count().orderBy(f.desc("count"), "reason").collect()
    shown = [(str(row["reason"])[:_LONGEST], int(row["count"])) for row in counted[:REASONS]]
    others = sum(int(row["count"]) for row in counted[REASONS:])
    return (*shown, *([("other reasons", others)] if others else []))
