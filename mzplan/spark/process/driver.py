"""The Spark session of an executor: opens it once, listens to it, and closes it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mzplan import __version__
from mzplan.controller.executor import ExecutorContext
from mzplan.host.spark_lines import Installation, line_of
from mzplan.model.diagnostics import error
from mzplan.model.observed import Versions
from mzplan.spark.process.job_watch import JobWatch
from mzplan.spark.process.liveness import Liveness
from mzplan.spark.process.session import current_line, open_session
from mzplan.spark.progress import ProgressListener, listen
from mzplan.spark.tasks.progress import TasksUnderWay
from mzplan.spark.versions import delta_features
from mzplan.warehouse.paths import absolute, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark's default sets the permissions of each checkpoint file. On a local disk, Hadoop starts a `chmod`
# process for each: some twenty per micro-batch. Both managers write a temporary file and rename it.
CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"

_REPORTS_WITHOUT_INPUT = {"spark.sql.streaming.noDataProgressEventInterval": "100"}  # milliseconds


class SparkDriver:
    """The base of an executor. Methods may be called from several threads."""

    def __init__(self, context: ExecutorContext, listener: ProgressListener):
        self._context = context
        self._warehouse = absolute(context.directory, context.warehouse)
        self._progress = listener
        self._tasks = TasksUnderWay()
        self._opening = threading.Lock()
        self._spark: SparkSession | None = None
        self._liveness: Liveness | None = None
        self._jobs: JobWatch | None = None
        self._delta_features: frozenset[str] | None = None
        self._versions: Versions | None = None
        self._installation: Installation | None = None
        self._unlisten: Callable[[], Any] | None = None

    def open(self) -> None:
        with self._opening:
            if self._spark is not None:
                return
            self._installation = Installation()
            is_local = local_path(self._warehouse) is not None
            reports = _REPORTS_WITHOUT_INPUT if self._context.until_caught_up else {}
            local = {CHECKPOINT_FILES: current_line().local_checkpoints} if is_local else {}
            spark = open_session(
                f"mzplan {self._context.project}",
                {**local, **reports, **self._context.options},
                self._context.packages,
            )
            self._listen(spark)
            self._delta_features = delta_features(spark)
            line = line_of(spark.version)
            self._versions = Versions(
                mzplan=__version__, spark=spark.version, delta=line.delta, kafka=line.connector
            )
            self._jobs = JobWatch(spark, self._tasks.measure)
            self._liveness = Liveness(spark, self._jobs.look)
            self._spark = spark

    def is_open(self) -> bool:
        return self._spark is not None

    def failure_reason(self) -> str | None:
        return self._liveness.why_dead() if self._liveness is not None else None

    def kill(self) -> None:
        if self._liveness is not None:
            self._liveness.kill()

    def scarce_cores(self) -> int:
        return self._jobs.scarce_cores() if self._jobs is not None else 0

    def stall(self) -> str | None:
        return self._jobs.stall() if self._jobs is not None else None

    def versions(self) -> Versions | None:
        return self._versions

    def replacement(self, *, at_once: bool = False) -> str | None:
        installation = self._installation
        return installation.replaced_by(at_once=at_once) if installation is not None else None

    def _session(self) -> SparkSession:
        if self._spark is None:
            raise error("MZ062.not-open")
        return self._spark

    def _listen(self, spark: SparkSession) -> None:
        from pyspark.java_gateway import ensure_callback_server_started

        ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
        self._unlisten = listen(spark, self._progress)

    def _close_session(self) -> None:
        with self._opening:
            unlisten, self._unlisten = self._unlisten, None
            spark, self._spark = self._spark, None
            if self._has_ended():
                return
            if self._liveness is not None:
                self._liveness.close()
            if unlisten is not None:
                with suppress(Exception):  # the session may already have ended
                    unlisten()
            if spark is not None:
                spark.stop()

    def _has_ended(self) -> bool:
        return self._liveness is not None and self._liveness.why_ended() is not None
