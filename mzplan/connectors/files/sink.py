"""The files sink: Spark's own file stream, which lists the valid files in `_spark_metadata`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.connector import SinkConnector
from mzplan.connectors.api.outputs import may_be_null
from mzplan.connectors.api.queries import Output, Probe, ResolvedQuery, SinkRun, empties_target
from mzplan.connectors.api.targets import Content, Recorded, unfit_target
from mzplan.connectors.files.content import FilesContent, FilesRecorded
from mzplan.connectors.files.manifest import LOG
from mzplan.connectors.files.parquet_types import unfit_files
from mzplan.connectors.files.partition_folders import unfit_partition_folders
from mzplan.connectors.formats.written import WRITER_OPTIONS, as_written, unfit_keys
from mzplan.connectors.frames.files import as_stored
from mzplan.connectors.frames.metrics import with_count
from mzplan.connectors.network.aws_spark import use_s3
from mzplan.connectors.network.folders import folder_of, route, target_problems, unfit_partitions
from mzplan.model.diagnostics import Diagnostic, error
from mzplan.schema.columns import POSITION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_NOT_IN_CSV = ("ARRAY", "MAP", "STRUCT", "BINARY")


class FilesSink(SinkConnector):
    """Adds files to a folder. Readers that follow the folder's list get each row exactly once."""

    def route(self, query: ResolvedQuery) -> str:
        return route(query)

    def probe(self, query: ResolvedQuery, outputs: Sequence[Output]) -> Probe:
        """Check that the folder can be written and that the format can hold the columns. Also check that
        existing files have the same types and partition columns."""
        folder, format_ = folder_of(query), query.body["format"]["type"]
        diagnostics = target_problems(query, folder)
        diagnostics += unfit_partitions(query, outputs)
        if format_ == "csv":
            diagnostics += _not_for_csv(query, outputs)
        if format_ == "json":
            diagnostics += unfit_keys(query, outputs)
        if not diagnostics:
            diagnostics += unfit_partition_folders(query, folder)
        if format_ == "parquet" and not diagnostics:
            diagnostics += unfit_files(query, folder, outputs)
        return Probe(diagnostics=tuple(diagnostics))

    def recorded(self, query: ResolvedQuery, outputs: Sequence[Output]) -> Recorded:
        """Return the steps in the folder's list. For formats other than Parquet, only with row counts."""
        return FilesRecorded(query, outputs)

    def content(self, query: ResolvedQuery, outputs: Sequence[Output], spark: SparkSession) -> Content:
        """Return the listed files."""
        return FilesContent(query, outputs, spark)

    def write(self, rows: DataFrame, run: SinkRun) -> DataStreamWriter:
        folder = folder_of(run.query)
        use_s3(rows.sparkSession, run.query, folder)
        if run.is_new:
            _clear_folder(rows.sparkSession, folder, run)
        names = {name.lower(): name for name in rows.columns}
        partitions = [names[name.lower()] for name in run.query.body.get("partition_by", ())]
        format_ = run.query.body["format"]["type"]
        rows = as_written(as_stored(rows.drop(POSITION), partitions), format_, partitions)
        writer = with_count(rows).writeStream.format(format_).outputMode("append")
        return (
            writer.options(**WRITER_OPTIONS.get(format_, {})).option("path", folder).partitionBy(*partitions)
        )


def _clear_folder(session: SparkSession, folder: str, run: SinkRun) -> None:
    """Remove or refuse another query's files in this folder. Spark skips batches whose numbers are already in
    the list, so a new query would silently lose its first batches."""
    # Private attributes, because PySpark has no public access to Hadoop's file systems with Spark's settings.
    java: Any = session._jvm
    path = java.org.apache.hadoop.fs.Path(folder)
    system = path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
    log = java.org.apache.hadoop.fs.Path(path, LOG)
    if not system.exists(log):
        return
    if not empties_target(run.query):
        raise error(
            "MZ057",
            f"Folder {folder} contains another query's output",
            f"{run.query.link.address}: this query would mistake the steps in its {LOG} for its own.",
            "give the sink a folder of its own, or empty this one.",
            address=run.query.address,
        )
    # The list is removed last, so that after a crash in between, the removal is repeated.
    _remove_files(system, path)
    system.delete(log, True)


def _remove_files(system: Any, path: Any) -> None:
    """Remove the files that Spark has written in a folder and in the partition folders below it."""
    for status in system.listStatus(path):
        name = str(status.getPath().getName())
        if status.isFile() and name.startswith("part-"):
            system.delete(status.getPath(), False)
        elif status.isDirectory() and "=" in name:
            _remove_files(system, status.getPath())


def _not_for_csv(query: ResolvedQuery, outputs: Sequence[Output]) -> list[Diagnostic]:
    """Return MZ053 if csv can't hold the columns. Spark writes no line for a row whose only column is
    NULL."""
    partitions = {name.lower() for name in query.body.get("partition_by", ())}
    columns = [output for output in outputs if output.name.lower() not in partitions]
    wrong = [
        f"{output.name} ({output.type})" for output in columns if (output.type or "").startswith(_NOT_IN_CSV)
    ]
    if wrong:
        why = f"{', '.join(wrong)}: a field of csv holds one simple value."
        fix = (
            "write them as text in `select` (to_json(…) AS name; base64(…) AS name for BINARY), or use "
            "`format: {type: json}`."
        )
    elif len(columns) == 1 and may_be_null(query, (name := columns[0].name)):
        why = f"{name} is the only column of a line, and may be NULL: csv has no line for such a row."
        fix = f"leave such rows out (where: {name} IS NOT NULL), or write another column as well."
    else:
        return []
    return [unfit_target(query, f"csv can't hold the columns of {query.address}", why, fix)]
