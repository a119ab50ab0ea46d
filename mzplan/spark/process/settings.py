"""The configuration of a runner's Spark session.

mzplan's defaults yield to the settings of spark-submit, PYSPARK_SUBMIT_ARGS and spark-defaults.conf.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from mzplan.host.spark_lines import SparkLine, installed_line
from mzplan.model.diagnostics import error

if TYPE_CHECKING:
    from pyspark import SparkConf

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
# The settings that Spark masks in its UI and event log: Spark's default, and mzplan's addition.
_REDACTED = "(?i:secret|password|token|access[.]?key)"
_ALSO_REDACTED = "(?i:keystore[.]key|jaas|private.?key)"
# Settings that users can't change. Without them, Spark would replace ${…} in users' SQL by configuration
# values, including secrets, and read "…" as a name. After a write, Delta would merge the files that a table's
# log names, even files outside the table.
FIXED_SETTINGS = {
    "spark.sql.variable.substitute": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.databricks.delta.autoCompact.enabled": "false",
    # Other programs read Spark's deprecated default, INT96, as nanoseconds, which end in the year 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
# Settings that users can't change for a local master, whose only executor is the driver itself. After a stall
# of two minutes (a sleeping laptop, an overloaded machine), Spark would remove the executor for its missing
# heartbeats. Local mode can't register it again: Spark would end its Java process ten minutes later.
_LOCAL_SETTINGS = {
    "spark.storage.blockManagerHeartbeatTimeoutMs": "365d",
    "spark.executor.heartbeat.maxFailures": "1000000",
}
# Settings that decide which values a query computes. They must be the same in every session: otherwise a
# restarted runner would continue a query's state with other values, and `verify` would compute other rows.
VALUE_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
    # Else a value of a Python function that its type can't hold would be cut.
    "spark.sql.execution.pandas.convertToArrowArraySafely": "true",
}
# A query that waits for a Kafka broker that is gone ends only when its requests have timed out. On a busy
# machine, that took more than 20 seconds.
STOP_TIMEOUT_S = 40
_STATE = "spark.sql.streaming.stateStore"
_STATE_SETTINGS = {
    "providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "rocksdb.changelogCheckpointing.enabled": "true",
    "rocksdb.boundedMemoryUsage": "true",
}
_REMOTE_SCHEMES = ("http", "https", "ftp")
NO_PACKAGES: Mapping[str, tuple[str, ...]] = {}


def _defaults(application: str) -> dict[str, str]:
    cores = os.cpu_count() or 2
    log4j = Path(__file__).with_name("log4j2.properties")
    return {
        "spark.app.name": application,
        "spark.master": "local[*]",
        "spark.driver.memory": _driver_memory(),
        # With Java's default stack, stopping a query inside foreachBatch fails with a StackOverflowError in a
        # regular expression. A JVM that ran out of memory may have lost any thread, so it exits, and mzplan
        # starts another one.
        JAVA_OPTIONS: f"-Xss8m -XX:+ExitOnOutOfMemoryError -Dlog4j2.configurationFile={log4j.as_uri()}",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # See pools.py.
        "spark.scheduler.mode": "FAIR",
        # The defaults (200 and 50) suit large tables: with them, a micro-batch of ten rows takes seconds.
        "spark.sql.shuffle.partitions": str(max(cores, 2)),
        "spark.databricks.delta.snapshotPartitions": "1",
        # Delta recomputes a table's state for each micro-batch that it writes. Without histograms, which
        # nothing reads, a first micro-batch takes a tenth less CPU.
        "spark.databricks.delta.fileSizeHistogramMetrics.enabled": "false",
        "spark.databricks.delta.checksumDVMetrics.enabled": "false",
        # mzplan doesn't read compacted log files, and Delta itself writes none.
        "spark.databricks.delta.deltaLog.minorCompaction.useForReads": "false",
        # Also in an object store: `verify` uses this log to tell files that VACUUM removed from lost files.
        "spark.databricks.delta.vacuum.logging.enabled": "true",
        # Otherwise Spark checks its own optimizer after each rule.
        "spark.sql.lightweightPlanChangeValidation": "false",
        # Streaming queries can't use it, and each start would log a warning.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.streaming.stopTimeout": f"{STOP_TIMEOUT_S}s",
        "spark.sql.streaming.numRecentProgressUpdates": "5",
        # Spark keeps these for its web page, which mzplan switches off. By default, the plans of the last
        # 1,000 executions stay in memory: each micro-batch has several, and a view's plan is long.
        "spark.sql.ui.retainedExecutions": "20",
        "spark.ui.retainedJobs": "100",
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "1000",
        # RocksDB keeps the state of queries on disk and in bounded memory outside Java's heap, shared by all
        # queries of the process.
        **{f"{_STATE}.{name}": value for name, value in _STATE_SETTINGS.items()},
        f"{_STATE}.rocksdb.maxMemoryUsageMB": str(_state_memory_mb()),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        # A table's log may name any file, and Hadoop would fetch it from any server. These classes don't
        # exist, so such a read fails with a clear error.
        **{f"spark.hadoop.fs.{scheme}.impl": f"mzplan.reads.no.{scheme}" for scheme in _REMOTE_SCHEMES},
        # Otherwise PySpark may make the JVM record the source line of each expression, for error messages.
        # Starting a Kafka source would then take 1,100 calls into the JVM instead of 400.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
    }


def _driver_memory() -> str:
    """Return a quarter of the machine's memory, from 1 to 4 GiB: 200 idle queries take about 3 GiB."""
    total = _memory()
    return f"{min(max(total // 4, 1 << 30), 4 << 30) >> 20}m" if total else "2g"


def _state_memory_mb() -> int:
    """Return a sixteenth of the machine's memory, from 256 MB to 1 GB, in MB."""
    return min(max((_memory() or 0) // 16, 256 << 20), 1 << 30) >> 20


def _memory() -> int | None:
    """Return the machine's memory in bytes; None if unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def configuration_of(
    application: str,
    options: Mapping[str, str],
    given: Mapping[str, str],
    packages: Mapping[str, tuple[str, ...]] = NO_PACKAGES,
    line: SparkLine | None = None,
) -> SparkConf:
    """Return a session's configuration.

    `packages`: packages to add and to exclude, by setting. Raises MzplanError MZ062 for a setting that would
    change the values that queries compute.
    """
    from pyspark import SparkConf

    _require_same_values({**given, **options})
    line = line or installed_line()
    defaults = _defaults(application)
    fixed = {**FIXED_SETTINGS, **VALUE_SETTINGS}
    if given.get("spark.master", options.get("spark.master", "local")).startswith("local"):
        fixed |= _LOCAL_SETTINGS
    else:  # executors must find the driver by its real address
        del defaults["spark.driver.host"], defaults["spark.driver.bindAddress"]
    wanted = {**defaults, **line.settings, **given, **options, **fixed}
    added = (*line.packages, *line.compatible(packages.get("spark.jars.packages", ())))
    wanted["spark.jars.packages"] = _joined(wanted.get("spark.jars.packages"), added)
    excluded = (*line.excluded, *packages.get("spark.jars.excludes", ()))
    wanted["spark.jars.excludes"] = _joined(wanted.get("spark.jars.excludes"), excluded)
    wanted[JAVA_OPTIONS] = _java_options(defaults[JAVA_OPTIONS], wanted[JAVA_OPTIONS])
    wanted["spark.sql.extensions"] = _joined(wanted.get("spark.sql.extensions"), (DELTA_EXTENSION,))
    wanted.setdefault("spark.sql.catalog.spark_catalog", _DELTA_CATALOG)
    # Options of a Kafka sink or of dead letters can hold a key, and Spark prints the options of a write.
    redacted = wanted.get("spark.redaction.regex", _REDACTED)
    wanted["spark.redaction.regex"] = f"{redacted}|{_ALSO_REDACTED}"
    conf = SparkConf(loadDefaults=False)
    for key, value in wanted.items():
        conf.set(key, value)
    return conf


def _require_same_values(settings: Mapping[str, str]) -> None:
    for name, required in VALUE_SETTINGS.items():
        given = settings.get(name, required)
        if given.strip().upper() != required.upper():
            raise error("MZ062.other-setting", name=name, given=given, required=required)


def _java_options(defaults: str, wanted: str) -> str:
    """Return mzplan's options, then the user's: of two values for an option, Java uses the last one."""
    if wanted == defaults:
        return defaults
    # Log4j would use the first configuration file.
    logs = "configurationFile" in wanted
    kept = [option for option in defaults.split() if not (logs and "configurationFile" in option)]
    return " ".join([*kept, wanted])


def _joined(given: str | None, added: tuple[str, ...]) -> str:
    """Return a comma-separated list with items added, except items that it already has in any version."""
    listed = [item for item in (given or "").split(",") if item]
    names = {item.rpartition(":")[0] or item for item in listed}
    return ",".join([*listed, *(item for item in added if (item.rpartition(":")[0] or item) not in names)])


def local_settings() -> dict[str, str]:
    """Return the configuration from spark-defaults.conf and PYSPARK_SUBMIT_ARGS."""
    settings = _spark_defaults()
    words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    names = {
        "--master": "spark.master",
        "--packages": "spark.jars.packages",
        "--driver-memory": "spark.driver.memory",
    }
    for flag, value in pairwise(words):
        if flag in names:
            settings[names[flag]] = value
        elif flag in ("--conf", "-c") and "=" in value:
            key, _, setting = value.partition("=")
            settings[key] = setting
    return settings


def _spark_defaults() -> dict[str, str]:
    folder = os.environ.get("SPARK_CONF_DIR") or str(
        Path(os.environ.get("SPARK_HOME") or "/nowhere") / "conf"
    )
    try:
        lines = (Path(folder) / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = (
        re.split(r"[\s=]+", line.strip(), maxsplit=1) for line in lines if not line.lstrip().startswith("#")
    )
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and pair[0].startswith("spark.")}


def submitted_settings() -> dict[str, str]:
    """Return spark-submit's configuration. Its JVM runs, so memory and Java options are fixed."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf(_jvm=SparkContext._jvm).getAll())
