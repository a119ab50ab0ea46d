"""A server that speaks as much of Vault's HTTP API as its documentation says of KV (version 1 and 2),
AppRole, Kubernetes, tokens, namespaces and a seal. It is no Vault: what one does besides is not here."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """The other side has had enough."""


class VaultStandIn:
    """`kept` has secrets by path (`secret/shop/pg`), `namespaces` those that there are. `asked` has every
    request, without tokens."""

    def __init__(self) -> None:
        self.mounts = {"secret/": ("kv", "2"), "old/": ("kv", "1"), "team/kv/": ("kv", "2")}
        self.mounts["database/"] = ("database", "")
        self.kept: dict[str, Json] = {}
        self.tokens = {"root"}
        self.denied: set[str] = set()
        self.namespace = ""
        self.sealed = False
        self.slow = 0.0
        self.parts: tuple[bytes, ...] = ()  # of each answer, `slow` seconds apart
        self.asked: list[str] = []
        self.logins: dict[str, Json] = {
            "auth/approle/login": {"role_id": "r", "secret_id": "s"},
            "auth/kubernetes/login": {"role": "mzplan", "jwt": "the pod's"},
        }
        self._numbers = itertools.count()
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer({})

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"{}"))

            def _answer(self, body: Json) -> None:
                if stand_in.parts:
                    self._answer_in_parts()
                    return
                headers = self.headers
                namespace = headers.get("X-Vault-Namespace", "")
                token = headers.get("X-Vault-Token", "")
                status, found = stand_in.answer(self.path.removeprefix("/v1/"), namespace, token, body)
                text = json.dumps(found).encode()
                with suppress(ConnectionError):  # who asked may have given up
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(text)))
                    self.end_headers()
                    self.wfile.write(text)

            def _answer_in_parts(self) -> None:
                self.send_response(200)
                self.end_headers()
                with suppress(OSError):  # the other side has had enough
                    for part in stand_in.parts:
                        self.wfile.write(part)
                        time.sleep(stand_in.slow)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = _Server(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"

    def answer(self, path: str, namespace: str, token: str, body: Json) -> tuple[int, Json]:
        self.asked.append(path)
        time.sleep(self.slow)
        if self.sealed:
            return 503, {"errors": ["Vault is sealed"]}
        if path in self.logins:
            if body != self.logins[path]:
                return 400, {"errors": [f"invalid role or secret ID: {body}"]}
            issued = f"hvs.{next(self._numbers)}"
            self.tokens.add(issued)
            return 200, {"auth": {"client_token": issued, "lease_duration": 3600}}
        if token not in self.tokens or namespace != self.namespace:
            return 403, {"errors": ["permission denied", token]}
        if path == "auth/token/lookup-self":
            return 200, {"data": {"id": token}}
        looked_up = path.removeprefix("sys/internal/ui/mounts/")
        mount = next((one for one in self.mounts if looked_up.startswith(one)), None)
        if mount is None:
            return 403, {"errors": ["preflight capability check returned 403"]}
        kind, version = self.mounts[mount]
        if looked_up != path:
            return 200, {
                "data": {"path": mount, "type": kind, "options": {"version": version} if version else None}
            }
        name = path.replace(f"{mount}data/", mount, 1) if version == "2" else path
        if name in self.denied:
            return 403, {"errors": ["1 error occurred: permission denied"]}
        if name not in self.kept:
            return 404, {"errors": []}
        data = self.kept[name]
        return 200, {"data": {"data": data, "metadata": {"version": 1}} if version == "2" else data}


@contextmanager
def vault_stand_in() -> Iterator[VaultStandIn]:
    """One that answers meanwhile, on loopback."""
    found = VaultStandIn()
    thread = threading.Thread(target=found.server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield found
    finally:
        found.server.shutdown()
        thread.join()
        found.server.server_close()
