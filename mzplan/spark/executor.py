"""SparkExecutor: hosts the streaming queries of a project in one PySpark driver."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from mzplan import __version__
from mzplan.connectors.api.connector import Side
from mzplan.connectors.api.outputs import outputs_without_spark
from mzplan.connectors.api.queries import Output, ResolvedQuery, resolve
from mzplan.connectors.api.upstreams import backfills_to_do, take_upstream
from mzplan.connectors.catalogue import Connectors
from mzplan.connectors.checks import check_connection, check_description, prepare_target
from mzplan.connectors.frames.merges import merge_small_files
from mzplan.connectors.network.aws import ROLE as AWS
from mzplan.connectors.network.aws_spark import require_packages
from mzplan.connectors.network.tunnels import close_forwards
from mzplan.connectors.releases import leave, record_release, remove
from mzplan.controller.executor import CheckResult, ExecutorContext, Measured, QueryName, QueryReport
from mzplan.host.spark_lines import line_of
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError, error
from mzplan.model.observed import Counters, Versions
from mzplan.schema.description import Description, InlinedConnection, writes_all
from mzplan.secrets.references import Secrets
from mzplan.spark import failures
from mzplan.spark.backfills import newest_done, pass_over_begun, settle_backfills, write_backfills
from mzplan.spark.collections import Collections, table_at
from mzplan.spark.measures import measured
from mzplan.spark.progress import Progress, ProgressListener
from mzplan.spark.projection import analysed_outputs
from mzplan.spark.query import Running, resumed
from mzplan.spark.session import current_line, has_ended
from mzplan.spark.step_recorder import StepRecorder
from mzplan.spark.streams import letters_of, sink_writer, source_writer, trigger_interval
from mzplan.spark.unfinished import UnfinishedSteps
from mzplan.spark.versions import delta_features, require_features, require_readable, take_over
from mzplan.warehouse.checkpoints import Checkpoint, collection_path
from mzplan.warehouse.paths import absolute, local_path
from mzplan.warehouse.presence import (
    ensure_collection,
    missing_storage,
    remember_collection,
    require_plain,
)
from mzplan.warehouse.step_history import StepHistory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_CLOSE_THREADS = 16
# For how many seconds a look asks Spark about its queries, by calls into the JVM, and about how many in any
# case. While queries start there are twenty looks a second: asking about hundreds would hold them up.
_ASKING = 0.01
_ASKED = 4
_FULL_HOURS = 168  # Delta's own default: nobody takes so long to write one micro-batch

# Spark's default sets the permissions of each file of a checkpoint, which Hadoop does on a local disk with a
# process of its own (`chmod`): some twenty for each micro-batch. Both write beside the file, and rename.
_CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"


class SparkExecutor:
    """Implements mzplan.controller.executor.Executor. Methods may be called from several threads."""

    def __init__(self, context: ExecutorContext):
        self._context = context
        self._warehouse = absolute(context.directory, context.warehouse)
        self._connectors = Connectors()
        self._collections = Collections()
        self._steps = StepRecorder()
        self._unfinished = UnfinishedSteps()
        self._progress = ProgressListener(self._steps.progressed)
        self._opening = threading.Lock()
        self._lock = threading.Lock()
        self._spark: SparkSession | None = None
        self._delta_features: frozenset[str] | None = None
        self._versions: Versions | None = None
        self._unlisten: Callable[[], Any] | None = None
        self._running: dict[QueryName, Running] = {}
        self._secrets: Secrets | None = None

    # ── the session

    def open(self) -> None:
        from mzplan.spark.session import open_session

        with self._opening:
            if self._spark is not None:
                return
            is_local = local_path(self._warehouse) is not None
            local = {_CHECKPOINT_FILES: current_line().local_checkpoints} if is_local else {}
            spark = open_session(
                f"mzplan {self._context.project}",
                {**local, **self._context.options},
                self._context.packages,
            )
            self._listen(spark)
            self._delta_features = delta_features(spark)
            line = line_of(spark.version)
            self._versions = Versions(
                mzplan=__version__, spark=spark.version, delta=line.delta, kafka=line.connector
            )
            self._spark = spark

    def is_open(self) -> bool:
        return self._spark is not None

    def versions(self) -> Versions | None:
        return self._versions

    def close(self) -> None:
        self._unfinished.close()
        with self._lock:
            names = list(self._running)
        if names:
            with ThreadPoolExecutor(_CLOSE_THREADS) as pool:
                list(pool.map(self._stop_whatever_happens, names))
        self._steps.close()
        close_forwards()
        with self._opening:
            unlisten, self._unlisten = self._unlisten, None
            if unlisten is not None:
                with suppress(Exception):  # the session may have ended
                    unlisten()
            spark, self._spark = self._spark, None
            if spark is not None and not has_ended(spark):
                spark.stop()

    def missing(self, description: Description) -> tuple[Diagnostic, ...]:
        written = description.source or description
        return missing_storage(
            self._warehouse,
            description.address,
            description.place,
            (written.address, written.id, written.generation),
        )

    def measure(self, description: Description, secrets: Secrets) -> Measured:
        try:
            query = self._resolve(description, secrets)
        except MzplanError:  # a secret without a value
            return Measured(at=time.time())
        return measured(self._warehouse, query, self._connectors)

    def reach(self, connection: InlinedConnection, secrets: Secrets) -> tuple[Diagnostic, ...]:
        return check_connection(connection, secrets, self._context.directory) or ()

    def foreign(self) -> list[str]:
        return self._progress.foreign()

    def release(self, id_: str, generation: int) -> None:
        leave(self._warehouse, (id_, generation), self._own_secrets(), self._context.directory)

    def reclaim(self, id_: str, generation: int) -> None:
        remove(self._warehouse, (id_, generation), self._own_secrets(), self._context.directory)

    def _own_secrets(self) -> Secrets:
        return self._secrets or self._context.secrets or Secrets(self._context.directory)

    def merge_files(self, collection: str) -> None:
        """Merge the small files of a Delta table into large ones; its streams don't notice."""
        session = self._session()
        with self._collections.rewriting(collection):
            merge_small_files(session, table_at(collection))

    def compact(self, description: Description, secrets: Secrets) -> str | None:
        query = self._resolve(description, secrets)
        try:
            return self._connectors.sink(description.type).compact(
                query, self._session(), self._collections.rewriting
            )
        except MzplanError:
            raise
        except Exception as problem:
            raise error(
                "MZ280",
                f"The files of the target of {description.address} could not be merged now",
                failures.of_exception(problem).text,
                "nothing to do: the query goes on, and it is tried again in some minutes. Where somebody "
                "else rewrites the table all the time, remove `compaction`, and let them run OPTIMIZE.",
                address=description.address,
            ) from None

    def reclaim_files(self, collection: str, older: float) -> None:
        """Remove the files of a Delta table that no version of the last so many seconds has; Delta counts in
        whole hours."""
        spark = self._session()
        # It guards against readers that are slow: here, `older` follows from what every reader still needs.
        spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        # LITE: only what the log knows, so never a file of a micro-batch that is being written.
        hours = math.ceil(older / 3600)
        try:
            spark.sql(f"VACUUM {table_at(collection)} LITE RETAIN {hours} HOURS")
        except Exception as problem:
            if "CANNOT_VACUUM_LITE" not in str(problem):
                raise
            # Part of the log is gone (Delta keeps it for 30 days): by what lies there, a week old at least.
            spark.sql(f"VACUUM {table_at(collection)} RETAIN {max(hours, _FULL_HOURS)} HOURS")

    def _listen(self, spark: SparkSession) -> None:
        from pyspark.java_gateway import ensure_callback_server_started

        ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
        java: Any = spark._jvm
        package = java.org.apache.spark.sql.streaming
        wrapper = package.PythonStreamingQueryListenerWrapper(self._progress)
        streams = spark._jsparkSession.streams()
        streams.addListener(wrapper)
        self._unlisten = partial(streams.removeListener, wrapper)

    # ── checking

    def check(self, description: Description, secrets: Secrets) -> CheckResult:
        found = check_description(
            description,
            secrets,
            self._connectors,
            self._outputs,
            self._context.directory,
            warehouse=self._warehouse,
        )
        lacking = self._lacking_jars(description, secrets)
        unreadable = self._unreadable(description)
        diagnostics = (*found.diagnostics, *lacking, *unreadable)
        if not any(one.severity == "error" for one in diagnostics):
            diagnostics += self._unsupported(description, secrets)
        return CheckResult(diagnostics=diagnostics, upstream=found.upstream, makes=found.makes)

    def _unreadable(self, description: Description) -> tuple[Diagnostic, ...]:
        """MZ241, before anything is stopped for a query that could not go on from its checkpoint."""
        try:
            require_readable(Checkpoint.of(self._warehouse, *description.place), description.address)
        except MzplanError as problem:
            return problem.diagnostics
        except OSError:  # what is wrong with it, the start says
            pass
        return ()

    def _unsupported(self, description: Description, secrets: Secrets) -> tuple[Diagnostic, ...]:
        """MZ281, before anything is stopped for a query that could not go on with its tables. One that runs
        with these tables fails by itself."""
        if self._spark is None or description.address.kind == "connection" or self._runs(description):
            return ()
        try:
            self._require_features(self._resolve(description, secrets))
        except MzplanError as problem:
            return tuple(d for d in problem.diagnostics if d.code == "MZ281")
        return ()

    def _runs(self, description: Description) -> bool:
        with self._lock:
            names = [(name.address, name.generation) for name in self._running]
        return (description.address, description.generation) in names

    def _require_features(self, query: ResolvedQuery) -> None:
        """Raise MZ281 for a table that the Delta of here can't read, or write where the query does."""
        ours = self._delta_features
        if ours is None:  # it then says so itself
            return
        is_source = query.address.kind == "source"
        tables = {self._collection(query.description): is_source}
        target = None if is_source else self._connectors.sink(query.description.type).target_table(query)
        if target is not None:
            tables[target] = True
        for table, writes in tables.items():
            with suppress(OSError, ValueError):  # what can't be seen, the start says
                require_features(table, query.address, ours, writes=writes)

    def prepare(self, description: Description, secrets: Secrets) -> tuple[Diagnostic, ...]:
        return prepare_target(
            description,
            secrets,
            self._connectors,
            self._outputs,
            self._context.directory,
            self._warehouse,
        )

    def _lacking_jars(self, description: Description, secrets: Secrets) -> tuple[Diagnostic, ...]:
        """MZ129, before anything is stopped for a query that could not be started."""
        link = description.connections.get("connection")
        if self._spark is None or link is None or AWS not in link.connections:
            return ()
        try:
            require_packages(self._spark, self._resolve(description, secrets))
        except MzplanError as problem:
            return tuple(d for d in problem.diagnostics if d.code == "MZ129")
        return ()

    def _outputs(self, query: ResolvedQuery) -> tuple[Output, ...]:
        """A sink's columns: exactly, once Spark is there; before that, as far as they are known."""
        spark = self._spark
        if spark is None:
            return outputs_without_spark(query)
        return analysed_outputs(spark, query, self._position(query))

    def _connector(self, query: ResolvedQuery) -> Side:
        type_ = query.description.type
        is_source = query.address.kind == "source"
        return self._connectors.source(type_) if is_source else self._connectors.sink(type_)

    def _position(self, query: ResolvedQuery) -> str:
        upstream = query.description.source
        return self._connectors.source(upstream.type if upstream else query.description.type).position

    # ── starting

    def start(self, description: Description, secrets: Secrets, epoch: int) -> None:
        spark = self._session()
        self._secrets = secrets
        query = self._resolve(description, secrets)
        name = QueryName.of(self._context.project, description)
        running = Running(name, self._connector(query).route(query))
        require_plain(query.address, self._checkpoint(query), self._collection(description))
        self._require_features(query)
        try:
            if description.source is not None:
                self._begin_steps(spark, description, secrets, running, epoch)
            running.written_with = take_over(self._checkpoint(query), query.address, self._versions)
            if description.source is None:
                self._backfill(spark, query, running, epoch)
            running.step = self._checkpoint(query).log.committed()
            running.resumed = resumed(self._checkpoint(query), running.step)
            started = self._submit(spark, query, running, epoch)
        except MzplanError:
            raise
        except Exception as problem:
            found = failures.of_exception(problem)
            raise error(
                found.code if found.code != failures.OTHER else "MZ063",
                f"{description.address} could not be started",
                found.text,
                address=description.address,
            ) from None
        running.java = started._jsq
        running.query_id, running.run_id = started.id, started.runId
        self._progress.follow(running.run_id)
        with self._lock:
            before = self._running.get(name)
            self._running[name] = running
        if before is not None:  # it had failed, and is healed
            self._progress.forget(before.run_id)

    def _begin_steps(
        self, spark: SparkSession, description: Description, secrets: Secrets, running: Running, epoch: int
    ) -> None:
        """What began before the sink was changed is finished first."""

        def run_once(earlier: Description, finishing: Running) -> StreamingQuery:
            return self._submit(spark, self._resolve(earlier, secrets), finishing, epoch, once=True)

        checkpoint = Checkpoint.of(self._warehouse, *description.place)
        self._unfinished.begin(description, checkpoint, running, run_once)

    def _backfill(self, spark: SparkSession, query: ResolvedQuery, running: Running, epoch: int) -> None:
        """Do what the source is to do before it starts; first what a killed runner has begun of that."""
        checkpoint, connector = self._checkpoint(query), self._connectors.source(query.description.type)
        if not query.description.backfills and not checkpoint.backfills.all():
            return
        settle_backfills(checkpoint, self._collection(query.description))
        running.backfilled = newest_done(checkpoint)
        if backfills_to_do(query, checkpoint):
            self._remember_upstream(query)
        pass_over_begun(query, checkpoint)
        if not backfills_to_do(query, checkpoint):
            return

        def run_once(description: Description, finishing: Running) -> StreamingQuery:
            return self._submit(spark, query, finishing, epoch, once=True)

        self._unfinished.finish(query.description, checkpoint, running, run_once)
        collection = self._own_collection(spark, query)
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", str(query.address))
        letters = letters_of(connector, query, running.leave_out)
        try:
            write_backfills(spark, connector, query, checkpoint, collection, letters)
        except (MzplanError, OSError):
            raise
        except Exception as problem:
            found = failures.of_exception(problem)
            raise error(
                found.code if found.code != failures.OTHER else "MZ279",
                f"The backfill of {query.address} could not be done",
                found.text,
                f"it is tried again; mzplan backfill {query.address} --cancel gives it up.",
                address=query.address,
            ) from None
        running.backfilled = newest_done(checkpoint)

    def _submit(
        self, spark: SparkSession, query: ResolvedQuery, running: Running, epoch: int, *, once: bool = False
    ) -> StreamingQuery:
        if query.address.kind == "source":
            self._remember_upstream(query)
        else:
            record_release(self._connectors, self._checkpoint(query), query.description)
        writer = self._writer(spark, query, running, epoch)
        self._progress.expect(str(running.name))
        lost = partial(self._end_if_restored, query, running)
        self._steps.begins(str(running.name), self._history(query.description), lost)
        # A scheduler pool of its own: a backlog here doesn't hold up the other queries.
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", str(query.address))
        writer = writer.queryName(str(running.name))
        writer = writer.option("checkpointLocation", self._checkpoint(query).spark)
        if once:  # not availableNow, which would go on to what has come since
            return writer.trigger(once=True).start()
        return writer.trigger(processingTime=trigger_interval(query)).start()

    def _writer(
        self, spark: SparkSession, query: ResolvedQuery, running: Running, epoch: int
    ) -> DataStreamWriter:
        description = query.description
        if description.address.kind == "source":
            collection = self._own_collection(spark, query)
            return source_writer(
                spark,
                self._connectors.source(description.type),
                query,
                collection,
                fail=running.fail,
                rewriting=self._collections.rewriting(collection),
                left_out=running.leave_out,
            )
        collection = self._collection(description)
        self._collections.wait_for_writer(collection, query.columns, lambda: self._source_runs(query))
        self._ensure_table(spark, query, collection)
        return sink_writer(
            spark,
            self._connectors.sink(description.type),
            query,
            collection,
            epoch=epoch,
            checkpoint=self._checkpoint(query),
            fail=running.fail,
            warn=running.warn,
            interrupt=running.interruptions.append,
            covers=self._history(description).covers,
            wrote=partial(self._steps.wrote, str(running.name)),
            rewriting=self._collections.rewriting,
        )

    def _own_collection(self, spark: SparkSession, query: ResolvedQuery) -> str:
        """The collection of a source, which is about to write it."""
        collection = self._collection(query.description)
        ensure_collection(self._checkpoint(query), query.address, collection)
        self._ensure_table(spark, query, collection)
        remember_collection(self._checkpoint(query), collection)
        self._collections.is_written_with(collection, query.columns)
        return collection

    def _end_if_restored(self, query: ResolvedQuery, running: Running) -> None:
        """End a source whose collection was restored to an older copy: its sinks would read past what comes
        in the place of the lost steps."""
        try:
            ensure_collection(self._checkpoint(query), query.address, self._collection(query.description))
        except MzplanError as problem:
            running.fail(problem)
            with suppress(MzplanError):  # it is busy: its next start is refused
                running.stop()

    def _ensure_table(self, spark: SparkSession, query: ResolvedQuery, collection: str) -> None:
        position, keyed = self._position(query), bool(query.keys)
        self._collections.ensure(spark, collection, query.columns, position, keyed=keyed)

    def _collection(self, description: Description) -> str:
        """The one that a query writes, or reads."""
        place = description.source or description
        return collection_path(self._warehouse, place.id, place.generation)

    def _source_runs(self, query: ResolvedQuery) -> bool:
        upstream = query.description.source
        with self._lock:
            running = [
                one for name, one in self._running.items() if upstream and name.address == upstream.address
            ]
        return any(one.java.isActive() for one in running)

    def _remember_upstream(self, query: ResolvedQuery) -> None:
        """Record the upstream's identity before the very first start; later, insist on it."""
        connector, checkpoint = self._connectors.source(query.description.type), self._checkpoint(query)
        found = connector.probe(query)
        errors = [d for d in found.diagnostics if d.severity == "error"]
        if errors:
            raise MzplanError(errors)
        record_release(self._connectors, checkpoint, query.description)
        if found.upstream is None:
            return
        take_upstream(connector, query, checkpoint, found.upstream, lambda: self._last_times(query))

    def _last_times(self, query: ResolvedQuery) -> dict[int, int]:
        """When the last record of each partition that was read is from, in milliseconds since the epoch."""
        from pyspark.sql import functions as f

        collection = self._collection(query.description)
        rows = self._session().read.format("delta").load(collection)
        by_partition = rows.groupBy("_position.partition").agg(
            f.unix_millis(f.max("_position.timestamp")).alias("last")
        )
        return {row["partition"]: row["last"] for row in by_partition.collect()}

    def _history(self, description: Description) -> StepHistory:
        source = description.source
        return StepHistory(
            self._warehouse,
            description.place,
            source.place if source is not None else None,
            whole=writes_all(description.body),
        )

    def _checkpoint(self, query: ResolvedQuery) -> Checkpoint:
        return Checkpoint.of(self._warehouse, query.description.id, query.description.generation)

    def _resolve(self, description: Description, secrets: Secrets) -> ResolvedQuery:
        return resolve(description, secrets, self._context.directory, self._warehouse)

    def _session(self) -> SparkSession:
        if self._spark is None:
            raise error("MZ062", "Spark is not open", "start was called before open.")
        return self._spark

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
        self._steps.ended(str(name))

    def _stop_whatever_happens(self, name: QueryName) -> None:
        # The session is about to end, and the query with it; it may have ended already.
        with suppress(Exception):
            self.stop(name)

    # ── reporting

    def counted(self) -> Mapping[Address, Counters]:
        return self._steps.counted()

    def reports(self) -> list[QueryReport]:
        """See Executor. Raises RuntimeError when Spark's Java process has ended (killed, or out of memory):
        this process can't go on then, and whoever supervises it starts another one."""
        if self._spark is not None and has_ended(self._spark):
            raise RuntimeError("Spark's Java process has ended: was it killed, or out of memory?")
        with self._lock:
            running = list(self._running.values())
        found = {one.run_id: self._progress.get(one.run_id) for one in running}
        if self._look(running, found):
            self._collections.forget_all()  # it may have failed of its table: look again
        return [one.report(found[one.run_id], self._steps.recorded(str(one.name))) for one in running]

    def _look(self, running: list[Running], found: Mapping[str, Progress | None]) -> bool:
        """Ask Spark about those that it says have ended; and for a moment about others, that were asked
        longest ago, but first about those of which it says nothing by itself. One of the rest is asked in any
        case: it may have ended unannounced, while many others are in long first micro-batches. Returns
        whether one has ended."""
        ended: list[Running] = []
        others: list[Running] = []
        for one in running:
            if one.ended is None:
                (ended if self._progress.has_ended(one.run_id) else others).append(one)
        others.sort(key=lambda one: one.asked_at)
        silent = [one for one in others if not one.was_idle and found[one.run_id] is None]
        heard = [one for one in others if one.was_idle or found[one.run_id] is not None]
        others = [*heard[:1], *silent, *heard[1:]]
        news = [one.look(found[one.run_id]) for one in ended]
        until = time.monotonic() + _ASKING
        for number, one in enumerate(others):
            if number >= _ASKED and time.monotonic() >= until:
                break
            news.append(one.look(found[one.run_id]))
        return any(news)
