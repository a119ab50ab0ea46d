"""The way to a server: SSH tunnels, AWS sign-in, and the HTTP API of a schema registry.

Says nothing of what is read or written there; may not import formats or a type of connector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mzplan.connectors.api.connector import Connector

if TYPE_CHECKING:
    from mzplan.connectors.api.protocols import ResolvedQuery


def _reach(query: ResolvedQuery) -> None:
    from mzplan.connectors.network.tunnels import reach

    reach(query.link, query.directory, query.address)


AWS = Connector(type="aws")
SSH_TUNNEL = Connector(type="ssh-tunnel", reach=_reach)
