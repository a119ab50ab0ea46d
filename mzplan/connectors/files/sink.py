"""The files sink: Spark's own file stream, which lists the valid files in `_spark_metadata`.

Readers refuse a folder in which a column has two types, and a folder with several sets of partition columns.
Spark would write both without an error, so the probe compares the existing files with the sink.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from mzplan.connectors.api.connector import SinkConnector
from mzplan.connectors.api.outputs import may_be_null
from mzplan.connectors.api.probes import with_time_limit
from mzplan.connectors.api.queries import Output, Probe, ResolvedQuery, SinkRun, empties_target
from mzplan.connectors.api.targets import Content, Recorded, unfit_target
from mzplan.connectors.files.manifest import LOG, FilesContent, FilesRecorded, read_list
from mzplan.connectors.formats.written import WRITER_OPTIONS, as_written, unfit_keys
from mzplan.connectors.frames.row_hash import with_count
from mzplan.connectors.frames.types import as_stored
from mzplan.connectors.network.aws import use_s3
from mzplan.connectors.network.folders import (
    are_same_columns,
    folder_of,
    open_below,
    partition_mismatch,
    rewrite_hint,
    route,
    target_problems,
    unfit_partitions,
)
from mzplan.model.diagnostics import Diagnostic, error
from mzplan.model.words import one_line
from mzplan.schema.columns import POSITION
from mzplan.warehouse.paths import local_path

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_MAX_FOLDERS = 40  # folders to search
_MAX_PER_COLUMNS = 8  # folders to search for the same columns: truncating leaves empty folders behind


def unfit_partition_folders(query: ResolvedQuery, folder: str) -> list[Diagnostic]:
    """Return MZ053 for a folder with files of the sink's format under other partition columns. Checks only
    before the sink's first step, because later on, other files don't belong to the target."""
    try:
        if query.checkpoint is not None and query.checkpoint.log.has_begun():
            return []
        has_list = LOG in with_time_limit(lambda: open_below(query, folder).names())
        if has_list and empties_target(query):
            return []  # they will be removed
        combinations = with_time_limit(lambda: _partition_columns(query, folder))
    except (OSError, TimeoutError, ValueError):  # the start reports the problem
        return []
    wanted = query.body.get("partition_by", ())
    other_columns = next((names for names in combinations if not are_same_columns(names, wanted)), None)
    if other_columns is None:
        return []
    printable_names = [one_line(name) for name in other_columns]  # folder names may contain any bytes
    return [partition_mismatch(query, folder, printable_names, can_rewrite=has_list)]


def _partition_columns(query: ResolvedQuery, folder: str) -> list[tuple[str, ...]]:
    """Return the combinations of columns that the files' folders are named after, outermost column first."""
    ending = f".{query.body['format']['type']}"
    combinations: dict[tuple[str, ...], None] = {}
    visits: Counter[tuple[str, ...]] = Counter()
    queue: deque[tuple[str, tuple[str, ...]]] = deque([("", ())])
    while queue and visits.total() < _MAX_FOLDERS:
        inner, columns = queue.popleft()
        if visits[columns] >= _MAX_PER_COLUMNS:
            continue
        visits[columns] += 1
        queued_counts: Counter[tuple[str, ...]] = Counter()
        for name in open_below(query, folder, inner).names():
            if name.startswith("_"):
                continue
            if ending in name:
                combinations[columns] = None
            elif "=" in name:
                inner_columns = (*columns, unquote(name.partition("=")[0]))
                queued_counts[inner_columns] += 1
                if queued_counts[inner_columns] <= _MAX_PER_COLUMNS:
                    queue.append((f"{inner}/{name}", inner_columns))
    return list(combinations)


_NAMES = {
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INT",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "large_string": "STRING",
    "binary": "BINARY",
    "date32[day]": "DATE",
}


def unfit_files(query: ResolvedQuery, folder: str, outputs: Sequence[Output]) -> list[Diagnostic]:
    """Return MZ053 if a column's type in the newest file differs from the type that the sink writes.

    Missing and additional columns are fine, because readers accept them. Checks only folders on this machine.
    """
    begins = query.checkpoint is not None and not query.checkpoint.log.has_begun()
    if local_path(folder) is None or (begins and empties_target(query)):
        return []  # In an object store, Spark reports it. Files that will be removed don't matter.
    types = _types_in(folder)
    mismatches = [
        f"{output.name} is {stored} in the files, but the sink writes {output.type}"
        for output in outputs
        if output.type in _NAMES.values()
        and (stored := types.get(output.name.lower(), output.type)) != output.type
    ]
    if not mismatches:
        return []
    return [
        unfit_target(
            query,
            f"The column types of the files in {folder} don't fit {query.address}",
            f"{'; '.join(mismatches)}. Readers refuse a folder with both types.",
            f"cast or rename the column in `select`; or use another path; or {rewrite_hint(query)}.",
        )
    ]


def _types_in(folder: str) -> dict[str, str]:
    """Return the type of each column in the newest readable file. Leaves out nested types and timestamps."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        files = read_list(folder)[1]
    except (OSError, ValueError):  # the sink's start reports it
        return {}
    for file in reversed(files[-3:]):  # the last one may be empty, or removed by somebody
        try:
            fields: Sequence[pa.Field] = list(pq.read_schema(file))
        except (OSError, pa.ArrowInvalid):
            continue
        return {field.name.lower(): name for field in fields if (name := _NAMES.get(str(field.type)))}
    return {}


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
            "MZ057.folder-contains",
            address=run.query.address,
            folder=folder,
            resource=run.query.link.address,
            log=LOG,
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
