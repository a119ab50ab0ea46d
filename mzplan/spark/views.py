"""Views on Spark: the rows of each kind of view, and the sessions of relational views.

SQL computes a view from one row of one collection (projection) or from several rows (view_sql). A function
of a plug-in computes other views.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.catalogue import Connectors
from mzplan.connectors.frames.types import quoted
from mzplan.connectors.views import Compute, View
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError, error
from mzplan.schema.columns import POSITION, spark_type
from mzplan.schema.description import CollectionRead
from mzplan.schema.kinds import resource_kind
from mzplan.schema.relations.parse import is_relational
from mzplan.schema.source_columns import columns_of
from mzplan.secrets.resolved import shortened
from mzplan.spark.progress import ProgressListener, listen
from mzplan.spark.projection import analysed_rows, empty_rows
from mzplan.spark.stream_joins import without_null_matches
from mzplan.spark.stream_rules import require_stream
from mzplan.spark.view_sql import rows_by_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LONGEST_REASON = 1000  # characters of the function's or Spark's message


def is_relational_view(query: ResolvedQuery) -> bool:
    """Return whether this is a SQL view that does more than compute each row from one row."""
    address = query.address
    return address.reads_collections and address.writes_collection and is_relational(query.body)


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
        session.conf.set("spark.sql.shuffle.partitions", str(query.body["partitions"]))
        return session


def own_session(spark: SparkSession) -> SparkSession:
    """Return a new session with the settings of another."""
    session = spark.newSession()
    for name, value in spark.conf.getAll.items():
        if name.startswith(("spark.sql.", "spark.databricks.")) and session.conf.isModifiable(name):
            session.conf.set(name, value)
    return session


def function_of(connectors: Connectors, query: ResolvedQuery) -> Compute | None:
    """Return the function that computes the rows of a view; None for another query."""
    if not (query.address.reads_collections and query.address.writes_collection):
        return None
    connector = connectors.source(query.description.type)
    return connector.compute if isinstance(connector, View) else None


def rows_of_function(
    compute: Compute, inputs: Mapping[str, DataFrame], query: ResolvedQuery, position: str
) -> DataFrame:
    """Return the function's rows, then `_position`, which is NULL unless the function keeps it.

    Raises MzplanError MZ019 if the function fails, or returns anything but rows of the view's columns.
    """
    kind = resource_kind(query.address.kind, query.description.type)
    references = {reference.property for reference in kind.references}
    options: dict[str, Any] = {k: value for k, value in query.body.items() if k not in references}
    try:
        rows = compute(inputs, options)
        if rows.isStreaming != next(iter(inputs.values())).isStreaming:
            raise ValueError("it returned rows that aren't computed from its inputs")
        rows = without_null_matches(rows)
        if POSITION not in rows.columns:
            rows = rows.selectExpr("*", f"CAST(NULL AS {position}) AS {POSITION}")
        return rows.select(*(quoted(name) for name in rows.columns if name != POSITION), POSITION)
    except MzplanError:
        raise
    except Exception as problem:  # the function may raise anything
        raise error(
            "MZ019.function-fails",
            address=query.address,
            problem=shortened(f"{type(problem).__name__}: {' '.join(str(problem).split())}", _LONGEST_REASON),
        ) from None


def analysed(spark: SparkSession, query: ResolvedQuery, connectors: Connectors) -> DataFrame:
    """Return the rows of a sink or view over empty inputs, without reading any table.

    Raises MzplanError MZ019 if Spark refuses the query, or can't run it as a stream, or if a function fails.
    """
    description = query.description
    position = connectors.position(description)
    compute = function_of(connectors, query)
    if compute is None and not is_relational_view(query):
        return analysed_rows(spark, query, position)
    session = own_session(spark) if compute is None else spark

    def empty(reads: Mapping[str, CollectionRead]) -> dict[str, DataFrame]:
        return {
            name: empty_rows(session, columns_of(read.type, read.body), connectors.position(read))
            for name, read in reads.items()
        }

    if compute is not None:
        return rows_of_function(compute, empty(description.reads), query, position)
    streams = {name: _empty_stream(session, read) for name, read in description.reads.items()}
    tables = empty(description.snapshots)
    rows = rows_by_sql(session, streams, tables, query, position)
    require_stream(rows, query)
    return rows


def _empty_stream(session: SparkSession, read: CollectionRead) -> DataFrame:
    """Return a stream with a collection's columns.

    Spark's optimizer must not see that every value is NULL: it would drop conditions.
    """
    fields = [
        f"element_at(array(CAST(NULL AS {spark_type(c.type)})), CAST(value AS INT)) AS {quoted(c.name)}"
        for c in columns_of(read.type, read.body)
    ]
    return session.readStream.format("rate").load().selectExpr(*fields)
