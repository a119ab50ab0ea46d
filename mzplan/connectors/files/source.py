"""The files source: Spark's own file stream over a folder: lines of JSON, CSV or text, or Parquet."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.protocols import Probe, ResolvedQuery
from mzplan.connectors.formats.parsers import CORRUPT, already_columns, csv_options
from mzplan.connectors.formats.records import Records, checked, parse_records
from mzplan.connectors.frames.types import ddl
from mzplan.connectors.network.aws import ROLE as AWS
from mzplan.connectors.network.aws import arrow_filesystem
from mzplan.connectors.network.aws_spark import as_s3a, use_s3
from mzplan.model.diagnostics import Diagnostic
from mzplan.schema.source_columns import record_columns
from mzplan.warehouse.paths import absolute, local_path

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame, SparkSession


_PLACE = "_mzplan_place"


class FilesSource:
    """Reads each file of a folder once, line by line, in the order of their modification."""

    position = "STRUCT<path: STRING, row_group: BIGINT, row: BIGINT>"
    """`row_group` is the byte at which the task that read the line began; `row` grows along the lines."""

    def probe(self, query: ResolvedQuery) -> Probe:
        """Whether the folder is there and can be listed. A folder has no identity to compare."""
        return Probe(diagnostics=tuple(_folder_problems(query, folder_of(query))))

    def place(self, query: ResolvedQuery) -> str:
        return place(query)

    def compare(
        self, query: ResolvedQuery, recorded: Mapping[str, Any], found: Mapping[str, Any]
    ) -> Diagnostic | None:
        return None

    def check_position(self, query: ResolvedQuery, position: str) -> Diagnostic | None:
        return None

    def stream(self, spark: SparkSession, query: ResolvedQuery) -> DataFrame:
        body = query.body
        format_, on_error = body["format"], body["on_error"]
        columns = record_columns(query.description.type, body)
        folder = folder_of(query)
        use_s3(spark, query, folder)
        reader = spark.readStream.option("maxFilesPerTrigger", body["max_files_per_trigger"])
        match format_["type"]:
            case "csv":  # read by Spark, which alone knows the first line of a file
                options = csv_options(format_)
                # A header that has other names, or another order, is an error.
                heading = {"header": str(format_["header"]).lower(), "enforceSchema": "false"}
                reader = reader.format("csv").schema(f"{ddl(columns)}, {CORRUPT} STRING")
                records = _records(reader.options(**options, **heading).load(folder), _row())
                return checked(records, already_columns(columns, CORRUPT, options), columns, on_error)
            case "parquet":
                reader = reader.format("parquet").schema(ddl(columns))
                records = _records(reader.load(folder), "_metadata.row_index")
                return checked(records, already_columns(columns, None, {}), columns, on_error)
            case type_:
                records = _records(reader.format("text").load(folder), _row())
                if type_ == "json":  # a blank line is no record
                    records = replace(records, rows=records.rows.where("trim(value) <> ''"))
                return parse_records(records, format_, columns, on_error)


def folder_of(query: ResolvedQuery) -> str:
    """The source's or sink's folder: its path below the connection's."""
    folder = absolute(query.directory, query.link.body["path"], query.body["path"])
    return as_s3a(folder) if AWS in query.link.connections else folder


def _records(rows: DataFrame, row: Expression | str) -> Records:
    from pyspark.sql import functions as f

    # Columns that say where a row is come before anything is made of it: Spark knows them at the scan only.
    place = f.struct(
        f.col("_metadata.file_path").alias("path"),
        f.col("_metadata.file_block_start").alias("row_group"),
        (f.col(row) if isinstance(row, str) else row).alias("row"),
    )
    placed = rows.select("*", place.alias(_PLACE))
    return Records(
        rows=placed,
        value="value",
        position=f.col(_PLACE),
        where=lambda at: f.concat(f.lit("file "), at["path"]),
    )


def _row() -> Expression:
    """What grows along the lines that one task reads. Spark has no row number for text, and refuses
    monotonically_increasing_id in streams; a clock that only goes forward is as good for ordering."""
    from pyspark.sql import functions as f

    return f.reflect(f.lit("java.lang.System"), f.lit("nanoTime")).cast("bigint")


def _folder_problems(query: ResolvedQuery, folder: str) -> list[Diagnostic]:
    local = local_path(folder)
    if local is None:
        return _remote_problems(query, folder)
    try:
        if not local.is_dir():
            raise FileNotFoundError
        next(local.iterdir(), None)
    except FileNotFoundError:
        what = "is a file, not a folder" if local.exists() else "does not exist"
        return [
            _problem(query, folder, f"Folder {folder} {what}", f"create it: mkdir -p {shlex.quote(folder)}")
        ]
    except OSError as problem:
        return [
            _problem(
                query, folder, f"Folder {folder} can't be read", f"{problem.strerror}; check its rights."
            )
        ]
    return []


def _remote_problems(query: ResolvedQuery, folder: str) -> list[Diagnostic]:
    from pyarrow import fs

    from mzplan.connectors.postgres.client import bounded

    def ask() -> Any:
        if AWS not in query.link.connections:
            system, path = fs.FileSystem.from_uri(folder.replace("s3a://", "s3://", 1))
            return system.get_file_info(path)
        bucket, _, path = folder.partition("://")[2].partition("/")
        system = arrow_filesystem(query.link.connections[AWS])
        if system.get_file_info(bucket).type == fs.FileType.NotFound:
            raise FileNotFoundError(f"there is no bucket {bucket}")
        # Listed, and not only looked at: that takes the right to.
        return system.get_file_info(fs.FileSelector(f"{bucket}/{path}", allow_not_found=True))

    try:
        bounded(ask)
    except (OSError, TimeoutError, ValueError) as problem:
        said = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        return [_problem(query, folder, f"{folder} can't be reached", f"{said}; check path and credentials.")]
    return []


def target_problems(query: ResolvedQuery, folder: str) -> list[Diagnostic]:
    """Whether a table can be written below this folder, which need not be there yet."""
    import os

    local = local_path(folder)
    if local is None:
        return _remote_problems(query, folder)
    nearest = next((path for path in (local, *local.parents) if path.exists()), Path("/"))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        return [
            _problem(query, folder, f"Folder {folder} can't be written", f"check the rights of {nearest}.")
        ]
    return []


def place(query: ResolvedQuery) -> str:
    """Which connection, and which folder: for people."""
    return f"{query.link.address} ({folder_of(query)})"


def _problem(query: ResolvedQuery, folder: str, summary: str, hint: str) -> Diagnostic:
    return Diagnostic(
        code="MZ057",
        summary=summary,
        detail=f"{query.link.address} ({query.link.body['path']}): {folder}, where the query runs.",
        hint=hint,
        address=query.address,
    )
