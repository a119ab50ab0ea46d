"""Reads both sides of a sink: the content of its target, and the content that the collection requires.

The target is read first, as of one moment, which shows its last written step. Then the collection is read up
to that step.

Steps are verified by comparing the target's record with recomputed rows. Spark is then needed only if the
sink computes or filters, if its collection has a key, or if an upsert wrote only some rows of a step. No
other engine evaluates such expressions exactly like Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mzplan.connectors.api.connector import SinkConnector
from mzplan.connectors.api.outputs import outputs_without_spark, plain_columns
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.api.targets import Content, HoldsContent, Recorded, incomparable
from mzplan.connectors.catalogue import Connectors
from mzplan.connectors.frames.merges import latest_rows, with_change
from mzplan.connectors.frames.row_hash import content_hash
from mzplan.connectors.frames.types import as_stored, ddl, read_parquet
from mzplan.endpoints.interface import Written
from mzplan.schema.columns import POSITION
from mzplan.schema.description import Description
from mzplan.spark import failures
from mzplan.spark.process.command_session import QueryToVerify, close_command_session
from mzplan.spark.sql.projection import analysed_outputs, project
from mzplan.spark.streams import read_changes
from mzplan.spark.verification.former_reads import FormerReads, former_reads
from mzplan.spark.verification.wanted_content import WantedContent
from mzplan.warehouse.checkpoints import DescriptionHistory, StepDescription
from mzplan.warehouse.foreign_changes import ForeignChanges
from mzplan.warehouse.rows.content_hash import ContentHash
from mzplan.warehouse.rows.replay import files_of, step_hash
from mzplan.warehouse.step_history import StepHistory
from mzplan.warehouse.step_record import StepRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The target and the collection, up to the last step that the target holds.

    `first`: the first step whose rows must all be in the target; None if rows of every step may be lost.
    `expected`: the rows that the target should hold, in the target's form, with the columns `_position` and
    MUST.
    `actual`: the rows that the target holds, with the column PLACE.
    `steps`: which steps read the current collection, and which read former generations.
    """

    content: Content
    collection: WantedContent
    first: int | None
    expected: DataFrame
    actual: DataFrame
    steps: FormerReads


class SinkContent:
    """The content of one sink.

    `carries`: whether `_position` includes ROW.
    `content`: the target while it is open.
    """

    def __init__(
        self,
        description: Description,
        resolve: Callable[[Description], ResolvedQuery],
        connectors: Connectors,
        warehouse: str,
        spark: SparkSession,
        *,
        carries: bool = False,
    ):
        source = description.input
        assert source is not None, "a sink reads one collection"
        self._resolve, self._spark, self._carries = resolve, spark, carries
        self.query = resolve(description)
        self._position = connectors.position(source)
        self.sink: SinkConnector = connectors.sink(description.type)
        self._warehouse = warehouse
        self._history = StepHistory(warehouse, (description.id, description.generation), source.place)
        self.content: Content | None = None

    def leave(self) -> None:
        """Close the target."""
        if self.content is not None:
            self.content.close()
            self.content = None

    def sides(self) -> Sides:
        """Read both sides.

        Raises MzplanError MZ177, GoneError, and the errors of a server, the storage or Spark.
        """
        connector = require_content(self.query, self.sink)
        outputs = analysed_outputs(self._spark, self.query, self._position)
        finished = self._history.log.committed()  # read before the target, which has all these steps
        self.content = content = connector.content(self.query, outputs, self._spark)
        records = self._history.read().records
        require_steps(self.query, records, content.frontier, finished)
        held = [record for record in records if record.step <= content.frontier]
        first = _first_complete(held, content)
        steps = former_reads(self._warehouse, self.query, self._history, held)
        target = content.rows(self._spark)
        collection = WantedContent(
            self.query,
            self._resolve,
            self._history.collection,
            self._position,
            self._spark,
            outputs if self._carries else (),
        )
        if held:
            first_complete = first if first is not None else content.frontier + 1
            expected = collection.rows(steps, content, first_complete)
        else:
            expected = collection.empty(content)
        return Sides(
            content=content, collection=collection, first=first, expected=expected, actual=target, steps=steps
        )


def require_content(query: ResolvedQuery, sink: object) -> HoldsContent:
    if not isinstance(sink, HoldsContent):
        source, type_ = query.description.input, query.description.type
        why = f"The target of a sink of type {type_} can't be read."
        hint = f"verify its source: mzplan verify {source.address}" if source is not None else ""
        raise incomparable(query, why, hint)
    return sink


def require_steps(query: ResolvedQuery, records: Sequence[StepRecord], frontier: int, finished: int) -> None:
    """Check that the target's steps belong to this checkpoint and are known. Raises MzplanError.

    `frontier`: the last step that the target claims. `finished`: the last step that Spark had finished.
    """
    known = max((record.step for record in records), default=-1)
    if frontier > known:
        raise incomparable(
            query,
            f"The target has steps up to {frontier}, but the checkpoint only has steps up to {known}. The "
            "checkpoint was restored from a backup, or another sink writes under this sink's name.",
        )
    missing = [record for record in records if frontier < record.step <= finished and record.rows != 0]
    if missing:
        recorded = f"only the steps up to {frontier}" if frontier >= 0 else "none of the sink's steps"
        raise incomparable(
            query,
            f"The target has recorded {recorded}, but not step {missing[-1].step}, which the checkpoint has. "
            "The target was restored from a backup, or its record of steps is gone.",
        )
    if frontier >= 0 and all(record.step != frontier for record in records):
        why = f"The checkpoint no longer knows what step {frontier}, the target's last one, has read."
        raise incomparable(query, why)


def _first_complete(records: Sequence[StepRecord], content: Content) -> int | None:
    """Return the first step that began after all possible losses of the target; None if no step did."""
    if content.since is None:
        return 0
    young = (r.step for r in records if r.time is not None and r.time > content.since)
    return min(young, default=None)


class Downstream:
    """The target of a sink: its records of steps, and the hashes that they should have."""

    def __init__(
        self,
        query: ResolvedQuery,
        recorded: Recorded,
        history: StepHistory,
        position: str,
        resolve: Callable[[Description], ResolvedQuery],
        open_session: Callable[[], SparkSession],
    ):
        self._query = query
        self._open_session = open_session
        self._descriptions = (
            query.checkpoint.descriptions() if query.checkpoint is not None else DescriptionHistory()
        )
        self._resolve = resolve
        self._recorded = recorded
        self._history = history
        self._position = position
        self._spark: SparkSession | None = None

    @classmethod
    def open(cls, verified: QueryToVerify) -> Downstream:
        """Connect to a sink's target, and return it with its record of steps.

        Raises MzplanError if the target has no record of steps, and for server failures.
        """
        connectors, query = Connectors(), verified.resolve()
        sink: SinkConnector = connectors.sink(query.description.type)
        source = query.description.input
        assert source is not None, "a sink reads one collection"
        history = StepHistory(verified.warehouse, query.description.place, source.place)
        recorded = sink.recorded(query, outputs_without_spark(query))
        position = connectors.position(source)
        return cls(query, recorded, history, position, verified.resolve, verified.open_session)

    def close(self) -> None:
        """Close the target, and the session if there is one."""
        self._recorded.close()
        if self._spark is not None:
            close_command_session(self._spark)

    def recorded(self, step: int) -> Written | None:
        """Return the target's record or content of a step; None if it has no record, or no longer has it.

        Raises GoneError, MzplanError."""
        with failures.raised_as_gone("The target"):
            return self._recorded.step(step)

    def content_hash(self, record: StepRecord) -> ContentHash:
        """Return the hash of the rows that the step makes, under the description that began it.

        Raises GoneError."""
        return self._content_hash(record, self._descriptions.description_of(record.step))

    def changed_hash(self, record: StepRecord) -> ContentHash | None:
        """Return the hash of the step's rows under the new description, if the sink was changed at this step.

        The step may have been written under that description. Returns None for other steps. Raises
        GoneError."""
        changed = self._descriptions.change_at(record.step)
        return self._content_hash(record, changed) if changed is not None else None

    def foreign_changes(self, first: int, *, shared: bool) -> ForeignChanges | None:
        """Return what other writers changed in the target since a step; None if nothing, or if unknown.

        `shared`: other writers may add rows. Raises OSError."""
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
            self._spark = self._open_session()
        return self._spark
