"""PostgreSQL servers that accept a connection and then send nothing, or send without end.

They cost no memory, thread or socket.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from mzplan.connectors.api.probes import with_time_limit
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.postgres import client
from mzplan.connectors.postgres.client import connect
from mzplan.connectors.postgres.source.continuity import check_timeline
from mzplan.connectors.postgres.source.replication import ReplicationLink
from mzplan.connectors.postgres.source.slots import Names
from mzplan.store.backends import postgres as backends_postgres
from mzplan.store.backends.postgres import PostgresBackend
from tests.support import eventually, refusal

WELCOME = b"R" + struct.pack("!ii", 8, 0) + b"Z" + struct.pack("!i", 5) + b"I"
DONE = b"C" + struct.pack("!i", 8) + b"SET\0" + b"Z" + struct.pack("!i", 5) + b"I"
COLUMN = b"T" + struct.pack("!iH", 26, 1) + b"x\0" + struct.pack("!IHIhih", 0, 0, 25, -1, -1, 0)
ROW = b"D" + struct.pack("!iHi", (64 << 10) + 10, 1, 64 << 10) + b"x" * (64 << 10)
Answer = Callable[[socket.socket, threading.Event], object]


@contextlib.contextmanager
def server(answer: Answer) -> Iterator[tuple[str, threading.Event]]:
    """Run a server with this answer. Yields how to connect, and an event for the end of a connection."""
    hung_up, over = threading.Event(), threading.Event()

    def serve(line: socket.socket) -> None:
        with line, contextlib.suppress(OSError):
            line.recv(1024)
            line.sendall(WELCOME)
            line.recv(1024)
            with contextlib.suppress(OSError):
                answer(line, over)
                line.settimeout(10.0)
                while line.recv(1024):
                    pass
            hung_up.set()

    def accept() -> None:
        with contextlib.suppress(OSError):  # the end of the listener
            while True:
                line, _ = listener.accept()
                threading.Thread(target=serve, args=(line,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        options = "user=u dbname=d sslmode=disable gssencmode=disable connect_timeout=4"
        yield f"host=127.0.0.1 port={port} {options}", hung_up
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(20.0)


def silence(line: socket.socket, over: threading.Event) -> None:
    """Send nothing."""


def flood(line: socket.socket, over: threading.Event) -> None:
    line.sendall(COLUMN)
    while not over.is_set():
        line.sendall(ROW)


def drip(line: socket.socket, over: threading.Event) -> None:
    """Send a row every 20 ms."""
    line.sendall(COLUMN)
    while not over.wait(0.02):
        line.sendall(ROW)


def after(statements: int, answer: Answer) -> Answer:
    """Answer the first statements normally, and the next one with `answer`."""

    def answer_later(line: socket.socket, over: threading.Event) -> None:
        for _ in range(statements):
            line.sendall(DONE)
            line.recv(4096)
        answer(line, over)

    return answer_later


def probe(info: str) -> None:
    with_time_limit(lambda: connect(info, 5.0, 0.5).close(), 0.5)


def timeline(info: str) -> None:
    """Check a timeline, which uses the replication protocol, with a time limit."""
    names = Names(publication="p", slot="s", own_publication=True, own_slot=True)
    query: ResolvedQuery = None  # type: ignore[assignment]
    check_timeline(query, names, info, 2, 1, 5, 0.3)


SILENT, ENDLESS = "hasn't answered for", "answered with more than 2 MiB"
LIMITED: list[tuple[Answer, Callable[[str], object], str | None]] = [
    (silence, probe, None),
    (drip, probe, None),
    (silence, lambda info: connect(info, statement_timeout_s=0.1), SILENT),
    (silence, timeline, SILENT),
    (after(1, drip), timeline, SILENT),
    (after(3, silence), timeline, SILENT),
]
if hasattr(socket, "TCP_INFO"):  # the system counts the bytes
    LIMITED += [
        (flood, lambda info: connect(info, statement_timeout_s=30), ENDLESS),
        (after(2, flood), ReplicationLink, ENDLESS),
        (after(3, flood), lambda info: ReplicationLink(info).stream("s", "p"), ENDLESS),
    ]


@pytest.mark.parametrize(("answer", "ask", "why"), LIMITED)
def test_a_client_hangs_up_after_its_time_limit_and_before_its_memory_is_full(
    answer: Answer, ask: Callable[[str], object], why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_GRACE_S", 0.1)
    monkeypatch.setattr(client, "_MAX_ANSWER_BYTES", 2 << 20)
    threads = set(threading.enumerate())
    with server(answer) as (info, hung_up):
        began = time.monotonic()
        with pytest.raises((psycopg.OperationalError, TimeoutError), match=why):
            ask(info)
        assert hung_up.wait(3.0) and time.monotonic() - began < 3.0
    eventually("no thread is left", lambda: not set(threading.enumerate()) - threads, 3.0)


@pytest.mark.parametrize("answer", [silence, drip])
def test_a_state_on_such_a_server_can_not_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    monkeypatch.setattr(backends_postgres, "SILENCE_S", 0.2)
    monkeypatch.setenv("PGGSSENCMODE", "disable")
    with server(answer) as (info, _):
        port = int(conninfo_to_dict(info)["port"] or 0)
        login = {"host": "127.0.0.1", "port": port, "database": "d", "user": "u"}
        backend = PostgresBackend({**login, "tls": {"mode": "disable"}}, str(tmp_path), "shop")
        for ask in (
            lambda: backend.read("mzplan.state.json"),
            lambda: backend.list("leases/"),
            lambda: backend.write("leases/local.json", b"{}", expected="1", durable=False),
        ):
            found = refusal(ask)
            assert found.code == "MZ095" and "can't be reached" in found.summary
        kept = getattr(backend._local, "connection", None)
        assert kept is None, "a late answer could be taken for another's"
