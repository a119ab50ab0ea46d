"""A connection to a PostgreSQL server that limits each answer in time and bytes.

`statement_timeout` is only a request to the server, and TCP keepalives help only if the server's machine is
gone. Only the client can give up on a frozen or malicious server.
"""

from __future__ import annotations

import math
import os
import socket
import struct
import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg

T = TypeVar("T")

_TCP_INFO = getattr(socket, "TCP_INFO", None)  # Linux
_RECEIVED = struct.Struct("=128xQ")  # the number of received bytes in it


class UnendingError(psycopg.OperationalError):
    """The server didn't answer in time, or its answer was too large."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that closes itself and raises UnendingError if an answer exceeds a limit.

    - `most_s`: seconds for one statement.
    - `until`: a deadline for all statements, in monotonic seconds.
    - `most_bytes`: bytes received for one statement. Only Linux counts them, and only for TCP.
    """

    most_s: float = math.inf
    most_bytes: float = math.inf
    until: float = math.inf

    def wait(self, gen: Generator[Any, Any, T], *given: Any, **more: Any) -> T:
        try:
            return super().wait(self._bounded(gen), *given, **more)
        except UnendingError:
            self.close()  # a late answer would be taken for the answer to the next statement
            raise

    def _bounded(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """Run an exchange with the server, as psycopg generates it, within the limits."""
        began = time.monotonic()
        until = min(self.until, began + self.most_s)
        with socket.socket(fileno=os.dup(self.fileno())) as line:
            most = _received(line) + self.most_bytes
            try:
                wanted = next(gen)
                while True:
                    ready = yield wanted  # psycopg resumes it a few times a second
                    if time.monotonic() >= until:
                        waited = time.monotonic() - began
                        raise UnendingError(f"the server has not answered for {waited:.0f} s")
                    if ready and _received(line) > most:
                        size = f"{self.most_bytes / (1 << 20):.0f} MiB"
                        raise UnendingError(f"the server has answered with more than {size}")
                    wanted = gen.send(ready)
            except StopIteration as end:
                done: T = end.value
                return done


def _received(line: socket.socket) -> int:
    """Return how many bytes a socket has received since it was opened; 0 if the system doesn't report it."""
    if _TCP_INFO is None:
        return 0
    try:
        info = line.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _RECEIVED.size)
    except OSError:  # a Unix socket
        return 0
    received: int = _RECEIVED.unpack(info)[0] if len(info) == _RECEIVED.size else 0
    return received
