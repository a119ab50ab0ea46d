"""The files that a files sink has written, listed without Spark, with rows and steps for `mzplan verify`.

Together, the listed files have each row once.

Spark's file sink lists the valid files in `_spark_metadata`; an unlisted file was left by a killed attempt.
Spark itself reads only listed files. Other readers can get the list here:

    from mzplan.connectors.files.manifest import committed_files
    table = pyarrow.parquet.ParquetDataset(committed_files("/lake/orders")).read()
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from mzplan.connectors.api.queries import Output, ResolvedQuery
from mzplan.connectors.api.targets import PLACE, Content, Recorded, hash_files, incomparable
from mzplan.connectors.formats.parsers import csv_options
from mzplan.connectors.formats.written import row_to_csv, row_to_json
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.types import EXACT_FILES, EXACT_PARTITIONED_FILES, as_stored, quoted
from mzplan.connectors.network.aws import use_s3
from mzplan.connectors.network.folders import folder_of
from mzplan.endpoints.arrow import arrow_type
from mzplan.endpoints.interface import Step, Written
from mzplan.schema.columns import POSITION
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.folder import Folder, exists, open_folder, read_text
from mzplan.warehouse.partitions import NULL, typed
from mzplan.warehouse.paths import local_path

if TYPE_CHECKING:
    from pyarrow import Scalar
    from pyspark.sql import DataFrame, SparkSession

LOG = "_spark_metadata"
COMPACT = ".compact"
_VERSION = "v1"


def committed_files(folder: str | Path) -> list[str]:
    """Return the paths of the valid files, in the order of their steps. Empty before the first step.

    The list contains all files of a step or none, even while the step is being written. Raises ValueError for
    a list in an unknown version.
    """
    return read_list(str(folder))[1]


def read_list(folder: str) -> tuple[int, list[str]]:
    """Return the newest step in the list (-1 for none), and the files of all steps. Raises ValueError, and
    OSError for storage errors."""
    log = open_list(folder)
    names = log.names()
    # A compacted entry lists its own files and the files of all entries before it.
    compacted = max((int(n.removesuffix(COMPACT)) for n in names if n.endswith(COMPACT)), default=-1)
    later = sorted(int(name) for name in names if name.isdecimal() and int(name) > compacted)
    entries = [f"{compacted}{COMPACT}"] if compacted >= 0 else []
    files = [file for entry in [*entries, *map(str, later)] for file in files_of(log, entry) or ()]
    return max([compacted, *later]), files


def open_list(folder: str) -> Folder:
    """Open the list in a folder. Its entries are named `3` or `9.compact`."""
    return open_folder(f"{folder}/{LOG}")


def files_of(log: Folder, entry: str) -> list[str] | None:
    """Return the files of an entry, or None if it is missing. Raises ValueError, and OSError for storage
    errors."""
    data = log.read(entry)
    if data is None:
        return None
    version, *lines = data.decode().splitlines()
    if version != _VERSION:
        raise ValueError(f"{entry} in {LOG} is of version {version!r}, not {_VERSION!r}")
    files = (json.loads(line) for line in lines)
    return [_path(file["path"]) for file in files if file.get("action", "add") == "add"]


def hadoop_path(file: str) -> str:
    """Return a listed file's path as Hadoop and Spark write it: without the percent-encoding of a URI."""
    return file if local_path(file) is not None else unquote(file)


def _path(uri: str) -> str:
    """Return an entry's URI as a local path or, in an object store, unchanged."""
    parts = urlsplit(uri)
    return unquote(parts.path) if parts.scheme in ("", "file") else uri


_LINE = "_mzplan_line"
_CSV = csv_options({})


class FilesContent(Content):
    """The rows of the listed files, as Spark reads them. Unlisted files don't belong to the target.

    Parquet files are compared by their values. JSON and CSV files, and the partition values in their folders'
    names, are compared by the text that Spark writes.
    """

    def __init__(self, query: ResolvedQuery, outputs: Sequence[Output], spark: SparkSession):
        self._outputs = outputs
        self._format: str = query.body["format"]["type"]
        folder = self._folder = folder_of(query)
        partitions = {name.lower() for name in query.body.get("partition_by", ())}
        self._partitions = [output.name for output in outputs if output.name.lower() in partitions]
        use_s3(spark, query, folder)
        self.frontier, files = read_list(folder)
        presence = {file: exists(file) for file in files}
        self._files = [file for file, exists in presence.items() if exists]
        missing = [file for file, exists in presence.items() if not exists]
        self.not_compared = (
            [f"{len(missing)} of {len(files)} listed files are gone, the first is {missing[0]}"]
            if missing
            else []
        )
        if self.frontier < 0:
            raise incomparable(
                query,
                f"{folder} has no {LOG}, the list of files.",
                "compare again when the sink has written its first step.",
            )

    def rows(self, spark: SparkSession) -> DataFrame:
        is_json, is_parquet = self._format == "json", self._format == "parquet"
        names = [_LINE, *self._partitions] if is_json else [output.name for output in self._outputs]
        types = {output.name: output.type for output in self._outputs} if is_parquet else {}
        schema = ", ".join(f"{quoted(name)} {types.get(name) or 'STRING'}" for name in names)
        if not self._files:
            return spark.createDataFrame([], f"{schema}, {PLACE} STRING")
        exactly = EXACT_PARTITIONED_FILES if self._partitions else EXACT_FILES
        reader = spark.read.options(**exactly).schema(schema)
        if self._partitions:
            reader = reader.option("basePath", self._folder)
        files = [hadoop_path(file) for file in self._files]
        if is_parquet:
            rows = reader.parquet(*files)
        elif is_json:
            rows = reader.text(files, lineSep="\n")
        else:
            rows = reader.options(**_CSV).csv(files, header=True, multiLine=True)
        return rows.select(*map(quoted, names), f.col("_metadata.file_name").alias(PLACE))

    def stored_form(self, rows: DataFrame, query: ResolvedQuery) -> DataFrame:
        rows = as_stored(rows, self._partitions)
        names = {name.lower(): name for name in rows.columns}
        named = [(names[name.lower()], name) for name in self._partitions]
        texts = [f.col(quoted(own)).cast("string").alias(name) for own, name in named]
        in_names = {own for own, _ in named} | {POSITION}
        written_names = [name for name in rows.columns if name not in in_names]
        if self._format == "json":
            return rows.select(row_to_json(rows, written_names).alias(_LINE), *texts, POSITION)
        if self._format == "csv":
            # Read again, because only the texts of the values can be compared.
            schema = ", ".join(f"{quoted(name)} STRING" for name in written_names)
            line = f.from_csv(row_to_csv(rows, written_names), f.lit(schema), _CSV)
            rows = rows.select(f.inline(f.array(line)), *texts, POSITION)
            names = {name.lower(): name for name in rows.columns}
        values = []
        for output in self._outputs:
            name = names.get(output.name.lower())
            values.append((f.col(quoted(name)) if name else f.lit(None)).alias(output.name))
        return rows.select(*values, POSITION)


class FilesRecorded(Recorded):
    """The steps in the folder's list: the rows of the files that it names for a step.

    Rows are counted. Rows of Parquet files are also hashed, if the types of all partition columns are known
    without Spark. Spark compacts the list every ten steps; the steps of older files are then unknown.
    """

    def __init__(self, query: ResolvedQuery, outputs: Sequence[Output]):
        self._format: str = query.body["format"]["type"]
        self.partitions = query.body.get("partition_by", ())
        types = {output.name.lower(): output.type for output in outputs}
        known = {name: type_ for name in self.partitions if (type_ := types.get(name.lower()))}
        self._types = {name: arrow_type(type_) for name, type_ in known.items()}
        self._log = open_list(folder_of(query))

    def step(self, step: Step) -> Written | None:
        files = files_of(self._log, str(step))
        if files is None:
            files = self._newest_of(step)
        if files is None:
            return None
        if self._format != "parquet":
            return Written(rows=sum(_count(file, self._format) for file in files))
        is_known = len(self._types) == len(self.partitions)
        written = hash_files((file, self._values(file) if is_known else {}) for file in files)
        return written if is_known else Written(rows=written.rows)

    def _values(self, file: str) -> dict[str, Scalar[Any]]:
        """Return the partition values that a file's folders are named after."""
        folders = hadoop_path(file).split("/")[-len(self.partitions) - 1 : -1]
        texts = (unquote(folder.partition("=")[2]) for folder in folders)
        values = {
            name: None if text == NULL else text for name, text in zip(self.partitions, texts, strict=True)
        }
        return typed(values, self._types)

    def _newest_of(self, step: Step) -> list[str] | None:
        """Return the files of a step from its compacted entry: the files that earlier entries don't have."""
        own_files = files_of(self._log, f"{step}{COMPACT}")
        earlier_files: set[str] = set()
        for earlier in range(step - 1, -1, -1):
            compacted, plain = (files_of(self._log, f"{earlier}{end}") for end in (COMPACT, ""))
            earlier_files.update(compacted or plain or ())
            if compacted is not None:
                break
            if plain is None:
                return None
        return [file for file in own_files if file not in earlier_files] if own_files is not None else None


def _count(file: str, format_: str) -> int:
    """Return the number of rows of a file of JSON lines, or of CSV with a header. Raises GoneError,
    OSError."""
    text = read_text(file)
    if text is None:
        raise GoneError(f"{file}, which the target says this step has written, is gone.")
    if format_ == "json":
        return sum(1 for line in text.split("\n") if line)
    rows = csv.reader(io.StringIO(text, newline=""))
    return max(0, sum(1 for _ in rows) - 1)
