"""Tasks of PostgreSQL: their errors have reason and column of a refused row, never a value; they read rows in
small batches, and connect from machines without the driver's files."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import psycopg
import pyarrow as pa
import pytest
from adbc_driver_manager import AdbcStatusCode, IntegrityError

from mzplan.connectors.api.queries import ResolvedConnection
from mzplan.connectors.postgres.client import conninfo, remote_options_of
from mzplan.connectors.postgres.remote_options import RemoteOptions
from mzplan.connectors.postgres.sink import content, tasks
from mzplan.connectors.postgres.sink.output import Target
from mzplan.warehouse.rows.content_hash import HASH
from tests.certificates import make_certificate
from tests.executors import run_elsewhere
from tests.unit.connectors.queries import linked

PRIMARY, DETAIL, CONTEXT = "PG_DIAG_MESSAGE_PRIMARY", "PG_DIAG_MESSAGE_DETAIL", "PG_DIAG_CONTEXT"


@pytest.mark.parametrize(
    ("details", "told"),
    [
        ({PRIMARY: "duplicate", DETAIL: "Key (id)=(geheim) exists.", CONTEXT: "COPY t, line 1"}, "duplicate"),
        ({PRIMARY: "too long", CONTEXT: "COPY t, line 1, column a name"}, "too long (column a name)"),
        ({PRIMARY: "refused p4ss"}, "refused ***"),
        ({}, "server closed the connection: ***"),
        (None, "TimeoutError"),  # an error without a text
    ],
)
def test_errors_show_no_value_of_a_refused_row(details: dict[str, str] | None, told: str) -> None:
    def push(*_: Any) -> dict[str, Any]:
        if details is None:
            raise TimeoutError
        raise IntegrityError(
            "server closed the connection: p4ss",
            status_code=AdbcStatusCode.INTEGRITY,
            details=[(name.encode(), text.encode()) for name, text in details.items()],
        )

    with pytest.raises(RuntimeError) as raised:
        list(tasks._task(push, "p4ss")(()))
    assert str(raised.value) == f"mzplan[COPY]: {told}"


def test_large_rows_are_read_in_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = MagicMock()
    copy = connection.__enter__().cursor().__enter__().copy().__enter__()
    copy.rows.return_value = iter([("x" * 40, None)] * 5)
    monkeypatch.setattr(psycopg, "connect", lambda conninfo, autocommit: connection)
    monkeypatch.setattr(content, "_BYTES", 100)
    counter = SimpleNamespace(add=lambda count: None)
    read = content.make_query_reader("", ["BEGIN"], ["SELECT"], 2, counter, None)
    batches = read([pa.RecordBatch.from_arrays([pa.array([0])], names=["id"])])
    assert [batch.num_rows for batch in batches] == [3, 2]


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Return the port of a server that accepts TLS as PostgreSQL does, and then reports that it is full."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*make_certificate(tmp_path, "ca"))
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                client.recv(8)  # SSLRequest
                client.sendall(b"S")
                with context.wrap_socket(client, server_side=True) as secure:
                    secure.recv(1024)
                    text = b"SFATAL\0C53300\0Mwe are full\0\0"
                    secure.sendall(b"E" + (len(text) + 4).to_bytes(4, "big") + text)
            except OSError:
                client.close()

    threading.Thread(target=answer, daemon=True).start()
    yield listener.getsockname()[1]
    listener.close()


def connection(port: int, **tls: str) -> ResolvedConnection:
    login = {"host": "127.0.0.1", "database": "shop", "user": "app", "cleartext_login": "never"}
    return linked("postgres", **login, port=port, tls=tls)


def test_certificates_are_sent_to_tasks(port: int, tmp_path: Path) -> None:
    link = connection(port, mode="verify-full", ca="ca.pem")
    info, options = conninfo(link, str(tmp_path)), remote_options_of(link, str(tmp_path))
    target = Target(conninfo=info, table=("public", "o"), columns=("id",), remote_options=options)
    (tmp_path / "ca.pem").unlink()  # the task is where it never was
    task = tasks.staging_task(target, 0, None, None, "warn")
    batch = pa.RecordBatch.from_pydict({"id": [1], HASH: pa.array([5], pa.int64())})
    assert "we are full" in run_elsewhere(task, [batch], tmp_path)


def test_a_task_trusts_the_certificates_of_its_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = remote_options_of(connection(1, mode="verify-full"), str(tmp_path))
    assert found == RemoteOptions(use_system_roots=True)
    monkeypatch.setattr("mzplan.connectors.postgres.remote_options.system_roots", lambda: "/it's/here")
    with found.options() as options:
        assert options.strip() == r"sslrootcert='/it\'s/here'"
    assert remote_options_of(connection(1, mode="prefer"), str(tmp_path)) is None
    assert "BEGIN" not in repr(RemoteOptions(roots=b"-----BEGIN CERTIFICATE-----"))
