"""Merges and removes files of tables, and measures the backlog and the first copy of a query."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mzplan.connectors.api.connector import SinkConnector
from mzplan.connectors.api.queries import ResolvedQuery, Rewriting
from mzplan.connectors.catalogue import Connectors
from mzplan.controller.executor import Measurement
from mzplan.host.extras import missing_extras_reported
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.losses import NO_STEPS, NOT_BEGUN, FirstCopy, Loss
from mzplan.schema.description import Description
from mzplan.schema.kinds import resource_kind
from mzplan.spark import failures
from mzplan.spark.collections import table_at
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.step_history import StepHistory, backlog_of, steps_read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FULL_HOURS = 168  # Delta's default retention: no micro-batch takes that long to write


def compact_target(
    spark: SparkSession, connector: SinkConnector, query: ResolvedQuery, rewriting: Rewriting
) -> str | None:
    """See Executor.compact."""
    try:
        return connector.compact(query, spark, rewriting)
    except MzplanError:
        raise
    except Exception as problem:
        raise error(
            "MZ280.target-not-merged", address=query.address, why=failures.of_exception(problem).text
        ) from None


def vacuum(spark: SparkSession, table: str, older: float, *, uncommitted: bool = False) -> None:
    """Remove the files of a Delta table that no version of the last `older` seconds contains.

    `uncommitted`: also older files that no version ever had; the caller knows that nobody still writes them.
    Delta rounds up to whole hours. Raises Spark's errors.
    """
    # Delta's check guards against slow readers. Here, `older` already covers what every reader still needs.
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    # LITE removes only files that the log knows, so never a file of a micro-batch that is being written.
    hours = math.ceil(older / 3600)
    if uncommitted:
        spark.sql(f"VACUUM {table_at(table)} RETAIN {hours} HOURS")
        return
    try:
        spark.sql(f"VACUUM {table_at(table)} LITE RETAIN {hours} HOURS")
    except Exception as problem:
        if "CANNOT_VACUUM_LITE" not in str(problem):
            raise
        # Part of the log is gone (Delta keeps it for 30 days), so list the folder; remove only files older
        # than a week.
        spark.sql(f"VACUUM {table_at(table)} RETAIN {max(hours, _FULL_HOURS)} HOURS")


def measure_backlog(warehouse: str, query: ResolvedQuery, connectors: Connectors) -> Measurement:
    """Return the backlog of a query, whether it runs or not.

    The backlog comes from the logs of the collections that the query reads, or from its upstream. Needs no
    Spark session. Doesn't raise if a server or the storage fails.
    """
    description = query.description
    input_ = description.input
    history = StepHistory(warehouse, description.place, input_.place if input_ is not None else None)
    at = time.time()  # taken first: records that arrive during the request aren't in its answer
    backlog: Mapping[str, int] | None = None
    loss: Loss | None = None
    try:
        if description.reads:
            backlog = _unread(warehouse, description)
        else:
            with missing_extras_reported():
                connector = connectors.source(description.type)
                backlog = connector.backlog(query)
                if connector.has_cheap_loss and query.checkpoint is not None:
                    loss = connector.loss(query, query.checkpoint)
        recent = history.index.recent()
        writes = description.address.writes_collection
        since = history.index.oldest() if writes else None
        foreign = history.newest_foreign() if writes else None
    except (OSError, ValueError, MzplanError):
        return Measurement(backlog=backlog, at=at)
    return Measurement(
        backlog=backlog,
        loss=loss,
        recent=recent,
        since=since,
        foreign_change=str(foreign) if foreign is not None else None,
        at=at,
    )


def _unread(warehouse: str, description: Description) -> Mapping[str, int]:
    """Return the unread steps and rows of all collections that a query reads. Raises OSError."""
    waiting = [
        backlog_of(StepHistory(warehouse, description.place, read.place), StepHistory(warehouse, read.place))
        for read in description.reads.values()
    ]
    known = [name for name in ("steps", "rows") if all(name in counts for counts in waiting)]
    return {name: sum(counts[name] for counts in waiting) for name in known}


def first_copy(warehouse: str, description: Description, connectors: Connectors) -> FirstCopy:
    """See Executor.first_copy."""
    checkpoint = Checkpoint.of(warehouse, *description.place)
    log = checkpoint.log
    if log.query_id() is None:
        return NOT_BEGUN
    if description.reads:
        parts = [
            steps_read(StepHistory(warehouse, description.place, read.place))
            for read in description.reads.values()
        ]
        read, ends = zip(*parts, strict=True)
        return FirstCopy(read=read, ends=ends, unit="step")
    if log.committed() < 0:
        return NO_STEPS
    kind = resource_kind(description.address.kind, description.type)
    return connectors.source(description.type).first_copy(checkpoint, kind.with_defaults(description.body))
