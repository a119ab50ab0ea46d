"""Asks Spark, before a commit, whether a view's query can continue with the state in its checkpoint.

The query runs once over empty inputs, beside the running one, and Spark writes the state schema of its
operators. mzplan compares them with the checkpoint's. (Only the plan knows what a state means; Spark stores
types by position.)
"""

from __future__ import annotations

import io
import logging
import uuid
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.frames.types import ddl
from mzplan.connectors.views import Compute
from mzplan.host.spark_lines import repartitions_state
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.schema.columns import POSITION
from mzplan.schema.source_columns import columns_of
from mzplan.spark import failures
from mzplan.spark.views import own_session, rows_of_view
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.folder import open_folder
from mzplan.warehouse.storage import remove_folder
from mzplan.warehouse.stored_state import StoredOperator, differences, stored_operators

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("mzplan.spark")

_LONGEST = 30  # seconds of a trial; it takes one or two


def require_state(spark: SparkSession, query: ResolvedQuery, checkpoint: Checkpoint, position: str) -> None:
    """Raise MzplanError MZ321 if Spark can't continue a relational view with the state of its checkpoint.

    `position`: the type of `_position`, as Spark DDL. Raises OSError.
    """
    if not checkpoint.log.has_begun() or checkpoint.log.newest() < 0:
        return
    stored = stored_operators(checkpoint.spark)
    if not stored and "state" not in query.body:
        return
    problems: list[str] = []
    number, wanted = checkpoint.log.partitions(checkpoint.log.newest()), int(query.body["partitions"])
    if number not in (None, wanted) and not repartitions_state(spark.version):
        problems.append(f"the checkpoint has {number} partitions instead of {wanted}")
    try:
        problems += differences(stored, try_query(spark, query, checkpoint, position))
    except (MzplanError, OSError):
        raise
    except Exception as problem:  # the query's start shows whether Spark can run it
        text = failures.of_exception(problem).text
        log.warning("%s: its query could not be tried: %s", query.address, text)
    if problems:
        text = "; ".join(problems)
        raise MzplanError(Diagnostic.of("MZ321.state-differs", address=query.address, differences=text))


def try_query(
    spark: SparkSession,
    query: ResolvedQuery,
    checkpoint: Checkpoint,
    position: str,
    compute: Compute | None = None,
) -> tuple[StoredOperator, ...]:
    """Return the operators of the query's state, as Spark would store them. Raises Spark's errors.

    `compute`: the function that computes the view's rows; None for SQL.
    """
    session, folder = own_session(spark), f"{checkpoint.folder}/trial-{uuid.uuid4().hex[:8]}"
    for name, value in checkpoint.log.settings(checkpoint.log.newest()).items():
        if session.conf.isModifiable(name):
            session.conf.set(name, value)
    session.conf.set("spark.sql.shuffle.partitions", "1")
    session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    try:
        open_folder(f"{folder}/input").write("empty.parquet", _no_rows())
        streams = {}
        for name, read in query.description.reads.items():
            schema = f"{ddl(columns_of(read.type, read.body))}, {POSITION} {position}"
            streams[name] = session.readStream.schema(schema).parquet(f"{folder}/input")
        rows = rows_of_view(session, streams, {}, query, position, compute)
        writer = rows.writeStream.format("noop").trigger(availableNow=True)
        writer = writer.outputMode(query.body.get("output", "append"))
        trial = writer.option("checkpointLocation", f"{folder}/spark").start()
        if not trial.awaitTermination(_LONGEST):
            trial.stop()
            raise RuntimeError(f"it didn't end within {_LONGEST} s")
        return stored_operators(f"{folder}/spark")
    finally:
        with suppress(OSError):
            remove_folder(folder)


@cache
def _no_rows() -> bytes:
    """Return a Parquet file without rows. Spark reads missing columns as NULL."""
    import pyarrow
    from pyarrow import parquet

    data = io.BytesIO()
    parquet.write_table(pyarrow.table({"none": pyarrow.array([], pyarrow.int32())}), data)
    return data.getvalue()
