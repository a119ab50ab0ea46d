"""The live check of a connection that nothing uses yet: reach and authenticate, as its queries would."""

from __future__ import annotations

from collections.abc import Callable

from mzplan.connectors.api.protocols import (
    ResolvedConnection,
    ResolvedQuery,
    resolve_connection,
)
from mzplan.connectors.catalogue import find_connector
from mzplan.host.extras import missing_extras_reported
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.schema.description import Description, InlinedConnection
from mzplan.secrets.references import Secrets


def is_reached_alone(type_: str) -> bool:
    """Whether a connection of this type has something to reach without a query that uses it."""
    return _reach(type_) is not None


def _reach(type_: str) -> Callable[[ResolvedQuery], Diagnostic | None] | None:
    connector = find_connector(type_)
    return connector.reach if connector is not None else None


def check_connection(
    connection: InlinedConnection, secrets: Secrets, directory: str
) -> tuple[Diagnostic, ...] | None:
    """What stands in the way of this connection; None where its type has nothing to reach by itself."""
    reach = _reach(connection.type)
    if reach is None:
        return None
    try:
        resolved = resolve_connection(connection, secrets)
        with missing_extras_reported():
            found = reach(_standing_in(connection, resolved, directory))
    except MzplanError as problem:
        return problem.diagnostics
    return (found,) if found is not None else ()


def _standing_in(
    connection: InlinedConnection, resolved: ResolvedConnection, directory: str
) -> ResolvedQuery:
    """A query in name only, for what asks on behalf of one."""
    description = Description(
        address=connection.address, id="", generation=1, digest="", type=connection.type, body={}
    )
    return ResolvedQuery(
        description=description, body={}, connection=resolved, columns=(), directory=directory
    )
