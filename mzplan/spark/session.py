"""The Spark session of a runner: an ordinary PySpark driver, with any master, tuned for many small queries.

What spark-submit, PYSPARK_SUBMIT_ARGS or spark-defaults.conf say already is kept; ours are defaults.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import re
import shlex
import shutil
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mzplan.host.processes import LOG_FORMAT_VARIABLE
from mzplan.host.spark_lines import LINES, SparkLine, installed_line, line_of
from mzplan.model.diagnostics import MzplanError, error
from mzplan.secrets.resolved import scrub
from mzplan.spark.jars import is_as_pinned, jar_name, local_jars, require_pinned
from mzplan.spark.java import require_java
from mzplan.spark.task_python import tasks_like_the_driver

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

log = logging.getLogger("mzplan.spark.jvm")

_DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
# What Spark shows as asterisks in its UI and event log: its own default, which ours is beside.
_REDACTED = "(?i:secret|password|token|access[.]?key)"
_REDACTED_TOO = "(?i:keystore[.]key|jaas|private.?key)"
# How Spark reads what others have written, whatever is configured: else it puts values of its configuration,
# secrets among them, in the place of ${…}, and takes "…" for a name.
_READING = {"spark.sql.variable.substitute": "false", "spark.sql.ansi.doubleQuotedIdentifiers": "false"}
STOP_TIMEOUT_S = 20
_NOTHING: Mapping[str, tuple[str, ...]] = {}
_KEPT_LINES = 400
# As Ivy names what it could not get: `download failed: org.x#name;1.0!name.jar`, `unresolved dependency: …`.
_ARTIFACT = re.compile(
    r"(?:unresolved dependency|module not found|download failed): ([^#\s]+)#([^;\s]+);([^!:\s]+)"
)


def open_session(
    application: str, options: Mapping[str, str], further: Mapping[str, tuple[str, ...]] = _NOTHING
) -> SparkSession:
    """A session with Kafka and Delta, made or joined (5–20 s; the first time on a machine, Ivy downloads
    70 MB of jars). `options` is Spark configuration that wins over everything; `further` are jars, and others
    to leave out, beside those of always (see schema.description.packages_of).

    Raises MzplanError: MZ061 when there is no usable Java, MZ240 for a Spark of another line, MZ114 or
    MZ115 for a jar that is not as expected, MZ062 for anything else.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    submitted = _is_submitted()
    given = _given_by_submit() if submitted else _given()
    line = current_line()
    configuration = _configuration(application, options, given, further, line)
    scratch = _scratch()
    _keep_out_of_the_project(configuration, scratch)
    with _on_this_machine(configuration, submitted, scratch):
        if not submitted and SparkContext._gateway is None:
            require_java()
            _start(configuration, line)
        try:
            session = SparkSession.builder.config(conf=configuration).getOrCreate()
            for name, value in _READING.items():  # also of a session that was there
                session.conf.set(name, value)
            session.range(1).collect()
        except Exception as problem:
            raise _not_started(str(problem).splitlines()[:3]) from None
    if submitted:
        _require_packages(session, line)
        jars = local_jars(session.sparkContext.getConf().get("spark.jars"))
        require_pinned([jar for jar in jars if jar.is_file()], None, others=True)
    session.sparkContext.setLogLevel("WARN")
    _keep_jars_from_python(session)
    return session


def _is_submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def current_line() -> SparkLine:
    """The line of this driver's Spark: the one that spark-submit has started, whichever PySpark is beside
    mzplan, or else the one that open_session would start. Raises MzplanError MZ240."""
    from pyspark import SparkContext

    if not _is_submitted():
        return installed_line()
    SparkContext._ensure_initialized()
    java: Any = SparkContext._jvm
    package = getattr(getattr(java.org.apache.spark, "package$"), "MODULE$")
    return line_of(str(package.SPARK_VERSION()))


def _require_packages(session: SparkSession, line: SparkLine) -> None:
    """What spark-submit started can't be given jars any more: say so, before a query fails of it."""
    java: Any = session._jvm
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        for name in (_DELTA_EXTENSION, "org.apache.spark.sql.kafka010.KafkaSourceProvider"):
            loader.loadClass(name)
    except Exception:
        raise error(
            "MZ062",
            "Spark was submitted without the jars that mzplan needs",
            f"They are {' and '.join(line.packages)}.",
            f"spark-submit --packages {','.join(line.packages)} --driver-java-options -Xss8m …",
        ) from None


def has_ended(session: SparkSession) -> bool:
    """Whether the session's Java process is gone (one that spark-submit started takes us along)."""
    process = getattr(session.sparkContext._gateway, "proc", None)
    return process is not None and process.poll() is not None


def _keep_jars_from_python(session: SparkSession) -> None:
    """Take the jars of spark.jars.packages off Python's path, here and in the workers.

    spark-submit offers them to Python, too, in case one holds a module. None of ours does, and each
    Python task would read their 60,000 directory entries again: a quarter of a second.
    """
    includes: list[str] = session.sparkContext._python_includes or []
    includes[:] = [name for name in includes if not name.endswith(".jar")]
    sys.path[:] = [path for path in sys.path if not path.endswith(".jar")]


def _keep_out_of_the_project(configuration: SparkConf, scratch: Path) -> None:
    """Spark's own tables, and Derby's log and database of a Hive catalogue, would be made in the folder that
    the driver was started in."""
    configuration.setIfMissing("spark.sql.warehouse.dir", (scratch / "tables").as_uri())
    options = configuration.get(_JAVA_OPTIONS, "")
    if "derby.system.home" not in str(options):
        configuration.set(_JAVA_OPTIONS, f'{options} "-Dderby.system.home={scratch}"')


def _on_this_machine(
    configuration: SparkConf, submitted: bool, scratch: Path
) -> AbstractContextManager[None]:
    """What only a session without a cluster needs: a folder of its own, and tasks like the driver."""
    if not str(configuration.get("spark.master")).startswith("local"):
        return nullcontext()
    if not submitted and not configuration.contains("spark.local.dir"):
        configuration.set("spark.local.dir", str(scratch))
    return tasks_like_the_driver(scratch)


def _scratch() -> Path:
    """A folder for this user alone: what Spark shuffles and caches are rows of other people's tables.

    It is locked until this process ends, however that happens: systemd-tmpfiles, which removes from /tmp what
    is ten days old, leaves a locked folder alone, and tasks start from it for as long as we run."""
    folder = tempfile.mkdtemp(prefix="mzplan-spark-")  # 0700
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with suppress(OSError):  # a file system without locks
        fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_SH)  # never closed: that would end the lock
    return Path(folder)


def _defaults(application: str) -> dict[str, str]:
    cores = os.cpu_count() or 2
    log4j = Path(__file__).with_name("log4j2.properties")
    return {
        "spark.app.name": application,
        "spark.master": "local[*]",
        "spark.driver.memory": _driver_memory(),
        # Without the larger stack, stopping a query in the middle of a foreachBatch dies of a
        # StackOverflowError in a regular expression.
        _JAVA_OPTIONS: f"-Xss8m -Dlog4j2.configurationFile={log4j.as_uri()}",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # One pool per query (see streams.py): a backlog of one query doesn't hold up the others.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.session.timeZone": "UTC",
        # The defaults, 200 and 50, are for large tables: with them a micro-batch of ten rows takes seconds.
        "spark.sql.shuffle.partitions": str(max(cores, 2)),
        "spark.databricks.delta.snapshotPartitions": "1",
        # Delta computes the state of a table anew for each micro-batch that it writes: without histograms
        # that nobody here reads, a first micro-batch takes a tenth less CPU.
        "spark.databricks.delta.fileSizeHistogramMetrics.enabled": "false",
        "spark.databricks.delta.checksumDVMetrics.enabled": "false",
        # Also in an object store: by it, verify tells files that VACUUM has removed from lost ones.
        "spark.databricks.delta.vacuum.logging.enabled": "true",
        # Else Spark checks its own optimizer after each rule.
        "spark.sql.lightweightPlanChangeValidation": "false",
        # Streaming queries can't use it, and each start would warn of that.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.streaming.stopTimeout": f"{STOP_TIMEOUT_S}s",
        "spark.sql.streaming.numRecentProgressUpdates": "5",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        # Else PySpark may have the JVM note which line of ours made each expression, for Spark's errors (the
        # thread that asks first decides): the rows of a Kafka source then take 1,100 calls and not 400.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
    }


def _driver_memory() -> str:
    """A quarter of the machine's memory, from 1 to 4 GiB: 200 idle queries take about 3 GiB."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return "2g"
    return f"{min(max(total // 4, 1 << 30), 4 << 30) >> 20}m"


def _configuration(
    application: str,
    options: Mapping[str, str],
    given: Mapping[str, str],
    further: Mapping[str, tuple[str, ...]] = _NOTHING,
    line: SparkLine | None = None,
) -> SparkConf:
    from pyspark import SparkConf

    line = line or installed_line()
    defaults = _defaults(application)
    if not given.get("spark.master", options.get("spark.master", "local")).startswith("local"):
        # On a cluster the executors must find the driver by its real address.
        del defaults["spark.driver.host"], defaults["spark.driver.bindAddress"]
    wanted = {**defaults, **line.settings, **given, **options, **_READING}
    packages = (*line.packages, *line.fitting(further.get("spark.jars.packages", ())))
    wanted["spark.jars.packages"] = _joined(wanted.get("spark.jars.packages"), packages)
    excluded = (*line.excluded, *further.get("spark.jars.excludes", ()))
    wanted["spark.jars.excludes"] = _joined(wanted.get("spark.jars.excludes"), excluded)
    wanted[_JAVA_OPTIONS] = _java_options(defaults[_JAVA_OPTIONS], wanted[_JAVA_OPTIONS])
    wanted["spark.sql.extensions"] = _joined(wanted.get("spark.sql.extensions"), (_DELTA_EXTENSION,))
    wanted.setdefault("spark.sql.catalog.spark_catalog", _DELTA_CATALOG)
    # Options of a Kafka sink or dead letters hold a key: Spark prints the options of a write.
    redacted = wanted.get("spark.redaction.regex", _REDACTED)
    wanted["spark.redaction.regex"] = f"{redacted}|{_REDACTED_TOO}"
    conf = SparkConf(loadDefaults=False)
    for key, value in wanted.items():
        conf.set(key, value)
    return conf


def _java_options(ours: str, wanted: str) -> str:
    """Ours, then what is given: of two, Java takes the last. Only Log4j prefers our name of its file."""
    if wanted == ours:
        return ours
    logs = "configurationFile" in wanted
    return " ".join([*(one for one in ours.split() if not (logs and "configurationFile" in one)), wanted])


def _joined(given: str | None, ours: tuple[str, ...]) -> str:
    """A comma-separated list with ours added, except those that are there in some version."""
    there = [item for item in (given or "").split(",") if item]
    names = {item.rpartition(":")[0] or item for item in there}
    return ",".join([*there, *(item for item in ours if (item.rpartition(":")[0] or item) not in names)])


def _given() -> dict[str, str]:
    """Configuration from outside that our own would override: spark-defaults.conf, PYSPARK_SUBMIT_ARGS."""
    found = _spark_defaults()
    words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    names = {
        "--master": "spark.master",
        "--packages": "spark.jars.packages",
        "--driver-memory": "spark.driver.memory",
    }
    for flag, value in pairwise(words):
        if flag in names:
            found[names[flag]] = value
        elif flag in ("--conf", "-c") and "=" in value:
            key, _, setting = value.partition("=")
            found[key] = setting
    return found


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


def _given_by_submit() -> dict[str, str]:
    """What spark-submit was given: its JVM runs already, so memory and Java options are as they are."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf(_jvm=SparkContext._jvm).getAll())


def _start(conf: SparkConf, line: SparkLine) -> None:
    """Start the JVM, with jars that are as pinned. Raises MzplanError MZ062, MZ114, MZ115.

    What replaces a jar of Spark's must be on the class path when Java starts, and Ivy runs in there: the
    first start of a machine, which downloads it, is made twice.
    """
    from pyspark import SparkContext

    given, named = conf.get("spark.driver.extraClassPath"), bool(conf.get("spark.jars"))
    ivy = Path(conf.get("spark.jars.ivy") or Path.home() / ".ivy2.5.2")
    wanted = jar_name(line.before_spark) if line.before_spark else None
    first: Path | None = ivy / "jars" / wanted if wanted else None
    if first is not None and not is_as_pinned(first):
        first = None
    while True:
        if first is not None:
            conf.set("spark.driver.extraClassPath", os.pathsep.join(filter(None, (str(first), given))))
        gateway = _launch(conf)
        try:
            jars = local_jars(gateway.jvm.java.lang.System.getProperty("spark.jars"))
            require_pinned(jars, conf.get("spark.jars.packages"), named)
        except BaseException:
            _end(gateway)
            raise
        there = next((jar for jar in jars if jar.name == wanted), None)
        if there is None or first is not None:
            break
        first = there
        _end(gateway)
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


def _end(gateway: Any) -> None:
    """End a JVM that has no session yet."""
    gateway.shutdown()
    gateway.proc.stdin.close()  # which it waits for
    gateway.proc.wait(STOP_TIMEOUT_S)


def _launch(conf: SparkConf) -> Any:
    """Start a JVM, and keep what it says meanwhile: Ivy's report is the only trace of a failure."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    reader, writer = os.pipe()
    lines: deque[bytes] = deque(maxlen=_KEPT_LINES)
    started = threading.Event()
    relay = threading.Thread(target=_relay, args=(reader, lines, started), name="spark-stderr", daemon=True)
    relay.start()
    try:
        gateway: Any = launch_gateway(  # type: ignore[no-untyped-call]
            conf, {"stderr": writer, "stdout": writer}
        )
    except PySparkRuntimeError:
        os.close(writer)
        relay.join(5)
        raise _not_started([line.decode(errors="replace") for line in lines]) from None
    os.close(writer)
    started.set()
    return gateway


def _relay(reader: int, lines: deque[bytes], started: threading.Event) -> None:
    """Pass on the JVM's output once it has started; what came before is only kept (Ivy is talkative)."""
    as_json = os.environ.get(LOG_FORMAT_VARIABLE) == "json"
    with os.fdopen(reader, "rb") as stream:
        for line in stream:
            if not started.is_set():
                lines.append(line.rstrip())
                continue
            text = scrub(line.decode(errors="surrogateescape"))
            if as_json and not text.startswith('{"time"'):  # of the JVM itself, or of a library's own
                log.warning("%s", text.rstrip("\n"))
                continue
            try:
                sys.stderr.buffer.write(text.encode(errors="surrogateescape"))
                sys.stderr.flush()
            except (OSError, ValueError, AttributeError):
                continue  # a closed terminal must not block the JVM


def _not_started(lines: list[str]) -> MzplanError:
    """Why Spark did not start, from what it has printed."""
    text = "\n".join(lines)
    missing = [":".join(found) for found in _ARTIFACT.findall(text)]
    listed = ", ".join(dict.fromkeys(missing)) or "see the log"
    if "download failed" in text and "local-m2-cache" in text and " in local-m2-cache" in text:
        return error(
            "MZ062",
            "Spark's jars could not be resolved: the local Maven cache is broken",
            f"Ivy looks into ~/.m2 first, and found a .pom there without its jar: {listed}.",
            "remove that artifact's folder under ~/.m2/repository (or move ~/.m2 away), then start again.",
        )
    if missing or "unresolved dependencies" in text:
        return error(
            "MZ062",
            "Spark's jars could not be downloaded",
            f"Not to be had: {listed} (70 MB in all, once).",
            "check the network; behind a proxy set JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=… "
            "-Dhttps.proxyPort=…; for a mirror set spark.jars.ivySettings or "
            "spark.jars.repositories in spark-defaults.conf.",
        )
    signs = [
        line.strip() for line in lines if re.search(r"error|exception|denied|refused|invalid", line, re.I)
    ]
    return error(
        "MZ062",
        "Spark did not start",
        " ".join((signs or [line.strip() for line in lines[-3:]])[:3]) or "It ended without a word.",
        f"mzplan needs PySpark {LINES[0].spark} to {LINES[-1].spark} and Java 17 or 21; see docs/errors.md.",
    )
