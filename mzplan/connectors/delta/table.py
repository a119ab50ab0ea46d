"""The rows and steps that a sink has written into a Delta table, for `mzplan verify`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import Output, ResolvedQuery
from mzplan.connectors.api.targets import PLACE, Content, Recorded, hash_files, incomparable
from mzplan.connectors.delta.column_types import spark_type
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.files import as_stored
from mzplan.connectors.frames.types import FieldsDifferError, cast_by_name, quoted
from mzplan.connectors.network.aws_spark import use_s3
from mzplan.connectors.network.folders import folder_of
from mzplan.endpoints.arrow import arrow_type
from mzplan.endpoints.interface import Step, Written
from mzplan.schema.columns import POSITION
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.delta_rs import open_delta
from mzplan.warehouse.foreign_changes import ForeignChanges, foreign_changes
from mzplan.warehouse.partitions import typed

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType


class DeltaContent(Content):
    """One version of the table. It includes the steps that its commits name."""

    def __init__(
        self,
        query: ResolvedQuery,
        outputs: Sequence[Output],
        query_id: str | None,
        spark: SparkSession,
    ):
        self.keys = query.body["key"] if query.body["mode"] == "upsert" else ()
        self._outputs = outputs
        self._folder = folder_of(query)
        use_s3(spark, query, self._folder)
        log = CollectionLog(self._folder)
        version, self.frontier = last_step(log, query_id)
        if version < 0:
            raise incomparable(
                query,
                f"There is no table in {self._folder}.",
                "compare again when the sink has written its first step.",
            )
        table = spark.read.format("delta").option("versionAsOf", version).load(self._folder)
        self._table = table
        self._types = {field.name.lower(): field.dataType for field in table.schema.fields}
        self._partitions = log.partitions() or ()

    def rows(self, spark: SparkSession) -> DataFrame:
        columns = [self._column(output.name).alias(output.name) for output in self._outputs]
        return self._table.select(*columns, f.col("_metadata.file_name").alias(PLACE))

    def _column(self, name: str) -> Expression:
        exists = name.lower() in self._types
        return f.col(quoted(name)) if exists else f.lit(None).cast("void")

    def stored_form(self, rows: DataFrame, query: ResolvedQuery) -> DataFrame:
        """Return the rows in the types of the table (see Content)."""
        names = {column.lower(): column for column in rows.columns}
        columns = []
        for output in self._outputs:
            type_: DataType | None = self._types.get(output.name.lower())
            name = names.get(output.name.lower())
            value = f.col(quoted(name)) if name is not None else f.lit(None)
            if type_ is not None:
                before = rows.schema[name].dataType if name is not None else None
                value = _cast(value, before, type_)
            columns.append(value.alias(output.name))
        return as_stored(rows.select(*columns, POSITION), self._partitions)


def _cast(value: Expression, before: DataType | None, after: DataType) -> Expression:
    """Return the value as Delta writes it, matching the fields of structs by name. Raises GoneError."""
    try:
        return cast_by_name(value, before, after) if before is not None else value.cast(after)
    except FieldsDifferError as problem:
        raise GoneError(f"The table has other fields: {problem}.") from None


def open_table(folder: str) -> DeltaTable | None:
    """Open a table without Spark.

    Returns None if there is no table, if it is still being created, or if it has a feature that only Spark
    knows. Raises OSError.
    """
    from deltalake.exceptions import DeltaError

    try:
        table = open_delta(folder)
        table.schema()  # raises for a type that only Spark knows
        return table
    except DeltaError:
        return None


def last_step(log: CollectionLog, query_id: str | None) -> tuple[int, int]:
    """Return the newest version of a table, and the last step that a query wrote to it. Each is -1 if there
    is none. Raises OSError."""
    versions = log.versions()
    try:
        step = log.last_transaction(query_id) if query_id is not None else None
    except OSError:
        for version in versions:
            log.commit(version)  # raises unless the unreadable file is a checkpoint
        step = None
    return max(versions, default=-1), step if step is not None else -1


class DeltaRecorded(Recorded):
    """The steps in the table's log, in which each commit names the query and its step. An append has the
    added files' rows; a MERGE has only the number of merged rows."""

    def __init__(self, query: ResolvedQuery, query_id: str | None):
        self.keys = query.body["key"] if query.body["mode"] == "upsert" else ()
        log = self._log = CollectionLog(folder_of(query), lambda: query_id)
        commits = [(commit.transaction, commit) for commit in log.after(-1) if commit.transaction is not None]
        self._commits = {
            transaction[1]: commit for transaction, commit in commits if transaction[0] == query_id
        }
        types = {name: spark_type(type_) for name, type_ in (log.partitions() or {}).items()}
        self._types = {name: arrow_type(type_) for name, type_ in types.items() if type_ is not None}
        self.partitions = tuple(self._types)

    def foreign_changes(self, first: Step, *, shared: bool) -> ForeignChanges | None:
        versions = [commit.version for step, commit in self._commits.items() if step >= first]
        commits = self._log.after(min(versions)) if versions else ()
        foreign = [commit for commit in commits if commit.is_foreign and (commit.deletes or not shared)]
        return foreign_changes(self._log, foreign)

    def step(self, step: Step) -> Written | None:
        commit = self._commits.get(step)
        if commit is None:
            return None
        if self.keys:
            return Written(rows=commit.merged) if commit.merged is not None else None
        return hash_files((add.place, typed(add.partition, self._types)) for add in commit.adds)
