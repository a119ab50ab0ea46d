"""Recomputes steps of a view, in batch, from the collection that it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.frames.files import read_parquet
from mzplan.connectors.frames.row_hash import content_hash
from mzplan.connectors.frames.types import ddl
from mzplan.schema.columns import POSITION
from mzplan.schema.description import Description
from mzplan.schema.kinds import resource_kind
from mzplan.schema.view_query import parse_view
from mzplan.spark import failures
from mzplan.spark.command_session import close_command_session
from mzplan.spark.projection import project, read_by
from mzplan.warehouse.content_hash import ContentHash
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.replay import files_of
from mzplan.warehouse.step_history import StepHistory
from mzplan.warehouse.step_record import StepRecord

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ViewUpstream:
    """The input of one view. Implements mzplan.connectors.api.connector.Upstream.

    `resolve`: resolves another description of the same view.
    `position`: the type of `_position`.
    """

    keeps_positions = True

    def __init__(
        self,
        spark: SparkSession,
        description: Description,
        resolve: Callable[[Description], ResolvedQuery],
        warehouse: str,
        position: str,
    ):
        source = description.input
        assert source is not None, f"{description.address} doesn't read exactly one collection"
        self._spark, self._description, self._resolve, self._position = spark, description, resolve, position
        self._collection = StepHistory(warehouse, description.place, source.place).collection
        checkpoint = resolve(description).checkpoint
        assert checkpoint is not None, "verifying needs the checkpoint"
        self._descriptions = checkpoint.descriptions()
        property_ = resource_kind(description.address.kind, description.type).query_property
        assert property_ is not None, f"{description.address} has no SQL"
        self._property = property_

    def close(self) -> None:
        """Close the session."""
        close_command_session(self._spark)

    def content_hash(self, record: StepRecord) -> ContentHash:
        """See Upstream. The step's rows are computed with the query as it was when the step began."""
        begun, description = self._descriptions.description_of(record.step), self._description
        if begun is not None:
            description = begun.earlier(description)
        query = read_by(self._resolve(description))
        parts = (parsed for _, parsed in parse_view(description.body[self._property]).expressions())
        if varying := next((parsed.varies[0] for parsed in parts if parsed.varies is not None), ""):
            raise GoneError(f"Its query has {varying}, which changes each time.")
        schema = f"{ddl(query.columns)}, {POSITION} {self._position}"
        files = files_of(self._collection, record)
        with failures.raised_as_gone("The collection"):
            return content_hash(project(read_parquet(self._spark, files, schema), query))
