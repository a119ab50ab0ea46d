"""Which Spark and Delta have written a checkpoint and the tables that belong to it, and whether those that
are here can go on from there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mzplan.host.spark_lines import LINES, NEWEST, SparkLine
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.observed import Versions
from mzplan.model.words import count
from mzplan.warehouse.checkpoints import LAYOUT, Checkpoint
from mzplan.warehouse.collection_log import CollectionLog, listed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def take_over(checkpoint: Checkpoint, address: Address, ours: Versions | None) -> Versions | None:
    """Record that we write here from now on. Returns what has written before, where that is another Spark or
    Delta. Raises MzplanError MZ031, and OSError."""
    before = require_readable(checkpoint, address)
    if ours is None or before == ours:
        return None
    checkpoint.record_versions(ours)
    return before if before is not None and not before.stores_as(ours) else None


def require_readable(checkpoint: Checkpoint, address: Address) -> Versions | None:
    """What has written a checkpoint; None where that is not recorded. Raises MzplanError MZ031 where no line
    of this mzplan is known to read it, or its layout is of a later mzplan, and OSError.

    Lines that are in the table read each other's checkpoints: a test goes to and fro between them.
    """
    if (layout := checkpoint.layout()) > LAYOUT:
        raise _of_later_layout(address, layout)
    before = checkpoint.versions()
    if before is not None and ".".join(before.spark.split(".")[:2]) not in {line.spark for line in LINES}:
        raise _unreadable(address, before)
    return before


def _unreadable(address: Address, before: Versions) -> MzplanError:
    return error(
        "MZ031",
        f"The checkpoint of {address} was written with Spark {before.spark}",
        f"mzplan {before.mzplan} has written it, with {before}; this mzplan knows Spark up to "
        f"{NEWEST.spark}.",
        f"run it with mzplan {before.mzplan} or newer; or start it anew: mzplan apply --replace {address}",
        address=address,
        kind="unfit",
    )


def _of_later_layout(address: Address, layout: int) -> MzplanError:
    return error(
        "MZ031",
        f"The checkpoint of {address} has layout {layout}",
        f"A later mzplan has written it; this one knows layout {LAYOUT}. The checkpoint was not touched.",
        f"let a runner of the newer mzplan run it; or start it anew: mzplan apply --replace {address}",
        address=address,
        kind="unfit",
    )


def delta_features(spark: SparkSession) -> frozenset[str] | None:
    """The features of tables that the Delta of this session has, which on somebody's cluster may be another
    than ours; None where it does not say."""
    java: Any = spark._jvm
    try:
        known = java.org.apache.spark.sql.delta.TableFeature.allSupportedFeaturesMap().values().toSeq()
        features = java.scala.jdk.javaapi.CollectionConverters.asJava(known)
        return frozenset(feature.name() for feature in features)
    except Exception:  # a vendor's own Delta, which has no such thing
        return None


def require_features(table: CollectionLog, address: Address, ours: frozenset[str], *, writes: bool) -> None:
    """Raise MzplanError MZ281 for a Delta table with a feature that is not among ours, before a query that
    reads it, or also `writes` it, is stopped or started. Raises OSError."""
    features = table.features()
    if features is None:
        return
    wanted = features.reading | features.writing if writes else features.reading
    if lacking := sorted(wanted - ours):
        able = [line for line in LINES if wanted <= line.features]
        raise _unsupported(table.collection, address, lacking, able[-1] if able else None)


def _unsupported(table: str, address: Address, lacking: list[str], able: SparkLine | None) -> MzplanError:
    features = "that feature" if len(lacking) == 1 else "those features"
    return error(
        "MZ281",
        f"{address} needs another Delta than that of its runner",
        f"{table} has {count(len(lacking), 'feature')} that this runner's Delta lacks: {listed(lacking)}.",
        f"Delta {able.delta} has {features}: run it on Spark {able.spark} (pip install "
        f"'pyspark=={able.tested[-1]}'; where spark-submit starts it, with the --packages of docs/deploy.md)"
        if able is not None
        else f"no Delta of this mzplan has {features}: remove {features} from the table (ALTER TABLE … DROP "
        "FEATURE), or have another table",
        address=address,
        kind="unfit",
    )
