"""Connects to PostgreSQL with time limits. Diagnostics never show a password."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from mzplan.connectors.api.probes import PROBE_TIMEOUT_S
from mzplan.connectors.api.queries import ResolvedConnection, ResolvedQuery
from mzplan.connectors.network.tunnels import LOOPBACK, ROLE, remote_tunnel, through_tunnel
from mzplan.connectors.postgres.remote_options import RemoteOptions
from mzplan.host.bounded_postgres import BoundedConnection
from mzplan.host.network import libpq_security
from mzplan.model.diagnostics import error
from mzplan.secrets.files import read_pem

# Seconds per address of the host name. libpq's minimum is 2.
_CONNECT_TIMEOUT_S = 4
# Milliseconds until the connection to a silent server breaks. The system's default is hours.
_SILENCE_MS = 20_000
# Seconds that a server may take to cancel a statement after its timeout.
_GRACE_S = 5.0
# Queries here read metadata of tables, columns and steps, never a table's rows.
_MAX_ANSWER_BYTES = 64 << 20
# Additional seconds if an SSH server forwards the connection.
_TUNNEL_TIMEOUT_S = 6


@contextlib.contextmanager
def open_conninfo(query: ResolvedQuery, application: str = "mzplan") -> Iterator[str]:
    """Yield a libpq connection string for the query's server, valid inside the `with` block.

    It contains the password: never show it. The server is reached through the connection's SSH tunnel, if
    it has one. Raises MzplanError if the tunnel can't be opened. Doesn't check whether the server answers.
    """
    body = query.link.body
    _require_certificates(query)
    with through_tunnel(
        query.link, body["host"], body["port"], query.directory, query.address
    ) as tunnel_port:
        yield conninfo(query.link, query.directory, application, tunnel_port)


def _require_certificates(query: ResolvedQuery) -> None:
    """Raise MzplanError MZ174 for a CA file that can't be read.

    libpq has no time limit for reading it, and would wait for a pipe forever.
    """
    ca = query.link.body["tls"].get("ca")
    try:
        if ca:
            read_pem(Path(query.directory) / ca)
    except FileNotFoundError:
        return  # libpq reports it if it needs the file
    except OSError as problem:
        raise error(
            "MZ174.certificates-cannot",
            address=query.address,
            resource=query.link.address,
            ca=ca,
            strerror=problem.strerror or problem,
        ) from None


def conninfo(
    connection: ResolvedConnection,
    directory: str,
    application: str = "mzplan",
    tunnel_port: int | None = None,
) -> str:
    """Return a libpq connection string. It contains the password: never show it.

    `tunnel_port`: the local port of the SSH tunnel to the server.
    """
    body = connection.body
    tls: Mapping[str, Any] = body["tls"]
    options: dict[str, Any] = {
        "host": body["host"],
        "port": body["port"],
        "dbname": body["database"],
        "user": body["user"],
        "password": body.get("password"),
        **libpq_security(
            tls["mode"], str(Path(directory) / tls["ca"]) if tls.get("ca") else None, body["cleartext_login"]
        ),
        "application_name": application,
        "connect_timeout": _CONNECT_TIMEOUT_S + (_TUNNEL_TIMEOUT_S if tunnel_port else 0),
        "tcp_user_timeout": _SILENCE_MS,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 2,
    }
    if tunnel_port is not None:
        # Keep the host name, because the server's certificate is checked against it.
        options |= {"hostaddr": LOOPBACK, "port": tunnel_port}
    return str(make_conninfo("", **{key: value for key, value in options.items() if value is not None}))


def remote_options_of(connection: ResolvedConnection, directory: str) -> RemoteOptions | None:
    """Return the connection's options that differ on other machines, or None if there are none.

    Raises OSError if its certificates can't be read.
    """
    body = connection.body
    ca, mode = body["tls"].get("ca"), body["tls"]["mode"]
    options = RemoteOptions(
        tunnel=remote_tunnel(connection, body["host"], body["port"], directory),
        roots=read_pem(Path(directory) / ca) if ca else None,
        use_system_roots=mode == "verify-full" and not ca,
    )
    return options if options != RemoteOptions() else None


def connect(conninfo_: str, statement_timeout_s: float = 0, within_s: float = math.inf) -> BoundedConnection:
    """Open an autocommit connection with the settings of `session_statement`.

    Commits are durable, and each statement of a transaction sees all earlier commits. The server ends the
    transaction of a frozen client, which releases its locks. A server that exceeds a limit, or sends an
    endless answer, loses the connection. Raises psycopg.Error.

    `statement_timeout_s`: the time limit of each statement, 0 for none.
    `within_s`: the time limit from now on for everything over this connection.
    """
    until = time.monotonic() + within_s
    try:
        connection = BoundedConnection.connect(conninfo_, autocommit=True)
    except UnicodeError:  # psycopg doesn't catch Python's error for an invalid host name
        reason = "a part of the host's name is empty, or longer than 63 characters"
        raise psycopg.OperationalError(reason) from None
    connection.deadline, connection.max_bytes = until, _MAX_ANSWER_BYTES
    if statement_timeout_s:
        connection.max_seconds = statement_timeout_s + _GRACE_S
    connection.begin_session(
        lock_timeout="20s",
        idle_in_transaction_session_timeout="30s",
        statement_timeout=f"{statement_timeout_s * 1000:.0f}",
    )
    return connection


def probe_timeout_s(query: ResolvedQuery) -> float:
    """Return the seconds that a probe of the query's server may take."""
    return PROBE_TIMEOUT_S + (_TUNNEL_TIMEOUT_S if ROLE in query.link.connections else 1)


def hang_up(connection: psycopg.Connection[Any]) -> None:
    """Shut down the connection's socket, so that a thread that waits on it gets an error at once."""
    try:
        with socket.socket(fileno=os.dup(connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        return  # already closed
