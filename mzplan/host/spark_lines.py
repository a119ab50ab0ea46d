"""The supported Spark release lines, and the versions that belong to each.

A line is Spark's first two version numbers. Delta and Spark's Kafka connector are built for one line. So the
installed Spark determines their versions. mzplan/spark/process/jars.sha256 lists the hashes of the jars
(`python -m tools.pin_jars` writes it from this table). This module needs no Java and doesn't import PySpark.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from mzplan.model.diagnostics import MzplanError, error

_CHECK_INTERVAL = 3.0  # seconds; checking a thousand files takes 2 ms
_LOADED_SUFFIXES = (".py", ".zip", ".jar", ".so")
_CORE = re.compile(r"spark-core_[\d.]+-(\d+\.\d+\.\d+.*)\.jar")
# kafka-clients and lz4-java are newer than the versions that Spark's connector requests, because of
# CVE-2025-27817, -27818, CVE-2026-35554; CVE-2025-12183, -66566.
_KAFKA_CLIENTS = "org.apache.kafka:kafka-clients:3.9.2"
_LZ4 = "at.yawk.lz4:lz4-java:1.10.1"
# An older version of the classes in lz4-java, and a dependency of kafka-clients that Spark has itself.
_EXCLUDED = ("org.lz4:lz4-java", "com.github.luben:zstd-jni")
# Dependencies of Delta since 4.1 (90 MB) that Spark has itself. Spark loads its own jars before added ones.
_SPARK_PROVIDES = (
    "com.fasterxml.jackson.core:*",
    "com.google.code.findbugs:jsr305",
    "io.airlift:aircompressor",
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.logging.log4j:*",
    "org.apache.parquet:*",
    "org.roaringbitmap:*",
    "org.slf4j:slf4j-api",
    "org.xerial.snappy:snappy-java",
)
# The table features that Delta can read and write: its TableFeature.allSupportedFeaturesMap.
_FEATURES = frozenset(
    [
        "allowColumnDefaults",
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "checkpointProtection",
        "clustering",
        "columnMapping",
        "coordinatedCommits-preview",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "icebergCompatV1",
        "icebergCompatV2",
        "identityColumns",
        "inCommitTimestamp",
        "invariants",
        "rowTracking",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantShredding-preview",
        "variantType",
        "variantType-preview",
    ]
)
_DELTA_4_0 = _FEATURES | {"catalogOwned-preview"}
_DELTA_4_4 = _FEATURES | {
    "adaptiveMetadata-preview",
    "catalogManaged",
    "geospatial",
    "geospatial-dev",
    "icebergCompatV3",
    "materializePartitionColumns",
    "variantShredding",
}
_STREAMING = "org.apache.spark.sql.execution.streaming"
# Without this, newer Delta ignores VACUUM's retention argument and uses the table's setting.
_VACUUM_SETTINGS = {"spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": "false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkLine:
    """One release line of Spark.

    - `spark`: "4.0".
    - `packages`: Maven coordinates for every session. `excluded`: their dependencies that must not be loaded.
    - `before_spark`: the package to load before Spark's own copy.
    - `aws`: by `organisation:name`, the versions of a schema's AWS packages that fit Spark's Hadoop.
    - `features`: the table features that its Delta can read and write.
    - `settings`: defaults of Spark settings, in addition to spark/settings.py.
    - `local_checkpoints`: the class that writes checkpoints to a local disk.
    - `repartitions`: whether it can change the number of partitions of a stopped query's state.
    - `tested`: the tested releases of PySpark, oldest first.
    """

    spark: str
    delta: str
    connector: str
    packages: tuple[str, ...]
    features: frozenset[str]
    excluded: tuple[str, ...] = _EXCLUDED
    before_spark: str | None = None
    aws: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    local_checkpoints: str = f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
    repartitions: bool = False
    tested: tuple[str, ...] = ()

    def compatible(self, packages: Iterable[str]) -> tuple[str, ...]:
        """Return the packages in the versions that fit this line."""
        return tuple(self._compatible(package) for package in packages)

    def _compatible(self, package: str) -> str:
        name, _, _ = package.rpartition(":")
        return f"{name}:{self.aws[name]}" if name in self.aws else package


def _aws(hadoop: str, sdk: str) -> dict[str, str]:
    names = ("s3", "sts", "s3-transfer-manager")
    return {
        "org.apache.hadoop:hadoop-aws": hadoop,
        **{f"software.amazon.awssdk:{name}": sdk for name in names},
    }


LINES = (
    SparkLine(
        spark="4.0",
        delta="4.0.0",
        connector="4.0.0",
        packages=(
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
            "io.delta:delta-spark_2.13:4.0.0",
            _KAFKA_CLIENTS,
            _LZ4,
        ),
        features=_DELTA_4_0,
        before_spark=_LZ4,
        local_checkpoints=f"{_STREAMING}.FileSystemBasedCheckpointFileManager",
        tested=("4.0.5",),
    ),
    SparkLine(
        spark="4.1",
        delta="4.4.0",
        connector="4.1.1",
        packages=(
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1",
            "io.delta:delta-spark_4.1_2.13:4.4.0",
            _KAFKA_CLIENTS,
            _LZ4,
        ),
        features=_DELTA_4_4,
        excluded=(*_EXCLUDED, *_SPARK_PROVIDES),
        before_spark=_LZ4,
        aws=_aws("3.4.2", "2.29.52"),
        settings=_VACUUM_SETTINGS,
        tested=("4.1.4",),
    ),
    SparkLine(
        spark="4.2",
        delta="4.4.0",
        connector="4.2.0",
        packages=(
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
            "io.delta:delta-spark_4.2_2.13:4.4.0",
            _KAFKA_CLIENTS,
        ),
        features=_DELTA_4_4,
        # Spark's own lz4-java is 1.11.0.
        excluded=(*_EXCLUDED, *_SPARK_PROVIDES, "at.yawk.lz4:lz4-java"),
        aws=_aws("3.5.0", "2.35.4"),
        settings=_VACUUM_SETTINGS,
        repartitions=True,
        tested=("4.2.0",),
    ),
)
OLDEST, NEWEST = LINES[0], LINES[-1]


def line_of(spark: str) -> SparkLine:
    """Return the line of a Spark release ("4.2.0"). Raises MzplanError MZ240 for an unsupported one."""
    name = ".".join(spark.split(".")[:2])
    spark_line = next((line for line in LINES if line.spark == name), None)
    if spark_line is None:
        raise _unsupported(spark)
    return spark_line


def repartitions_state(spark: str) -> bool:
    """Return whether a Spark release can change the number of partitions of a stopped query's state."""
    return any(line.repartitions for line in LINES if spark.startswith(f"{line.spark}."))


def installed_spark() -> str | None:
    """Return the Spark release that a driver in this process would use, such as "4.2.0"; None without Spark.

    Like PySpark, it prefers SPARK_HOME to the PySpark package. On a cluster, their releases may differ.
    """
    home = os.environ.get("SPARK_HOME")
    jars = Path(home) / "jars" if home else _package() / "jars"
    for jar in sorted(jars.glob("spark-core_*.jar")):
        if match := _CORE.fullmatch(jar.name):
            return match[1]
    try:
        return version("pyspark")
    except PackageNotFoundError:
        return None


def _package() -> Path:
    spec = find_spec("pyspark")
    return Path(spec.origin).parent if spec is not None and spec.origin else Path("/nowhere")


class Installation:
    """Remembers the files that Spark's processes load, to notice if they change.

    They are PySpark's modules and archives, the jars, and pip's record of them, but no compiled `.pyc` files.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._fingerprints = {path: _fingerprint(path) for path in _loaded_files()}
        self._checked_at = clock()
        self._is_changed = False

    def replaced_by(self, *, at_once: bool = False) -> str | None:
        """Return the installed release if files were replaced or changed; None if nothing changed.

        Returns "none" if files were only removed. Checks every few seconds, or `at_once`.
        """
        now = self._clock()
        if at_once or now - self._checked_at >= _CHECK_INTERVAL:
            self._checked_at = now
            self._is_changed = any(
                _fingerprint(path) != fingerprint for path, fingerprint in self._fingerprints.items()
            )
        return (installed_spark() or "none") if self._is_changed else None


def _loaded_files() -> Iterator[Path]:
    package, home = _package(), os.environ.get("SPARK_HOME")
    yield from package.parent.glob("pyspark-*.dist-info/RECORD")
    for root in (package, *((Path(home, "jars"), Path(home, "python")) if home else ())):
        for folder, below, names in os.walk(root):
            below[:] = [name for name in below if name != "__pycache__"]
            yield from (Path(folder, name) for name in names if name.endswith(_LOADED_SUFFIXES))


def _fingerprint(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_ino, status.st_mtime_ns, status.st_size)


def installed_line() -> SparkLine:
    """Return the line of the installed Spark, or the newest without Spark. Raises MzplanError MZ240."""
    release = installed_spark()
    return line_of(release) if release is not None else NEWEST


def _unsupported(spark: str) -> MzplanError:
    names = [line.spark for line in LINES]
    newest = NEWEST.tested[-1]
    return error("MZ240.spark-not", spark=spark, first=names[:-1], last=names[-1], newest=newest)
