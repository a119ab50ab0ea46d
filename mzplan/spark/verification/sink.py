"""Verifies steps of a sink: compares the target's record with recomputed rows.

Spark is needed only if the sink computes or filters, if its collection has a key, or if an upsert wrote only
some rows of a step. No other engine evaluates such expressions exactly like Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from mzplan.connectors.api.connector import SinkConnector
from mzplan.connectors.api.outputs import outputs_without_spark, plain_columns
from mzplan.connectors.api.queries import ResolvedQuery, resolve
from mzplan.connectors.api.targets import Recorded
from mzplan.connectors.catalogue import Connectors
from mzplan.connectors.frames.merges import latest_rows, with_change
from mzplan.connectors.frames.row_hash import content_hash
from mzplan.connectors.frames.types import as_stored, ddl, read_parquet
from mzplan.endpoints.interface import Written
from mzplan.schema.columns import POSITION
from mzplan.schema.description import Description
from mzplan.secrets.references import Secrets
from mzplan.spark import failures
from mzplan.spark.command_session import close_command_session, open_command_session
from mzplan.spark.projection import project
from mzplan.spark.streams import read_changes
from mzplan.warehouse.checkpoints import DescriptionHistory, StepDescription
from mzplan.warehouse.content_hash import ContentHash
from mzplan.warehouse.foreign_changes import ForeignChanges
from mzplan.warehouse.replay import files_of, step_hash
from mzplan.warehouse.step_history import StepHistory
from mzplan.warehouse.step_record import StepRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Downstream:
    """The target of one sink. Implements mzplan.features.steps.verification.VerifiedTarget."""

    def __init__(
        self,
        query: ResolvedQuery,
        recorded: Recorded,
        history: StepHistory,
        position: str,
        resolve: Callable[[Description], ResolvedQuery],
        starting: Callable[[], None] = lambda: None,
    ):
        self._query = query
        self._starting = starting
        self._descriptions = (
            query.checkpoint.descriptions() if query.checkpoint is not None else DescriptionHistory()
        )
        self._resolve = resolve
        self._recorded = recorded
        self._history = history
        self._position = position
        self._spark: SparkSession | None = None

    @classmethod
    def open(
        cls,
        description: Description,
        secrets: Secrets,
        directory: str,
        warehouse: str,
        starting: Callable[[], None] = lambda: None,
    ) -> Downstream:
        """Connect to a sink's target, and return it with its record of steps.

        `starting` is called before Spark starts, if it does. Raises MzplanError if the target has no
        record of steps, and for server failures.
        """
        connectors = Connectors()
        resolved = partial(resolve, secrets=secrets, directory=directory, warehouse=warehouse)
        query = resolved(description)
        sink: SinkConnector = connectors.sink(description.type)
        source = description.input
        assert source is not None, "a sink reads one collection"
        history = StepHistory(warehouse, description.place, source.place)
        recorded = sink.recorded(query, outputs_without_spark(query))
        return cls(query, recorded, history, connectors.position(source), resolved, starting)

    def close(self) -> None:
        """Close the target, and the session if there is one."""
        self._recorded.close()
        if self._spark is not None:
            close_command_session(self._spark)

    def recorded(self, step: int) -> Written | None:
        """See VerifiedTarget."""
        with failures.raised_as_gone("The target"):
            return self._recorded.step(step)

    def content_hash(self, record: StepRecord) -> ContentHash:
        """See VerifiedTarget."""
        return self._content_hash(record, self._descriptions.description_of(record.step))

    def changed_hash(self, record: StepRecord) -> ContentHash | None:
        """See VerifiedTarget."""
        changed = self._descriptions.change_at(record.step)
        return self._content_hash(record, changed) if changed is not None else None

    def foreign_changes(self, first: int, *, shared: bool) -> ForeignChanges | None:
        """See VerifiedTarget."""
        return self._recorded.foreign_changes(first, shared=shared)

    def _content_hash(self, record: StepRecord, begun: StepDescription | None) -> ContentHash:
        query = self._query if begun is None else self._resolve(begun.earlier(self._query.description))
        if query.keys:
            return self._by_spark(lambda: self._changes(record, query))
        plain = plain_columns(query)
        content_hash = (
            step_hash(self._history.collection, record, plain, self._recorded.keys, self._recorded.partitions)
            if plain is not None
            else None
        )
        return content_hash if content_hash is not None else self._by_spark(lambda: self._rows(record, query))

    def _by_spark(self, compute: Callable[[], DataFrame]) -> ContentHash:
        with failures.raised_as_gone("The collection"):
            rows, keys = as_stored(compute(), self._recorded.partitions), self._recorded.keys
            return content_hash(latest_rows(rows, keys) if keys else rows.drop(POSITION))

    def _rows(self, record: StepRecord, query: ResolvedQuery) -> DataFrame:
        files = files_of(self._history.collection, record)
        schema = f"{ddl(self._query.columns)}, {POSITION} {self._position}"
        return project(read_parquet(self._session(), files, schema), query)

    def _changes(self, record: StepRecord, query: ResolvedQuery) -> DataFrame:
        """Return the changed rows as the step received them."""
        feed = read_changes(self._session(), self._history.collection, record, self._query.columns)
        return with_change(project(feed, query))

    def _session(self) -> SparkSession:
        if self._spark is None:
            self._spark = open_command_session(self._starting)
        return self._spark
