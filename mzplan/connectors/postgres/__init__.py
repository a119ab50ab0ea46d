"""PostgreSQL: `source` follows tables by logical replication, `sink` writes rows and step in one transaction.

This package has the parts that source and sink share: the client, the catalog's tables, types, and the
identity of a database. It doesn't import another connector. Source and sink don't import each other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.connector import Connector
from mzplan.connectors.network import server
from mzplan.schema.object_names import table_parts

if TYPE_CHECKING:
    from mzplan.connectors.api.connector import Ddl, SinkConnector, SourceConnector
    from mzplan.connectors.api.lineage_names import LineageNames
    from mzplan.connectors.api.offers import Offer
    from mzplan.connectors.api.queries import Output, ResolvedQuery
    from mzplan.model.diagnostics import Diagnostic


def _source() -> SourceConnector:
    from mzplan.connectors.postgres.source.connector import PostgresSource

    return PostgresSource()


def _sink() -> SinkConnector:
    from mzplan.connectors.postgres.sink.connector import PostgresSink

    return PostgresSink()


def _reach(query: ResolvedQuery) -> Diagnostic | None:
    from mzplan.connectors.postgres.identity import reach

    return reach(query)


def _ddl(query: ResolvedQuery, outputs: Sequence[Output]) -> Ddl:
    from mzplan.connectors.postgres.definition import sink_ddl, source_ddl

    return source_ddl(query) if query.address.reads_upstream else sink_ddl(query, outputs)


def _offers(query: ResolvedQuery) -> Sequence[Offer]:
    from mzplan.connectors.postgres.offers import offers

    return offers(query)


def _servers(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return one server per host: libpq accepts several hosts, separated by commas."""
    return tuple(server(host, body["port"]) for host in body["host"].split(","))


def _machine(body: Mapping[str, Any]) -> str:
    """Return a reference to PGPASSWORD if it is set and the connection has no password.

    libpq would send the variable's value to any such server.
    """
    return "${machine:PGPASSWORD}" if "password" not in body and os.environ.get("PGPASSWORD") else ""


def _ends(query: ResolvedQuery) -> LineageNames:
    """Return the lineage names of the tables. For a table without a schema, assume `public`."""
    from mzplan.connectors.api.lineage_names import LineageNames, on_server

    body = query.link.body
    host = body["host"].split(",")[0]
    place = server("localhost" if host.startswith("/") else host, body["port"])  # a path is a local socket
    tables = query.body["tables"] if query.address.reads_upstream else [query.body["table"]]
    parts = (["public", *table_parts(table)][-2:] for table in tables)
    named = (".".join([body["database"], *part]) for part in parts)
    names = tuple(on_server("postgres", place, name) for name in named)
    return LineageNames(reads=names) if query.address.reads_upstream else LineageNames(writes=names)


CONNECTOR = Connector(
    type="postgres",
    source=_source,
    sink=_sink,
    reach=_reach,
    lineage_ends=_ends,
    ddl=_ddl,
    replays=True,
    offers=_offers,
    servers=_servers,
    machine=_machine,
)
