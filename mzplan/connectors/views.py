"""Views: queries that compute their rows from collections. They write a collection and reach no server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.connector import Connector, SourceConnector
from mzplan.connectors.api.lineage_names import LineageNames, at_path
from mzplan.connectors.api.queries import Probe, ResolvedQuery
from mzplan.connectors.formats.letter_folder import check_folder, folder_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Compute = Callable[[Mapping[str, "DataFrame"], Mapping[str, Any]], "DataFrame"]
"""Returns a view's rows. Takes the rows of each collection that it reads, by name, and the view's options."""


class View(SourceConnector):
    """A view that is computed by SQL in mzplan.spark or, with `compute`, by a plug-in's function.

    If each row is computed from one input row (projection.py), it keeps that row's `_position`. Rows of other
    queries (view_sql.py), and of functions with several inputs, have none.
    """

    position = "STRUCT<input: STRING>"

    def __init__(self, compute: Compute | None = None):
        self.compute = compute

    def compute_of(self, query: ResolvedQuery) -> Compute | None:
        """Return the function that computes the rows of a view; None for SQL. Raises MzplanError."""
        return self.compute

    def probe(self, query: ResolvedQuery) -> Probe:
        """Return whether its dead letters can be stored. There is no server to reach."""
        folder = folder_of(query)
        return Probe(diagnostics=check_folder(query, folder)) if folder is not None else Probe()

    def route(self, query: ResolvedQuery) -> str:
        reads = query.description.reads.values()
        return f"the collection{'s' * (len(reads) > 1)} of {' and '.join(str(r.address) for r in reads)}"

    def stream(self, spark: SparkSession, query: ResolvedQuery) -> DataFrame:
        raise AssertionError(f"{query.address} reads collections, not an upstream")


def lineage_ends(query: ResolvedQuery) -> LineageNames:
    """Return the table of a view's dead letters, which is its only place outside the warehouse."""
    folder = folder_of(query)
    return LineageNames(writes=(at_path(folder),)) if folder is not None else LineageNames()


CONNECTOR = Connector(type="sql", source=View, lineage_ends=lineage_ends)
