"""One start of one query: the preparation, then the submission to Spark."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import Output, ResolvedQuery, SinkRun
from mzplan.connectors.api.upstreams import take_upstream
from mzplan.connectors.catalogue import Connectors
from mzplan.connectors.releases import record_release
from mzplan.connectors.user_code.loading import load_functions
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError
from mzplan.model.observed import Versions
from mzplan.schema.description import CollectionRead, Description
from mzplan.schema.expectations import EXPECT
from mzplan.schema.source_columns import columns_of, keys_of
from mzplan.schema.target_writes import writes_all
from mzplan.schema.user_functions import function_of
from mzplan.spark import failures
from mzplan.spark.collections import Collections, read_table
from mzplan.spark.current.run import CurrentRun
from mzplan.spark.expectations import StepExpectations
from mzplan.spark.foreign_changes import ForeignChanges
from mzplan.spark.function_releases import release_of, take_release
from mzplan.spark.generations import GenerationDifference, record_start
from mzplan.spark.interrupted_steps import InterruptedSteps
from mzplan.spark.migration import RowMigration
from mzplan.spark.process.pools import PROPERTY
from mzplan.spark.progress import ProgressListener
from mzplan.spark.query import RunningQuery, resume_point
from mzplan.spark.relational_streams import RelationalRun
from mzplan.spark.sql.projection import ensure_columns, outputs_of, with_all_columns
from mzplan.spark.state_partitions import StatePartitions
from mzplan.spark.step_recorder import StepRecorder
from mzplan.spark.streams import (
    collection_stream,
    rows_read,
    source_writer,
    trigger_interval,
)
from mzplan.spark.tasks.interface import TaskContext
from mzplan.spark.tasks.open_tasks import do_open_tasks
from mzplan.spark.tasks.progress import TasksUnderWay
from mzplan.spark.versions import take_over
from mzplan.spark.views import (
    QuerySessions,
    batch_session,
    compute_of,
    is_current_view,
    is_relational_view,
    own_session,
)
from mzplan.warehouse.checkpoints import Checkpoint, collection_path
from mzplan.warehouse.generation_move import GenerationMove, require_not_migrated
from mzplan.warehouse.rows.late_rows import rows_behind_watermark
from mzplan.warehouse.step_history import StepHistory
from mzplan.warehouse.storage import ensure_collection, remember_collection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class StartContext:
    """The objects that all starts of one executor share.

    `source_runs`: returns whether a source runs. `interval`: see `trigger_interval`.
    """

    warehouse: str
    connectors: Connectors
    collections: Collections
    steps: StepRecorder
    progress: ProgressListener
    interrupted_steps: InterruptedSteps
    source_runs: Callable[[Address], bool]
    sessions: QuerySessions
    tasks: TasksUnderWay
    interval: str | None = None


class QueryStart:
    """Starts one query and records its progress in `running`.

    `resolve` resolves other descriptions of the query.
    """

    def __init__(
        self,
        context: StartContext,
        spark: SparkSession,
        query: ResolvedQuery,
        running: RunningQuery,
        epoch: int,
        resolve: Callable[[Description], ResolvedQuery],
    ):
        description = query.description
        input_ = description.input
        self._context = context
        self._spark = spark
        self._query = query
        self._running = running
        self._epoch = epoch
        self._resolve = resolve
        self._checkpoint = Checkpoint.of(context.warehouse, *description.place)
        self._collection = collection_path(context.warehouse, *description.place)
        self._history = StepHistory(
            context.warehouse,
            description.place,
            None if description.address.writes_collection or input_ is None else input_.place,
            writes_all_rows=writes_all(description.body),
            recomputes=is_current_view(query),
            expects=EXPECT in query.body,
        )
        is_source = description.address.reads_upstream
        self._expectations = StepExpectations(
            query,
            self._checkpoint,
            self._collection,
            running.note_violations,
            compares_positions=is_source and context.connectors.source(description.type).compares_positions,
        )

    def submit(self, versions: Versions | None) -> StreamingQuery:
        """Prepare the query, then start it.

        `versions`: the versions that write the checkpoint from now on. Raises MzplanError, OSError, and
        Spark's errors.
        """
        description, checkpoint, running = self._query.description, self._checkpoint, self._running
        if functions := load_functions(self._query):
            running.function = function_of(description.address.kind, description.type, description.body)
            running.release = release_of(functions)
            running.release_before = take_release(checkpoint, self._query, running.release)
        partitions = self._state_partitions()
        if partitions is not None:
            partitions.finish()
        if description.reads and not is_current_view(self._query):
            if "from" in description.body:  # only such queries may read a source whose rows are migrated
                self._move_to_generation()
            # Finish a step that began before the query was changed.
            self._context.interrupted_steps.begin(description, checkpoint, running, self._run_once)
        running.written_with = take_over(checkpoint, self._query.address, versions)
        if description.address.writes_collection:
            require_not_migrated(self._context.warehouse, description.address, description.place)
            self._migrate_rows()
        if description.address.reads_upstream:
            self._expectations.begin()
        self._do_tasks()
        if partitions is not None and (warning := partitions.adjust(self._finish_step)) is not None:
            running.warn(warning)
        if description.address.writes_collection:
            self._expectations.report()
        running.step = checkpoint.log.committed()
        running.resumed = resume_point(checkpoint, running.step)
        if description.reads:
            running.foreign_changes = ForeignChanges(self._context.warehouse, description)
        return self._start()

    def _state_partitions(self) -> StatePartitions | None:
        """Return the partitions of the query's state; None if it keeps no state."""
        if "partitions" not in self._query.body or is_current_view(self._query):
            return None
        self._use_scheduler_pool()
        return StatePartitions(self._spark, self._query, self._checkpoint, self._context.tasks)

    def _run_once(self, description: Description, finishing: RunningQuery) -> StreamingQuery:
        query = self._resolve(description)
        start = QueryStart(self._context, self._spark, query, finishing, self._epoch, self._resolve)
        return start._start(once=True)

    def _migrate_rows(self) -> None:
        """Migrate the rows of the source's former generation, if the description says so."""
        query, context = self._query, self._context
        if query.description.predecessor is None:
            return
        self._use_scheduler_pool()
        connector = context.connectors.source(query.description.type)
        with (
            context.tasks.running(self._spark, query.address, "migration of its rows"),
            failures.raised_as(
                "MZ063",
                f"The rows of {query.address} could not be migrated",
                query.address,
                "nothing to do: mzplan retries, and keeps the former generation until then.",
            ),
        ):
            RowMigration(self._spark, context.warehouse, connector, query).begin(context.collections)

    def _move_to_generation(self) -> None:
        """Move a query to its source's new generation, after it has read all of the former one."""
        moves = GenerationMove(self._context.warehouse, self._query.description, self._checkpoint)
        while (earlier := moves.to_read()) is not None:
            running = self._running
            name = replace(running.name, digest=earlier.digest)
            finishing = RunningQuery(name, running.place)
            try:
                self._context.interrupted_steps.finish(earlier, self._checkpoint, finishing, self._run_once)
            finally:
                self._context.steps.stop(str(name))
            failpoint(Failpoint.MIGRATION_READ)
            moves.move()

    def _do_tasks(self) -> None:
        """Do the open tasks of the query. Raises the same errors as `submit`."""
        query, checkpoint, running = self._query, self._checkpoint, self._running
        if not query.description.tasks and not checkpoint.tasks.all():
            return
        context = TaskContext(
            spark=own_session(self._spark),
            connectors=self._context.connectors,
            query=query,
            checkpoint=checkpoint,
            warehouse=self._context.warehouse,
            collection=self._collection,
            resolve=self._resolve,
            sink_run=partial(self._sink_run, is_new=False),
            count_malformed=running.count_malformed,
            rewriting=self._context.collections.rewriting(self._collection),
            pass_over=self._pass_over,
            expectations=self._expectations,
            under_way=self._context.tasks,
        )
        running.tasks_done = do_open_tasks(context, self._prepare_tasks)

    def _prepare_tasks(self) -> None:
        """Finish an interrupted step, and check that the source and its collection haven't been replaced."""
        if self._query.address.writes_collection:
            self._remember_upstream()
        self._finish_step()
        if self._query.address.writes_collection:
            self._own_collection()
        self._use_scheduler_pool()

    def _pass_over(self, step: int) -> None:
        """Advance the checkpoint past the next step, at an unchanged position.

        Spark runs the step of a view that may keep state, because the step after it begins with the state
        that Spark keeps for this one.
        """
        log = self._checkpoint.log
        if not is_relational_view(self._query) or is_current_view(self._query):
            log.skip(step)
            return
        log.plan_nothing()
        failpoint(Failpoint.RECOMPUTE_PLANNED)
        self._finish_step()

    def _finish_step(self) -> None:
        """Finish an interrupted step, if there is one."""
        finishing = RunningQuery(self._running.name, self._running.place)
        self._context.interrupted_steps.finish(
            self._query.description, self._checkpoint, finishing, self._run_once
        )

    def _start(self, *, once: bool = False) -> StreamingQuery:
        """Start the query; with `once`, for one micro-batch only."""
        query, name = self._query, str(self._running.name)
        if query.address.writes_collection:
            self._remember_upstream(finishing=once)
            writer = self._source_writer(finishing=once)
        else:
            record_release(self._context.connectors, self._checkpoint, query.description)
            if not once:
                record_start(self._checkpoint, query.description)
            writer = self._sink_writer()
        self._context.progress.expect(name)
        self._context.steps.start(name, self._history, self._stop_if_restored, self._bound_late_rows)
        self._use_scheduler_pool()
        writer = writer.queryName(name).option("checkpointLocation", self._checkpoint.spark)
        if once:  # not availableNow, which would also read newer data
            return writer.trigger(once=True).start()
        return writer.trigger(processingTime=trigger_interval(query, self._context.interval)).start()

    def _use_scheduler_pool(self) -> None:
        """Run this thread's jobs, and the jobs of a query that it starts, in the query's scheduler pool."""
        self._spark.sparkContext.setLocalProperty(PROPERTY, self._running.pool)

    def _source_writer(self, *, finishing: bool) -> DataStreamWriter:
        """Return the writer of a source or view.

        `finishing`: the query finishes an interrupted step. It may be an earlier query, with fewer columns
        than the collection has by now.
        """
        query = self._query
        connector = self._context.connectors.source(query.description.type)
        if is_current_view(query):
            return self._current_writer()
        if is_relational_view(query):
            return self._relational_writer(finishing=finishing)
        if not query.description.reads:
            rows = connector.stream(self._spark, query)
        else:
            rows = self._rows_read()
            rows = with_all_columns(rows, query) if finishing else rows
            ensure_columns(outputs_of(rows), query)
        self._own_collection()
        return source_writer(
            rows,
            connector,
            query,
            self._collection,
            fail=self._running.fail,
            rewriting=self._context.collections.rewriting(self._collection),
            count_letters=self._running.count_malformed,
            guard=connector.guard(query),
            expectations=self._expectations,
        )

    def _relational_writer(self, *, finishing: bool) -> DataStreamWriter:
        query, context = self._query, self._context
        session, begins = context.sessions.of(self._spark, query), not self._checkpoint.log.has_begun()
        run = RelationalRun(
            query=query,
            position=context.connectors.position(query.description),
            warehouse=context.warehouse,
            checkpoint=self._checkpoint,
            collection=self._collection,
            paths={name: self._readable(read) for name, read in query.description.inputs.items()},
            fail=self._running.fail,
            rewriting=context.collections.rewriting(self._collection),
            compute=compute_of(context.connectors, query),
            finishing=finishing,
            expectations=self._expectations,
        )
        streams = {
            name: collection_stream(session, query, read, run.paths[name], begins=begins)
            for name, read in query.description.reads.items()
        }
        writer = run.writer(session, streams)
        self._own_collection()
        return writer

    def _current_writer(self) -> DataStreamWriter:
        query, context = self._query, self._context
        session = context.sessions.of(self._spark, query)
        run = CurrentRun(
            session=batch_session(self._spark),
            query=query,
            position=context.connectors.position(query.description),
            checkpoint=self._checkpoint,
            collection=self._collection,
            paths={name: self._readable(read) for name, read in query.description.reads.items()},
            fail=self._running.fail,
            refreshed=self._running.note_refresh,
            rewriting=context.collections.rewriting(self._collection),
            expectations=self._expectations,
        )
        streams = {
            name: collection_stream(session, query, read, run.paths[name], begins=False, unlimited=True)
            for name, read in query.description.reads.items()
        }
        writer = run.writer(streams)
        self._own_collection()
        run.plan()
        return writer

    def _sink_writer(self) -> DataStreamWriter:
        rows = self._rows_read()
        run = self._sink_run(outputs_of(rows), is_new=not self._checkpoint.log.has_begun())
        difference = GenerationDifference(self._context.warehouse, run)
        run = replace(run, writer_of=difference.writer_of)
        return self._context.connectors.sink(self._query.description.type).write(rows, run)

    def _rows_read(self) -> DataFrame:
        """Return the rows that a sink or a row view computes from its collection."""
        (read,) = self._query.description.reads.values()
        begins = not self._checkpoint.log.has_begun()
        return rows_read(self._spark, self._query, self._readable(read), begins=begins)

    def _readable(self, read: CollectionRead) -> str:
        """Ensure that a collection to read exists with its newest columns. Return its path or URI."""
        path, columns = (
            collection_path(self._context.warehouse, *read.place),
            columns_of(read.type, read.body),
        )
        self._context.collections.wait_for_writer(
            path, columns, lambda: self._context.source_runs(read.address)
        )
        self._ensure_table(path, read)
        return path

    def _sink_run(self, outputs: tuple[Output, ...], *, is_new: bool) -> SinkRun:
        running = self._running
        return SinkRun(
            query=self._query,
            outputs=outputs,
            epoch=self._epoch,
            checkpoint=self._checkpoint,
            is_new=is_new,
            fail=running.fail,
            warn=running.warn,
            interrupt=running.interruptions.append,
            covers=self._history.covers,
            wrote=partial(self._context.steps.record_rows, str(running.name)),
            rewriting=self._context.collections.rewriting,
        )

    def _own_collection(self) -> None:
        """Ensure that the source's collection exists and is the table that the source wrote before."""
        ensure_collection(self._checkpoint, self._query.address, self._collection)
        self._ensure_table(self._collection, self._query.description)
        remember_collection(self._checkpoint, self._collection)
        self._context.collections.record_writer_columns(self._collection, self._query.columns)

    def _stop_if_restored(self) -> None:
        """Stop the query if its table was restored to an older copy.

        If a source continued, its sinks would skip the rows that replace the lost steps. If a sink continued,
        rows would stay missing in its target. A source whose table was recreated isn't stopped: there are no
        rows to protect, and the next start is refused.
        """
        try:
            if self._query.address.writes_collection:
                ensure_collection(self._checkpoint, self._query.address, self._collection)
            else:
                self._context.connectors.sink(self._query.description.type).ensure_whole(self._query)
        except MzplanError as problem:
            if problem.kind not in ("steps-missing", "target-restored"):
                return
            self._running.fail(problem)
            with suppress(MzplanError):  # the query is busy: its next start is refused
                self._running.stop()

    def _bound_late_rows(self, step: int) -> int | None:
        """Return at most how many late rows a step of a stateful view has dropped; None if unknown."""
        view = self._query.description
        query = self._query
        if not is_relational_view(query) or is_current_view(query) or view.snapshots:
            return None
        if self._running.function is not None:
            return None  # a function's watermark is unknown
        return rows_behind_watermark(self._context.warehouse, view, self._checkpoint.log, step)

    def _ensure_table(self, path: str, collection: Description | CollectionRead) -> None:
        position = self._context.connectors.position(collection)
        columns = columns_of(collection.type, collection.body)
        keyed = bool(keys_of(collection.type, collection.body))
        self._context.collections.ensure(self._spark, path, columns, position, keyed=keyed)

    def _remember_upstream(self, *, finishing: bool = False) -> None:
        """Record the upstream's identity before the first start; require it at later starts.

        `finishing`: the query finishes an interrupted step.
        """
        query, checkpoint = self._query, self._checkpoint
        connector = self._context.connectors.source(query.description.type)
        probe = connector.probe(query)
        errors = [d for d in probe.diagnostics if d.severity == "error"]
        if errors:
            raise MzplanError(errors)
        record_release(self._context.connectors, checkpoint, query.description)
        if not checkpoint.log.has_begun() and (end := connector.upstream_end(query)) is not None:
            checkpoint.record_first_end(end)
        if probe.upstream is not None:
            finish_step = None if finishing else self._finish_step
            take_upstream(connector, query, checkpoint, probe.upstream, self._last_times, finish_step)

    def _last_times(self) -> dict[int, int]:
        """Return the time of the last record read from each partition, in milliseconds since the epoch."""
        from pyspark.sql import functions as f

        rows = read_table(self._spark, self._collection)
        by_partition = rows.groupBy("_position.partition").agg(
            f.unix_millis(f.max("_position.timestamp")).alias("last")
        )
        return {row["partition"]: row["last"] for row in by_partition.collect()}
