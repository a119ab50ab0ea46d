"""SparkExecutor: hosts the streaming queries of a project in one PySpark driver."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mzplan.connectors.api.connector import Side
from mzplan.connectors.api.outputs import outputs_without_spark
from mzplan.connectors.api.queries import Output, ResolvedQuery, resolve
from mzplan.connectors.catalogue import Connectors
from mzplan.connectors.checks import check_connection, check_description, prepare_target
from mzplan.connectors.formats.letter_folder import folder_of
from mzplan.connectors.frames.merges import merge_small_files
from mzplan.connectors.network.aws import ROLE as AWS
from mzplan.connectors.network.aws import require_packages
from mzplan.connectors.network.tunnels import close_forwards
from mzplan.connectors.releases import release_upstream, remove_generation
from mzplan.connectors.user_code.loading import load_functions
from mzplan.controller.executor import (
    CheckResult,
    ExecutorContext,
    ExecutorGoneError,
    Measurement,
    QueryName,
    QueryReport,
)
from mzplan.model.address import Address, Place
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.losses import FirstCopy
from mzplan.model.observed import Counters
from mzplan.model.tasks import TaskProgress
from mzplan.schema.description import Description, InlinedConnection
from mzplan.schema.expectations import EXPECT
from mzplan.schema.kinds import resource_kind
from mzplan.schema.relations.parse import recomputes
from mzplan.schema.user_functions import FunctionName, function_of, functions_of
from mzplan.secrets.references import Secrets
from mzplan.spark import failures
from mzplan.spark.collections import Collections, table_at
from mzplan.spark.expectations import RowChecks
from mzplan.spark.function_releases import release_of, require_release
from mzplan.spark.interrupted_steps import InterruptedSteps
from mzplan.spark.maintenance import compact_target, first_copy, measure_backlog, vacuum
from mzplan.spark.migration import RowMigration
from mzplan.spark.process.driver import SparkDriver
from mzplan.spark.process.pools import SchedulerPools, pool_count
from mzplan.spark.process.session import require_loaded
from mzplan.spark.progress import Progress, ProgressListener
from mzplan.spark.query import RunningQuery
from mzplan.spark.relational_streams import require_place, tables_in_order
from mzplan.spark.sql.projection import empty_rows, ensure_columns, outputs_of
from mzplan.spark.start import QueryStart, StartContext
from mzplan.spark.step_recorder import StepRecorder
from mzplan.spark.streams import AT_ONCE
from mzplan.spark.tasks.open_tasks import check_arguments
from mzplan.spark.trials.adopted_views import is_unstarted, require_same_query
from mzplan.spark.trials.state_trial import require_state
from mzplan.spark.versions import require_features, require_readable
from mzplan.spark.views import QuerySessions, analysed, compute_of, is_current_view, is_relational_view
from mzplan.warehouse.checkpoints import Checkpoint, collection_path
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.elsewhere import stored_elsewhere
from mzplan.warehouse.storage import missing_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("mzplan.spark")

_CLOSE_THREADS = 16
# How many seconds a poll may take, and how many queries it checks at least. Each check calls into the JVM.
# While queries start, there are twenty polls a second: checking hundreds of queries would delay the starts.
_POLL_SECONDS = 0.01
_POLL_MINIMUM = 4


class SparkExecutor(SparkDriver):
    """Implements mzplan.controller.executor.Executor. Methods may be called from several threads."""

    def __init__(self, context: ExecutorContext):
        self._steps = StepRecorder()
        self._former_place = context.former_place
        super().__init__(context, ProgressListener(self._steps.record_progress))
        self._connectors = Connectors()
        self._collections = Collections()
        self._interrupted_steps = InterruptedSteps()
        self._lock = threading.Lock()
        self._running: dict[QueryName, RunningQuery] = {}
        self._tried: dict[Address, tuple[str, Place]] = {}  # the description whose state Spark has accepted
        self._secrets: Secrets | None = None
        self._pools = SchedulerPools(lambda: pool_count(self._session()))
        self._starts = StartContext(
            warehouse=self._warehouse,
            connectors=self._connectors,
            collections=self._collections,
            steps=self._steps,
            progress=self._progress,
            interrupted_steps=self._interrupted_steps,
            source_runs=self._source_runs,
            sessions=QuerySessions(self._progress),
            tasks=self._tasks,
            interval=AT_ONCE if context.until_caught_up else None,
        )

    def close(self) -> None:
        self._interrupted_steps.close()
        with self._lock:
            names = [] if self._has_ended() else list(self._running)  # ended queries need no stop
        if names:
            with ThreadPoolExecutor(_CLOSE_THREADS) as pool:
                list(pool.map(self._stop_quietly, names))
        self._steps.close()
        close_forwards()
        self._close_session()

    # ── storage and servers, beside the queries

    def missing_storage(self, description: Description) -> tuple[Diagnostic, ...]:
        reads = {read.address: read.place for read in description.inputs.values()}
        missing = missing_storage(
            self._warehouse,
            description.address,
            description.place,
            reads,
            needs_each_step=not recomputes(description.body),
        )
        if missing and self._former_place:
            return (stored_elsewhere(self._former_place, self._warehouse, description.address),)
        return missing

    def measure(self, description: Description, secrets: Secrets) -> Measurement:
        try:
            query = self._resolve(description, secrets)
        except MzplanError:  # a secret without a value
            return Measurement(at=time.time())
        for running in self._hosted_queries(description.address):
            running.warn_of_changes()
        return measure_backlog(self._warehouse, query, self._connectors)

    def first_copy(self, description: Description) -> FirstCopy:
        return first_copy(self._warehouse, description, self._connectors)

    def check_connection(self, connection: InlinedConnection, secrets: Secrets) -> tuple[Diagnostic, ...]:
        return check_connection(connection, secrets, self._context.directory)

    def foreign_queries(self) -> list[str]:
        return self._progress.foreign()

    def release_upstream(self, id_: str, generation: int) -> None:
        release_upstream(self._warehouse, (id_, generation), self._own_secrets(), self._context.directory)

    def reclaim(self, id_: str, generation: int) -> None:
        remove_generation(self._warehouse, (id_, generation), self._own_secrets(), self._context.directory)

    def _own_secrets(self) -> Secrets:
        return self._secrets or self._context.secrets or Secrets(self._context.directory)

    def merge_files(self, collection: str) -> None:
        """Merge the small files of a Delta table into large ones; streams that read it don't notice."""
        session = self._session()
        with self._collections.rewriting(collection):
            merge_small_files(session, table_at(collection))

    def compact(self, description: Description, secrets: Secrets) -> str | None:
        query = self._resolve(description, secrets)
        sink = self._connectors.sink(description.type)
        return compact_target(self._session(), sink, query, self._collections.rewriting)

    def reclaim_files(self, collection: str, older: float, *, uncommitted: bool = False) -> None:
        """Remove the files of a Delta table that no version of the last `older` seconds contains."""
        vacuum(self._session(), collection, older, uncommitted=uncommitted)

    # ── checking

    def check(self, description: Description, secrets: Secrets) -> CheckResult:
        directory = self._context.directory
        checked = check_description(
            description, secrets, self._connectors, self._outputs, directory, self._warehouse
        )
        checkpoint = Checkpoint.of(self._warehouse, *description.place)
        diagnostics = (
            *checked.diagnostics,
            *self._jar_problems(description, secrets),
            *_refusals(lambda: require_readable(checkpoint, description.address)),
        )
        if self._spark is not None and not any(d.severity == "error" for d in diagnostics):
            diagnostics += self._problems_with_spark(self._spark, description, secrets)
        return replace(checked, diagnostics=diagnostics)

    def _jar_problems(self, description: Description, secrets: Secrets) -> tuple[Diagnostic, ...]:
        """Report MZ129 if the query needs jars that are missing."""
        spark, link = self._spark, description.connections.get("connection")
        if spark is None or link is None:
            return ()
        listed = resource_kind("connection", link.type).listed_packages(link.body)
        problems = _refusals(lambda: require_loaded(spark, link.address, listed))
        if AWS in link.connections:
            problems += _refusals(lambda: require_packages(spark, self._resolve(description, secrets)))
        return problems

    def _problems_with_spark(
        self, spark: SparkSession, description: Description, secrets: Secrets
    ) -> tuple[Diagnostic, ...]:
        """Report problems that only the session shows, before anything is stopped.

        MZ281: Delta can't use the query's tables. MZ294: the source can't migrate its rows. MZ019: Spark
        doesn't accept a task's arguments, or the view. MZ230: Spark computes other columns for the view.
        MZ320, MZ321, MZ409: the view can't continue from its checkpoint, or not with its state.
        """
        address = description.address
        if address.is_connection:
            return ()
        problems: tuple[Diagnostic, ...] = ()
        query = self._resolve(description, secrets)
        # A query that already runs with these tables would have failed.
        if all(other.name.generation != description.generation for other in self._hosted_queries(address)):
            problems += _refusals(lambda: self._require_features(query))
        if description.predecessor is not None:
            problems += self._migration_problems(spark, query)
        problems += _refusals(lambda: check_arguments(spark, query))
        if secrets.are_proposed:
            uncommitted = _uncommitted(description)
            problems += tuple(
                Diagnostic.of("MZ365.uncommitted", address=address, function=function)
                for function in uncommitted
            )
            if uncommitted and _own_function(description) is not None:
                return problems  # in SQL, Spark needs only a function's type
        if EXPECT in query.body:
            position = self._connectors.position(description)
            problems += _refusals(lambda: RowChecks(empty_rows(spark, query.columns, position), query))
        if description.reads and address.writes_collection:
            problems += _refusals(lambda: self._require_view(spark, query))
        else:
            problems += _refusals(lambda: load_functions(query))
        return problems

    def _require_view(self, spark: SparkSession, query: ResolvedQuery) -> None:
        """Raise MzplanError unless the view has the plan's columns and can continue from its checkpoint."""
        checkpoint = Checkpoint.of(self._warehouse, *query.description.place)
        if functions := load_functions(query):
            require_release(checkpoint, query, release_of(functions))
        rows = analysed(spark, query, self._connectors)
        ensure_columns(outputs_of(rows), query)
        if is_relational_view(query) and not (is_current_view(query) or query.description.snapshots):
            tables = tables_in_order(rows, query, self._warehouse)
            require_place(checkpoint, query, tables)
            self._require_state(spark, query, checkpoint, tables)

    def _require_state(
        self, spark: SparkSession, query: ResolvedQuery, checkpoint: Checkpoint, tables: Sequence[str | None]
    ) -> None:
        """Raise MzplanError MZ321 or MZ409 if Spark can't continue the view's state.

        A description is tried once. `tables`: see tables_in_order.
        """
        description, begun = query.description, checkpoint.descriptions().entries
        has_run = bool(begun) and begun[-1].digest == description.digest
        key = description.digest, description.place
        if has_run or self._tried.get(query.address) == key:
            return
        position, compute = self._connectors.position(description), compute_of(self._connectors, query)
        if is_unstarted(checkpoint):
            require_same_query(spark, query, checkpoint, position, tables, compute)
        elif compute is None:
            require_state(spark, query, checkpoint, position)
        self._tried[query.address] = key

    def _migration_problems(self, spark: SparkSession, query: ResolvedQuery) -> tuple[Diagnostic, ...]:
        connector = self._connectors.source(query.description.type)
        try:
            return RowMigration(spark, self._warehouse, connector, query).uncastable()
        except MzplanError as problem:
            return problem.diagnostics
        except Exception as problem:  # the start reports problems with the storage
            log.warning("%s: its rows could not be looked at: %s", query.address, problem)
            return ()

    def _hosted_queries(self, address: Address) -> list[RunningQuery]:
        with self._lock:
            return [query for name, query in self._running.items() if name.address == address]

    def _require_features(self, query: ResolvedQuery) -> None:
        """Raise MZ281 if this Delta can't read, or write, a table that the query reads or writes."""
        description, writes = query.description, query.address.writes_collection
        tables = {
            CollectionLog(collection_path(self._warehouse, *read.place)): False
            for read in description.inputs.values()
        }
        if writes:
            tables[CollectionLog(collection_path(self._warehouse, *description.place))] = True
        target = None if writes else self._connectors.sink(description.type).target_table(query)
        if target is not None:
            tables[CollectionLog(target)] = True
        if (folder := folder_of(query)) is not None:
            tables[CollectionLog(folder)] = True
        supported = self._delta_features
        if supported is None:  # this Delta doesn't list its features, so it reports the problem itself
            return
        for table, writes in tables.items():
            with suppress(OSError, ValueError):  # the start reports unreadable tables
                require_features(table, query.address, supported, writes=writes)

    def prepare(self, description: Description, secrets: Secrets) -> tuple[Diagnostic, ...]:
        directory = self._context.directory
        return prepare_target(
            description, secrets, self._connectors, self._outputs, directory, self._warehouse
        )

    def _outputs(self, query: ResolvedQuery) -> tuple[Output, ...]:
        """Return the columns that a sink or view writes; without Spark, as far as they are known."""
        if self._spark is None:
            return outputs_without_spark(query)
        return outputs_of(analysed(self._spark, query, self._connectors))

    def _connector(self, query: ResolvedQuery) -> Side:
        type_ = query.description.type
        writes = query.address.writes_collection
        return self._connectors.source(type_) if writes else self._connectors.sink(type_)

    # ── starting

    def start(self, description: Description, secrets: Secrets, epoch: int) -> None:
        spark = self._session()
        self._secrets = secrets
        query = self._resolve(description, secrets)
        name = QueryName.of(self._context.project, description)
        pool = self._pools.of(description.address)
        running = RunningQuery(name, self._connector(query).route(query), pool)
        self._require_features(query)
        resolve_again = partial(self._resolve, secrets=secrets)
        try:
            start = QueryStart(self._starts, spark, query, running, epoch, resolve_again)
            started = start.submit(self._versions)
        except MzplanError:
            raise
        except Exception as problem:
            raise failures.as_error(
                problem, "MZ063", f"{description.address} could not be started", description.address
            ) from None
        running.java = started._jsq
        running.query_id, running.run_id = started.id, started.runId
        self._progress.follow(running.run_id)
        with self._lock:
            before = self._running.get(name)
            self._running[name] = running
        if before is not None:  # the failed query is replaced
            self._progress.forget(before.run_id)

    def _source_runs(self, source: Address) -> bool:
        return any(query.java.isActive() for query in self._hosted_queries(source))

    def _resolve(self, description: Description, secrets: Secrets) -> ResolvedQuery:
        return resolve(description, secrets, self._context.directory, self._warehouse)

    # ── stopping

    def stop(self, name: QueryName) -> None:
        with self._lock:
            running = self._running.get(name)
        if running is None:
            return
        running.stop()
        with self._lock:
            self._running.pop(name, None)
        self._progress.forget(running.run_id)
        self._steps.stop(str(name))
        if not self._hosted_queries(name.address):
            self._pools.leave(name.address)

    def _stop_quietly(self, name: QueryName) -> None:
        # The session is about to close and ends the query; the query may already have ended.
        with suppress(Exception):
            self.stop(name)

    # ── reporting

    def tasks_under_way(self) -> Mapping[Address, TaskProgress]:
        return self._tasks.all()

    def query_counters(self) -> Mapping[Address, Counters]:
        return self._steps.counted()

    def reports(self) -> list[QueryReport]:
        if self._liveness is not None and (why := self._liveness.why_ended()) is not None:
            raise ExecutorGoneError(why)
        with self._lock:
            running = list(self._running.values())
        progress = {query.run_id: self._progress.get(query.run_id) for query in running}
        if self._poll(running, progress):
            self._collections.forget_all()  # a query may have failed because of its table: look again
        reports = [
            query.report(progress[query.run_id], self._steps.recorded(str(query.name))) for query in running
        ]
        return list(map(self._with_cause, reports))

    def _with_cause(self, report: QueryReport) -> QueryReport:
        """Report MZ243 if PySpark was replaced and a query ended without a known cause.

        Once PySpark has been replaced, tasks in Python fail.
        """
        if report.error is None or report.error_kind != "unexplained":
            return report
        if (now := self.replacement(at_once=True)) is None:
            return report
        why = f"PySpark was replaced under this runner (now: {now}), so its tasks in Python use the new one."
        fix = "Fix: restart the runner: mzplan down, then mzplan up."
        return replace(report, error=f"{why} {fix} {report.error}", error_code="MZ243", error_kind="")

    def _poll(self, running: list[RunningQuery], progress_by_run: Mapping[str, Progress | None]) -> bool:
        """Ask Spark about its queries; return whether a query has ended since the last poll.

        Asks about each query that Spark reported as ended. Then it asks for a moment about the others: about
        one query that has finished a trigger, then about the queries that haven't, then about all remaining
        ones. Within each group, the query that was asked longest ago comes first. The one query before the
        groups makes sure that mzplan finds an end that Spark didn't report, even if many queries are in a
        long first micro-batch.
        """
        ended: list[RunningQuery] = []
        others: list[RunningQuery] = []
        for query in running:
            if query.end_failure is None:
                (ended if self._progress.has_ended(query.run_id) else others).append(query)
        others.sort(key=lambda query: query.asked_at)
        silent = [query for query in others if not query.was_idle and progress_by_run[query.run_id] is None]
        heard = [query for query in others if query.was_idle or progress_by_run[query.run_id] is not None]
        others = [*heard[:1], *silent, *heard[1:]]
        news = [query.look(progress_by_run[query.run_id]) for query in ended]
        until = time.monotonic() + _POLL_SECONDS
        for number, query in enumerate(others):
            if number >= _POLL_MINIMUM and time.monotonic() >= until:
                break
            news.append(query.look(progress_by_run[query.run_id]))
        return any(news)


def _refusals(check: Callable[[], object]) -> tuple[Diagnostic, ...]:
    """Return why this runner can't run the description. The start reports problems with the storage."""
    try:
        check()
    except MzplanError as problem:
        return tuple(d for d in problem.diagnostics if d.kind in ("unfit", "code-changed"))
    except OSError:
        pass
    return ()


def _own_function(description: Description) -> FunctionName | None:
    return function_of(description.address.kind, description.type, description.body)


def _uncommitted(description: Description) -> list[FunctionName]:
    """Return the functions of a proposal whose code is in the project's folder: a runner doesn't run it."""
    functions = functions_of(description.address.kind, description.type, description.body)
    return [function for function in functions if function.is_in_project]
