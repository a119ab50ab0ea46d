"""A schema registry in this process: the parts of Confluent's HTTP API that register and find schemas.

No package registry offers a standalone schema registry. This small one has the paths, status codes, error
codes and bodies of Confluent's documentation. It keeps schemas in memory.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from examples.servers.ports import HOST, free_port

_TYPE = "application/vnd.schemaregistry.v1+json"


class SchemaRegistry:
    """A registry on 127.0.0.1, with HTTP basic authentication if it has a ``user``.

    As a context manager, it runs while the block runs.
    ``tls``: the files of its certificate and of the certificate's key.
    """

    def __init__(
        self, user: str | None = None, password: str = "", *, tls: tuple[Path, Path] | None = None
    ) -> None:
        self.tls = tls
        self.port = free_port()
        self.login = f"{user}:{password}" if user is not None else None
        self._schemas: list[dict[str, Any]] = []  # by id, from 1
        self._subjects: dict[str, list[int]] = {}  # each version's schema id; versions count from 1
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        """Return the registry's address."""
        return f"{'https' if self.tls else 'http'}://{HOST}:{self.port}"

    def register(
        self, subject: str, schema: object, type_: str = "JSON", references: Sequence[dict[str, Any]] = ()
    ) -> int:
        """Register a schema as the latest version of a subject, unless it already is a version of it.

        Returns its id, which is the same in every subject. `references`: `[{"name", "subject", "version"}]`.
        """
        what: dict[str, Any] = {"schema": schema if isinstance(schema, str) else json.dumps(schema)}
        if type_ != "AVRO":  # like Confluent's registry, which omits its original type
            what["schemaType"] = type_
        if references:
            what["references"] = list(references)
        if what not in self._schemas:
            self._schemas.append(what)
        id_ = 1 + self._schemas.index(what)
        versions = self._subjects.setdefault(subject, [])
        if id_ not in versions:
            versions.append(id_)
        return id_

    def start(self) -> None:
        """Start to answer on the port; do nothing if it already does."""
        if self._server is None:
            registry = self

            class Handler(_Handler):
                of = registry

            self._server = ThreadingHTTPServer((HOST, self.port), Handler)
            if self.tls is not None:
                context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
                context.load_cert_chain(*self.tls)
                self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Stop answering. Keep the schemas."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> SchemaRegistry:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def answer(self, path: str, authorization: str | None) -> tuple[int, object]:
        """Return the status and the body for a GET request."""
        if self.login is not None:
            wanted = f"Basic {base64.b64encode(self.login.encode()).decode()}"
            if authorization != wanted:
                return 401, {"error_code": 401, "message": "Unauthorized"}
        match path.strip("/").split("/"):
            case ["subjects"]:
                return 200, sorted(self._subjects)
            case ["subjects", subject, "versions", version]:
                return self._version(unquote(subject), version)
            case ["schemas", "ids", id_]:
                if id_.isdecimal() and 0 < int(id_) <= len(self._schemas):
                    return 200, self._schemas[int(id_) - 1]
                return 404, {"error_code": 40403, "message": "Schema not found"}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def take(self, path: str, authorization: str | None, body: bytes) -> tuple[int, object]:
        """Return the status and the body for a POST request, which registers a schema."""
        refused, answer = self.answer("/subjects", authorization)
        if refused != 200:
            return refused, answer
        match path.strip("/").split("/"):
            case ["subjects", subject, "versions"]:
                try:
                    given = json.loads(body)
                    text, type_ = str(given["schema"]), str(given.get("schemaType", "AVRO"))
                    id_ = self.register(unquote(subject), text, type_, given.get("references", ()))
                except (ValueError, TypeError, KeyError, AttributeError):
                    return 422, {"error_code": 42201, "message": "Invalid schema"}
                return 200, {"id": id_}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _version(self, subject: str, version: str) -> tuple[int, object]:
        versions = self._subjects.get(subject)
        if versions is None:
            return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
        number = len(versions) if version == "latest" else int(version) if version.isdecimal() else 0
        if not 0 < number <= len(versions):
            return 404, {"error_code": 40402, "message": f"Version {version} not found."}
        id_ = versions[number - 1]
        return 200, {"subject": subject, "version": number, "id": id_, **self._schemas[id_ - 1]}


class _Handler(BaseHTTPRequestHandler):
    of: SchemaRegistry

    def do_GET(self) -> None:
        self._send(*self.of.answer(self.path, self.headers.get("Authorization")))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._send(*self.of.take(self.path, self.headers.get("Authorization"), body))

    def _send(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", _TYPE)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        return
