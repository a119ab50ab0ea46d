"""How to reach servers: SSH tunnels, AWS sign-in, and folders.

This package doesn't depend on the data: it imports neither formats nor a type of connector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mzplan.connectors.api.connector import Connector

if TYPE_CHECKING:
    from mzplan.connectors.api.lineage_names import LineageNames
    from mzplan.connectors.api.queries import ResolvedQuery

_PORTS = {"http": 80, "https": 443}


def server(host: str, port: int | float) -> str:
    """Return a server in its normal form: `("DB.internal", 5432)` → `db.internal:5432`."""
    name = host.rstrip(".").lower()
    return f"{name}:{int(port)}"


def server_of_url(url: str) -> str:
    """Return the server of a URL: `https://registry/path` → `registry:443`.

    Returns a malformed URL unchanged.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return url
    if not parts.hostname or port is None:
        return url
    return server(f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname, port)


def lineage_ends(query: ResolvedQuery) -> LineageNames:
    """Return OpenLineage's name of the folder that a source reads or a sink writes."""
    from mzplan.connectors.api.lineage_names import LineageNames, at_path
    from mzplan.connectors.network.folders import folder_of

    name = at_path(folder_of(query))
    return LineageNames(reads=(name,)) if query.address.reads_upstream else LineageNames(writes=(name,))


def _reach(query: ResolvedQuery) -> None:
    from mzplan.connectors.network.tunnels import reach

    reach(query.link, query.directory, query.address)


def _aws_servers(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the servers of an aws connection: its object store's endpoint, or AWS.

    Assuming a role also needs AWS.
    """
    own_servers = (server_of_url(body["endpoint"]),) if "endpoint" in body else ()
    return own_servers if own_servers and "role_arn" not in body else (*own_servers, "amazonaws.com:443")


def _ssh_servers(body: Mapping[str, Any]) -> tuple[str, ...]:
    return (server(body["host"], body["port"]),)


def _machine(body: Mapping[str, Any]) -> str:
    return "" if "access_key_id" in body else "${machine:aws}"


AWS = Connector(type="aws", servers=_aws_servers, lends_secrets=True, machine=_machine)
SSH_TUNNEL = Connector(type="ssh-tunnel", reach=_reach, servers=_ssh_servers, carries_traffic=True)
