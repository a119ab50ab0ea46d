"""A schema registry whose answers are none, or never end."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mzplan.connectors.formats import registry_http
from mzplan.connectors.formats.registry_http import (
    RegistryError,
    RegistryServer,
    get,
    schema_texts,
    whole_number,
)

SHORT = 0.3
ENDLESS = (
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX: ",
    b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n[",
)


@contextlib.contextmanager
def registry(answer: Callable[[socket.socket], object]) -> Iterator[RegistryServer]:
    """One that answers a single request so."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            line, _ = listener.accept()
            with line, contextlib.suppress(OSError):
                line.recv(4096)
                answer(line)

        thread = threading.Thread(target=serve)
        thread.start()
        yield RegistryServer(url=f"http://127.0.0.1:{listener.getsockname()[1]}", seconds=SHORT)
        thread.join()


@pytest.mark.parametrize("start", ENDLESS)
def test_an_answer_that_never_ends_is_hung_up_on(start: bytes) -> None:
    over = threading.Event()

    def drip(line: socket.socket) -> None:
        line.sendall(start)
        while not over.wait(SHORT / 10):  # each byte within the time that a socket waits for one
            line.sendall(start if b"100" in start else b" ")

    began = time.monotonic()
    with registry(drip) as server, pytest.raises(RegistryError, match="no answer within") as found:
        threading.Timer(10.0, over.set).start()  # a test that fails ends, too
        try:
            get(server, "/subjects")
        finally:
            over.set()
    assert found.value.why == "unreachable" and time.monotonic() - began < 9.0


def test_json_that_is_nested_too_deep_is_none() -> None:
    data = b"[" * 200_000
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    with registry(lambda line: line.sendall(head + data)) as server, pytest.raises(RegistryError) as found:
        get(server, "/subjects")
    assert found.value.why == "answer"


@pytest.mark.parametrize(
    "listed", ["5", "[1]", '[{"subject": "a", "version": "x"}]', '[{"subject": "\\ud800", "version": 1}]']
)
def test_references_that_are_none_are_said(listed: str) -> None:
    with pytest.raises(RegistryError, match="is it a schema registry") as found:
        schema_texts(lambda path: {}, {"schema": "{}", "references": json.loads(listed)})
    assert found.value.why == "answer"


@pytest.mark.parametrize("given", ["x", [1], float("inf")])
def test_a_number_that_is_none_is_said(given: Any) -> None:
    with pytest.raises(RegistryError, match="version is not a number"):
        whole_number({"version": given}, "version")


def test_references_without_end_take_no_time_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_http, "_ALL_S", -1.0)
    with pytest.raises(RegistryError, match="not all it refers to"):
        schema_texts(lambda path: {}, {"schema": "{}", "references": [{"subject": "a", "version": 1}]})
