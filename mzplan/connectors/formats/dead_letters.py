"""Dead letters of sources (`on_error: dead-letter`): stores malformed records, and reads them again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mzplan.connectors.api.lineage_names import LineageName, at_path
from mzplan.connectors.api.queries import Probe, ResolvedQuery
from mzplan.connectors.formats.letter_folder import check_folder, folder_of
from mzplan.connectors.formats.records import DEAD
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.merges import add_missing, append
from mzplan.connectors.frames.types import quoted
from mzplan.model.diagnostics import Diagnostic
from mzplan.schema.columns import POSITION

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame, SparkSession

WORD = "dead-letter"
COLUMNS = (
    "query STRING, source STRING, reason STRING, topic STRING, partition INT, offset BIGINT, "
    "timestamp TIMESTAMP, key BINARY, value BINARY, step BIGINT, kept_at TIMESTAMP"
)
# Identifies a record. Includes `timestamp`, because a topic that was deleted and re-created reuses offsets.
RECORD = ("topic", "partition", "offset", "timestamp")
# Identifies a letter, so that a repeated step finds it. `query` is the id of the source's query: a rename
# keeps it, and a source of the same name in another environment has another id.
LETTER = ("query", "step", *RECORD)
_REMOVED = "mzplan_removed"
_creating = threading.Lock()  # queries that share a table may store their first letters at the same time
_NO_HEADERS = "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers"


@dataclass(slots=True)
class DeadLetters:
    """The dead letters of one source, in one run of its query.

    - `send`: sends letters to a topic, as columns `key`, `value` and `headers`.
    - `on_stored`: receives the number of letters in a step, after they are stored.
    """

    query: ResolvedQuery
    send: Callable[[DataFrame], None]
    on_stored: Callable[[int], None]
    _may_repeat: bool = True

    @contextmanager
    def split_off(self, batch: DataFrame, step: int, reason: Expression | None = None) -> Iterator[DataFrame]:
        """Store the malformed records of a micro-batch, and yield the rows of the other records. If the step
        runs again, a table still has each letter once; a topic may have it twice.

        `reason`: why the record of another row is stored, too; NULL if it isn't. Its row is yielded."""
        # The batch is parsed once. Otherwise a schema that is registered in between could move a record from
        # one part to the other.
        batch.persist()
        try:
            bad = batch.where(f"{DEAD}.reason IS NOT NULL")
            malformed = bad.count()
            if reason is not None:
                bad = with_reason(batch, reason).where(f"{DEAD}.reason IS NOT NULL")
            if malformed or (reason is not None and not bad.isEmpty()):
                self._keep(bad, step)
            if malformed:
                self.on_stored(malformed)
            self._may_repeat = False
            yield batch.where(f"{DEAD}.reason IS NULL").drop(DEAD)
        finally:
            batch.unpersist()

    def _keep(self, bad: DataFrame, step: int) -> None:
        letters = bad.select(
            f.lit(self.query.description.id).alias("query"),
            f.lit(str(self.query.address)).alias("source"),
            f.col(f"{DEAD}.reason"),
            f.lit(self.query.body["topic"]).alias("topic"),
            *(f.col(f"{POSITION}.{name}") for name in ("partition", "offset", "timestamp")),
            f.col(f"{DEAD}.key"),
            f.col(f"{DEAD}.value"),
            f.lit(step).cast("bigint").alias("step"),
            f.current_timestamp().alias("kept_at"),
        )
        folder = folder_of(self.query)
        if folder is None:
            return self.send(_records(letters))
        table = ensure_table(bad.sparkSession, folder)
        if self._may_repeat:
            # Compared record by record: with another schema, the step may have other dead letters.
            return add_missing(letters, table, LETTER)
        return append(letters, step, folder)


def with_reason(rows: DataFrame, reason: Expression) -> DataFrame:
    """Return parsed records with this reason for those that aren't malformed; NULL for no reason."""
    reasons = f.coalesce(f.col(f"{DEAD}.reason"), reason)
    return rows.withColumn(DEAD, f.col(DEAD).withField("reason", reasons))


def ensure_table(session: SparkSession, folder: str, columns: str = COLUMNS) -> str:
    """Return the SQL name of the dead letters' table in a folder.

    Creates the table if it is missing, and adds columns that it doesn't have: a view may have created it."""
    table = f"delta.{quoted(folder)}"
    with _creating:
        session.sql(f"CREATE TABLE IF NOT EXISTS {table} ({columns}) USING DELTA")
        stored = set(session.table(table).columns)
        if missing := [column for column in columns.split(", ") if column.split()[0] not in stored]:
            session.sql(f"ALTER TABLE {table} ADD COLUMNS ({', '.join(missing)})")
    return table


def letters_of(query: ResolvedQuery, table: DataFrame) -> DataFrame:
    """Return the rows of a dead letters' table that a source's query stored from its current topic."""
    is_own = (f.col("query") == query.description.id) & (f.col("topic") == query.body["topic"])
    return table.where(is_own)


def records_of(letters: DataFrame) -> DataFrame:
    """Return the original records, with the columns of Spark's Kafka source.

    A record that several steps stored appears once."""
    return letters.dropDuplicates([*RECORD]).selectExpr(
        "CAST(key AS BINARY)",
        "CAST(value AS BINARY)",
        "CAST(topic AS STRING)",
        "CAST(partition AS INT)",
        "CAST(offset AS BIGINT)",
        "CAST(timestamp AS TIMESTAMP)",
        "0 AS timestampType",
        _NO_HEADERS,
    )


def remove_letters(letters: DataFrame, table: str) -> None:
    """Delete letters from their table (its name in SQL), in one commit."""
    letters.createOrReplaceTempView(_REMOVED)
    matches_letter = " AND ".join(f"t.{quoted(name)} <=> s.{quoted(name)}" for name in ("query", *RECORD))
    letters.sparkSession.sql(
        f"MERGE INTO {table} AS t USING {_REMOVED} AS s ON {matches_letter} WHEN MATCHED THEN DELETE"
    )


def lineage_names(query: ResolvedQuery, topic: Callable[[str], LineageName]) -> tuple[LineageName, ...]:
    """Return the table or topic of a source's dead letters, or () if it keeps none."""
    place = query.body.get("dead_letter")
    if query.body.get("on_error") != WORD or not place:
        return ()
    folder = folder_of(query)
    return (at_path(folder) if folder is not None else topic(place["topic"]),)


def check(query: ResolvedQuery, probe: Callable[[ResolvedQuery], Probe]) -> tuple[Diagnostic, ...]:
    """Return why dead letters can't be stored. `probe` checks write access to the topic."""
    place = query.body["dead_letter"]
    if (folder := folder_of(query)) is not None:
        return check_folder(query, folder)
    if place["topic"] == query.body["topic"]:
        return (Diagnostic.of("MZ020.own-dead-letters", address=query.address, topic=place["topic"]),)
    return probe(replace(query, body={**query.body, "topic": place["topic"]})).diagnostics


def _records(letters: DataFrame) -> DataFrame:
    """Return the original records, with the letters' other columns in headers."""
    names = ("query", "source", "reason", "topic", "partition", "offset", "step")
    headers = [
        f.struct(
            f.lit(f"mzplan.{name}").alias("key"),
            f.col(name).cast("string").cast("binary").alias("value"),
        )
        for name in names
    ]
    return letters.select("key", "value", f.array(*headers).alias("headers"))
