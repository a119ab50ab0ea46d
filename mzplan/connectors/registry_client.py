"""Asking a schema registry, by Confluent's HTTP API. Nothing but the standard library, and time limits."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from mzplan.connectors.interface import PROBE_TIMEOUT_S, ResolvedConnection
from mzplan.connectors.tunnels import LOOPBACK, Through

_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_MAX_BYTES = 4 << 20
_PORTS = {"http": 80, "https": 443}
_NO_SUBJECT = (40401, 40402)  # no such subject; it has no such version

Why = Literal["unreachable", "refused", "forbidden", "missing", "answer"]


class RegistryError(Exception):
    """A question without an answer: why, and what was said (never a password)."""

    def __init__(self, why: Why, text: str):
        super().__init__(text)
        self.why, self.text = why, text


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The latest version of a subject. `type`: AVRO, JSON or PROTOBUF; `schema` is its text."""

    version: int
    type: str
    schema: str


def server_of(connection: ResolvedConnection) -> tuple[str, int]:
    """The registry's host and port."""
    parts = urlsplit(connection.body["url"])
    return parts.hostname or "", parts.port or _PORTS[parts.scheme]


def list_subjects(connection: ResolvedConnection, directory: str, through: Through | None) -> None:
    """See that the registry answers and lets us in. Raises RegistryError."""
    found = _get(connection, directory, through, "/subjects")
    if not isinstance(found, list):
        raise RegistryError("answer", "it answered /subjects with no list: is it a schema registry?")


def latest_version(
    connection: ResolvedConnection, directory: str, through: Through | None, subject: str
) -> Subject:
    """The latest version of a subject. Raises RegistryError."""
    path = f"/subjects/{quote(subject, safe='')}/versions/latest"
    found = _get(connection, directory, through, path)
    if not isinstance(found, Mapping) or not isinstance(found.get("schema"), str):
        raise RegistryError("answer", "it answered with no schema: is it a schema registry?")
    # Avro, the first type that there was, is not named.
    type_ = str(found.get("schemaType") or "AVRO")
    return Subject(version=int(found.get("version") or 0), type=type_, schema=found["schema"])


def _get(connection: ResolvedConnection, directory: str, through: Through | None, path: str) -> Any:
    body = connection.body
    parts = urlsplit(body["url"])
    headers = {"Accept": _ACCEPT}
    if "user" in body:
        login = f"{body['user']}:{body.get('password', '')}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
    try:
        line = _connection(connection, directory, through)
        try:
            line.request("GET", f"{parts.path.rstrip('/')}{path}", headers=headers)
            answer = line.getresponse()
            status, data = answer.status, answer.read(_MAX_BYTES)
        finally:
            line.close()
    except (OSError, http.client.HTTPException) as problem:
        raise RegistryError("unreachable", _said(problem)) from None
    return _answer(status, data)


def _connection(
    connection: ResolvedConnection, directory: str, through: Through | None
) -> http.client.HTTPConnection:
    host, port = server_of(connection)
    if connection.body["url"].startswith("https:"):
        ca = connection.body["tls"].get("ca")
        context = ssl.create_default_context(cafile=str(Path(directory) / ca) if ca else None)
        line: Any = http.client.HTTPSConnection(host, port, timeout=PROBE_TIMEOUT_S, context=context)
    else:
        line = http.client.HTTPConnection(host, port, timeout=PROBE_TIMEOUT_S)
    if through is not None:
        # The name stays what the server's certificate is checked for; only the way there is another one.
        near = (LOOPBACK, through.port)
        line._create_connection = lambda _, timeout, source: socket.create_connection(near, timeout, source)
    found: http.client.HTTPConnection = line
    return found


def _answer(status: int, data: bytes) -> Any:
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    told = found if isinstance(found, Mapping) else {}
    said = str(told.get("message") or f"HTTP {status}").splitlines()[0].rstrip(".")[:300]
    if status == 200 and found is not None:
        return found
    if status == 401:
        raise RegistryError("refused", said)
    if status == 403:
        raise RegistryError("forbidden", said)
    if status == 404 and told.get("error_code") in _NO_SUBJECT:
        raise RegistryError("missing", said)
    raise RegistryError("answer", said if status != 200 else "it answered with no JSON")


def _said(problem: Exception) -> str:
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {problem.verify_message}"
    if isinstance(problem, ssl.SSLError):
        return f"no TLS there: {problem.reason}"
    if isinstance(problem, TimeoutError):
        return f"no answer within {PROBE_TIMEOUT_S:.0f} s"
    if isinstance(problem, OSError):
        return (problem.strerror or str(problem)).lower()
    return f"no HTTP there: {type(problem).__name__}"
