"""The Spark session and the connectors that the trials of one process share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import ResolvedQuery, resolve
from mzplan.connectors.catalogue import Connectors
from mzplan.connectors.unresolved import UnresolvedSecrets
from mzplan.host.spark_lines import installed_line
from mzplan.schema.description import Description
from mzplan.spark.process.command_session import close_command_session, open_command_session
from mzplan.spark.process.driver import CHECKPOINT_FILES
from mzplan.spark.process.settings import JAVA_OPTIONS, NO_PACKAGES
from mzplan.spark.views import own_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Other settings than a runner's, which compute the same rows in less time. The JVM lives for seconds, so its
# optimizing compiler, and Spark's compiler of expressions, cost more than they save.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=256m"
_STATE_PROVIDER = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
_OPTIONS = {
    JAVA_OPTIONS: _JAVA,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.stateStore.providerClass": _STATE_PROVIDER,
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
}
# Loggers of PySpark that print an error of a micro-batch, which the test's result has anyway.
_NOISY = ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialBench:
    """What the trials of one process share. `directory`: the folder from which relative paths start."""

    spark: SparkSession
    directory: str
    connectors: Connectors
    _idle: SimpleQueue[SparkSession] = field(default_factory=SimpleQueue)

    @classmethod
    def open(
        cls,
        directory: str,
        starting: Callable[[], None],
        packages: Mapping[str, tuple[str, ...]] = NO_PACKAGES,
    ) -> TrialBench:
        """Start Spark in this process. Raises MzplanError. See open_command_session."""
        for name in _NOISY:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        options = {CHECKPOINT_FILES: installed_line().local_checkpoints, **_OPTIONS}
        spark = open_command_session(starting, packages, options)
        from pyspark.java_gateway import ensure_callback_server_started

        ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
        return cls(spark=spark, directory=directory, connectors=Connectors())

    def close(self) -> None:
        """Stop Spark. Raises KeyboardInterrupt if a signal has ended it."""
        close_command_session(self.spark)

    @contextmanager
    def session(self) -> Iterator[SparkSession]:
        """Lend a session of its own. To make one takes longer than many a test, so they are used again."""
        try:
            session = self._idle.get_nowait()
        except Empty:
            session = own_session(self.spark)
        try:
            yield session
        finally:
            self._idle.put(session)

    def resolve(self, description: Description, warehouse: str | None = None) -> ResolvedQuery:
        """Return a query without the values of its secrets."""
        return resolve(description, UnresolvedSecrets(self.directory, {}), self.directory, warehouse)
