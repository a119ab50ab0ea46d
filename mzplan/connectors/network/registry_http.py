"""Confluent's HTTP API, as far as schemas are looked up. Nothing but the standard library, and time limits.

This module is sent to the executors whole (see task_code).
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote, urlsplit

_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_MAX_BYTES = 4 << 20
_PORTS = {"http": 80, "https": 443}
_NO_SUBJECT = (40401, 40402, 40403)  # no such subject; it has no such version; no schema has this id
_MAX_REFERENCES = 100

Why = Literal["unreachable", "refused", "forbidden", "missing", "answer"]
Get = Callable[[str], Any]
"""The answer to a path, as JSON. Raises RegistryError."""


class RegistryError(Exception):
    """A request without an answer: why, and in which words (never a password)."""

    def __init__(self, why: Why, text: str):
        super().__init__(why, text)  # both, so that it survives being pickled
        self.why, self.text = why, text


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where a registry answers. `login` is USER:PASSWORD, `ca` the certificates to trust (PEM, not a path);
    `seconds` is how long it may take."""

    url: str
    login: str | None = field(default=None, repr=False)
    ca: str | None = None
    seconds: float

    @property
    def host_and_port(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or _PORTS[parts.scheme]


def get(server: Server, path: str, port: int | None = None) -> Any:
    """The answer, as JSON; `port` is where on 127.0.0.1 a tunnel to it begins. Raises RegistryError."""
    headers = {"Accept": _ACCEPT}
    if server.login is not None:
        headers["Authorization"] = f"Basic {base64.b64encode(server.login.encode()).decode()}"
    try:
        line = _connection(server, port)
        try:
            line.request("GET", f"{urlsplit(server.url).path.rstrip('/')}{path}", headers=headers)
            answer = line.getresponse()
            status, data = answer.status, answer.read(_MAX_BYTES)
        finally:
            line.close()
    except (OSError, http.client.HTTPException) as problem:
        raise RegistryError("unreachable", _reason(problem, server.seconds)) from None
    return _answer(status, data)


def schema_texts(request: Get, found: Mapping[str, Any]) -> tuple[str, ...]:
    """The texts of an answer's schema: first those that it refers to, then its own. Raises RegistryError."""
    texts: list[str] = []
    seen: set[tuple[str, int]] = set()

    def add(answer: Any) -> None:
        if not isinstance(answer, Mapping) or not isinstance(answer.get("schema"), str):
            raise RegistryError("answer", "it answered with no schema: is it a schema registry?")
        for one in answer.get("references") or ():
            subject, version = str(one.get("subject")), int(one.get("version") or 0)
            if (subject, version) not in seen and len(seen) < _MAX_REFERENCES:
                seen.add((subject, version))
                add(request(f"/subjects/{quote(subject, safe='')}/versions/{version}"))
        texts.append(answer["schema"])

    add(found)
    return tuple(texts)


def schema_type(found: Mapping[str, Any]) -> str:
    """AVRO, JSON or PROTOBUF. Avro, the first type that there was, is not named."""
    return str(found.get("schemaType") or "AVRO")


def _connection(server: Server, port: int | None) -> http.client.HTTPConnection:
    host, far = server.host_and_port
    context, line = None, http.client.HTTPConnection(host, far, timeout=server.seconds)
    if server.url.startswith("https:"):
        context = ssl.create_default_context(cadata=server.ca)
        line = http.client.HTTPSConnection(host, far, timeout=server.seconds, context=context)
    if port is not None:
        # The name stays what the server's certificate is checked for; only the way there is another one.
        near = socket.create_connection(("127.0.0.1", port), server.seconds)
        line.sock = context.wrap_socket(near, server_hostname=host) if context is not None else near
    return line


def _answer(status: int, data: bytes) -> Any:
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    answer = found if isinstance(found, Mapping) else {}
    text = (str(answer.get("message") or f"HTTP {status}").splitlines() or [""])[0].rstrip(".")[:300]
    if status == 200 and found is not None:
        return found
    if status == 401:
        raise RegistryError("refused", text)
    if status == 403:
        raise RegistryError("forbidden", text)
    if status == 404 and answer.get("error_code") in _NO_SUBJECT:
        raise RegistryError("missing", text)
    raise RegistryError("answer", text if status != 200 else "it answered with no JSON")


def _reason(problem: Exception, seconds: float) -> str:
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {problem.verify_message}"
    if isinstance(problem, ssl.SSLError):
        return f"no TLS there: {problem.reason}"
    if isinstance(problem, TimeoutError):
        return f"no answer within {seconds:.0f} s"
    if isinstance(problem, OSError):
        return (problem.strerror or str(problem)).lower()
    return f"no HTTP there: {type(problem).__name__}"
