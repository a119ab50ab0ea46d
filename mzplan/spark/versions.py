"""Checks whether this Spark and Delta can use a checkpoint and its tables, by recorded versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mzplan.host.spark_lines import LINES, NEWEST, SparkLine
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.observed import Versions
from mzplan.warehouse.checkpoints import LAYOUT, Checkpoint
from mzplan.warehouse.collection_log import CollectionLog, name_list

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def take_over(checkpoint: Checkpoint, address: Address, current: Versions | None) -> Versions | None:
    """Record the versions that write the checkpoint from now on.

    Returns the previous versions if they store data differently, else None. Raises MzplanError MZ031, and
    OSError.
    """
    before = require_readable(checkpoint, address)
    if current is None or before == current:
        return None
    checkpoint.record_versions(current)
    return before if before is not None and not before.stores_as(current) else None


def require_readable(checkpoint: Checkpoint, address: Address) -> Versions | None:
    """Return the versions that wrote a checkpoint; None if they weren't recorded.

    Lines of Spark in the table read each other's checkpoints; a test switches between them. Raises
    MzplanError MZ031 if no known line can read the checkpoint, or its layout is from a later mzplan. Raises
    OSError.
    """
    if (layout := checkpoint.layout()) > LAYOUT:
        raise _unreadable(
            address,
            f"has layout {layout}",
            f"A later mzplan wrote it. This one supports layout {LAYOUT}, and didn't change the checkpoint.",
            "let a runner of the newer mzplan run it",
        )
    before = checkpoint.versions()
    if before is not None and ".".join(before.spark.split(".")[:2]) not in {line.spark for line in LINES}:
        raise _unreadable(
            address,
            f"was written with Spark {before.spark}",
            f"mzplan {before.mzplan} wrote it, with {before}. This one supports Spark up to {NEWEST.spark}.",
            f"run it with mzplan {before.mzplan} or newer",
        )
    return before


def _unreadable(address: Address, finding: str, why: str, fix: str) -> MzplanError:
    return error("MZ031.checkpoint-of-other-version", address=address, finding=finding, why=why, fix=fix)


def delta_features(spark: SparkSession) -> frozenset[str] | None:
    """Return the table features of this session's Delta; None if unknown.

    On a cluster, Delta may have another version than the one that mzplan installs.
    """
    java: Any = spark._jvm
    try:
        known = java.org.apache.spark.sql.delta.TableFeature.allSupportedFeaturesMap().values().toSeq()
        features = java.scala.jdk.javaapi.CollectionConverters.asJava(known)
        return frozenset(feature.name() for feature in features)
    except Exception:  # a vendor's Delta without such a list
        return None


def require_features(
    table: CollectionLog, address: Address, supported: frozenset[str], *, writes: bool
) -> None:
    """Raise MzplanError MZ281 for a Delta table with a feature that isn't in `supported`.

    Called before a query that reads the table (or also `writes` it) is stopped or started. Raises OSError.
    """
    features = table.features()
    if features is None:
        return
    wanted = features.reading | features.writing if writes else features.reading
    if missing := sorted(wanted - supported):
        supporting = [line for line in LINES if wanted <= line.features]
        raise _unsupported(table.collection, address, missing, supporting[-1] if supporting else None)


def _unsupported(table: str, address: Address, missing: list[str], line: SparkLine | None) -> MzplanError:
    number, names = len(missing), name_list(missing)
    features = "that feature" if number == 1 else "those features"
    if line is None:
        return error(
            "MZ281.no-delta", address=address, table=table, number=number, missing=names, features=features
        )
    return error(
        "MZ281.newer-delta",
        address=address,
        table=table,
        number=number,
        missing=names,
        features=features,
        delta=line.delta,
        spark=line.spark,
        tested=line.tested[-1],
    )
