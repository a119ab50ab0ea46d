"""A PostgreSQL server that falls silent after a login, or never stops sending: an error in bounded time."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mzplan.model.diagnostics import MzplanError
from mzplan.store.backends import postgres
from mzplan.store.backends.postgres import PostgresBackend

WELCOME = b"R" + struct.pack("!ii", 8, 0) + b"Z" + struct.pack("!i", 5) + b"I"
NOTICE = b"N" + struct.pack("!i", 11) + b"Mmore\0\0"


@pytest.fixture
def port() -> Iterator[int]:
    """Return the address of a server that only does the handshake."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            connection.recv(1024)  # the login; no TLS is requested
            connection.sendall(WELCOME)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield int(listener.getsockname()[1])
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for connection in connections:
        connection.close()


def test_a_silent_server_times_out(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "SILENCE_S", 0.3)
    monkeypatch.setenv("PGGSSENCMODE", "disable")
    settings = {"host": "127.0.0.1", "port": port, "database": "d", "user": "u", "tls": {"mode": "disable"}}
    backend = PostgresBackend(settings, str(tmp_path), "shop")
    began = time.monotonic()
    for ask in (
        lambda: backend.read("mzplan.state.json"),
        lambda: backend.list("leases/"),
        lambda: backend.write("leases/local.json", b"{}", expected="1", durable=False),
    ):
        with pytest.raises(MzplanError) as caught:
            ask()
        (found,) = caught.value.diagnostics
        assert found.code == "MZ095" and "the server hasn't answered for 0 s" in found.detail
    assert time.monotonic() - began < 5.0
    assert backend._local.connection is None, "a late answer could be taken for another's"


def test_a_server_that_never_stops_sending_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "SILENCE_S", 0.3)
    monkeypatch.setenv("PGGSSENCMODE", "disable")
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(1024)
                connection.sendall(WELCOME)
                while not over.wait(0.02):
                    connection.sendall(NOTICE)

        threading.Thread(target=serve, daemon=True).start()
        threading.Timer(10.0, over.set).start()  # so that a failing test ends too
        port = listener.getsockname()[1]
        settings = {
            "host": "127.0.0.1",
            "port": port,
            "database": "d",
            "user": "u",
            "tls": {"mode": "disable"},
        }
        began = time.monotonic()
        with pytest.raises(MzplanError, match="can't be reached"):
            PostgresBackend(settings, str(tmp_path), "shop").read("mzplan.state.json")
        over.set()
    assert time.monotonic() - began < 5.0


def test_a_listening_connection_does_not_count_as_silent(port: int) -> None:
    """A connection that listens for notifications expects no answer."""
    connection = postgres.BoundedConnection.connect(
        f"host=127.0.0.1 port={port} user=u dbname=d sslmode=disable gssencmode=disable", autocommit=True
    )
    with connection:
        assert list(connection.notifies(timeout=0.3)) == []
