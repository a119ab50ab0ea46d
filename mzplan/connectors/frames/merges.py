"""Merging into Delta tables, of collections and of sinks: the changes of a micro-batch, by one MERGE in one
commit that names its step; and small files into large ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mzplan.connectors.frames.types import quoted
from mzplan.schema.columns import CHANGE, DELETE, POSITION
from mzplan.warehouse.snapshot import SMALL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_VIEW = "mzplan_batch"
_APPLICATION = "spark.databricks.delta.write.txnAppId"
_VERSION = "spark.databricks.delta.write.txnVersion"
_QUERY_ID = "sql.streaming.queryId"  # by which Spark, and what is below, name who writes a step


@contextmanager
def naming(session: SparkSession, writer: str) -> Iterator[None]:
    """This thread writes steps of `writer`: a query, by its id, or what writes in its place."""
    context = session.sparkContext
    context.setLocalProperty(_QUERY_ID, writer)
    try:
        yield
    finally:
        context.setLocalProperty(_QUERY_ID, None)  # type: ignore[arg-type]


def merge(
    rows: DataFrame, step: int, table: str, keys: Sequence[str], *, guarded: bool = False
) -> int | None:
    """Merge rows, one for each key, into an existing Delta table (`table`: its name in SQL). With a column
    `_change`, `delete` removes the row of the key; all others update or insert it. `guarded`: a change counts
    only when its `_position` is greater than that of the existing row.

    This is one commit, and none if the table has this step of the query already: Delta skips a commit whose
    (application, version) it knows. So a micro-batch that a killed driver had written, and Spark had not
    recorded, changes nothing when it is run again. Returns how many rows it has changed; None where Delta
    does not say, as of a commit that it skips.
    """
    session = rows.sparkSession
    rows.createOrReplaceTempView(_VIEW)
    _name_step(session, step)
    same = " AND ".join(f"t.{quoted(key)} <=> s.{quoted(key)}" for key in keys)
    newer = [f"s.{POSITION} > t.{POSITION}"] if guarded else []
    if CHANGE in rows.columns:
        deletes = f"s.{CHANGE} = '{DELETE}'"
        stored = [quoted(column) for column in rows.columns if column != CHANGE]
        # Without the table's name: only so a column that the table lacks is found among those of the rows.
        updates = ", ".join(f"{column} = s.{column}" for column in stored)
        actions = (
            f"{_when('MATCHED', deletes, *newer)} DELETE {_when('MATCHED', f'NOT {deletes}', *newer)} "
            f"UPDATE SET {updates} {_when('NOT MATCHED', f'NOT {deletes}')} INSERT ({', '.join(stored)}) "
            f"VALUES ({', '.join(f's.{column}' for column in stored)})"
        )
    else:
        actions = f"{_when('MATCHED', *newer)} UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    counted = session.sql(f"MERGE INTO {table} AS t USING {_VIEW} AS s ON {same} {actions}").collect()
    changed = int(counted[0]["num_affected_rows"]) if counted else 0
    return changed if changed or rows.isEmpty() else None


def append(rows: DataFrame, step: int, folder: str) -> None:
    """Add rows to the Delta table in a folder: one commit that names its step, and none if the table has that
    step already, as by Spark's own Delta sink."""
    query_id = rows.sparkSession.sparkContext.getLocalProperty(_QUERY_ID) or ""
    writer = rows.write.format("delta").mode("append")
    writer.option("txnAppId", query_id).option("txnVersion", step).save(folder)


def add_missing(rows: DataFrame, table: str, keys: Sequence[str]) -> None:
    """Add to a Delta table the rows whose values in `keys` it does not have yet."""
    session = rows.sparkSession
    rows.createOrReplaceTempView(_VIEW)
    for setting in (_APPLICATION, _VERSION):
        session.conf.unset(setting)
    same = " AND ".join(f"t.{quoted(key)} <=> s.{quoted(key)}" for key in keys)
    session.sql(f"MERGE INTO {table} AS t USING {_VIEW} AS s ON {same} WHEN NOT MATCHED THEN INSERT *")


def _when(what: str, *conditions: str) -> str:
    return " AND ".join((f"WHEN {what}", *conditions)) + " THEN"


def _name_step(session: SparkSession, step: int) -> None:
    """Name the next commits of this session, which is the query's own, after the query and the step."""
    query_id = session.sparkContext.getLocalProperty(_QUERY_ID)
    session.conf.set(_APPLICATION, query_id or "")
    session.conf.set(_VERSION, str(step))


def merge_small_files(session: SparkSession, table: str) -> tuple[int, int]:
    """Merge the small files of a table (its name in SQL) into large ones; how many these were, and have
    become. One commit without new rows, which streams over the table pass over; none where nothing is to be
    merged. Larger files are left: they would be written again each time. Raises what Spark raises."""
    own = session.newSession()  # for its settings
    own.conf.set("spark.databricks.delta.optimize.minFileSize", str(SMALL))
    done = own.sql(f"OPTIMIZE {table}").first()
    assert done is not None
    metrics = done["metrics"]
    return int(metrics["numFilesRemoved"]), int(metrics["numFilesAdded"])


def count_files(session: SparkSession, table: str) -> int:
    """How many data files the newest version of a table has; 0 where there is none."""
    from pyspark.errors import AnalysisException

    try:
        detail = session.sql(f"DESCRIBE DETAIL {table}").first()
    except AnalysisException as problem:
        if is_no_table(problem):
            return 0
        raise
    return int(detail["numFiles"] or 0) if detail is not None else 0


def is_no_table(problem: Exception) -> bool:
    """Whether Spark has found no Delta table there."""
    condition = getattr(problem, "getCondition", lambda: None)() or ""
    text = str(problem)
    return (
        condition in ("PATH_NOT_FOUND", "TABLE_OR_VIEW_NOT_FOUND")
        or "is not a Delta table" in text
        or "DOES_NOT_EXIST" in text
    )
