"""One run of a current view: each step writes the difference between its query's rows and its collection."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.difference import difference, require_own_keys
from mzplan.connectors.frames.merges import merge
from mzplan.connectors.frames.micro_batches import micro_batch
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.schema.columns import POSITION
from mzplan.schema.current.trace import Trace
from mzplan.spark import failures
from mzplan.spark.collections import read_table, table_at
from mzplan.spark.current.affected import (
    AffectedKeys,
    affected_keys,
    changed_rows,
    computed_digest,
    require_stored_types,
    trace_of_view,
)
from mzplan.spark.expectations import StepExpectations
from mzplan.spark.sql.projection import ensure_columns, outputs_of
from mzplan.spark.sql.view_sql import declared, rows_by_sql
from mzplan.warehouse.checkpoint_log import position_after, table_of
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.collection_log import CollectionLog, version_read
from mzplan.warehouse.current_steps import CurrentStep, CurrentSteps
from mzplan.warehouse.rows.snapshot import name_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

log = logging.getLogger("mzplan.spark")


@dataclass(frozen=True, kw_only=True)  # no slots: cached_property needs a __dict__
class CurrentRun:
    """The parameters of one run of a current view.

    `session`: the session that computes the steps.
    `position`: the type of `_position`, as Spark DDL.
    `collection`: the path or URI of the view's collection.
    `paths`: the path or URI of each collection that the view reads, by name.
    `fail`: takes the error of a step. `refreshed`: takes how a step has computed its rows, as a clause.
    `rewriting`: the lock on rewriting the files of the view's collection.
    `expectations`: check the rows that a step inserts or updates.
    """

    session: SparkSession
    query: ResolvedQuery
    position: str
    checkpoint: Checkpoint
    collection: str
    paths: Mapping[str, str]
    fail: Callable[[BaseException], None]
    refreshed: Callable[[str], None]
    rewriting: AbstractContextManager[Any]
    expectations: StepExpectations

    def plan(self) -> None:
        """Plan a step if the collection's rows follow from another query, or if there is no step yet.

        The streaming query must not run. Raises MzplanError MZ230 if the collection stores a column with
        another type.
        """
        require_stored_types(read_table(self.session, self.collection), self.query)
        spark_log, steps = self.checkpoint.log, self._steps
        if (unfinished := spark_log.unfinished()) is not None and self._is_written(unfinished):
            spark_log.finish(unfinished)  # by the former query: its rows are complete
        ends, oldest = {}, {}
        for place, table in self._table_ids.items():
            versions = _versions(self._places[place])
            ends[table], oldest[table] = position_after(table, versions[-1]), versions[0]
        spark_log.set_tables(ends, oldest)
        if spark_log.unfinished() is not None:
            return
        last = steps.before(spark_log.committed() + 1)
        if last is not None:
            self.refreshed(last.summary())
        if last is None or last.computed != computed_digest(self.query):
            partitions = int(self.query.body["partitions"])
            spark_log.plan(*spark_log.positions(ends), partitions=partitions)
            failpoint(Failpoint.VIEW_PLANNED)

    def writer(self, streams: Mapping[str, DataFrame]) -> DataStreamWriter:
        """Return the writer of the view's rows.

        `streams`: the inputs' changes, which only trigger the steps: nobody computes these rows. Raises
        MzplanError MZ019 or MZ230 if the query can't run, or has other columns than the view.
        """
        rows = rows_by_sql(self.session, {}, self._tables({}), self.query, self.position)
        ensure_columns(outputs_of(rows), self.query)
        triggers = [stream.select(f.lit(name).alias("input")) for name, stream in streams.items()]
        return reduce(lambda one, other: one.unionAll(other), triggers).writeStream.foreachBatch(self._step)

    @property
    def _steps(self) -> CurrentSteps:
        return CurrentSteps(self.checkpoint.folder)

    def _step(self, _: DataFrame, step: int) -> None:
        with micro_batch(self.fail):
            self._write(step)
            failpoint(Failpoint.VIEW_WRITTEN)

    def _write(self, step: int) -> None:
        repeated = self._steps.at(step)
        if repeated is not None and self._is_written(step):
            return
        former, digest = self._steps.before(step), computed_digest(self.query)
        if repeated is not None and repeated.failed:
            planned = CurrentStep(computed=digest, versions=self._newest_versions())
        elif repeated is not None and repeated.computed == digest:
            planned = repeated
        else:
            planned = CurrentStep(computed=digest, versions=self._planned_versions(step, former))
        try:
            self._compute_readable(step, planned, former)
        except Exception:
            tried = self._steps.at(step) or planned
            self._steps.record(step, replace(tried, failed=True))
            raise

    def _compute_readable(self, step: int, planned: CurrentStep, former: CurrentStep | None) -> None:
        """Write a step's difference, at the newest versions if a planned version can't be read."""
        try:
            self._compute(step, planned, former)
        except Exception as problem:
            # A step that is written stays as it was planned, even if the write failed after its commit.
            if failures.of_exception(problem).kind != "offsets-gone" or self._is_written(step):
                raise
            # VACUUM has removed files of these versions.
            newest = replace(planned, versions=self._newest_versions())
            self._compute(step, newest, former, "a version of an input can no longer be read")

    def _compute(self, step: int, planned: CurrentStep, former: CurrentStep | None, why: str = "") -> None:
        """Write the difference between the query's rows, at the planned versions, and the collection.

        `why`: why all rows must be computed, as a clause.
        """
        began = time.monotonic()
        self._steps.record(step, planned)
        failpoint(Failpoint.VIEW_RECORDED)
        if former is not None and (former.computed, former.versions) == (planned.computed, planned.versions):
            return self._record(step, planned, began, count=0)
        tables, keys, why = self._tables(planned.versions), None, why or self._why_full(planned, former)
        if not why and former is not None:
            changed = self._changed(planned.versions, former.versions)
            keys, why = self._affected(tables, changed) if changed else (None, "")
            if not why and keys is None:
                return self._record(step, planned, began, count=0)
        try:
            rows = rows_by_sql(self.session, {}, tables, self.query, self.position)
            stored = found = read_table(self.session, self.collection)
            if keys is not None:
                rows, found = keys.among(rows), keys.among(stored)
            columns = [column.name for column in self.query.columns]
            changes = difference(rows, found, columns, self.query.keys, self.query.address)
            try:
                if keys is not None and changes.count and not self._is_traced_by_key:
                    require_own_keys(changes, keys.beside(stored), self.query.keys, self.query.address)
                self._record(step, planned, began, count=changes.count, why=why, keys=keys)
                failpoint(Failpoint.VIEW_COMPUTED)
                if changes.count:
                    type_ = found.schema[POSITION].dataType  # with other inputs, the query has another one
                    written = changes.rows.withColumn(POSITION, f.lit(None).cast(type_))
                    with self.expectations.checked(written, step, cached=True) as checked, self.rewriting:
                        merge(checked, step, table_at(self.collection), self.query.keys)
            finally:
                changes.close()
        finally:
            if keys is not None:
                keys.close()

    def _record(
        self,
        step: int,
        planned: CurrentStep,
        began: float,
        *,
        count: int,
        why: str = "",
        keys: AffectedKeys | None = None,
    ) -> None:
        """Record how a step has computed its rows, before it writes them."""
        done = replace(
            planned,
            refresh="full" if why else "incremental",
            why=why,
            keys=keys.count if keys is not None else None if why else 0,
            changes=count,
            seconds=round(time.monotonic() - began, 3),
        )
        self._steps.record(step, done)
        self.refreshed(done.summary())
        if not count:
            self.expectations.nothing_written(step)
            self.checkpoint.log.mark_unwritten(step)

    def _why_full(self, planned: CurrentStep, former: CurrentStep | None) -> str:
        """Return why a step must compute all rows, as a clause; "" if affected keys may be enough."""
        if former is None:
            return "it is the first step"
        if former.computed != planned.computed:
            return "the query, its columns or its inputs have changed"
        if self.query.body["refresh"] == "full":
            return "the view sets `refresh: full`"
        return self._trace.why_full

    def _changed(self, versions: Mapping[str, int], before: Mapping[str, int]) -> dict[str, DataFrame]:
        """Return the changed rows of each input that has other versions than before, and that is traced."""
        traced = {affected.input for affected in self._trace.affected}
        return {
            name: changed_rows(self.session, self.paths[name], read, before[place] + 1, versions[place])
            for name, read in self.query.description.reads.items()
            if name in traced and versions[place := name_of(read.place)] > before[place]
        }

    def _affected(
        self, tables: Mapping[str, DataFrame], changed: Mapping[str, DataFrame]
    ) -> tuple[AffectedKeys | None, str]:
        """Return the affected keys (None if there are none), and why all rows are computed instead, as a
        clause."""
        try:
            keys = affected_keys(self.session, self._trace, tables, changed, self.query)
        except Exception as problem:  # such as a former value that a CAST refuses, or a removed change feed
            log.warning("%s: all rows are computed: %s", self.query.address, problem)
            return None, "the affected keys couldn't be found"
        if not keys.count:
            keys.close()
            return None, ""
        share = int(self.query.body["full_above"].rstrip("%"))
        if self.query.body["refresh"] == "auto":
            rows = read_table(self.session, self.collection).count()  # from the table's log
            if keys.count * 100 > rows * share:
                keys.close()
                return None, f"more than {share}% of the rows are affected"
        return keys, ""

    @cached_property
    def _trace(self) -> Trace:
        return trace_of_view(self.query)

    @property
    def _is_traced_by_key(self) -> bool:
        """Whether rows with one key are all affected, or none of them."""
        return {name.lower() for name in self._trace.keys} <= {name.lower() for name in self.query.keys}

    def _tables(self, versions: Mapping[str, int]) -> dict[str, DataFrame]:
        """Return the rows of each input as of these versions, by its place; by default, the newest ones."""
        return {
            name: declared(
                read_table(self.session, self.paths[name], versions.get(name_of(read.place))), read
            )
            for name, read in self.query.description.reads.items()
        }

    def _planned_versions(self, step: int, former: CurrentStep | None) -> dict[str, int]:
        """Return the version up to which a step reads each input, as Spark has planned it.

        A step never reads an older version than the step before it.
        """
        offset, _ = self.checkpoint.log.offset(step)
        offsets = offset if isinstance(offset, list) else [offset]
        read = {table_of(one): version_read(one) for one in offsets}
        before = former.versions if former is not None else {}
        versions: dict[str, int] = {}
        for place, path in self._places.items():
            planned = read.get(self._table_ids[place])
            versions[place] = max(before.get(place, 0), planned if planned is not None else _newest(path))
        return versions

    def _newest_versions(self) -> dict[str, int]:
        return {place: _newest(path) for place, path in self._places.items()}

    @cached_property
    def _places(self) -> dict[str, str]:
        """The path of each input, by the name of its place."""
        return {name_of(read.place): self.paths[n] for n, read in self.query.description.reads.items()}

    @cached_property
    def _table_ids(self) -> dict[str, str]:
        """The id of each input's table, by the name of its place."""
        return {place: CollectionLog(path).table_id() or "" for place, path in self._places.items()}

    def _is_written(self, step: int) -> bool:
        """Return whether the collection holds a step's rows, or a later step's."""
        return CollectionLog(self.collection).has_step(self.checkpoint.log.query_id(), step)


def _newest(collection: str) -> int:
    return _versions(collection)[-1]


def _versions(collection: str) -> list[int]:
    versions = CollectionLog(collection).versions()
    if not versions:
        raise OSError(f"{collection} has no Delta log")
    return versions
