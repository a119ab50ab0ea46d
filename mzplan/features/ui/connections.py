"""Closes idle connections in time, and earlier if the server runs out of places.

uvicorn times out a connection after an answer, but not before or during a request. All this happens before
any credentials are checked.
"""

from __future__ import annotations

import asyncio
from ipaddress import IPv6Address, ip_address

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0  # seconds within which a request's head must arrive
MAX_PER_CLIENT = 64  # connections of one address: a browser has six
MAX_CONNECTIONS = 200  # connections in total


class Connection(H11Protocol):
    """A connection of uvicorn.

    If its client has no place left, the client's oldest waiting connection is closed. If the server has no
    place left, the oldest waiting connection of all clients is closed."""

    waiting_since = 0.0  # the loop's time

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.waiting_since = self.loop.time()
        self._check_later(HEADER_SECONDS)
        others = [
            connection
            for connection in self.connections
            if isinstance(connection, Connection) and connection is not self
        ]
        from_client = [connection for connection in others if connection.network == self.network]
        for group, limit in ((from_client, MAX_PER_CLIENT), (others, MAX_CONNECTIONS - 1)):
            if len(group) >= limit:
                candidates = [connection for connection in group if connection.is_waiting]
                if not candidates and group is others:
                    return  # all are busy: uvicorn answers 503
                min(candidates, key=lambda connection: connection.waiting_since, default=self).close()
                return

    @property
    def network(self) -> str:
        """The client's address; for IPv6 its first half, which identifies the network."""
        try:
            address = ip_address((self.client or ("",))[0])
        except ValueError:
            return ""
        return address.exploded[:19] if isinstance(address, IPv6Address) else str(address)

    @property
    def is_waiting(self) -> bool:
        """Whether no request is in progress."""
        return self.cycle is None or self.cycle.response_complete

    def close(self) -> None:
        """Close the connection; it no longer counts."""
        self.connections.discard(self)
        self.transport.abort()

    def on_response_complete(self) -> None:
        self.waiting_since = self.loop.time()
        super().on_response_complete()

    def _check_later(self, seconds: float) -> None:
        self.loop.call_later(seconds, self._check)

    def _check(self) -> None:
        if self.transport.is_closing():
            return
        remaining = (
            self.waiting_since + HEADER_SECONDS - self.loop.time() if self.is_waiting else HEADER_SECONDS
        )
        if remaining <= 0:
            self.close()
        else:
            self._check_later(remaining)
