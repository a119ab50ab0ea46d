"""The files source: Spark's own file stream over a folder with JSON lines, CSV, text or Parquet."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.connector import AdoptingSource, SourceConnector
from mzplan.connectors.api.queries import Probe, ResolvedQuery
from mzplan.connectors.api.upstreams import another_upstream, list_names
from mzplan.connectors.files.named_folders import (
    NamedFolders,
    check_quotes,
    is_read,
    named_columns,
    optional,
    with_folder_values,
)
from mzplan.connectors.formats.parsers import (
    CORRUPT,
    column_parser,
    csv_column_parser,
    csv_options,
    parsed_ddl,
    parser_of,
    raw_format_of,
)
from mzplan.connectors.formats.records import Records, check_records
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.types import EXACT_FILES, ddl, row_clock
from mzplan.connectors.network.aws import use_s3
from mzplan.connectors.network.folders import (
    files_below,
    folder_of,
    folder_problems,
    relative_path,
    route,
    times_of,
)
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.losses import FirstCopy, Loss
from mzplan.model.words import one_line
from mzplan.schema.columns import spark_type
from mzplan.schema.source_columns import record_columns
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.folder import decoding, open_folder, replace_file
from mzplan.warehouse.foreign_query import ForeignQuery, files_read
from mzplan.warehouse.paths import absolute, local_path

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame, SparkSession

_PLACE, _ROW_INDEX = "_mzplan_place", "_metadata.row_index"
_RECORDS = re.compile(r"\.(?:jsonl?|csv|txt|parquet)(?:\.(?:gz|bz2|zst|lz4|deflate|snappy))?$")
_MAX_LISTED = 10_000  # files of a folder to look at
_MAX_COMPARED = 100  # files to compare, starting with the last one read
_NO_LIMIT = "36500d"  # by default, Spark never reads a file that is 7 days older than the newest one
_TIME_RESOLUTION_MS = 1_000  # object stores give the time of a file in seconds


class FilesSource(SourceConnector):
    """Reads each file of a folder once, line by line, in the order of the files' modification times."""

    position = "STRUCT<path: STRING, row_group: BIGINT, row: BIGINT>"
    """`row_group`: the byte at which the task that read the line began; `row` grows along the lines."""
    keeps_positions = False

    def probe(self, query: ResolvedQuery) -> Probe:
        """Check that the folder can be listed, and report files that Spark never reads.

        A folder has no identity except the times of its files, which `check_position` compares.
        """
        folder = folder_of(query)
        problems = folder_problems(query, folder) or _skipped_files(query, folder)
        return Probe(diagnostics=tuple(problems), upstream={"type": "files"})

    def check_position(self, query: ResolvedQuery, position: str) -> Diagnostic | None:
        """Return MZ043 if the folder was re-created: all files that were read last and still exist have been
        written again since. Spark never reads a file whose name it has already read, even if the content is
        new."""
        folder = folder_of(query)
        try:
            with decoding("an offset"):
                end = json.loads(position)
            log = query.checkpoint.log.files(None, end) if query.checkpoint is not None else {}
            times_read = {
                path_in_folder: time
                for path, time in islice(reversed(log.items()), _MAX_COMPARED)
                if (path_in_folder := relative_path(path, folder)) is not None
            }
            present = times_of(query, folder, list(times_read)) if times_read else {}
        except (OSError, MzplanError):  # the probe reports the folder's problem
            return None
        rewritten = [name for name, time in present.items() if time > times_read[name] + _TIME_RESOLUTION_MS]
        if not rewritten or len(rewritten) < len(present):
            return None
        why = f"{route(query)}: written again after they were read: {list_names(rewritten, 'files')}"
        return another_upstream(query, "folder", why)

    def route(self, query: ResolvedQuery) -> str:
        return route(query)

    def guard(self, query: ResolvedQuery) -> Callable[[int], None] | None:
        """Check the quotes of csv files with columns of text. In any other column, the rest of a file is
        malformed."""
        checkpoint = query.checkpoint
        types = {spark_type(x.type) for x in record_columns(query.description.type, query.body)}
        if query.body["format"]["type"] != "csv" or "STRING" not in types or checkpoint is None:
            return None
        return lambda step: check_quotes(query, _planned_files(checkpoint))

    def loss(self, query: ResolvedQuery, former: Checkpoint) -> Loss | None:
        """Return the number of files that are gone. If the folder was moved, only file names are compared."""
        log, folder = former.log, folder_of(query)
        end, _ = log.offset(log.newest())
        paths_read = log.files(None, end)
        paths_read = {
            path: time
            for path, time in paths_read.items()
            if (path_in_folder := relative_path(path, folder)) is None or is_read(path_in_folder)
        }
        if not paths_read:
            return None
        present = files_below(query, folder)
        names = {path.rpartition("/")[2] for path in present}
        missing = []
        for path in paths_read:
            path_in_folder = relative_path(path, folder)
            if (
                path_in_folder not in present
                if path_in_folder is not None
                else path.rpartition("/")[2] not in names
            ):
                missing.append(path if path_in_folder is None else path_in_folder)
        if not missing:
            return None
        where = f"{route(query)}: {list_names(missing, 'files')}"
        return Loss(lost=len(missing), read=len(paths_read), unit="files", where=where)

    def stream(self, spark: SparkSession, query: ResolvedQuery) -> DataFrame:
        folder = folder_of(query)
        use_s3(spark, query, folder)
        reader = spark.readStream.options(**EXACT_FILES, maxFileAge=_NO_LIMIT)
        reader = reader.option("maxFilesPerTrigger", query.body["max_files_per_trigger"])
        return _rows(reader, folder, query)

    def upstream_end(self, query: ResolvedQuery) -> dict[str, Any] | None:
        """Return how many `files` Spark lists."""
        folder = folder_of(query)
        try:
            paths = files_below(query, folder)
        except MzplanError:  # the folder takes too long to list
            return None
        return {"files": sum(not any(map(_is_hidden, path.split("/"))) for path in paths)}

    def first_copy(self, checkpoint: Checkpoint, body: Mapping[str, Any]) -> FirstCopy:
        """The files that were there are read once as many files are read, because Spark reads the oldest ones
        first. They are also read after a step with room for more files."""
        log, recorded = checkpoint.log, checkpoint.first_end() or {}
        newest = log.committed()
        (position, _), (before, _) = log.offset(newest), log.offset(newest - 1)
        had_room = 0 < len(log.files(before, position)) < body["max_files_per_trigger"]
        if had_room:
            return FirstCopy()
        read = len(log.files(None, position))
        return FirstCopy(read=(read,), ends=(recorded.get("files", read + 1),), unit="file", is_behind=True)

    def migrate_checkpoint(self, earlier: Checkpoint, later: Checkpoint) -> None:
        """Copy the log of the files that were read. A position is the number of an entry in this log."""
        log, copy = (open_folder(f"{checkpoint.spark}/sources/0") for checkpoint in (earlier, later))
        for name in log.names():
            if (entry := log.read(name)) is not None:
                replace_file(copy, name, entry)

    def replay(
        self,
        spark: SparkSession,
        query: ResolvedQuery,
        start: Any,
        end: Any,
        files: Callable[[], Sequence[str]],
    ) -> DataFrame:
        """Return the rows of the recorded files."""
        use_s3(spark, query, folder_of(query))
        return _rows(spark.read.options(**EXACT_FILES), list(files()), query)


def _planned_files(checkpoint: Checkpoint) -> Sequence[str]:
    """Return the files that Spark has planned to read, after the last committed step."""
    committed, _ = checkpoint.log.offset(checkpoint.log.committed())
    return list(checkpoint.log.files(committed, {"logOffset": sys.maxsize}))


def _skipped_files(query: ResolvedQuery, folder: str) -> list[Diagnostic]:
    """Return MZ214 for files with records that Spark skips as hidden. Looks only into local folders."""
    local = local_path(folder)
    if local is None:
        return []
    with os.scandir(local) as entries:
        all_names = (entry.name for entry in islice(entries, _MAX_LISTED))
        names = sorted(name for name in all_names if _is_hidden(name) and _RECORDS.search(name))
    if not names:
        return []
    text = list_names([one_line(name) for name in names], "files")
    return [
        Diagnostic.of(
            "MZ214.skips-files", address=query.address, folder=folder, route=route(query), text=text
        )
    ]


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _rows(reader: Any, place: str | list[str], query: ResolvedQuery) -> DataFrame:
    """Return the rows in `place`: a folder for a stream's reader, or files for a batch's reader."""
    body = query.body
    format_, on_error = body["format"], body["on_error"]
    columns = record_columns(query.description.type, body)
    named = named_columns(query, columns)
    in_files = optional(columns, named)
    match format_["type"]:
        case "csv":  # read by Spark, because only it knows a file's first line
            in_files = [column for column in columns if column.name not in named]
            options, raw_format = csv_options(format_), raw_format_of(format_)
            # A header with other names, or in another order, is an error.
            heading = {"header": str(format_["header"]).lower(), "enforceSchema": "false"}
            options["multiLine"] = "true"  # a line break within quotes belongs to the field
            reader = reader.format("csv").schema(f"{parsed_ddl(in_files, raw_format)}, {CORRUPT} STRING")
            lines, row = reader.options(**options, **heading).load(place), row_clock()
            parser = csv_column_parser(in_files, options, raw_format)
        case "parquet":
            lines, row = reader.format("parquet").schema(ddl(columns)).load(place), f.col(_ROW_INDEX)
            parser = column_parser(in_files)
        case type_:
            lines, row = reader.format("text").load(place), row_clock()
            if type_ == "json":  # a blank line is not a record
                lines = lines.where("trim(value) <> ''")
            parser = parser_of(format_, in_files)
    folder = folder_of(query)
    records = _records(lines, row, folder)
    rows = check_records(records, parser, in_files, on_error)
    if format_["type"] == "text":
        return rows
    return with_folder_values(rows, folder, columns, format_.get("values", "exact"))


def _records(rows: DataFrame, row: Expression, folder: str) -> Records:
    """Return the lines as records with their positions."""
    path = f.col("_metadata.file_path")
    rows = rows.where(NamedFolders(folder, path).is_read())
    # The columns of the position are selected first, because Spark knows them only at the scan.
    place = f.struct(
        path.alias("path"),
        f.col("_metadata.file_block_start").alias("row_group"),
        row.alias("row"),
    )
    rows_with_place = rows.select("*", place.alias(_PLACE))
    return Records(
        rows=rows_with_place,
        position=f.col(_PLACE),
        where=lambda at: f.concat(f.lit("file "), at["path"]),
    )


def adoption_problems(
    source: AdoptingSource, query: ForeignQuery, position: Mapping[str, Any]
) -> Iterator[str]:
    """Yield why the source can't continue from a query, which must have read only files below its folder."""
    if set(position) != {"logOffset"}:
        yield "It doesn't read a folder of files."
        return
    folder = absolute(source.directory, source.connection["path"], source.body["path"])
    outside = next((path for path in files_read(query) if relative_path(path, folder) is None), None)
    if outside is not None:
        yield f"It has read {outside}, which isn't below the source's folder, {folder}."
