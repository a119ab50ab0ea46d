"""The rows of the files that a sink has written: for `mzplan verify SINK --content`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mzplan.connectors.api.content import PLACE, Content, incomparable
from mzplan.connectors.api.protocols import Output, ResolvedQuery
from mzplan.connectors.files.manifest import LOG, listed
from mzplan.connectors.frames.types import quoted
from mzplan.connectors.network.aws_spark import use_s3
from mzplan.connectors.network.folders import folder_of
from mzplan.schema.columns import POSITION
from mzplan.warehouse.folder import is_there

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
        from pyspark.sql import functions as f

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
        from pyspark.sql import functions as f

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
