"""Merges into the Delta tables of collections and sinks.

A micro-batch's changes are one MERGE, in one commit that names its step. Small files merge into large ones.

A sink reads the change feed of a keyed collection, as deleted and inserted rows. An update deletes the old
row and inserts the new one. `select` and `where` apply to each of them. So a row that no longer meets the
`where` is removed from the target, and so is the old row if the target's key changes. For each target key,
only the last event counts. Events are ordered by the table's version, then deletes before inserts, then by
the source's positions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.types import quoted
from mzplan.schema.columns import CHANGE, DELETE, POSITION, UPSERT, Column
from mzplan.warehouse.rows.snapshot import SMALL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHANGE_FEED = {"readChangeFeed": "true"}
VERSION, EXISTS, TIME = "_version", "_there", "_committed"  # the first fields of `_position` in a sink's rows
IS_REMOVED = f"{POSITION}.{EXISTS} = 0"
"""SQL that is true if a row with this order no longer exists after its change."""
_LATEST = "_mzplan_latest"
_FLOAT = re.compile(r"\b(float|double)\b")  # in the type of a column


def exists_after() -> Any:
    """Return 1 for rows of a change feed that are in the table after their change, 0 for the others."""
    return f.col("_change_type").isin("insert", "update_postimage").cast("int")


def with_order(feed: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """Return the user's columns, and `_position` with three more fields in front: the table's version, 1
    for an inserted row or 0 for a deleted one, and the time of the version's commit."""
    position: Any = feed.schema[POSITION].dataType
    fields = [f.col(f"{POSITION}.{quoted(name)}") for name in position.names]
    version, time = f.col("_commit_version").alias(VERSION), f.col("_commit_timestamp").alias(TIME)
    order = f.struct(version, exists_after().alias(EXISTS), time, *fields)
    return feed.select(*(f.col(quoted(column.name)) for column in columns), order.alias(POSITION))


def without_order(rows: DataFrame) -> DataFrame:
    """Return the rows with the `_position` that they had before `with_order`."""
    position: Any = rows.schema[POSITION].dataType
    own = (name for name in position.names if name not in (VERSION, EXISTS, TIME))
    fields = [f.col(f"{POSITION}.{quoted(name)}") for name in own]
    return rows.withColumn(POSITION, f.struct(*fields))


def with_change(rows: DataFrame, field: str = EXISTS) -> DataFrame:
    """Return the rows with `_change`, as SinkConnector.write takes them. A row is an upsert if this field of
    `_position` is 1, otherwise a delete."""
    is_upsert = f.col(f"{POSITION}.{field}") == 1
    return rows.withColumn(CHANGE, f.when(is_upsert, f.lit(UPSERT)).otherwise(f.lit(DELETE)))


def latest_rows(
    batch: DataFrame, keys: Sequence[str], *, position: bool = False, order: str = POSITION
) -> DataFrame:
    """Return the latest row of each key of a micro-batch, with `_change` if the collection is keyed. Keeps
    `_position` only with `position`. `order`: the column that says which row is the latest."""
    columns = [quoted(column) for column in batch.columns if position or column != POSITION]
    grouped = batch.groupBy(*(f.col(quoted(key)) for key in keys))
    # The grouped columns stay, so the result needs a name that no column has.
    latest = grouped.agg(f.max_by(f.struct(*columns), f.col(order)).alias(_LATEST))
    return latest.select(*(f"{_LATEST}.{column}" for column in columns))


_VIEW = "mzplan_batch"
_APPLICATION = "spark.databricks.delta.write.txnAppId"
_VERSION = "spark.databricks.delta.write.txnVersion"
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_QUERY_ID = "sql.streaming.queryId"  # the property by which Spark and Delta identify a step's writer


@contextmanager
def writing_as(session: SparkSession, writer: str) -> Iterator[None]:
    """Mark this thread as writing steps of `writer`: a query's id, or the name of a task that writes instead
    of the query."""
    context = session.sparkContext
    context.setLocalProperty(_QUERY_ID, writer)
    try:
        yield
    finally:
        context.setLocalProperty(_QUERY_ID, None)  # type: ignore[arg-type]


def merge(
    rows: DataFrame,
    step: int,
    table: str,
    keys: Sequence[str],
    *,
    compares_positions: bool = False,
    updated: Sequence[str] | None = None,
) -> int | None:
    """Merge rows, one per key, into an existing Delta table; `table` is its name in SQL. Returns the number
    of changed rows, or None if Delta doesn't say, as for a skipped commit.

    With a column `_change`, `delete` removes the key's row; all other rows update or insert it. With
    `compares_positions`, a change applies only if its `_position` is greater than the existing row's.
    `updated`: the columns to set in existing rows; all by default.

    This is one commit, or none if the table already has this step of the query: Delta skips a commit whose
    (application, version) it knows. So a micro-batch that a killed driver wrote before Spark recorded it
    changes nothing when it runs again.
    """
    session = rows.sparkSession
    rows.createOrReplaceTempView(_VIEW)
    _name_step(session, step)
    matches_key = " AND ".join(f"t.{quoted(key)} <=> s.{quoted(key)}" for key in keys)
    newer = [f"s.{POSITION} > t.{POSITION}"] if compares_positions else []
    stored = [quoted(column) for column in rows.columns if column != CHANGE]
    # The columns to set don't have the table's alias, because Spark would then not find a new column, which
    # only the rows have. Columns that only the table has keep their values.
    set_columns = stored if updated is None else [quoted(column) for column in updated]
    update = f"UPDATE SET {', '.join(f'{column} = s.{column}' for column in set_columns)}"
    if CHANGE in rows.columns:
        deletes = f"s.{CHANGE} = '{DELETE}'"
        actions = (
            f"{_when('MATCHED', deletes, *newer)} DELETE "
            f"{_when('MATCHED', f'NOT {deletes}', *newer)} {update} "
            f"{_when('NOT MATCHED', f'NOT {deletes}')} {_insert(stored)}"
        )
    else:
        actions = f"{_when('MATCHED', *newer)} {update} WHEN NOT MATCHED THEN {_insert(stored)}"
    metrics = session.sql(f"MERGE INTO {table} AS t USING {_VIEW} AS s ON {matches_key} {actions}").collect()
    changed_rows = int(metrics[0]["num_affected_rows"]) if metrics else 0
    return changed_rows if changed_rows or rows.isEmpty() else None


def delete_matching(values: DataFrame, step: int, table: str, mark: str = "") -> None:
    """Delete the rows of a Delta table (its name in SQL) that have one of these combinations of values.

    This is one commit that names the step, or none if the table already has the step. The log has the names
    of the columns, but no value: a DELETE would store its condition there. `mark`: a text for the log.
    """
    session = values.sparkSession
    # To Spark, -0.0 equals 0.0, but the texts of both differ.
    floats = [field.name for field in values.schema if _FLOAT.search(field.dataType.simpleString())]
    texts = {f"_mzplan_text_{number}": name for number, name in enumerate(floats)}
    columns = [f.col(quoted(name)).cast("string").alias(text) for text, name in texts.items()]
    values.select("*", *columns).distinct().createOrReplaceTempView(_VIEW)
    _name_step(session, step)
    if mark:
        session.conf.set(_METADATA, mark)
    same = [f"t.{quoted(name)} <=> s.{quoted(name)}" for name in values.columns]
    same += [f"CAST(t.{quoted(name)} AS STRING) <=> s.{text}" for text, name in texts.items()]
    matches = " AND ".join(same)
    try:
        session.sql(f"MERGE INTO {table} AS t USING {_VIEW} AS s ON {matches} WHEN MATCHED THEN DELETE")
    finally:
        for setting in (_METADATA, _APPLICATION, _VERSION):
            session.conf.unset(setting)


def purge(session: SparkSession, table: str) -> None:
    """Rewrite the files of a Delta table (its name in SQL) that still have rows that are marked as deleted.

    Makes one commit without new rows, which streaming readers skip, or none if no row is marked.
    """
    session.newSession().sql(f"REORG TABLE {table} APPLY (PURGE)")


def append(rows: DataFrame, step: int, folder: str) -> None:
    """Add rows to the Delta table in a folder, in one commit that names the step. Makes no commit if the
    table already has that step, as Spark's own Delta sink does."""
    query_id = rows.sparkSession.sparkContext.getLocalProperty(_QUERY_ID) or ""
    writer = rows.write.format("delta").mode("append")
    writer.option("txnAppId", query_id).option("txnVersion", step).save(folder)


def add_missing(rows: DataFrame, table: str, keys: Sequence[str]) -> None:
    """Add the rows whose values in `keys` a Delta table doesn't have yet."""
    session = rows.sparkSession
    rows.createOrReplaceTempView(_VIEW)
    for setting in (_APPLICATION, _VERSION):
        session.conf.unset(setting)
    matches_key = " AND ".join(f"t.{quoted(key)} <=> s.{quoted(key)}" for key in keys)
    insert = _insert([quoted(column) for column in rows.columns])
    session.sql(f"MERGE INTO {table} AS t USING {_VIEW} AS s ON {matches_key} WHEN NOT MATCHED THEN {insert}")


def replace_rows(rows: DataFrame, folder: str, where: str) -> None:
    """Replace the rows of a Delta table that meet a condition by these, which meet it too, in one commit."""
    for setting in (_APPLICATION, _VERSION):
        rows.sparkSession.conf.unset(setting)
    rows.write.format("delta").mode("overwrite").option("replaceWhere", where).save(folder)


def _insert(columns: Sequence[str]) -> str:
    return f"INSERT ({', '.join(columns)}) VALUES ({', '.join(f's.{column}' for column in columns)})"


def _when(clause: str, *conditions: str) -> str:
    return " AND ".join((f"WHEN {clause}", *conditions)) + " THEN"


def _name_step(session: SparkSession, step: int) -> None:
    """Make the next commits of this session, which is the query's own, name the query and the step."""
    query_id = session.sparkContext.getLocalProperty(_QUERY_ID)
    session.conf.set(_APPLICATION, query_id or "")
    session.conf.set(_VERSION, str(step))


def merge_small_files(session: SparkSession, table: str) -> tuple[int, int]:
    """Merge the small files of a table (its name in SQL) into large ones. Returns their number before and
    after.

    Makes one commit without new rows, which streaming readers skip, or none if there is nothing to
    merge. Larger files stay as they are; otherwise, they would be rewritten each time. Raises Spark's errors.
    """
    own_session = session.newSession()  # its settings differ
    own_session.conf.set("spark.databricks.delta.optimize.minFileSize", str(SMALL))
    result = own_session.sql(f"OPTIMIZE {table}").first()
    assert result is not None
    metrics = result["metrics"]
    return int(metrics["numFilesRemoved"]), int(metrics["numFilesAdded"])


def count_files(session: SparkSession, table: str) -> int:
    """Return the number of data files in a table's newest version; 0 if there is no table."""
    from pyspark.errors import AnalysisException

    try:
        detail = session.sql(f"DESCRIBE DETAIL {table}").first()
    except AnalysisException as problem:
        if is_no_table(problem):
            return 0
        raise
    return int(detail["numFiles"] or 0) if detail is not None else 0


def is_no_table(problem: Exception) -> bool:
    """Whether the error says that Spark found no Delta table."""
    condition = getattr(problem, "getCondition", lambda: None)() or ""
    text = str(problem)
    return (
        condition in ("PATH_NOT_FOUND", "TABLE_OR_VIEW_NOT_FOUND")
        or "is not a Delta table" in text
        or "DOES_NOT_EXIST" in text
    )
