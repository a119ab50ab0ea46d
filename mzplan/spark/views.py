"""Views on Spark: the rows of each kind of view, and the sessions of relational views.

SQL computes a view from one row of one collection (projection) or from several rows (view_sql). A function of
the user or of a plug-in computes other views.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.catalogue import Connectors
from mzplan.connectors.frames.types import quoted
from mzplan.connectors.user_code.failures import failed
from mzplan.connectors.views import Compute, View
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError, error
from mzplan.schema.columns import POSITION, spark_type
from mzplan.schema.description import CollectionRead
from mzplan.schema.kinds import resource_kind
from mzplan.schema.relations.parse import recomputes
from mzplan.schema.source_columns import columns_of
from mzplan.schema.sql.view_query import is_row_view
from mzplan.schema.user_functions import FunctionName, function_of
from mzplan.spark.progress import ProgressListener, listen
from mzplan.spark.sql.projection import analysed_rows, empty_rows, project, read_by
from mzplan.spark.sql.stream_rules import require_stream, without_null_matches
from mzplan.spark.sql.view_sql import rows_by_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def is_relational_view(query: ResolvedQuery) -> bool:
    """Return whether this is a view that does more than compute each row from one row, or by a function."""
    kind = resource_kind(query.address.kind, query.description.type)
    return query.address.is_view and not is_row_view(kind, query.body)


def is_current_view(query: ResolvedQuery) -> bool:
    """Return whether this is a relational view whose query reads its inputs as tables, not as streams."""
    return is_relational_view(query) and recomputes(query.body)


class QuerySessions:
    """Keeps a session for each relational view, with its own temporary views and settings.

    Spark reports queries only to the listeners of their session. Methods may be called from several threads.
    """

    def __init__(self, progress: ProgressListener) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._sessions: dict[Address, SparkSession] = {}

    def of(self, spark: SparkSession, query: ResolvedQuery) -> SparkSession:
        """Return the session of a query that is about to start. Micro-batches run in clones of it."""
        with self._lock:
            session = self._sessions.get(query.address)
            if session is None:
                session = self._sessions[query.address] = own_session(spark)
                listen(session, self._progress)
        if "partitions" in query.body:
            session.conf.set("spark.sql.shuffle.partitions", str(query.body["partitions"]))
        return session


def own_session(spark: SparkSession) -> SparkSession:
    """Return a new session with the settings of another."""
    session = spark.newSession()
    for name, value in spark.conf.getAll.items():
        if name.startswith(("spark.sql.", "spark.databricks.")) and session.conf.isModifiable(name):
            session.conf.set(name, value)
    return session


def batch_session(spark: SparkSession) -> SparkSession:
    """Return a new session for batch queries of any size, whose joins and partitions Spark adapts."""
    session = own_session(spark)
    session.conf.set("spark.sql.adaptive.enabled", "true")
    return session


def compute_of(connectors: Connectors, query: ResolvedQuery) -> Compute | None:
    """Return the function that computes the rows of a view; None for SQL. Raises MzplanError MZ361, MZ362."""
    connector = connectors.source(query.description.type) if is_relational_view(query) else None
    return connector.compute_of(query) if isinstance(connector, View) else None


def rows_of_view(
    session: SparkSession,
    streams: Mapping[str, DataFrame],
    tables: Mapping[str, DataFrame],
    query: ResolvedQuery,
    position: str,
    compute: Compute | None,
    *,
    earlier: bool = False,
) -> DataFrame:
    """Return the rows of a view or sink, then `_position` of this type.

    `streams`, `tables`: the rows of the inputs by name, in `session`. `earlier`: see rows_by_sql. Raises
    MzplanError MZ019 for SQL, and MZ362 for a function that fails.
    """
    if not is_relational_view(query):
        ((_, rows),) = {**streams, **tables}.items()
        return project(rows, read_by(query))
    if compute is None:
        return rows_by_sql(session, streams, tables, query, position, earlier=earlier)
    reads, inputs = query.description.inputs, {}
    for name, rows in {**streams, **tables}.items():
        columns = [column.name for column in columns_of(reads[name].type, reads[name].body)]
        if len(reads) == 1:  # rows of several inputs have no position
            columns.append(POSITION)
        # A temporary view gives the stream its name in Spark's plan (see relational_streams.tables_in_order).
        rows.select(*map(quoted, columns)).createOrReplaceTempView(name)
        inputs[name] = session.table(name)
    return _computed(compute, inputs, query, position)


def _computed(
    compute: Compute, inputs: Mapping[str, DataFrame], query: ResolvedQuery, position: str
) -> DataFrame:
    """Return the function's rows, then `_position`, which is NULL unless the function keeps it."""
    kind = resource_kind(query.address.kind, query.description.type)
    references = {reference.property for reference in kind.references}
    options: dict[str, Any] = {k: value for k, value in query.body.items() if k not in references}
    function = function_of(query.address.kind, query.description.type, query.body)
    function = function or FunctionName(compute.__module__, getattr(compute, "__name__", "compute"))
    try:
        rows = compute(inputs, options)
    except (MzplanError, KeyboardInterrupt):
        raise
    except BaseException as problem:  # the function may raise anything, such as CancelledError of asyncio
        raise failed(query.address, function, problem) from None
    streaming = any(input_.isStreaming for input_ in inputs.values())
    if getattr(rows, "isStreaming", None) != streaming:
        result = "rows of another origin" if hasattr(rows, "isStreaming") else type(rows).__name__
        raise error("MZ362.result", address=query.address, function=function, result=result)
    try:
        rows = without_null_matches(rows)
        if POSITION not in rows.columns:
            rows = rows.selectExpr("*", f"CAST(NULL AS {position}) AS {POSITION}")
        return rows.select(*(quoted(name) for name in rows.columns if name != POSITION), POSITION)
    except MzplanError:
        raise
    except Exception as problem:  # such as two columns of one name
        raise failed(query.address, function, problem) from None


def analysed(spark: SparkSession, query: ResolvedQuery, connectors: Connectors) -> DataFrame:
    """Return the rows of a sink or view over empty inputs, without reading any table.

    Raises MzplanError MZ019 if Spark refuses the query, or can't run it as a stream, or if a function fails.
    """
    description = query.description
    position = connectors.position(description)
    if not is_relational_view(query):
        return analysed_rows(spark, query, position)
    session, compute = own_session(spark), compute_of(connectors, query)

    def empty(reads: Mapping[str, CollectionRead]) -> dict[str, DataFrame]:
        return {
            name: empty_rows(session, columns_of(read.type, read.body), connectors.position(read))
            for name, read in reads.items()
        }

    if is_current_view(query):
        return rows_of_view(session, {}, empty(description.reads), query, position, compute)
    streams = {name: _empty_stream(session, read, connectors) for name, read in description.reads.items()}
    rows = rows_of_view(session, streams, empty(description.snapshots), query, position, compute)
    require_stream(rows, query)
    return rows


def _empty_stream(session: SparkSession, read: CollectionRead, connectors: Connectors) -> DataFrame:
    """Return a stream with a collection's columns, and its `_position`.

    Spark's optimizer must not see that every value is NULL: it would drop conditions.
    """
    fields = [
        f"element_at(array(CAST(NULL AS {spark_type(c.type)})), CAST(value AS INT)) AS {quoted(c.name)}"
        for c in columns_of(read.type, read.body)
    ]
    fields.append(f"CAST(NULL AS {connectors.position(read)}) AS {POSITION}")
    return session.readStream.format("rate").load().selectExpr(*fields)
