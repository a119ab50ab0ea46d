"""A schema registry with invalid or endless answers."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from mzplan.connectors.api.queries import Output
from mzplan.connectors.formats import registry, registry_http
from mzplan.connectors.formats.decoder import UnknownError
from mzplan.connectors.formats.registry import Subject, check_sink, check_source
from mzplan.connectors.formats.registry_http import RegistryError, RegistryServer, schema_texts
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.schema.columns import Column

SHORT = 0.1
OK = b"HTTP/1.1 200 OK\r\n"
ENDLESS = (b"HTTP/1.1 100 Continue\r\n\r\n", OK + b"X: ", OK + b"Content-Length: 9999\r\n\r\n[")


@contextlib.contextmanager
def serving(answer: Callable[[socket.socket], object]) -> Iterator[RegistryServer]:
    """Run a server that answers a single request with this."""
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
def test_endless_answer_is_cut_off(start: bytes) -> None:
    over = threading.Event()

    def drip(line: socket.socket) -> None:
        line.sendall(start)
        while not over.wait(SHORT / 10):  # each byte arrives before the socket's own time limit
            line.sendall(start if b"100" in start else b" ")

    began = time.monotonic()
    with serving(drip) as server, pytest.raises(RegistryError, match="no answer within") as found:
        threading.Timer(10.0, over.set).start()  # so that a failing test ends
        try:
            registry_http.get(server, "/subjects")
        finally:
            over.set()
    assert found.value.why == "unreachable" and time.monotonic() - began < 9.0


def test_deeply_nested_json_is_no_answer() -> None:
    data = b"[" * 200_000
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    with serving(lambda line: line.sendall(head + data)) as server, pytest.raises(RegistryError) as found:
        registry_http.get(server, "/subjects")
    assert found.value.why == "answer"


@pytest.mark.parametrize(
    "listed", [5, [{"subject": "a", "version": "x"}], [{"subject": "\ud800", "version": 1}]]
)
def test_invalid_references_are_reported(listed: Any) -> None:
    with pytest.raises(RegistryError, match="is it a schema registry") as found:
        schema_texts(lambda path: {}, {"schema": "{}", "references": listed})
    assert found.value.why == "answer"


def test_schema_with_its_references_has_a_size_and_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit also counts the texts of referenced schemas that are still incomplete."""
    asked: list[str] = []

    def answer(path: str) -> dict[str, Any]:
        asked.append(path)
        return {"schema": "x" * (1 << 20), "references": [{"subject": "a", "version": len(asked)}]}

    with pytest.raises(RegistryError, match="larger than 4 MiB") as found:
        schema_texts(answer, answer(""))
    assert found.value.why == "large" and len(asked) == 5
    with (
        monkeypatch.context() as patched,
        pytest.raises(UnknownError, match="schema 7: its schema, with"),
    ):
        patched.setattr(registry_http, "get", lambda server, path, port: answer(path))
        server = RegistryServer(url="http://127.0.0.1:1", seconds=SHORT)
        schemas = registry_http.RegistrySchemas(
            server=server, run="r", type="AVRO", known={}, tunnel=None, name="reg", mark="mzplan"
        )
        schemas.texts(7)
    monkeypatch.setattr(registry_http, "_ALL_S", -1.0)
    with pytest.raises(RegistryError, match="all referenced schemas"):
        schema_texts(answer, answer(""))


DECIMAL = {"type": "bytes", "logicalType": "decimal"}


def diagnostics_of(
    monkeypatch: pytest.MonkeyPatch, schema: Any, kind: str, type_: str = "json"
) -> list[Diagnostic]:
    """Return the diagnostics for a column, or an output, `a` and a subject with this schema."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    subject = Subject(version=1, id=1, type=type_.upper(), texts={"": text})
    monkeypatch.setattr(registry, "latest", lambda query: subject)
    links = {registry.ROLE: SimpleNamespace(address=Address("connection", "r"))}
    body = {"topic": "t", "format": {"type": type_}}
    query: Any = SimpleNamespace(address=Address(kind, "x"), body=body, connections=links)
    if kind == "sink":
        return list(check_sink(query, [Output(name="a", type="DECIMAL(10,2)")]))
    return list(check_source(query, [Column(name="a", type="STRING")]))


@pytest.mark.parametrize(
    ("schema", "kind", "type_"),
    [
        ({"required": 5}, "sink", "json"),
        ({"properties": {"a": {"type": [{}]}}}, "sink", "json"),
        ({"properties": {"a": {"type": [[1]]}}}, "source", "json"),
        ("[" * 100_000, "source", "json"),
        ("[" * 100_000, "source", "avro"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": DECIMAL}]}, "sink", "avro"),
    ],
)
def test_invalid_schema_is_reported(
    monkeypatch: pytest.MonkeyPatch, schema: Any, kind: str, type_: str
) -> None:
    assert [problem.code for problem in diagnostics_of(monkeypatch, schema, kind, type_)] == ["MZ230"]


def test_long_names_are_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"required": [f"{number}\x1b[2J" * 1_000 for number in range(100)]}
    (problem,) = diagnostics_of(monkeypatch, schema, "sink")
    assert len(problem.detail) < 25_000 and problem.detail.isprintable()
    assert problem.detail.endswith("and 60 more differences.")
    assert len(registry_http.schema_type({"schemaType": "x" * 10_000})) < 100
    assert registry_http.schema_type({"schemaType": [[1]]}) == "unknown"
