"""How the JVMs of tests start (docs/internals/decisions/0010-test-jvms.md)."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

# None lives long enough to pay back what the optimising compiler and parallel collectors cost (a third of
# the CPU time of a driver's first minutes). The cache of compiled code has its usual size: C1's own default
# fills up, and is swept all the time.
EVERY_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=256m"
# Nor does a query that lives for seconds pay back the code generated for it. Not by a spark-defaults.conf:
# its folder on the class path keeps the JVM from archiving anything.
DRIVER = "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
# Spark's classes, loaded and verified once: `python -m tools.spark_archive` writes it. Where it is missing,
# or of another Java, drivers start without.
ARCHIVE = Path(__file__).parents[1] / ".venv" / "spark.jsa"
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def start_quickly(environment: MutableMapping[str, str], archive: str = "SharedArchiveFile") -> None:
    """Set it for the processes that are started in an environment; what is set there already stays.
    `archive`: the JVM's option that says what to do with it."""
    environment.setdefault("JDK_JAVA_OPTIONS", EVERY_JVM)
    environment.setdefault("SPARK_SUBMIT_OPTS", f"{DRIVER} -XX:{archive}={ARCHIVE} {QUIET}")
