"""Recomputes steps of a view, in batch, from the collection and the snapshots that it reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.frames.files import read_parquet
from mzplan.connectors.frames.row_hash import content_hash
from mzplan.connectors.frames.types import ddl
from mzplan.schema.columns import POSITION
from mzplan.schema.description import Description
from mzplan.schema.kinds import resource_kind
from mzplan.schema.relations.parse import is_relational
from mzplan.schema.source_columns import columns_of
from mzplan.schema.view_query import gives_same_rows, parse_view
from mzplan.spark import failures
from mzplan.spark.collections import read_table
from mzplan.spark.command_session import close_command_session
from mzplan.spark.projection import project, read_by
from mzplan.spark.query_trees import analysed_plan
from mzplan.spark.relational_views import own_session
from mzplan.spark.verification.exactness import exactness_of
from mzplan.spark.view_sql import rows_by_sql
from mzplan.warehouse.checkpoints import collection_path
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.content_hash import ContentHash
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.replay import files_of
from mzplan.warehouse.snapshot import SnapshotVersions, name_of
from mzplan.warehouse.step_record import StepRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class ViewUpstream:
    """The inputs of one view that reads one stream. Implements mzplan.connectors.api.connector.Upstream.

    `resolve`: resolves another description of the same view.
    `position`: the type of `_position`.
    """

    keeps_positions = True  # in a relational view, every position is NULL

    def __init__(
        self,
        spark: SparkSession,
        description: Description,
        resolve: Callable[[Description], ResolvedQuery],
        warehouse: str,
        position: str,
    ):
        ((self._stream, self._read),) = description.reads.items()
        self._spark, self._description, self._resolve = spark, description, resolve
        self._warehouse, self._position = warehouse, position
        self._collection = CollectionLog(collection_path(warehouse, *self._read.place))
        checkpoint = resolve(description).checkpoint
        assert checkpoint is not None, "verifying needs the checkpoint"
        self._descriptions, self._versions = checkpoint.descriptions(), SnapshotVersions(checkpoint.folder)
        self._kind = resource_kind(description.address.kind, description.type)

    def close(self) -> None:
        """Close the session."""
        close_command_session(self._spark)

    def content_hash(self, record: StepRecord) -> ContentHash:
        """See Upstream. The step's rows are computed with the query as it was when the step began."""
        query = self._resolve(self._description_of(record.step))
        files = files_of(self._collection, record)
        with failures.raised_as_gone("Its inputs"):
            if is_relational(self._description.body):
                return content_hash(self._joined(query, files, record.step))
            return content_hash(self._projected(query, files))

    def _description_of(self, step: int) -> Description:
        begun = self._descriptions.description_of(step)
        if begun is None:
            return self._description
        later = (entry for entry in reversed(self._descriptions.entries) if entry.step >= begun.step)
        # The newest of equal queries has the newest names of renamed collections.
        newest = next(entry for entry in later if gives_same_rows(self._kind, begun.rows, entry.rows))
        return newest.earlier(self._description)

    def _projected(self, query: ResolvedQuery, files: Sequence[str]) -> DataFrame:
        """Return the rows of a view that computes each row from one row."""
        assert self._kind.query_property is not None, f"{query.address} has no SQL"
        view = parse_view(query.description.body[self._kind.query_property])
        parts = (parsed for _, parsed in view.expressions())
        if varying := next((parsed.varies[0] for parsed in parts if parsed.varies is not None), ""):
            raise GoneError(f"Its query has {varying}, which changes each time.")
        query = read_by(query)
        schema = f"{ddl(query.columns)}, {POSITION} {self._position}"
        return project(read_parquet(self._spark, files, schema), query)

    def _joined(self, query: ResolvedQuery, files: Sequence[str], step: int) -> DataFrame:
        """Return the rows of a view that joins its stream with snapshots."""
        session = own_session(self._spark)
        rows = read_parquet(session, files, ddl(columns_of(self._read.type, self._read.body)))
        tables = self._tables(session, step)
        joined = rows_by_sql(session, {self._stream: rows}, tables, query, self._position)
        exactness = exactness_of(analysed_plan(joined))
        if exactness.problem or exactness.adds_floats:
            raise GoneError(exactness.problem or "Its query adds up floating-point numbers.")
        return joined

    def _tables(self, session: SparkSession, step: int) -> dict[str, DataFrame]:
        versions, tables = self._versions.at(step), {}
        for name, read in self._description.snapshots.items():
            version = versions.get(name_of(read.place))
            if version is None:
                raise GoneError(f"The version of {name} that the view read is no longer known.")
            tables[name] = read_table(session, collection_path(self._warehouse, *read.place), version)
        return tables
