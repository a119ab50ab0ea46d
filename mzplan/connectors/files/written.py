"""What a folder holds of the rows that a files sink has written, and of its steps: for `mzplan verify`."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import Output, ResolvedQuery
from mzplan.connectors.api.targets import PLACE, Content, Recorded, held, incomparable
from mzplan.connectors.files.manifest import COMPACT, LOG, files_of, listed, open_list
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.types import quoted
from mzplan.connectors.network.aws_spark import use_s3
from mzplan.connectors.network.folders import folder_of
from mzplan.endpoints.interface import Step, Written
from mzplan.schema.columns import POSITION
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.folder import is_there, read_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LINE = "value"


class FilesContent(Content):
    """The files that the folder's list names, as Spark reads them; files beside them are no rows of the
    target. Parquet is compared by its values; JSON and CSV by their text, as Spark's writer makes it."""

    def __init__(self, query: ResolvedQuery, outputs: Sequence[Output], spark: SparkSession):
        self._outputs = outputs
        self._format: str = query.body["format"]["type"]
        folder = folder_of(query)
        use_s3(spark, query, folder)
        self.frontier, files = listed(folder)
        there = {file: is_there(file) for file in files}
        self._files = [file for file, is_ in there.items() if is_]
        gone = [file for file, is_ in there.items() if not is_]
        self.unseen = (
            [f"{len(gone)} of {len(files)} listed files are gone, the first is {gone[0]}"] if gone else []
        )
        if self.frontier < 0:
            raise incomparable(query, f"{folder} has no {LOG}, the list of files.", "has the sink run yet?")

    def rows(self, spark: SparkSession) -> DataFrame:
        """See Content."""
        reader = spark.read.option("__globPaths__", "false")
        if self._format == "parquet":
            names = [quoted(one.name) for one in self._outputs]
            found = reader.schema(self._schema()).parquet(*self._files) if self._files else None
        elif self._format == "json":
            names = [_LINE]
            found = reader.text(self._files, lineSep="\n") if self._files else None
        else:
            names = [quoted(one.name) for one in self._outputs]
            reader = reader.schema(self._texts())
            found = reader.csv(self._files, header=True, multiLine=True) if self._files else None
        if found is None:
            schema = self._schema() if self._format == "parquet" else self._texts()
            schema = f"{_LINE} STRING" if self._format == "json" else schema
            return spark.createDataFrame([], f"{schema}, {PLACE} STRING")
        return found.select(*names, f.col("_metadata.file_name").alias(PLACE))

    def held(self, rows: DataFrame, query: ResolvedQuery) -> DataFrame:
        """See Content."""
        columns = [quoted(name) for name in rows.columns if name != POSITION]
        if self._format == "json":
            return rows.select(f.to_json(f.struct(*columns)).alias(_LINE), POSITION)
        if self._format == "csv":
            # Read again: what the text does not tell apart (NULL and nothing) is equal.
            schema = ", ".join(f"{name} STRING" for name in columns)
            line = f.from_csv(f.to_csv(f.struct(*columns)), f.lit(schema))
            rows = rows.select(f.inline(f.array(line)), POSITION)
        there = {name.lower(): name for name in rows.columns}
        values = []
        for output in self._outputs:
            name = there.get(output.name.lower())
            values.append((f.col(quoted(name)) if name else f.lit(None)).alias(output.name))
        return rows.select(*values, POSITION)

    def _schema(self) -> str:
        return ", ".join(f"{quoted(one.name)} {one.type or 'STRING'}" for one in self._outputs)

    def _texts(self) -> str:
        return ", ".join(f"{quoted(one.name)} STRING" for one in self._outputs)


_MOST_BYTES = 1 << 32  # of one file of text


class FilesRecorded(Recorded):
    """Reads the list in the folder, and the files that it names for a step: their rows, and for Parquet the
    hash. The list is merged every ten steps; then it is unknown which older file is of which step."""

    def __init__(self, query: ResolvedQuery):
        self._format: str = query.body["format"]["type"]
        self._log = open_list(folder_of(query))

    def step(self, step: Step) -> Written | None:
        listed = files_of(self._log, str(step))
        if listed is None:
            listed = self._newest_of(step)
        if listed is None:
            return None
        if self._format == "parquet":
            return held(listed)
        return Written(rows=sum(_count(file, self._format) for file in listed))

    def _newest_of(self, step: Step) -> list[str] | None:
        """The files of a step whose entry is a merged one: those that no entry before it has."""
        merged = files_of(self._log, f"{step}{COMPACT}")
        before: set[str] = set()
        for earlier in range(step - 1, -1, -1):
            known, plain = (files_of(self._log, f"{earlier}{end}") for end in (COMPACT, ""))
            before.update(known or plain or ())
            if known is not None:
                break
            if plain is None:
                return None
        return [file for file in merged if file not in before] if merged is not None else None


def _count(file: str, format_: str) -> int:
    """The rows of a file of JSON lines, or of CSV with a header. Raises GoneError, OSError."""
    text = read_text(file, _MOST_BYTES)
    if text is None:
        raise GoneError(f"{file}, which the target says this step has written, is gone.")
    if format_ == "json":
        return sum(1 for line in text.split("\n") if line)
    rows = csv.reader(io.StringIO(text, newline=""), escapechar="\\", doublequote=False)
    return max(0, sum(1 for _ in rows) - 1)
