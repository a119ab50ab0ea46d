"""The content of records: formats and envelopes → columns, dead letters, schemas of a registry.

May not depend on the server that a record comes from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mzplan.connectors.api.connector import Connector

if TYPE_CHECKING:
    from mzplan.connectors.api.protocols import ResolvedQuery
    from mzplan.model.diagnostics import Diagnostic


def _reach(query: ResolvedQuery) -> Diagnostic | None:
    from mzplan.connectors.formats.registry import reach

    return reach(query.link, query.directory, query.address)


SCHEMA_REGISTRY = Connector(type="schema-registry", reach=_reach)
