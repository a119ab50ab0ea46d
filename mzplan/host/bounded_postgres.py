"""A connection to a PostgreSQL server that limits the time and the size of each answer.

Nothing else helps against a frozen or malicious server: `statement_timeout` is only a request to the server,
and TCP keepalives notice only that the server's machine is gone.
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

from mzplan.host.postgres_session import session_statement

T = TypeVar("T")

_TCP_INFO = getattr(socket, "TCP_INFO", None)  # Linux
_RECEIVED_BYTES = struct.Struct("=128xQ")  # the place of the number of received bytes in TCP_INFO


class AnswerLimitError(psycopg.OperationalError):
    """The server didn't answer in time, or its answer was too large."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that closes itself and raises AnswerLimitError if an answer exceeds a limit.

    - `max_seconds`: the time limit of one statement.
    - `deadline`: the deadline of all statements, in monotonic seconds.
    - `max_bytes`: the limit of received bytes for one statement. Works only on Linux, and only for TCP.
    """

    max_seconds: float = math.inf
    max_bytes: float = math.inf
    deadline: float = math.inf

    def begin_session(self, **settings: str) -> None:
        """Run `session_statement`. If that fails, close the connection and raise the error."""
        try:
            self.execute(session_statement(**settings).encode())
        except BaseException:
            self.close()
            raise

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        try:
            return super().wait(self._bounded(gen), *args, **kwargs)
        except AnswerLimitError:
            self.close()  # a late answer would look like the answer to the next statement
            raise

    def _bounded(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """Run an exchange with the server, as psycopg generates it, within the limits."""
        started = time.monotonic()
        deadline = min(self.deadline, started + self.max_seconds)
        with socket.socket(fileno=os.dup(self.fileno())) as connection:
            max_received = _received_bytes(connection) + self.max_bytes
            try:
                wanted = next(gen)
                while True:
                    ready = yield wanted  # psycopg resumes it a few times a second
                    if time.monotonic() >= deadline:
                        waited = time.monotonic() - started
                        raise AnswerLimitError(f"the server hasn't answered for {waited:.0f} s")
                    if ready and _received_bytes(connection) > max_received:
                        size = f"{self.max_bytes / (1 << 20):.0f} MiB"
                        raise AnswerLimitError(f"the server answered with more than {size}")
                    wanted = gen.send(ready)
            except StopIteration as end:
                done: T = end.value
                return done


def _received_bytes(connection: socket.socket) -> int:
    """Return how many bytes a socket has received since it was opened; 0 if the system doesn't report it."""
    if _TCP_INFO is None:
        return 0
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _RECEIVED_BYTES.size)
    except OSError:  # a Unix socket
        return 0
    received: int = _RECEIVED_BYTES.unpack(info)[0] if len(info) == _RECEIVED_BYTES.size else 0
    return received
