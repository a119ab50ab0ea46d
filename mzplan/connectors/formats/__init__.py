"""The content of records: formats, envelopes, dead letters, and schemas in a registry.

Nothing here depends on the server that a record comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.connector import Connector
from mzplan.connectors.network import server_of_url

if TYPE_CHECKING:
    from mzplan.connectors.api.queries import ResolvedQuery
    from mzplan.model.diagnostics import Diagnostic


def _reach(query: ResolvedQuery) -> Diagnostic | None:
    from mzplan.connectors.formats.registry import reach

    return reach(query)


def _servers(body: Mapping[str, Any]) -> tuple[str, ...]:
    return (server_of_url(body["url"]),)


SCHEMA_REGISTRY = Connector(type="schema-registry", reach=_reach, servers=_servers)
