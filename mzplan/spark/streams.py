"""Builds the streaming queries of sources, sinks and views in Structured Streaming."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.connector import SourceConnector
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.formats.dead_letters import WORD, DeadLetters
from mzplan.connectors.formats.records import DEAD
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.difference import difference
from mzplan.connectors.frames.merges import (
    CHANGE_FEED,
    IS_REMOVED,
    append,
    latest_rows,
    merge,
    with_change,
    with_order,
    without_order,
)
from mzplan.connectors.frames.micro_batches import micro_batch
from mzplan.connectors.frames.row_hash import oldest, with_content_hash, with_time
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.times import milliseconds
from mzplan.schema.columns import CHANGE, POSITION, Column
from mzplan.schema.description import CollectionRead
from mzplan.schema.source_columns import keys_of
from mzplan.schema.target_writes import writes_difference, writes_generation_difference
from mzplan.schema.triggers import is_available_now
from mzplan.spark.collections import read_table, table_at
from mzplan.spark.expectations import StepExpectations
from mzplan.spark.sql.projection import project, read_by
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.rows.replay import versions_of
from mzplan.warehouse.step_record import StepRecord
from mzplan.warehouse.storage import is_untouched

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter


AT_ONCE = "200ms"
"""Between two triggers of a query that only reads what is there."""

SKIP_CHANGES = {"skipChangeCommits": "true"}
"""The stream of a collection that only grows continues if another writer deletes rows (foreign_changes)."""
_ALL_FILES = 2**31 - 1


def trigger_interval(query: ResolvedQuery, interval: str | None = None) -> str:
    """Return the trigger's interval in Spark's words: `"500ms"` becomes `"500 milliseconds"`.

    `interval`: the interval of all queries, if they don't have their own.
    """
    if interval is None:
        interval = AT_ONCE if is_available_now(query.body) else query.body["trigger"]["interval"]
    return f"{milliseconds(interval)} milliseconds"


def source_writer(
    rows: DataFrame,
    connector: SourceConnector,
    query: ResolvedQuery,
    collection: str,
    *,
    fail: Callable[[BaseException], None],
    rewriting: AbstractContextManager[Any],
    count_letters: Callable[[int], None],
    guard: Callable[[int], None] | None,
    expectations: StepExpectations,
) -> DataStreamWriter:
    """Return the writer of a source's or view's rows to its collection.

    Rows that are only appended go through Spark's own Delta sink, unless steps are guarded; each step reports
    its hash. Changes of a keyed collection are merged, in one commit per step, under the lock `rewriting`.
    Dead letters are stored, and violations of `expectations` are counted, before the rows are written. `fail`
    takes the error of a batch, `count_letters` the number of dead letters. `guard`: see SourceConnector.

    A step of a source that reads a whole table (`SourceConnector.table`) merges the rows that differ. If none
    do, it makes a commit without rows.
    """
    letters, table = letters_of(connector, query, count_letters), connector.table(query)
    is_read_once = not (query.keys or letters or expectations.any)
    observed_rows = with_content_hash(rows, *oldest(rows)) if is_read_once else with_time(rows)
    if is_read_once and guard is None:
        return observed_rows.writeStream.format("delta").outputMode("append").option("path", collection)

    def write_rows(batch: DataFrame, step: int) -> None:
        failpoint(Failpoint.SOURCE_BEFORE_MERGE)
        if table is not None:
            with rewriting:
                if batch.isEmpty():
                    append(batch.drop(CHANGE), step, collection)
                else:
                    merge(batch, step, table_at(collection), query.keys)
        elif query.keys:
            latest = latest_rows(batch, query.keys, position=True)
            if query.description.reads:  # the rows were ordered like the collection that the view reads
                latest = without_order(latest)
            with rewriting:
                merge(
                    latest,
                    step,
                    table_at(collection),
                    query.keys,
                    compares_positions=connector.compares_positions,
                )
        else:
            append(batch, step, collection)
        failpoint(Failpoint.SOURCE_MERGED)

    def write_batch(batch: DataFrame, step: int) -> None:
        with micro_batch(fail):
            if guard is not None:
                guard(step)
            with (
                _changed_rows(batch, table, collection, query) as given,
                rows_to_write(given, step, letters, expectations) as checked,
            ):
                write_rows(checked, step)

    return observed_rows.writeStream.foreachBatch(write_batch)


@contextmanager
def _changed_rows(
    batch: DataFrame,
    table: Callable[[SparkSession], DataFrame] | None,
    collection: str,
    query: ResolvedQuery,
) -> Iterator[DataFrame]:
    """Yield the rows of a batch; of a source that reads a whole table, the rows that differ."""
    if table is None:
        yield batch
        return
    session, columns = batch.sparkSession, [column.name for column in query.columns]
    stored = read_table(session, collection)
    changes = difference(table(session), stored, columns, query.keys, query.address)
    try:
        yield changes.rows.withColumn(POSITION, f.lit(None).cast(stored.schema[POSITION].dataType))
    finally:
        changes.close()


def letters_of(
    connector: SourceConnector, query: ResolvedQuery, count_letters: Callable[[int], None]
) -> DeadLetters | None:
    """Return the writer of a source's dead letters; None unless the source keeps malformed records."""
    if query.body.get("on_error") != WORD:
        return None
    return DeadLetters(query, partial(connector.send_letters, query=query), count_letters)


@contextmanager
def rows_to_write(
    batch: DataFrame, step: int, letters: DeadLetters | None, expectations: StepExpectations
) -> Iterator[DataFrame]:
    """Store the dead letters of a source's step, count its violations, and yield the rows to write."""
    if letters is None:
        with expectations.checked(batch, step) as rows:
            yield rows
    else:
        reason = expectations.letter_reason(batch.drop(DEAD), step)
        with (
            letters.split_off(batch, step, reason) as good,
            expectations.checked(good, step, cached=True) as rows,
        ):
            yield rows


def rows_read(spark: SparkSession, query: ResolvedQuery, collection: str, *, begins: bool) -> DataFrame:
    """Return the rows that a sink or a row view computes from its collection, as a stream.

    `begins`: whether the checkpoint is still empty. Raises MzplanError MZ019 for expressions that Spark
    refuses.
    """
    read = query.description.input
    assert read is not None, f"{query.address} doesn't read exactly one collection"
    return rows_from(collection_stream(spark, query, read, collection, begins=begins), query)


def rows_from(stream: DataFrame, query: ResolvedQuery) -> DataFrame:
    """Return the rows that a sink or a row view computes from its collection's stream.

    The stream of a keyed collection is its change feed. Raises the same errors as rows_read.
    """
    own_keys = query.keys if query.address.writes_collection else ()
    query = read_by(query)
    if query.keys:
        feed = with_order(stream, query.columns)
        # A view's rows are found by key. A row that goes away is removed even if the condition leaves it out,
        # because it may have entered the view with other values.
        return with_change(project(feed, query, removed=IS_REMOVED if own_keys else "", keys=own_keys))
    return project(stream, query)


def read_changes(
    spark: SparkSession, collection: CollectionLog, record: StepRecord, columns: Sequence[Column]
) -> DataFrame:
    """Return the changes of a keyed collection that a step has read, with their order.

    `columns`: the collection's columns. Raises GoneError.
    """
    first, last = versions_of(collection, record)
    reader = spark.read.format("delta").options(**CHANGE_FEED, startingVersion=first, endingVersion=last)
    return with_order(reader.load(collection.collection), columns)


def collection_stream(
    spark: SparkSession,
    query: ResolvedQuery,
    read: CollectionRead,
    collection: str,
    *,
    begins: bool,
    unlimited: bool = False,
) -> DataFrame:
    """Return a collection as a stream: its rows or, of a keyed collection, its changes.

    `begins`: see rows_read. `unlimited`: a micro-batch reads all that is there.
    """
    reader = _reader(spark, query, collection, begins)
    if unlimited:
        reader = reader.option("maxFilesPerTrigger", _ALL_FILES)
    options = CHANGE_FEED if keys_of(read.type, read.body) else SKIP_CHANGES
    return reader.options(**options).load(collection)


def _may_have_watermark(query: ResolvedQuery) -> bool:
    """Return whether a row of a view can be late. A function may set watermarks of its own."""
    if "watermarks" in query.body:
        return True
    return query.body.get("state") in ("unknown", "kept") and not query.description.snapshots


def _reader(spark: SparkSession, query: ResolvedQuery, collection: str, begins: bool) -> DataStreamReader:
    files = query.body.get("max_files_per_trigger", 1000)
    reader = spark.readStream.format("delta")
    description = query.description
    if begins and (writes_difference(description) or writes_generation_difference(description)):
        # The first micro-batch must have all rows, and there must be one even if there are no rows.
        files = _ALL_FILES
    elif begins and is_untouched(collection):
        # Starting at the first version saves a micro-batch that reads an empty snapshot. A table with rows
        # can't do this: files of its early versions may have been merged and removed.
        reader = reader.option("startingVersion", 0)
    elif begins and _may_have_watermark(query):
        # Delta reads a table's files by their ages. OPTIMIZE has moved old rows to new files, and in a later
        # micro-batch these rows would be late.
        files = _ALL_FILES
    return reader.option("maxFilesPerTrigger", files)
