"""The live check of a connection that nothing uses yet: reach and authenticate, as its queries would."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mzplan.connectors.api.deadline import bounded
from mzplan.connectors.api.protocols import (
    PROBE_TIMEOUT_S,
    ResolvedConnection,
    ResolvedQuery,
    resolve_connection,
)
from mzplan.host.extras import extras_told
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.schema.description import Description, InlinedConnection
from mzplan.secrets.references import Secrets


def is_reached_alone(type_: str) -> bool:
    """Whether a connection of this type has something to reach without a query that uses it."""
    return type_ in _CHECKS


def check_connection(
    connection: InlinedConnection, secrets: Secrets, directory: str
) -> tuple[Diagnostic, ...] | None:
    """What stands in the way of this connection; None where its type has nothing to reach by itself."""
    check = _CHECKS.get(connection.type)
    if check is None:
        return None
    try:
        resolved = resolve_connection(connection, secrets)
        with extras_told():
            found = check(_standing_in(connection, resolved, directory))
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


def _kafka(query: ResolvedQuery) -> Diagnostic | None:
    from mzplan.connectors.kafka.probe import KafkaProbe

    return KafkaProbe().reach(query)


def _postgres(query: ResolvedQuery) -> Diagnostic | None:
    import psycopg

    from mzplan.connectors.postgres.client import connect, connect_problem, patience, reached

    try:
        with reached(query) as info:
            bounded(lambda: connect(info, PROBE_TIMEOUT_S).close(), patience(query))
    except (psycopg.Error, TimeoutError, OSError) as problem:
        return connect_problem(query, problem)
    return None


def _ssh_tunnel(query: ResolvedQuery) -> Diagnostic | None:
    from mzplan.connectors.network.tunnels import reach

    reach(query.link, query.directory, query.address)
    return None


def _schema_registry(query: ResolvedQuery) -> Diagnostic | None:
    from mzplan.connectors.formats.registry import reach

    return reach(query.link, query.directory, query.address)


_CHECKS: Mapping[str, Callable[[ResolvedQuery], Diagnostic | None]] = {
    "kafka": _kafka,
    "postgres": _postgres,
    "schema-registry": _schema_registry,
    "ssh-tunnel": _ssh_tunnel,
}
