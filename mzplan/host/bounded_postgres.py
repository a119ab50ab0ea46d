"""A connection to a PostgreSQL server whose answers have an end: in time, and in bytes.

`statement_timeout` is a request to the server, and the settings of TCP help only where its machine is gone. A
server that is frozen, or that means harm, is given up by its client alone.
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
_RECEIVED = struct.Struct("=128xQ")  # of it: the bytes that have come


class UnendingError(psycopg.OperationalError):
    """The server has not answered in time, or with more than can be an answer."""


class BoundedConnection(psycopg.Connection[Any]):
    """Closes itself, with an UnendingError, where the answer to a statement takes more than `most_s` seconds,
    goes on after `until` (monotonic seconds), or has more than `most_bytes` on the wire (as far as the system
    counts them: Linux, TCP)."""

    most_s: float = math.inf
    most_bytes: float = math.inf
    until: float = math.inf

    def wait(self, gen: Generator[Any, Any, T], *given: Any, **more: Any) -> T:
        try:
            return super().wait(self._bounded(gen), *given, **more)
        except UnendingError:
            self.close()  # whatever it says later is no answer to anything
            raise

    def _bounded(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """An exchange with the server, as psycopg generates it."""
        began = time.monotonic()
        until = min(self.until, began + self.most_s)
        with socket.socket(fileno=os.dup(self.fileno())) as line:
            most = _received(line) + self.most_bytes
            try:
                wanted = next(gen)
                while True:
                    ready = yield wanted  # psycopg looks a few times a second
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
    """How many bytes have come over a line since it was opened; 0 where the system does not say."""
    if _TCP_INFO is None:
        return 0
    try:
        info = line.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _RECEIVED.size)
    except OSError:  # no TCP: a socket of this machine
        return 0
    received: int = _RECEIVED.unpack(info)[0] if len(info) == _RECEIVED.size else 0
    return received
