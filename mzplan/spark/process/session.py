"""The Spark session of a runner: an ordinary PySpark driver with any master.

mzplan.spark.process.settings tunes it for many small queries.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import re
import shutil
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mzplan.host.processes import LOG_FORMAT_VARIABLE, SCRATCH_PREFIX
from mzplan.host.spark_lines import LINES, SparkLine, installed_line, line_of
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError, error
from mzplan.secrets.resolved import scrub
from mzplan.spark.process.java import is_as_pinned, jar_name, local_jars, require_java, require_pinned
from mzplan.spark.process.settings import (
    DELTA_EXTENSION,
    FIXED_SETTINGS,
    JAVA_OPTIONS,
    NO_PACKAGES,
    STOP_TIMEOUT_S,
    VALUE_SETTINGS,
    configuration_of,
    local_settings,
    submitted_settings,
)
from mzplan.spark.process.task_python import tasks_like_the_driver
from mzplan.spark.sql.unsafe_functions import remove_unsafe_functions

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

log = logging.getLogger("mzplan.spark.jvm")

_KEPT_LINES = 400
_discards = threading.Event()
# Ivy's messages for missing artifacts: `download failed: org.x#name;1.0!name.jar`, `unresolved dependency:
# …`.
_ARTIFACT = re.compile(
    r"(?:unresolved dependency|module not found|download failed): ([^#\s]+)#([^;\s]+);([^!:\s]+)"
)


def open_session(
    application: str, options: Mapping[str, str], packages: Mapping[str, tuple[str, ...]] = NO_PACKAGES
) -> SparkSession:
    """Create or join a session with Kafka and Delta.

    Takes 5–20 s; the first time on a machine, Ivy downloads 70 MB of jars. `options`: Spark configuration
    that overrides everything else. `packages`: packages to add and to exclude (see
    schema.description.packages_of). Raises MzplanError: MZ061 without a usable Java, MZ240 for an unsupported
    Spark version, MZ114 for an unexpected jar, MZ062 for anything else.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    submitted = _is_submitted()
    given = submitted_settings() if submitted else local_settings()
    line = current_line()
    configuration = configuration_of(application, options, given, packages, line)
    scratch = _scratch()
    _keep_out_of_the_project(configuration, scratch)
    with _on_this_machine(configuration, submitted, scratch):
        if not submitted and SparkContext._gateway is None:
            require_java()
            _start(configuration, line)
        try:
            session = SparkSession.builder.config(conf=configuration).getOrCreate()
            # A session that existed before also needs these settings.
            for name, value in {**FIXED_SETTINGS, **VALUE_SETTINGS}.items():
                session.conf.set(name, value)
            session.range(1).collect()
        except Exception as problem:
            raise _not_started(str(problem).splitlines()[:3]) from None
    if submitted:
        _require_packages(session, line)
        jars = local_jars(session.sparkContext.getConf().get("spark.jars"))
        require_pinned([jar for jar in jars if jar.is_file()], None, has_others=True)
    session.sparkContext.setLogLevel("WARN")
    _keep_jars_from_python(session)
    remove_unsafe_functions(session)
    return session


def _is_submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def current_line() -> SparkLine:
    """Return the release line (such as 4.1) of this driver's Spark. Raises MzplanError MZ240.

    Under spark-submit, this is the line of the running Spark, whichever PySpark is installed beside mzplan.
    Otherwise it is the line that open_session would start.
    """
    from pyspark import SparkContext

    if not _is_submitted():
        return installed_line()
    SparkContext._ensure_initialized()
    java: Any = SparkContext._jvm
    package = getattr(getattr(java.org.apache.spark, "package$"), "MODULE$")
    return line_of(str(package.SPARK_VERSION()))


def _require_packages(session: SparkSession, line: SparkLine) -> None:
    """Raise MZ062 if spark-submit was started without mzplan's jars, because they can't be added later."""
    java: Any = session._jvm
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        for name in (DELTA_EXTENSION, "org.apache.spark.sql.kafka010.KafkaSourceProvider"):
            loader.loadClass(name)
    except Exception:
        raise error(
            "MZ062.submitted-without-jars",
            named=" and ".join(line.packages),
            packages=",".join(line.packages),
        ) from None


def require_loaded(session: SparkSession, connection: Address, packages: Iterable[str]) -> None:
    """Raise MzplanError MZ129 if Spark started without the jars of these packages."""
    settings = session.sparkContext.getConf()
    given = f"{settings.get('spark.jars.packages', '')},{settings.get('spark.jars', '')}".split(",")
    loaded = {entry.rpartition("/")[2].strip() for entry in given}
    missing = [package for package in packages if not loaded & _names_of(package)]
    if missing:
        raise error(
            "MZ129.spark-runs",
            resource=connection,
            jars=missing,
            jar_list=",".join(missing),
            leave_out="",
        )


def _names_of(package: str) -> set[str]:
    """Return the package, and the names that its jar may have."""
    _, name, version = package.split(":")
    return {package, jar_name(package), f"{name}-{version}.jar"}


def _keep_jars_from_python(session: SparkSession) -> None:
    """Remove the jars of spark.jars.packages from Python's path, here and in the workers.

    spark-submit also offers jars to Python, in case a jar holds a module. Ours hold none, and each Python
    task would read their 60,000 directory entries: a quarter of a second.
    """
    includes: list[str] = session.sparkContext._python_includes or []
    includes[:] = [name for name in includes if not name.endswith(".jar")]
    sys.path[:] = [path for path in sys.path if not path.endswith(".jar")]


def _keep_out_of_the_project(configuration: SparkConf, scratch: Path) -> None:
    """Move the tables of Spark's catalogue, and Derby's files, out of the project's folder."""
    configuration.setIfMissing("spark.sql.warehouse.dir", (scratch / "tables").as_uri())
    options = configuration.get(JAVA_OPTIONS, "")
    if "derby.system.home" not in str(options):
        configuration.set(JAVA_OPTIONS, f'{options} "-Dderby.system.home={scratch}"')


def _on_this_machine(
    configuration: SparkConf, submitted: bool, scratch: Path
) -> AbstractContextManager[None]:
    """Prepare a session without a cluster: a local folder, and tasks with the driver's Python."""
    if not str(configuration.get("spark.master")).startswith("local"):
        return nullcontext()
    if not submitted and not configuration.contains("spark.local.dir"):
        configuration.set("spark.local.dir", str(scratch))
    return tasks_like_the_driver(scratch)


def _scratch() -> Path:
    """Create a private folder, because Spark's shuffles and caches hold users' rows.

    The folder stays locked until this process exits, however it exits. systemd-tmpfiles removes files older
    than ten days from /tmp but leaves a locked folder alone, and tasks start from this folder as long as the
    process runs.
    """
    folder = tempfile.mkdtemp(prefix=SCRATCH_PREFIX)  # 0700
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with suppress(OSError):  # a file system without locks
        fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_SH)  # never closed, to keep the lock
    return Path(folder)


def _start(conf: SparkConf, line: SparkLine) -> None:
    """Start the JVM with verified jars. Raises MzplanError MZ062, MZ114.

    A jar that replaces one of Spark's jars must be on the class path when Java starts, but Ivy runs inside
    Java. So the first start on a machine, which downloads the jar, starts Java twice.
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
        replacement = next((jar for jar in jars if jar.name == wanted), None)
        if replacement is None or first is not None:
            break
        first = replacement
        _end(gateway)
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


def _end(gateway: Any) -> None:
    """Stop a JVM that has no session yet."""
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM waits for this
    gateway.proc.wait(STOP_TIMEOUT_S)


def _launch(conf: SparkConf) -> Any:
    """Start a JVM and keep its first output, because Ivy's report is the only trace of a failure."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    reader, writer = os.pipe()
    lines: deque[bytes] = deque(maxlen=_KEPT_LINES)
    started = threading.Event()
    relay = threading.Thread(target=_relay, args=(reader, lines, started), name="spark-stderr", daemon=True)
    relay.start()
    try:
        gateway: Any = launch_gateway(  # type: ignore[no-untyped-call]
            # In its own process group: a signal to our group must not end Java before us.
            conf,
            {"stderr": writer, "stdout": writer, "process_group": 0},
        )
    except PySparkRuntimeError:
        os.close(writer)
        relay.join(5)
        raise _not_started([line.decode(errors="replace") for line in lines]) from None
    os.close(writer)
    started.set()
    return gateway


def discard_java_output() -> None:
    """Discard the further output of the JVM."""
    _discards.set()


def _relay(reader: int, lines: deque[bytes], started: threading.Event) -> None:
    """Pass on the JVM's output once it has started; keep earlier output (Ivy prints a lot)."""
    as_json = os.environ.get(LOG_FORMAT_VARIABLE) == "json"
    with os.fdopen(reader, "rb") as stream:
        for line in stream:
            if not started.is_set():
                lines.append(line.rstrip())
                continue
            if _discards.is_set():
                continue
            text = scrub(line.decode(errors="surrogateescape"))
            if as_json and not text.startswith('{"time"'):  # printed by the JVM itself or by a library
                log.warning("%s", text.rstrip("\n"))
                continue
            try:
                sys.stderr.buffer.write(text.encode(errors="surrogateescape"))
                sys.stderr.flush()
            except (OSError, ValueError, AttributeError):
                continue  # a closed terminal must not block the JVM


def _not_started(lines: list[str]) -> MzplanError:
    """Return the error for a failed start, from the JVM's output."""
    text = "\n".join(lines)
    missing = [":".join(coordinates) for coordinates in _ARTIFACT.findall(text)]
    listed = ", ".join(dict.fromkeys(missing)) or "see the log"
    if "download failed" in text and "local-m2-cache" in text and " in local-m2-cache" in text:
        return error("MZ062.broken-maven-cache", listed=listed)
    if missing or "unresolved dependencies" in text:
        return error("MZ062.jars-unavailable", listed=listed)
    signs = [
        line.strip() for line in lines if re.search(r"error|exception|denied|refused|invalid", line, re.I)
    ]
    return error(
        "MZ062.spark-silent",
        why=" ".join((signs or [line.strip() for line in lines[-3:]])[:3]) or "It printed no error.",
        oldest=LINES[0].spark,
        newest=LINES[-1].spark,
    )
