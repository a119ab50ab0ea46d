"""One run of a relational view: from the streams that it reads to its collection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.merges import append, merge
from mzplan.connectors.frames.micro_batches import micro_batch
from mzplan.connectors.frames.row_hash import oldest, with_content_hash, with_time
from mzplan.connectors.frames.types import quoted
from mzplan.connectors.views import Compute
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.address import Place
from mzplan.model.diagnostics import MzplanError, error
from mzplan.spark import failures
from mzplan.spark.collections import read_table, table_at
from mzplan.spark.expectations import StepExpectations
from mzplan.spark.sql.projection import ensure_columns, outputs_of, with_all_columns
from mzplan.spark.sql.query_trees import analysed_plan, nodes_of
from mzplan.spark.sql.stream_rules import require_stream
from mzplan.spark.trials.adopted_views import is_unstarted, require_same_query
from mzplan.spark.views import rows_of_view
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.rows.snapshot import SnapshotVersions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_ROWS = "_mzplan_rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationalRun:
    """The parameters of one run of a relational view.

    `position`: the type of `_position`, as Spark DDL.
    `collection`: the path or URI of the view's collection.
    `paths`: the path or URI of each collection that the view reads, by name.
    `fail`: takes the error of a micro-batch.
    `rewriting`: the lock on rewriting the files of the view's collection.
    `compute`: the function that computes the rows; None for SQL.
    `expectations`: check the rows of each step.
    `finishing`: whether the run finishes an interrupted step. It may use an earlier query, with fewer columns
    than the collection has by now.
    """

    query: ResolvedQuery
    position: str
    warehouse: str
    checkpoint: Checkpoint
    collection: str
    paths: Mapping[str, str]
    fail: Callable[[BaseException], None]
    rewriting: AbstractContextManager[Any]
    compute: Compute | None
    finishing: bool
    expectations: StepExpectations

    def writer(self, session: SparkSession, streams: Mapping[str, DataFrame]) -> DataStreamWriter:
        """Return the writer of the view's rows.

        `streams`: the view's input streams, in `session`. Raises MzplanError MZ019 or MZ230 if the query
        can't run, or has other columns than the view, and MZ409 if it can't continue an adopted query.
        """
        tables = {name: read_table(session, self.paths[name]) for name in self.query.description.snapshots}
        rows = self._computed(session, streams, tables)
        require_stream(rows, self.query)
        ensure_columns(outputs_of(rows), self.query)
        if tables:
            (stream,) = streams.values()
            return with_time(stream).writeStream.foreachBatch(self._add_joined)
        read = tables_in_order(rows, self.query, self.warehouse)
        require_place(self.checkpoint, self.query, read)
        if is_unstarted(self.checkpoint):
            require_same_query(session, self.query, self.checkpoint, self.position, read, self.compute)
        self.checkpoint.log.fit_sources(read)
        if self.query.keys:
            return rows.writeStream.outputMode("update").foreachBatch(self._update)
        if self.expectations.any:
            return with_time(rows).writeStream.outputMode("append").foreachBatch(self._append)
        # Spark's own Delta sink names the steps.
        writer = with_content_hash(rows, *(oldest(rows) if self.compute else ())).writeStream.format("delta")
        return writer.outputMode("append").option("path", self.collection)

    def _update(self, batch: DataFrame, step: int) -> None:
        """Merge the rows of the changed groups."""
        with self._writing():
            batch = self._cacheable(batch).persist()  # computing it again would commit the state again
            try:
                keys = (f.col(quoted(key)) for key in self.query.keys)
                counted = batch.groupBy(*keys).agg(f.count(f.lit(1)).alias(_ROWS))
                if not counted.where(f.col(_ROWS) > 1).isEmpty():
                    raise several_rows_for_one_key(self.query)
                if self.finishing and not self.checkpoint.log.is_written(step):
                    return  # only to keep the state for it: a task writes its rows, or nobody does
                with self.expectations.checked(batch, step, cached=True) as rows, self.rewriting:
                    merge(rows, step, table_at(self.collection), self.query.keys)
            finally:
                batch.unpersist()

    def _append(self, batch: DataFrame, step: int) -> None:
        """Append the rows of a micro-batch that meet the expectations."""
        with self._writing(), self.expectations.checked(self._cacheable(batch), step) as rows:
            append(rows, step, self.collection)

    def _cacheable(self, batch: DataFrame) -> DataFrame:
        """Return the rows without their order.

        Spark can't cache rows that are ordered by a column that isn't among them.
        """
        return batch.repartition(int(self.query.body["partitions"]))

    def _add_joined(self, batch: DataFrame, step: int) -> None:
        """Append the rows of a micro-batch, joined with one version of each snapshot."""
        snapshots = self.query.description.snapshots
        paths = {read.place: self.paths[name] for name, read in snapshots.items()}
        chosen = SnapshotVersions(self.checkpoint.folder)
        with self._writing():
            before = chosen.at(step)
            try:
                self._add(batch, step, chosen.choose(step, paths))
            except Exception as problem:
                if not before or failures.of_exception(problem).kind != "offsets-gone":
                    raise
                # VACUUM has removed files of the chosen versions. No row of the step was written.
                chosen.forget(step)
                self._add(batch, step, chosen.choose(step, paths))

    def _add(self, batch: DataFrame, step: int, versions: Mapping[Place, int]) -> None:
        session, description = batch.sparkSession, self.query.description
        tables = {
            name: read_table(session, self.paths[name], versions[read.place])
            for name, read in description.snapshots.items()
        }
        (stream,) = description.reads
        joined = self._computed(session, {stream: batch}, tables)
        with self.expectations.checked(joined, step) as rows:
            append(rows, step, self.collection)

    def _computed(
        self, session: SparkSession, streams: Mapping[str, DataFrame], tables: Mapping[str, DataFrame]
    ) -> DataFrame:
        rows = rows_of_view(
            session, streams, tables, self.query, self.position, self.compute, earlier=self.finishing
        )
        return with_all_columns(rows, self.query) if self.finishing else rows

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with micro_batch(self.fail):
            failpoint(Failpoint.SOURCE_BEFORE_MERGE)
            yield
            failpoint(Failpoint.SOURCE_MERGED)


def several_rows_for_one_key(query: ResolvedQuery) -> MzplanError:
    """Return the error for a micro-batch in which several rows have the same key."""
    return error("MZ019.several-rows-per-key", address=query.address, keys=query.keys)


def tables_in_order(rows: DataFrame, query: ResolvedQuery, warehouse: str) -> list[str | None]:
    """Return the id of the collection that each source of a stream reads, in the order of Spark's offset log.

    The id is None for a collection that doesn't exist yet.
    """
    names = (
        str(node.desc().identifier().table())
        for name, node in nodes_of(analysed_plan(rows))
        if name == "View"
    )
    places = (query.description.reads[name].place for name in names)
    return [Checkpoint.of(warehouse, *place).collection() for place in places]


def require_place(checkpoint: Checkpoint, query: ResolvedQuery, tables: Sequence[str | None]) -> None:
    """Raise MzplanError MZ320 if the checkpoint has no place for the collections that the query reads."""
    if checkpoint.log.has_place_for(tables):
        return
    raise error("MZ320.other-readings", address=query.address)
