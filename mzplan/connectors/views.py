"""The side of a view that is like a source: it writes a collection. What it reads is one, too, on no server;
its rows are made of that by Spark (mzplan.spark.streams)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mzplan.connectors.api.connector import Connector, SourceConnector
from mzplan.connectors.api.queries import Probe, ResolvedQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SqlView(SourceConnector):
    """A query over a collection. Its rows keep the `_position` that they have there."""

    position = ""

    def probe(self, query: ResolvedQuery) -> Probe:
        """There is nothing to reach."""
        return Probe()

    def route(self, query: ResolvedQuery) -> str:
        source = query.description.source
        return f"the collection of {source.address}" if source is not None else "no collection"

    def stream(self, spark: SparkSession, query: ResolvedQuery) -> DataFrame:
        raise AssertionError("the rows of a view are those of a collection")


CONNECTOR = Connector(type="sql", source=SqlView)
