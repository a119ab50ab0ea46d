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
from mzplan.host.bounded_postgres import AnswerLimitError
from mzplan.model.diagnostics import MzplanError
from mzplan.store.backends import postgres as backends_postgres
from mzplan.store.backends.postgres import PostgresBackend
from tests.support import eventually

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


@pytest.mark.parametrize("answer", [silence, drip])
def test_a_probe_hangs_up_after_its_time_limit_and_leaves_no_thread(answer: Answer) -> None:
    threads = set(threading.enumerate())
    with server(answer) as (info, hung_up):
        with pytest.raises((TimeoutError, AnswerLimitError)):
            with_time_limit(lambda: connect(info, 5.0, 0.5).close(), 0.5)
        assert hung_up.wait(3.0)
    eventually("no thread is left", lambda: not set(threading.enumerate()) - threads, 3.0)


@pytest.mark.parametrize("answer", [silence, after(1, drip), after(3, silence)])
def test_a_timeline_check_hangs_up_after_its_time_limit(answer: Answer) -> None:
    """This check uses the replication protocol."""
    names = Names(publication="p", slot="s", own_publication=True, own_slot=True)
    query: ResolvedQuery = None  # type: ignore[assignment]
    with server(answer) as (info, hung_up):
        began = time.monotonic()
        with pytest.raises(AnswerLimitError, match="hasn't answered for"):
            check_timeline(query, names, info, 2, 1, 5, 0.3)
        assert hung_up.wait(3.0) and time.monotonic() - began < 3.0


def test_a_connection_waits_no_longer_than_a_statement_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_GRACE_S", 0.1)
    with server(silence) as (info, hung_up):
        with pytest.raises(psycopg.OperationalError, match="hasn't answered for"):
            connect(info, statement_timeout_s=0.1)
        assert hung_up.wait(3.0)


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
            with pytest.raises(MzplanError, match="can't be reached") as caught:
                ask()
            assert caught.value.diagnostics[0].code == "MZ095"
        assert backend._local.connection is None, "a late answer could be taken for another's"


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="the system does not count them")
@pytest.mark.parametrize(
    ("answer", "open_"),
    [
        (flood, lambda info: connect(info, statement_timeout_s=30)),
        (after(2, flood), ReplicationLink),
        (after(3, flood), lambda info: ReplicationLink(info).stream("s", "p")),
    ],
)
def test_an_endless_answer_takes_no_memory(
    answer: Answer, open_: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_MAX_ANSWER_BYTES", 1 << 20)
    with server(answer) as (info, hung_up):
        began = time.monotonic()
        with pytest.raises(psycopg.OperationalError, match="answered with more than 1 MiB"):
            open_(info)
        assert hung_up.wait(3.0) and time.monotonic() - began < 5.0
