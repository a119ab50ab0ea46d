"""Recomputes steps of a view that joins a stream with snapshots."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.frames.files import read_parquet
from mzplan.connectors.frames.row_hash import content_hash
from mzplan.connectors.frames.types import ddl
from mzplan.schema.description import Description
from mzplan.schema.kinds import resource_kind
from mzplan.schema.source_columns import columns_of
from mzplan.schema.view_query import gives_same_rows
from mzplan.spark import failures
from mzplan.spark.collections import read_table
from mzplan.spark.command_session import close_command_session
from mzplan.spark.query_trees import analysed
from mzplan.spark.relational_views import own_session
from mzplan.spark.verification.exactness import exactness_of
from mzplan.spark.view_sql import computed_by_sql
from mzplan.warehouse.checkpoints import collection_path
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.content_hash import ContentHash
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.replay import files_of
from mzplan.warehouse.snapshot_versions import SnapshotVersions, name_of
from mzplan.warehouse.step_record import StepRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class JoinedView:
    """The inputs of one view. Implements mzplan.connectors.api.connector.Upstream.

    `resolve`: resolves another description of the same view.
    `position`: the type of `_position`.
    """

    keeps_positions = True  # every position is NULL

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
        checkpoint = resolve(description).checkpoint
        assert checkpoint is not None, "verifying needs the checkpoint"
        self._descriptions, self._versions = checkpoint.descriptions(), SnapshotVersions(checkpoint.folder)

    def close(self) -> None:
        """Close the session."""
        close_command_session(self._spark)

    def content_hash(self, record: StepRecord) -> ContentHash:
        """See Upstream. The step's rows are computed with the query as it was when the step began."""
        session, query = own_session(self._spark), self._resolve(self._description_of(record.step))
        files = files_of(CollectionLog(collection_path(self._warehouse, *self._read.place)), record)
        schema = ddl(columns_of(self._read.type, self._read.body))
        with failures.raised_as_gone("Its inputs"):
            rows = read_parquet(session, files, schema)
            tables = self._tables(session, record.step)
            joined = computed_by_sql(session, {self._stream: rows}, tables, query, self._position)
            exactness = exactness_of(analysed(joined))
            if exactness.problem or exactness.adds_floats:
                raise GoneError(exactness.problem or "Its query adds up floating-point numbers.")
            return content_hash(joined)

    def _description_of(self, step: int) -> Description:
        begun, description = self._descriptions.description_of(step), self._description
        if begun is None:
            return description
        kind = resource_kind(description.address.kind, description.type)
        later = (entry for entry in reversed(self._descriptions.entries) if entry.step >= begun.step)
        # The newest of equal queries has the newest names of renamed collections.
        newest = next(entry for entry in later if gives_same_rows(kind, begun.rows, entry.rows))
        return newest.earlier(description)

    def _tables(self, session: SparkSession, step: int) -> dict[str, DataFrame]:
        versions, tables = self._versions.at(step), {}
        for name, read in self._description.snapshots.items():
            version = versions.get(name_of(read.place))
            if version is None:
                raise GoneError(f"The version of {name} that the view read is no longer known.")
            tables[name] = read_table(session, collection_path(self._warehouse, *read.place), version)
        return tables
