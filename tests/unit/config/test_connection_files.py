"""Files that connections name, and keys: whatever is in them, a check ends with an error that has a code."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
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


@pytest.fixture
def port() -> Iterator[int]:
    """Where somebody agrees to speak TLS, as PostgreSQL does, and says no more."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    line = server.accept()[0]
                    with line:
                        line.recv(8)
                        line.sendall(b"S")
                        line.recv(1)
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def found(connection: Any, folder: Path) -> Diagnostic:
    """The one error of reaching a connection that nothing uses."""
    state = commit(project(connection))
    asked = as_description(state.resources[connection.address], state.resources)
    (one,) = check_locally([asked], str(folder), "warehouse", AllowingGuard())
    assert one.severity == "error" and one.code != "MZ064" and "of-the-machine" not in str(one), one
    return one


@pytest.mark.parametrize("name", FILES)
def test_certificates_of_kafka(files: Path, name: str) -> None:
    for property_ in ("ca", "certificate"):
        ssl = {property_: name, **({"key": "no key"} if property_ == "certificate" else {})}
        security = {"protocol": "SSL", "ssl": ssl}
        refused = found(kafka(brokers=["127.0.0.1:1"], security=security), files)
        assert refused.code == ("MZ174" if name in ("damaged", "text") else "MZ051"), refused


@pytest.mark.parametrize("name", FILES)
def test_certificates_of_postgres(files: Path, name: str, port: int) -> None:
    tls = {"mode": "verify-full", "ca": name}
    refused = found(postgres(host="127.0.0.1", port=port, tls=tls), files)
    assert (refused.code == "MZ174") == (name in ("folder", "pipe", "large")), refused


@pytest.mark.parametrize("name", FILES)
def test_certificates_of_a_schema_registry(files: Path, name: str) -> None:
    registry = resource(
        "connection.r", "schema-registry", type="schema-registry", url="https://127.0.0.1:1", tls={"ca": name}
    )
    assert name in found(registry, files).detail


@pytest.mark.parametrize("name", FILES)
def test_known_hosts_of_a_tunnel(files: Path, name: str) -> None:
    tunnel = {"type": "ssh-tunnel", "host": "127.0.0.1", "port": 1, "user": "u", "private_key": "no key"}
    door = resource("connection.door", "ssh-tunnel", known_hosts=name, **tunnel)
    assert found(door, files).code in ("MZ120", "MZ174")


@pytest.mark.parametrize("key", ["no key", DAMAGED, "", "\0", "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"])
def test_a_key_of_a_tunnel(tmp_path: Path, key: str) -> None:
    (tmp_path / "key").write_text(key)
    (tmp_path / "hosts").write_text("")
    tunnel = {"type": "ssh-tunnel", "host": "127.0.0.1", "port": 1, "user": "u", "known_hosts": "hosts"}
    door = resource("connection.door", "ssh-tunnel", private_key="${file:key}", **tunnel)
    assert found(door, tmp_path).code == "MZ174"


def test_a_key_of_kafka_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "pem").write_text(DAMAGED)
    (tmp_path / "key").write_text("of-the-machine")
    ssl = {"certificate": "pem", "key": "${file:key}"}
    security = {"protocol": "SSL", "ssl": ssl}
    assert found(kafka(brokers=["127.0.0.1:1"], security=security), tmp_path).code == "MZ174"
