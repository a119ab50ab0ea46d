"""A PostgreSQL server that falls silent after a login, or never stops sending: an error in bounded time."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mzplan.model.diagnostics import MzplanError
from mzplan.store.backends import postgres
from mzplan.store.backends.postgres import PostgresBackend

WELCOME = b"R" + struct.pack("!ii", 8, 0) + b"Z" + struct.pack("!i", 5) + b"I"
NOTICE = b"N" + struct.pack("!i", 11) + b"Mmore\0\0"


@contextmanager
def server(after_login: Callable[[socket.socket, threading.Event], None]) -> Iterator[int]:
    """Give the port of a server that answers a login, and then does only this until the event is set."""
    over = threading.Event()

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(1024)  # the login; no TLS is requested
            connection.sendall(WELCOME)
            after_login(connection, over)

    def serve() -> None:
        with contextlib.suppress(OSError):  # the end of the listener
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        threading.Timer(60.0, over.set).start()  # so that a failing test also ends
        yield int(listener.getsockname()[1])
        over.set()
        listener.shutdown(socket.SHUT_RDWR)


def is_silent(connection: socket.socket, over: threading.Event) -> None:
    over.wait()


def sends_forever(connection: socket.socket, over: threading.Event) -> None:
    while not over.wait(0.02):
        connection.sendall(NOTICE)


@pytest.mark.parametrize(
    ("after_login", "detail"),
    [(is_silent, "the server hasn't answered for 0 s"), (sends_forever, "")],
    ids=["silent", "sends forever"],
)
def test_a_server_without_an_answer_times_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    after_login: Callable[[socket.socket, threading.Event], None],
    detail: str,
) -> None:
    monkeypatch.setattr(postgres, "SILENCE_S", 0.3)
    monkeypatch.setenv("PGGSSENCMODE", "disable")
    with server(after_login) as port:
        login = {"host": "127.0.0.1", "port": port, "database": "d", "user": "u"}
        backend = PostgresBackend({**login, "tls": {"mode": "disable"}}, str(tmp_path), "shop")
        began = time.monotonic()
        for ask in (
            lambda: backend.read("mzplan.state.json"),
            lambda: backend.list("leases/"),
            lambda: backend.write("leases/local.json", b"{}", expected="1", durable=False),
        ):
            with pytest.raises(MzplanError, match="can't be reached") as caught:
                ask()
            (found,) = caught.value.diagnostics
            assert found.code == "MZ095" and detail in found.detail
        assert time.monotonic() - began < 10.0
        assert backend._local.connection is None, "a late answer could be taken for another's"


def test_a_listening_connection_does_not_count_as_silent() -> None:
    """A connection that listens for notifications expects no answer."""
    with server(is_silent) as port:
        connection = postgres.BoundedConnection.connect(
            f"host=127.0.0.1 port={port} user=u dbname=d sslmode=disable gssencmode=disable", autocommit=True
        )
        with connection:
            assert list(connection.notifies(timeout=0.3)) == []
