"""Connections that hold a place and ask nothing: closed in time, and first of all where places run out.

uvicorn times a connection out after an answer, and not before or within a request. All of this is before any
look at credentials.
"""

from __future__ import annotations

import asyncio
from ipaddress import IPv6Address, ip_address

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS = 10.0  # seconds in which the head of a request must be there
PER_CLIENT = 64  # connections of one address at most: a browser has six
PLACES = 200  # connections in all


class Connection(H11Protocol):
    """A connection of uvicorn's. Where its client has no place left, the oldest one of that client's that
    waits for a request is closed; where nobody has, the oldest one that waits of all."""

    waits_since = 0.0  # the loop's time

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.waits_since = self.loop.time()
        self._look_again(HEADERS)
        others = [
            connection
            for connection in self.connections
            if isinstance(connection, Connection) and connection is not self
        ]
        own = [connection for connection in others if connection.network == self.network]
        for group, most in ((own, PER_CLIENT), (others, PLACES - 1)):
            if len(group) >= most:
                waiting = [connection for connection in group if connection.waits]
                if not waiting and group is others:
                    return  # all are at work: uvicorn says so (503)
                min(waiting, key=lambda connection: connection.waits_since, default=self).close()
                return

    @property
    def network(self) -> str:
        """Whom its client's address belongs to: of IPv6 its first half."""
        try:
            address = ip_address((self.client or ("",))[0])
        except ValueError:
            return ""
        return address.exploded[:19] if isinstance(address, IPv6Address) else str(address)

    @property
    def waits(self) -> bool:
        """Whether no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    def close(self) -> None:
        """End it; it counts no longer."""
        self.connections.discard(self)
        self.transport.abort()

    def on_response_complete(self) -> None:
        self.waits_since = self.loop.time()
        super().on_response_complete()

    def _look_again(self, seconds: float) -> None:
        self.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        if self.transport.is_closing():
            return
        left = self.waits_since + HEADERS - self.loop.time() if self.waits else HEADERS
        if left <= 0:
            self.close()
        else:
            self._look_again(left)
