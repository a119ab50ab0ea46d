"""Certificates and keys that connections name: an unusable file is an error with a code."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

import pytest

from mzplan.model.diagnostics import Diagnostic
from mzplan.operations.local_checks import check_locally
from mzplan.schema.description import as_description
from mzplan.secrets.files import MAX_SECRET
from mzplan.secrets.guards import AllowingGuard
from tests.unit.small_projects import commit, kafka, postgres, project, resource

DAMAGED = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
FILES = ("damaged", "text", "latin", "folder", "pipe", "large", "none")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "damaged").write_text(DAMAGED)
    (tmp_path / "text").write_text("root:of-the-machine:0:0\n")
    (tmp_path / "latin").write_bytes(b"\xe9\xff")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(MAX_SECRET + 1)
    return tmp_path


class AgreesToTls(BaseRequestHandler):
    def handle(self) -> None:
        with suppress(OSError):
            self.request.recv(8)
            self.request.sendall(b"S")
            self.request.recv(1)


@pytest.fixture
def port() -> Iterator[int]:
    """Where somebody agrees to speak TLS, as PostgreSQL does, and says no more."""
    with ThreadingTCPServer(("127.0.0.1", 0), AgreesToTls) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def found(connection: Any, folder: Path) -> Diagnostic:
    """The one error of reaching a connection that nothing uses."""
    state = commit(project(connection))
    asked = as_description(state.resources[connection.address], state.resources)
    (one,) = check_locally([asked], str(folder), "warehouse", AllowingGuard())
    assert one.severity == "error" and one.code != "MZ064" and "of-the-machine" not in str(one), one
    return one


def kafka_with(**ssl: str) -> Any:
    return kafka(brokers=["127.0.0.1:1"], security={"protocol": "SSL", "ssl": ssl})


def tunnel(**body: Any) -> Any:
    given = {"type": "ssh-tunnel", "host": "127.0.0.1", "port": 1, "user": "u", **body}
    return resource("connection.door", "ssh-tunnel", **given)


@pytest.mark.parametrize("name", FILES)
def test_an_unusable_file_is_an_error(files: Path, name: str, port: int) -> None:
    for connection in (kafka_with(ca=name), kafka_with(certificate=name, key="no key")):
        assert found(connection, files).code == ("MZ174" if name in ("damaged", "text") else "MZ051")
    if name == "damaged":
        (files / "key").write_text("of-the-machine")
        assert found(kafka_with(certificate=name, key="${file:key}"), files).code == "MZ174"
    connection = postgres(host="127.0.0.1", port=port, tls={"mode": "verify-full", "ca": name})
    assert (found(connection, files).code == "MZ174") == (name in ("folder", "pipe", "large"))
    body = {"type": "schema-registry", "url": "https://127.0.0.1:1", "tls": {"ca": name}}
    assert name in found(resource("connection.r", "schema-registry", **body), files).detail
    assert found(tunnel(private_key="no key", known_hosts=name), files).code in ("MZ120", "MZ174")


@pytest.mark.parametrize("key", ["no key", DAMAGED, "", "\0", "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"])
def test_an_unusable_key_is_an_error(files: Path, key: str) -> None:
    (files / "key").write_text(key)
    (files / "hosts").write_text("")
    assert found(tunnel(private_key="${file:key}", known_hosts="hosts"), files).code == "MZ174"
