"""The live check of a connection that nothing uses yet: reach and authenticate, as its queries would."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mzplan.connectors.interface import PROBE_TIMEOUT_S, ResolvedConnection, ResolvedQuery
from mzplan.inline import Description, InlinedConnection
from mzplan.kinds import resource_kind
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.secrets import Secrets


def check_connection(
    connection: InlinedConnection, secrets: Secrets, directory: str
) -> tuple[Diagnostic, ...] | None:
    """What stands in the way of this connection; None where its type has nothing to reach by itself."""
    check = _CHECKS.get(connection.type)
    if check is None:
        return None
    kind = resource_kind("connection", connection.type)
    try:
        body = secrets.fill(kind.with_defaults(connection.body))
    except MzplanError as problem:
        return problem.diagnostics
    resolved = ResolvedConnection(address=connection.address, type=connection.type, body=body)
    found = check(_standing_in(connection, resolved, directory))
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
    from mzplan.connectors.kafka_probe import KafkaProbe

    return KafkaProbe().reach(query)


def _postgres(query: ResolvedQuery) -> Diagnostic | None:
    import psycopg

    from mzplan.connectors.postgres_client import bounded, connect, connect_problem, conninfo

    info = conninfo(query.link, query.directory)
    try:
        bounded(lambda: connect(info, PROBE_TIMEOUT_S).close())
    except (psycopg.Error, TimeoutError, OSError) as problem:
        return connect_problem(query.link, problem, query.address)
    return None


_CHECKS: Mapping[str, Callable[[ResolvedQuery], Diagnostic | None]] = {"kafka": _kafka, "postgres": _postgres}
