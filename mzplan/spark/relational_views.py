"""The sessions of relational views, and their analysis by Spark over empty inputs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.catalogue import Connectors
from mzplan.connectors.frames.types import quoted
from mzplan.model.address import Address
from mzplan.schema.columns import spark_type
from mzplan.schema.description import CollectionRead
from mzplan.schema.relations.parse import is_relational
from mzplan.schema.source_columns import columns_of
from mzplan.spark.progress import ProgressListener, listen
from mzplan.spark.projection import empty_rows
from mzplan.spark.stream_rules import require_stream
from mzplan.spark.view_sql import rows_by_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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


def analysed_by_sql(spark: SparkSession, query: ResolvedQuery, connectors: Connectors) -> DataFrame:
    """Return the rows of a relational view over empty streams, without reading any table.

    Raises MzplanError MZ019 if Spark refuses the query, or can't run it as a stream.
    """
    session, description = own_session(spark), query.description
    streams = {name: _empty_stream(session, read) for name, read in description.reads.items()}
    tables = {
        name: empty_rows(session, columns_of(read.type, read.body), connectors.position(read))
        for name, read in description.snapshots.items()
    }
    rows = rows_by_sql(session, streams, tables, query, connectors.position(description))
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
