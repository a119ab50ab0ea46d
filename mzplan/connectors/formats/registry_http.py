"""Confluent's HTTP API for looking up schemas, with the standard library and time limits only.

For tasks, it also fetches the schemas of records by id, and caches them while the Python process lives.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from mzplan.connectors.formats.decoder import UnknownError
from mzplan.model.words import safe

_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_MAX_BYTES = 4 << 20
_PORTS = {"http": 80, "https": 443}
_NO_SUBJECT = (40401, 40402, 40403)  # no such subject, version, or schema id
_MAX_REFERENCES = 100
_MAX_TYPE = 40  # characters of a schema's type
_ALL_S = 30.0  # seconds for a schema and all schemas that it refers to
# Errors from reading an answer that isn't a registry's.
_NOT_AN_ANSWER = (AttributeError, TypeError, ValueError, OverflowError)

Why = Literal["unreachable", "refused", "forbidden", "missing", "large", "answer"]
_VERBS: Mapping[Why, tuple[str, str]] = {
    "refused": ("MZ051", "refuses the credentials"),
    "forbidden": ("MZ054", "denies access"),
}
Get = Callable[[str], Any]
"""Returns the answer to a path, as JSON. Raises RegistryError."""


class RegistryError(Exception):
    """A request failed. `why` is the kind of failure; `text` never holds a password."""

    def __init__(self, why: Why, text: str):
        super().__init__(why, text)  # both, so that it can be pickled
        self.why, self.text = why, text


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryServer:
    """A registry's address and login.

    - `login`: USER:PASSWORD.
    - `ca`: the certificates to trust, as PEM text.
    - `seconds`: the time limit of a request.
    """

    url: str
    login: str | None = field(default=None, repr=False)
    ca: str | None = None
    seconds: float

    @property
    def host_and_port(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or _PORTS[parts.scheme]


def get(server: RegistryServer, path: str, port: int | None = None) -> Any:
    """Return the answer as JSON. `port` is a tunnel's port on 127.0.0.1. Raises RegistryError."""
    headers = {"Accept": _ACCEPT}
    if server.login is not None:
        headers["Authorization"] = f"Basic {base64.b64encode(server.login.encode()).decode()}"
    is_late = threading.Event()
    try:
        line = _connection(server, port)
        try:
            with _time_limit(line, server.seconds, is_late):
                line.request("GET", f"{urlsplit(server.url).path.rstrip('/')}{path}", headers=headers)
                answer = line.getresponse()
                status, data = answer.status, answer.read(_MAX_BYTES)
        finally:
            line.close()
        if is_late.is_set():  # the data is incomplete
            raise TimeoutError
    except (OSError, http.client.HTTPException) as problem:
        why = TimeoutError() if is_late.is_set() else problem
        raise RegistryError("unreachable", _reason(why, server.seconds)) from None
    return _answer(status, data)


def schema_texts(request: Get, first_answer: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of the schemas that an answer's schema refers to, then the schema's own text by "".

    The others are by the names with which a schema refers to them. `request` fetches them. Raises
    RegistryError."""
    texts: dict[str, str] = {}
    seen: set[str] = set()
    size = 0  # characters, including unfinished answers
    until = time.monotonic() + _ALL_S

    def add(answer: Any, name: str) -> None:
        nonlocal size
        if not isinstance(answer, Mapping) or not isinstance(answer.get("schema"), str):
            raise RegistryError("answer", "it didn't answer with a schema: is it a schema registry?")
        size += len(answer["schema"])
        if size > _MAX_BYTES:
            raise RegistryError("large", "its schema, with all references, is larger than 4 MiB")
        for path, referred in list(_references(answer)):
            if time.monotonic() > until:
                raise RegistryError("unreachable", f"not all referenced schemas arrived in {_ALL_S:.0f} s")
            if path not in seen and len(seen) < _MAX_REFERENCES:
                seen.add(path)
                add(request(path), referred)
        texts[name] = answer["schema"]

    add(first_answer, "")
    return texts


def schema_type(answer: Mapping[str, Any]) -> str:
    """Return AVRO, JSON or PROTOBUF. Registries don't name Avro, their oldest type."""
    type_ = answer.get("schemaType") or "AVRO"
    return type_[:_MAX_TYPE] if isinstance(type_, str) else "unknown"


def whole_number(answer: Mapping[str, Any], name: str) -> int:
    """Return one of an answer's numbers, or 0 if it is missing. Raises RegistryError."""
    try:
        return int(answer.get(name) or 0)
    except _NOT_AN_ANSWER:
        raise RegistryError("answer", f"its {name} is not a number: is it a schema registry?") from None


def _references(answer: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the paths of the schemas that an answer refers to, and their names. Raises RegistryError."""
    try:
        for entry in answer.get("references") or ():
            subject, version = quote(str(entry.get("subject")), safe=""), whole_number(entry, "version")
            path = f"/subjects/{subject}/versions/{version}"
            yield path, str(entry.get("name") or path)
    except _NOT_AN_ANSWER:
        raise RegistryError("answer", "a reference is not a schema: is it a schema registry?") from None


@contextlib.contextmanager
def _time_limit(line: http.client.HTTPConnection, seconds: float, is_late: threading.Event) -> Iterator[None]:
    """Connect, and close the connection after `seconds`; then `is_late` is set.

    A socket's own time limit isn't enough, because it starts again with each byte."""
    if line.sock is None:
        line.connect()
    sock = line.sock  # an answer removes it from the line

    def hang_up() -> None:
        is_late.set()
        with contextlib.suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # TLS's own shutdown would wait for the server

    timer = threading.Timer(seconds, hang_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _connection(server: RegistryServer, port: int | None) -> http.client.HTTPConnection:
    host, far = server.host_and_port
    context, line = None, http.client.HTTPConnection(host, far, timeout=server.seconds)
    if server.url.startswith("https:"):
        context = ssl.create_default_context(cadata=server.ca)
        line = http.client.HTTPSConnection(host, far, timeout=server.seconds, context=context)
    if port is not None:
        # The server's certificate is still checked for its name; only the way there differs.
        near = socket.create_connection(("127.0.0.1", port), server.seconds)
        line.sock = context.wrap_socket(near, server_hostname=host) if context is not None else near
    return line


def _answer(status: int, data: bytes) -> Any:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    answer = document if isinstance(document, Mapping) else {}
    text = (str(answer.get("message") or f"HTTP {status}").splitlines() or [""])[0].rstrip(".")[:300]
    if status == 200 and document is not None:
        return document
    if status == 401:
        raise RegistryError("refused", text)
    if status == 403:
        raise RegistryError("forbidden", text)
    if status == 404 and answer.get("error_code") in _NO_SUBJECT:
        raise RegistryError("missing", text)
    raise RegistryError("answer", text if status != 200 else "it didn't answer with JSON")


def _reason(problem: Exception, seconds: float) -> str:
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {problem.verify_message}"
    if isinstance(problem, ssl.SSLError):
        return f"it doesn't use TLS: {problem.reason}"
    if isinstance(problem, TimeoutError):
        return f"no answer within {seconds:.0f} s"
    if isinstance(problem, OSError):
        return (problem.strerror or str(problem)).lower()
    return f"it doesn't speak HTTP: {type(problem).__name__}"


# Seconds between requests to a registry that doesn't answer. Then the task and its query fail, and the query
# restarts as after any other failure.
_WAITS = (0.5, 1.0, 2.0, 4.0)
_schemas_by_run: dict[str, dict[int, Mapping[str, str]]] = {}  # that this process has fetched


@dataclass(slots=True, kw_only=True)
class RegistrySchemas:
    """The schemas of one registry.

    - `run`: identifies the query's run. Schemas that another run fetched aren't used.
    - `type`: AVRO or PROTOBUF.
    - `known`: the texts of schemas that are already fetched, by id.
    - `tunnel`: opens an SSH tunnel, and returns its local port.
    - `name`: the connection's name.
    - `mark`: the prefix of an error for people: `mzplan[MZ050]: …`.
    """

    server: RegistryServer
    run: str
    type: str
    known: Mapping[int, Mapping[str, str]]
    tunnel: Callable[[], AbstractContextManager[int]] | None
    name: str
    mark: str

    def texts(self, id_: int) -> Mapping[str, str]:
        """Return the texts of a schema (see decoder.Schemas). Raises RuntimeError if the registry doesn't
        answer or refuses the login."""
        if id_ in self.known:
            return self.known[id_]
        schemas = _schemas_by_run.setdefault(self.run, {})
        if id_ not in schemas:
            schemas[id_] = self._fetch_with_retries(id_)
        return schemas[id_]

    def _fetch_with_retries(self, id_: int) -> Mapping[str, str]:
        for wait in (*_WAITS, None):
            try:
                return self._fetch(id_)
            except UnknownError:
                raise
            except RegistryError as error:
                problem = error
            except OSError as error:
                problem = RegistryError("unreachable", str(error))
            except Exception as error:  # from the tunnel, whose class isn't known here
                problem = RegistryError("unreachable", f"its SSH tunnel can't be opened: {error}")
            if problem.why == "missing":
                raise UnknownError(f"its schema {id_} is not in {self.name}")
            if problem.why == "large":
                raise UnknownError(f"schema {id_}: {problem.text}")
            if wait is None or problem.why in ("refused", "forbidden"):
                raise RuntimeError(self._error(problem, id_))
            time.sleep(wait)
        raise AssertionError("the last wait is None")

    def _fetch(self, id_: int) -> Mapping[str, str]:
        with contextlib.ExitStack() as opened:
            port = opened.enter_context(self.tunnel()) if self.tunnel is not None else None
            answer = get(self.server, f"/schemas/ids/{id_}", port)
            if isinstance(answer, Mapping) and schema_type(answer) != self.type:
                raise UnknownError(f"its schema {id_} is of type {schema_type(answer)}, not {self.type}")
            return schema_texts(lambda path: get(self.server, path, port), answer)

    def _error(self, problem: RegistryError, id_: int) -> str:
        code, verb = _VERBS.get(problem.why, ("MZ050", "can't be reached"))
        text = safe(" ".join(problem.text.split()))
        return (
            f"{self.mark}[{code}]: schema {id_} is needed, and {self.name} {verb}: {text} ({self.server.url})"
        )
