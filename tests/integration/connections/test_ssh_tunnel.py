"""Tunnels through real SSH servers: forwards, host keys, validation, tasks. No Spark is started."""

from __future__ import annotations

import contextlib
import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncssh
import psycopg
import pyarrow as pa
import pytest

from examples.servers import PostgresServer, SshServer
from mzplan.connectors.api.queries import resolve_connection
from mzplan.connectors.checks import check_connection, check_description
from mzplan.connectors.network import forwards as forwards_module
from mzplan.connectors.network import tunnels
from mzplan.connectors.network.forwards import Forwards
from mzplan.connectors.network.ssh import Hop, TunnelError
from mzplan.connectors.postgres.client import conninfo, remote_options_of
from mzplan.connectors.postgres.sink.output import Target
from mzplan.connectors.postgres.sink.tasks import staging_task
from mzplan.model.address import Address
from mzplan.schema.description import CollectionRead, Description, InlinedConnection
from mzplan.secrets.references import Secrets
from mzplan.warehouse.rows.content_hash import HASH
from tests.executors import run_elsewhere
from tests.support import Make, eventually, execute, rows_of
from tests.unit.cli_runs import Ran, mzplan
from tests.unit.connectors.queries import described, inlined

Servers = Callable[[str], SshServer]
KEY = asyncssh.generate_private_key("ssh-ed25519")
PRIVATE, PUBLIC = KEY.export_private_key().decode(), KEY.export_public_key().decode()
OTHER = asyncssh.generate_private_key("ssh-ed25519")


def hop(server: SshServer, **other: Any) -> Hop:
    given = {"name": "connection.door", "host": "127.0.0.1", "port": server.port, "user": server.user}
    return Hop(**{**given, "keys": (PRIVATE,), "host_keys": (server.host_key,), **other})


@pytest.fixture(params=["ssh_servers", pytest.param("sshd_servers", marks=pytest.mark.programs)])
def servers(request: pytest.FixtureRequest) -> Servers:
    """Of both kinds: asyncssh's, and OpenSSH's."""
    found: Servers = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def door(servers: Servers) -> SshServer:
    server = servers("door")
    server.authorize(PUBLIC)
    return server


@pytest.fixture
def forwards() -> Iterator[Forwards]:
    found = Forwards()
    yield found
    found.close()


class Echo(socketserver.BaseRequestHandler):
    """Send back the bytes of a client."""

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.request.recv(1 << 16):
                self.request.sendall(data)


@pytest.fixture
def echo() -> Iterator[int]:
    """Return the port of a server that sends back the bytes that it gets."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def says(port: int, text: bytes = b"hello") -> bytes:
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        with contextlib.suppress(OSError):  # closed already: what can be read tells
            client.sendall(text)
            client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


# ── forwards


def test_a_forward_survives_its_ssh_server(
    door: SshServer, servers: Servers, forwards: Forwards, echo: int
) -> None:
    inner = servers("inner")
    inner.authorize(PUBLIC)
    ways = ((hop(door),), (hop(door), hop(inner)))
    with forwards.to(ways[0], "127.0.0.1", echo) as near, forwards.to(ways[1], "127.0.0.1", echo) as far:
        assert near != far
        for port in (near, far):
            assert says(port, b"x" * 3_000_000) == b"x" * 3_000_000
        assert inner.sessions() == 1
        for server in (door, inner):
            server.kill()
            assert says(far) == b""  # closed at once, and not left to hang
            server.start()
            assert says(near) == b"hello" and says(far) == b"hello"
        with forwards.to(ways[0], "127.0.0.1", echo) as again:
            assert again == near  # shared
    with forwards.to(ways[0], "127.0.0.1", 1) as port:
        assert says(port) == b""
        problem = forwards.problem(ways[0], "127.0.0.1", 1)
        assert problem is not None and problem.reason == "target" and "127.0.0.1:1" in problem.text
    forwards.close()
    with pytest.raises(ConnectionRefusedError):
        says(near)
    with forwards.to(ways[0], "127.0.0.1", echo) as port:
        assert says(port) == b"hello"  # it can be used again


def test_a_refused_tunnel_names_its_server_and_the_reason(
    door: SshServer, servers: Servers, forwards: Forwards
) -> None:
    other = servers("other")
    other.authorize(PUBLIC)
    rsa = asyncssh.generate_private_key("ssh-rsa").export_public_key().decode()
    locked = KEY.export_private_key("pkcs8-pem", passphrase="word").decode()
    cases: list[tuple[tuple[Hop, ...], str, str]] = [
        ((hop(door, keys=(OTHER.export_private_key().decode(),)),), "refused", "can't log in with its key"),
        ((hop(door, host_keys=(other.host_key,)),), "host-key", "not trusted"),
        ((hop(door, host_keys=(rsa,)),), "host-key", "not trusted"),
        ((hop(door, host_keys=()),), "host-key", "not trusted"),
        ((hop(door, host_keys=("ssh-ed25519 AAAA",)),), "host-key", "can't be read"),
        ((hop(door, port=1),), "unreachable", "connection refused"),
        ((hop(door, host="nowhere.invalid"),), "unreachable", "resolved"),
        ((hop(door, keys=()),), "key", "no private key"),
        ((hop(door, keys=("hunter2",)),), "key", "OpenSSH can't read its private key"),
        ((hop(door, keys=(locked,)),), "key", "passphrase"),
        ((hop(door), hop(other, port=1)), "unreachable", "refused"),
        ((hop(door), hop(other, host_keys=(door.host_key,))), "host-key", "not trusted"),
    ]
    # Each twice: what is half open must not be taken for the whole way.
    for way, why, text in [case for case in cases for _ in range(2)]:
        with pytest.raises(TunnelError) as found, forwards.to(way, "127.0.0.1", 1):
            pass
        assert (found.value.reason, found.value.hop) == (why, way[-1])
        assert text in str(found.value)
        assert "hunter2" not in repr(found.value) + repr(way) and PRIVATE not in repr(way)
        server = door if way[-1].port == door.port else other
        assert found.value.shown_key == (server.host_key if text == "not trusted" else "")


def test_an_unused_tunnel_is_closed(
    door: SshServer, forwards: Forwards, echo: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwards_module, "IDLE_S", 0.6)
    with forwards.to((hop(door),), "127.0.0.1", echo) as port:
        time.sleep(1.0)
        assert says(port) == b"hello" and door.sessions() == 1  # it is in use
    eventually("the SSH connection is closed", lambda: door.sessions() == 0, 10)
    with pytest.raises(ConnectionRefusedError):
        says(port)


def test_a_frozen_ssh_server_is_given_up(
    door: SshServer, forwards: Forwards, echo: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a tunnel is open, and after."""
    way = (hop(door),)
    with door.frozen(), monkeypatch.context() as hurried:
        hurried.setattr(forwards_module, "OPEN_TIMEOUT_S", 0.2)
        for _ in range(2):
            with pytest.raises(TunnelError, match="no answer in time"), forwards.to(way, "127.0.0.1", 1):
                pass
    with forwards.to(way, "127.0.0.1", echo) as port:
        assert says(port) == b"hello"
        with door.frozen(), monkeypatch.context() as hurried:
            hurried.setattr(forwards_module, "OPEN_TIMEOUT_S", 1.0)
            assert says(port) == b""
            problem = forwards.problem(way, "127.0.0.1", echo)
            assert problem is not None and "didn't connect to" in problem.text
        eventually("it works again", lambda: says(port) == b"hello", 60)


def test_known_hosts_and_a_second_key(door: SshServer, forwards: Forwards, echo: int) -> None:
    line = f"[127.0.0.1]:{door.port} {door.host_key}\n"
    keys = (OTHER.export_private_key().decode(), PRIVATE)
    with forwards.to((hop(door, host_keys=(), known_hosts=line, keys=keys),), "127.0.0.1", echo) as port:
        assert says(port) == b"hello"
    revoked = hop(door, host_keys=(), known_hosts=f"@revoked {line}{line}")
    with pytest.raises(TunnelError, match="revoked"), forwards.to((revoked,), "127.0.0.1", echo):
        pass


# ── connections


def bastion(server: SshServer, through: InlinedConnection | None = None, **body: Any) -> InlinedConnection:
    given = {"type": "ssh-tunnel", "host": "127.0.0.1", "port": server.port, "user": server.user}
    given |= {"host_keys": [server.host_key], "private_key": "${env:KEY}", **body}
    return inlined(f"t{server.port}", given, **({"ssh_tunnel": through} if through else {}))


def behind(tunnel: InlinedConnection, server: PostgresServer, database: str) -> InlinedConnection:
    body = {"type": "postgres", "host": "127.0.0.1", "port": server.port, "database": database}
    return inlined("pg", {**body, "user": server.user, "password": "${env:PG}"}, ssh_tunnel=tunnel)


def sink(connection: InlinedConnection, table: str = "o") -> Description:
    body, address = {"format": {"type": "json", "schema": "id BIGINT"}}, Address("source", "s")
    source = CollectionRead(address=address, id="s", generation=1, type="kafka", body=body)
    return described("sink.o", "postgres", {"from": "s", "table": table}, connection, reads={"s": source})


def test_validation_goes_through_the_tunnel(
    door: SshServer, servers: Servers, postgres: PostgresServer, database: Make, tmp_path: Path
) -> None:
    name = database()
    execute(postgres.dsn(name), "CREATE TABLE o (id bigint)")
    secrets = Secrets(str(tmp_path), {"KEY": PRIVATE, "PG": postgres.password})
    inner = servers("inner")
    inner.authorize(PUBLIC)
    far = bastion(inner, bastion(door))

    def through(tunnel: InlinedConnection, **body: Any) -> InlinedConnection:
        connection = behind(tunnel, postgres, name)
        return replace(connection, body={**connection.body, **body})

    assert check_description(sink(through(far)), secrets).diagnostics == ()
    assert inner.sessions() == 1
    with_another_key = bastion(inner, bastion(door, host_keys=[inner.host_key]))
    for connection, table, code, text in (
        (through(far), "missing", "MZ052", "missing"),
        (through(far, database="nope"), "o", "MZ052", "nope"),
        (through(far, port=1), "o", "MZ050", "it can't reach 127.0.0.1:1"),
        (through(bastion(door, port=1)), "o", "MZ050", f"connection.t{door.port} (127.0.0.1:1)"),
        (through(with_another_key), "o", "MZ120", door.host_key),
        (through(bastion(door, private_key="${env:PG}")), "o", "MZ174", "has no usable key"),
        (through(bastion(door, private_key="${env:NOPE}")), "o", "MZ056", "NOPE"),
    ):
        (found,) = check_description(sink(connection, table), secrets).diagnostics
        assert (found.code, found.address) == (code, Address("sink", "o"))
        assert text in f"{found.summary}: {found.detail}"
    # A tunnel alone, a database alone; a file of host keys, which is looked for where the query runs.
    assert check_connection(far, secrets, str(tmp_path)) == ()
    assert check_connection(through(far), secrets, str(tmp_path)) == ()
    by_file = bastion(door, host_keys=[], known_hosts="known")
    (found,) = check_connection(by_file, secrets, str(tmp_path))
    assert found.code == "MZ120" and "No such file" in found.detail
    (tmp_path / "known").write_text(f"[127.0.0.1]:{door.port} {door.host_key}\n")
    assert check_connection(by_file, secrets, str(tmp_path)) == ()
    tunnels.close_forwards()


def test_keys_of_a_tunnel_that_nothing_uses_are_rotated_live(door: SshServer, tmp_path: Path) -> None:
    """From here, as no runner is alive: with the new keys, before anything is committed."""
    folder = tmp_path / "project"
    folder.mkdir()
    own = folder / "own"
    own.write_text(PRIVATE)
    own.chmod(0o600)
    (folder / "mzplan.yaml").write_text("version: 1\nproject: shop\n")
    file = folder / "door.yaml"
    file.write_text(
        f"connections:\n  door:\n    type: ssh-tunnel\n    host: 127.0.0.1\n    port: {door.port}\n"
        f"    user: {door.user}\n    host_keys: ['{door.host_key}']\n    private_key: '${{file:own}}'\n"
    )
    assert mzplan(folder, "apply", "--auto-approve").code == 0

    def rotate() -> Ran:
        statement = "ALTER CONNECTION door ROTATE KEYS"
        return mzplan(folder, "alter", statement, "--live", "--auto-approve", "--json")

    first = rotate()  # a second key, beside the one that the server knows
    assert first.code == 0 and "Nothing uses connection.door: reaching it from here" in first.err, first
    before = file.read_bytes(), sorted((folder / "keys").iterdir())
    refused = rotate()  # of the keys that there would be, the server knows none
    assert refused.code == 1 and refused.error()["code"] == "MZ051", refused
    assert (file.read_bytes(), sorted((folder / "keys").iterdir())) == before
    door.authorize(first.json()["public_keys"]["secondary_key"])
    second = rotate()
    assert second.code == 0, second
    assert second.json()["public_keys"]["private_key"] == first.json()["public_keys"]["secondary_key"]
    assert mzplan(folder, "alter", "VALIDATE CONNECTION door").code == 0
    tunnels.close_forwards()


def test_a_task_on_another_machine_opens_the_tunnel_itself(
    door: SshServer, postgres: PostgresServer, database: Make, tmp_path: Path
) -> None:
    """As on a cluster: the task gets nothing but what it is sent, and our own ports mean nothing to it."""
    name = database()
    execute(postgres.dsn(name), "CREATE TABLE o (_attempt bigint, id bigint)")
    secrets = Secrets(str(tmp_path), {"KEY": PRIVATE, "PG": postgres.password})
    link = behind(bastion(door), postgres, name)
    # The client talks to 127.0.0.1, and yet checks the certificate for the name that the connection gives.
    named = resolve_connection(replace(link, body={**link.body, "host": "db.internal"}), secrets)
    info = psycopg.conninfo.conninfo_to_dict(conninfo(named, ".", tunnel_port=77))
    assert (info["host"], info["hostaddr"], info["port"]) == ("db.internal", "127.0.0.1", "77")
    assert postgres.password not in repr(named) and "PRIVATE" not in repr(named)
    connection = resolve_connection(link, secrets)
    target = Target(
        conninfo=conninfo(connection, ".", tunnel_port=1),
        table=("public", "o"),
        columns=("id",),
        secret=postgres.password,
        remote_options=remote_options_of(connection, "."),
    )
    task = staging_task(target, 0, None, None, "warn")
    batch = pa.RecordBatch.from_pydict({"id": [1, 2], HASH: pa.array([5, 6], pa.int64())})
    assert "'staged': 2" in run_elsewhere(task, [batch], tmp_path)
    assert rows_of(postgres.dsn(name), "SELECT id FROM o ORDER BY id") == [(1,), (2,)]
    door.stop()
    printed = run_elsewhere(task, [batch], tmp_path)
    assert re.search(r"mzplan\[COPY\]: can't connect through connection.t\d+", printed)
