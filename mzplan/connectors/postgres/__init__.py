"""PostgreSQL: `source` follows tables by logical replication, `sink` writes rows and step in one transaction.

Here is what both use: the client, the catalogue's tables, types, and which database it is. May not import
another type of connector; source and sink do not import each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mzplan.connectors.api.connector import Connector

if TYPE_CHECKING:
    from mzplan.connectors.api.protocols import ResolvedQuery, SinkConnector, SourceConnector
    from mzplan.model.diagnostics import Diagnostic


def _source() -> SourceConnector:
    from mzplan.connectors.postgres.source.connector import PostgresSource

    return PostgresSource()


def _sink() -> SinkConnector:
    from mzplan.connectors.postgres.sink.connector import PostgresSink

    return PostgresSink()


def _reach(query: ResolvedQuery) -> Diagnostic | None:
    from mzplan.connectors.postgres.probe import reach

    return reach(query)


CONNECTOR = Connector(type="postgres", source=_source, sink=_sink, reach=_reach)
