"""The delta sink: Spark's own Delta stream for append, MERGE for upsert and history; all exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mzplan.connectors.api.connector import SinkConnector
from mzplan.connectors.api.outputs import unfit_time
from mzplan.connectors.api.queries import Output, Probe, ResolvedQuery, Rewriting, SinkRun, empties_target
from mzplan.connectors.api.targets import (
    Content,
    Recorded,
    incomparable,
    missing_steps,
    nothing_recorded,
    unfit_target,
)
from mzplan.connectors.delta.catalog_table import TABLE, check_recorded, table_folder, take_table
from mzplan.connectors.delta.history import record_versions
from mzplan.connectors.delta.replacement import replace_rows
from mzplan.connectors.delta.table import DeltaContent, DeltaRecorded
from mzplan.connectors.delta.table_fit import unfit_table
from mzplan.connectors.frames.merges import (
    append,
    count_files,
    is_no_table,
    latest_rows,
    merge,
    merge_small_files,
    writing_as,
)
from mzplan.connectors.frames.micro_batches import micro_batch
from mzplan.connectors.frames.row_hash import with_count
from mzplan.connectors.frames.types import as_stored, ddl_of, quoted
from mzplan.connectors.network.aws import use_s3, uses_aws
from mzplan.connectors.network.folders import (
    are_same_columns,
    folder_of,
    route,
    target_problems,
    unfit_partitions,
)
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.words import count
from mzplan.schema.columns import CHANGE, POSITION
from mzplan.schema.target_writes import VERSION_COLUMNS, keeps_history, writes_difference
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.stored_files import HeldStep, lost_steps, newest_held

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_UNKNOWN = "Its table's folder isn't known yet: a runner finds it in the catalog when the sink starts."


class DeltaSink(SinkConnector):
    """Writes a Delta table, created if it is missing. A new column of `select` is added to it.

    A table of a catalog is created only if the sink asks for that (see catalog_table)."""

    def __init__(self) -> None:
        self._file_counts: dict[str, int] = {}  # a table's file count after its last compaction
        self._complete: dict[str, HeldStep] = {}  # by table: the last step up to which all steps were found

    def probe(self, query: ResolvedQuery, outputs: Sequence[Output]) -> Probe:
        """Check that the folder can be written. Check that an existing table has the key's columns, types
        that hold the sink's values, the sink's partition columns, and all steps written so far."""
        folder = table_folder(query)
        diagnostics = (
            ([] if TABLE in query.body else target_problems(query, folder_of(query)))
            or unfit_partitions(query, outputs)
            or _unfit_time(query, outputs)
            or (unfit_table(query, folder, outputs) if folder is not None else [])
            or check_recorded(query)
            or self._lost_steps(query)
        )
        return Probe(diagnostics=tuple(diagnostics))

    def route(self, query: ResolvedQuery) -> str:
        return f"table {query.body[TABLE]}" if TABLE in query.body else route(query)

    def target_table(self, query: ResolvedQuery) -> str | None:
        """Return the folder. None if the connection has its own credentials, which only Spark can use, or if
        the folder of a catalog's table isn't known yet."""
        return None if uses_aws(query) else table_folder(query)

    def recorded(self, query: ResolvedQuery, outputs: Sequence[Output]) -> Recorded:
        """Return the steps, as far back as the table's log goes. For an upsert, only with row counts.

        Raises MzplanError MZ177 for a history, whose versions are fewer or more than the rows of a step."""
        if keeps_history(query.body):
            why = "a commit of a history has a step's versions, not the rows that the step has read"
            raise nothing_recorded(query, why, has_content=True)
        folder = table_folder(query)
        if folder is None:
            raise nothing_recorded(query, _UNKNOWN)
        return DeltaRecorded(query, folder, query.checkpoint.log.query_id() if query.checkpoint else None)

    def content(self, query: ResolvedQuery, outputs: Sequence[Output], spark: SparkSession) -> Content:
        """Return the newest version of the table."""
        query_id = query.checkpoint.log.query_id() if query.checkpoint else None
        folder = table_folder(query)
        if folder is None:
            raise incomparable(query, _UNKNOWN, "compare again when the sink has started.")
        return DeltaContent(query, folder, outputs, query_id, spark)

    def _partitions(self, query: ResolvedQuery) -> Sequence[str]:
        """Return the existing table's partition columns, as far as they can be read without Spark."""
        table = self.target_table(query)
        try:
            return tuple(CollectionLog(table).partitions() or ()) if table is not None else ()
        except OSError:  # Spark reports the problem
            return ()

    def _lost_steps(self, query: ResolvedQuery) -> list[Diagnostic]:
        """Return MZ069 if the table is missing steps that the checkpoint says were written. Returns [] if
        that is unknown."""
        table = self.target_table(query)
        if table is None or query.checkpoint is None:
            return []
        try:
            log, done = CollectionLog(table), query.checkpoint.log
            missing = lost_steps(log, done, self._complete.get(table))
            if missing is None and (held := newest_held(log, done)) is not None:
                self._complete[table] = held
        except (OSError, ValueError):  # the start reports the problem
            return []
        return [missing_steps(query, table, *missing)] if missing is not None else []

    def ensure_whole(self, query: ResolvedQuery) -> None:
        if refusals := [
            diagnostic for diagnostic in self._lost_steps(query) if diagnostic.severity == "error"
        ]:
            raise MzplanError(refusals)

    def _take_folder(self, rows: DataFrame, run: SinkRun) -> str:
        """Return the table's folder. Finds, or creates, the table of a catalog, and checks that it fits."""
        query = run.query
        if TABLE not in query.body:
            return folder_of(query)
        folder = take_table(rows.sparkSession, query, run.checkpoint, _definition(rows, query))
        if unfit := unfit_table(query, folder, run.outputs):
            raise MzplanError(unfit)
        return folder

    def write(self, rows: DataFrame, run: SinkRun) -> DataStreamWriter:
        path = self._take_folder(rows, run)
        self.ensure_whole(run.query)
        use_s3(rows.sparkSession, run.query, path)
        partitions = run.query.body.get("partition_by", ())
        if run.is_new and empties_target(run.query):
            # The table has no rows of this generation yet, so a crash before its first batch only repeats
            # this.
            with run.rewriting(path):
                _empty(rows, run.query, path)
        existing = self._partitions(run.query)
        rows = as_stored(rows, partitions or existing)
        if "key" not in run.query.body:
            appended = with_count(rows.drop(POSITION)).writeStream.format("delta").outputMode("append")
            # An existing table keeps its own spelling of these names.
            columns = () if are_same_columns(partitions, existing) else partitions
            return appended.option("mergeSchema", "true").option("path", path).partitionBy(*columns)

        def merge_batch(batch: DataFrame, step: int) -> None:
            failpoint(Failpoint.SINK_BEFORE_STEP)
            with micro_batch(run.fail), run.rewriting(path):
                replaces = step == 0 and writes_difference(run.query.description)
                changed = _write_by_key(batch, step, run.query, path, replaces=replaces)
            failpoint(Failpoint.SINK_WRITTEN)
            if changed is not None:
                run.wrote(step, changed)

        return rows.writeStream.foreachBatch(run.writer_of(merge_batch))

    def put_again(self, rows: DataFrame, run: SinkRun, name: str) -> None:
        """Write the rows in one commit that names the replay. Delta accepts each name only once."""
        path = self._take_folder(rows, run)
        use_s3(rows.sparkSession, run.query, path)
        partitions = run.query.body.get("partition_by", ())
        rows = as_stored(rows, partitions or self._partitions(run.query))
        with run.rewriting(path), writing_as(rows.sparkSession, name):
            if "key" in run.query.body:
                _write_by_key(rows, 0, run.query, path)
            else:
                append(rows.drop(POSITION), 0, path)

    def compact(self, query: ResolvedQuery, spark: SparkSession, rewriting: Rewriting) -> str | None:
        """Merge small files if there are `min_files` more than last time. Vacuums nothing, because others may
        read earlier versions of the table.

        Uses the bucket's credentials that the running sink has. Giving Spark new ones would close the client
        that the sink writes with, and wrong ones would stop a healthy query.
        """
        compaction, path = query.body.get("compaction"), table_folder(query)
        if compaction is None or path is None:
            return None
        table = f"delta.{quoted(path)}"
        file_count = count_files(spark, table)
        # If there are fewer than last time, another program has merged files or emptied the table.
        known_count = self._file_counts[path] = min(self._file_counts.get(path, 0), file_count)
        if file_count < known_count + compaction["min_files"]:
            return None
        with rewriting(path):
            merged, written = merge_small_files(spark, table)
        self._file_counts[path] = max(0, file_count - merged + written)
        return f"{count(merged, 'small file')} of {path} merged into {written}" if merged else None


def _unfit_time(query: ResolvedQuery, outputs: Sequence[Output]) -> list[Diagnostic]:
    """Return MZ053 if the column that says when a version begins isn't a TIMESTAMP."""
    why = unfit_time(query, outputs)
    summary = f"{query.address} doesn't know when its versions begin"
    fix = "convert the column in `select`, such as CAST(changed AS TIMESTAMP) AS changed."
    return [unfit_target(query, summary, f"{why}.", fix)] if why else []


def _empty(rows: DataFrame, query: ResolvedQuery, path: str) -> None:
    """Empty the table, and give it the sink's columns and partition columns, in one commit. Does nothing if
    there is no table."""
    from pyspark.errors import AnalysisException

    session = rows.sparkSession
    try:
        session.read.format("delta").load(path)
    except AnalysisException as problem:
        if not is_no_table(problem):
            raise
        return
    columns = _columns_ddl(rows.drop(POSITION, CHANGE), query)
    writer = session.createDataFrame([], columns).write.format("delta").mode("overwrite")
    writer.option("overwriteSchema", "true").partitionBy(*query.body.get("partition_by", ())).save(path)


def _columns_ddl(rows: DataFrame, query: ResolvedQuery) -> str:
    """Return the columns of the sink's table."""
    columns = [f"{quoted(field.name)} {ddl_of(field.dataType)}" for field in rows.schema.fields]
    added = VERSION_COLUMNS if keeps_history(query.body) else ()
    return ", ".join([*columns, *(f"{quoted(column.name)} {column.type}" for column in added)])


def _definition(rows: DataFrame, query: ResolvedQuery) -> str:
    """Return the text after a table's name in CREATE TABLE."""
    partitions = query.body.get("partition_by", ())
    folders = f" PARTITIONED BY ({', '.join(map(quoted, partitions))})" if partitions else ""
    return f"({_columns_ddl(rows.drop(POSITION, CHANGE), query)}) USING DELTA{folders}"


def _write_by_key(
    batch: DataFrame, step: int, query: ResolvedQuery, path: str, *, replaces: bool = False
) -> int | None:
    """Write the latest row of each key of the batch into the table, or its versions for a history.

    The table is created if it is missing. `replaces`: the batch has all that the table should have.
    """
    keys = tuple(query.body["key"])
    session, table = batch.sparkSession, f"delta.{quoted(path)}"
    session.sql(f"CREATE TABLE IF NOT EXISTS {table} {_definition(batch, query)}")
    # This is the query's own session. MERGE WITH SCHEMA EVOLUTION, in SQL, silently leaves a new column out.
    session.conf.set("spark.databricks.delta.schema.autoMerge.enabled", "true")
    if keeps_history(query.body):
        return record_versions(batch, step, path, keys, query.body.get("valid_from"), replaces=replaces)
    latest = latest_rows(batch, keys)
    if replaces:
        return replace_rows(latest, step, path, keys, query.address)
    return merge(latest, step, table, keys)
