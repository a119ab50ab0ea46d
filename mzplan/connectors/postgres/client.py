"""Connecting to PostgreSQL, with time limits everywhere and never a password in a diagnostic."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from mzplan.connectors.api.deadline import bounded
from mzplan.connectors.api.protocols import PROBE_TIMEOUT_S, ResolvedConnection, ResolvedQuery
from mzplan.connectors.network.tunnels import LOOPBACK, ROLE, Through, through_tunnel, tunnel_problem
from mzplan.model.diagnostics import Diagnostic, ExitCode, Severity

# Seconds. libpq's least is 2, for each address that the host's name has.
_CONNECT_TIMEOUT_S = 4
# A server that falls silent ends the connection after so many milliseconds, not after the system's hours.
_SILENCE_MS = 20_000
_SESSION = """
SET TimeZone = 'UTC';
SET DateStyle = 'ISO';
SET lock_timeout = '20s';
SET idle_in_transaction_session_timeout = '30s';
SET statement_timeout = %d;
SELECT set_config('synchronous_commit', CASE s WHEN 'off' THEN 'on' ELSE s END, false)
FROM current_setting('synchronous_commit') AS s;
"""


# What an SSH server in between may take, too.
_TUNNEL_TIMEOUT_S = 6


@contextlib.contextmanager
def reached(query: ResolvedQuery, application: str = "mzplan") -> Iterator[str]:
    """How a client on this machine connects to the query's server while this lasts, through its SSH tunnel if
    it has one: a libpq connection string (with the password: never show it). Raises MzplanError where the
    tunnel can't be opened; whether the server answers is left open."""
    body = query.link.body
    with through_tunnel(query.link, body["host"], body["port"], query.directory, query.address) as through:
        yield conninfo(query.link, query.directory, application, through)


def conninfo(
    connection: ResolvedConnection,
    directory: str,
    application: str = "mzplan",
    through: Through | None = None,
) -> str:
    """A libpq connection string (with the password: never show it)."""
    body = connection.body
    tls: Mapping[str, Any] = body["tls"]
    options: dict[str, Any] = {
        "host": body["host"],
        "port": body["port"],
        "dbname": body["database"],
        "user": body["user"],
        "password": body.get("password"),
        "sslmode": tls["mode"],
        "sslrootcert": str(Path(directory) / tls["ca"]) if tls.get("ca") else None,
        "application_name": application,
        "connect_timeout": _CONNECT_TIMEOUT_S + (_TUNNEL_TIMEOUT_S if through else 0),
        "tcp_user_timeout": _SILENCE_MS,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 2,
    }
    if through is not None:
        # The host's name stays: it is what the server's certificate is checked for.
        options |= {"hostaddr": LOOPBACK, "port": through.port}
    return str(make_conninfo("", **{key: value for key, value in options.items() if value is not None}))


def connect(conninfo_: str, statement_timeout_s: float = 0) -> psycopg.Connection[Any]:
    """An autocommit connection, in UTC. What it commits is durable, whatever the server's default.

    A frozen client's transaction is ended by the server, so that it can't hold its locks for ever.
    `statement_timeout_s`: in seconds, 0 for none. Raises psycopg.Error.
    """
    connection = psycopg.connect(conninfo_, autocommit=True)
    try:
        connection.execute((_SESSION % int(statement_timeout_s * 1000)).encode())
    except BaseException:
        connection.close()
        raise
    return connection


def patience(query: ResolvedQuery) -> float:
    """How long a probe of the query's server may take, in seconds (see `bounded`)."""
    return PROBE_TIMEOUT_S + (_TUNNEL_TIMEOUT_S if ROLE in query.link.connections else 1)


def reach(query: ResolvedQuery) -> Diagnostic | None:
    """Whether the server lets in, and answers. Raises MzplanError where a tunnel can't be opened."""
    with reached(query) as info:
        problem = knock(info, query)
    return connect_problem(query, problem) if problem is not None else None


def knock(info: str, query: ResolvedQuery) -> Exception | None:
    """Connect and leave: what went wrong, None for nothing."""
    try:
        bounded(lambda: connect(info, PROBE_TIMEOUT_S).close(), patience(query))
    except (psycopg.Error, TimeoutError, OSError) as problem:
        return problem
    return None


def hang_up(connection: psycopg.Connection[Any]) -> None:
    """Shut the connection's socket: a thread that waits on it gets an error at once."""
    try:
        with socket.socket(fileno=os.dup(connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        return  # it is closed already


def route(connection: ResolvedConnection) -> str:
    """Which connection, and where it goes: for people."""
    body, tunnel = connection.body, connection.connections.get(ROLE)
    through = f", through {tunnel.address}" if tunnel is not None else ""
    return f"{connection.address} ({body['host']}:{body['port']}, database {body['database']}{through})"


def diagnose(
    query: ResolvedQuery,
    code: str,
    summary: str,
    why: str,
    fix: str = "",
    *,
    at: str = "",
    severity: Severity = "error",
    refused: bool = False,
) -> Diagnostic:
    """A diagnostic of a query: `why` stands behind the connection's route and what is meant there (`at`)."""
    return Diagnostic(
        severity=severity,
        code=code,
        summary=summary,
        detail=f"{route(query.link)}{at}: {why}",
        hint=fix,
        address=query.address,
        exit_code=ExitCode.REFUSED if refused else ExitCode.ERROR,
    )


def connect_problem(query: ResolvedQuery, problem: BaseException) -> Diagnostic:
    """Why there is no connection: MZ051 when the server refused us, MZ050 for all else; or what its SSH
    tunnel reports."""
    link, body = query.link, query.link.body
    in_tunnel = tunnel_problem(link, body["host"], body["port"], query.directory, query.address)
    if in_tunnel is not None:
        return in_tunnel
    text = reason(query, problem)
    signs = ("password", "authentication", "no pg_hba.conf entry", f'role "{body["user"]}"')
    if any(sign in text for sign in signs):
        fix = f"check user and password of {link.address}, and pg_hba.conf on the server."
        return diagnose(query, "MZ051", "PostgreSQL refused the credentials", f"{text}.", fix)
    if "database" in text and "does not exist" in text:
        fix = f"create it (CREATE DATABASE), or correct database of {link.address}."
        return diagnose(query, "MZ052", f"Database {body['database']} does not exist", f"{text}.", fix)
    return diagnose(
        query,
        "MZ050",
        "PostgreSQL can't be reached",
        f"{text}.",
        f"check host, port and tls of {link.address}, and that the server runs and is reachable from where "
        "the query runs.",
    )


def state_of(problem: BaseException) -> str | None:
    """The SQLSTATE of a server's error; None where the connection is gone, or it is no server's."""
    return getattr(problem, "state", None) or getattr(problem, "sqlstate", None)


def reason(query: ResolvedQuery, problem: BaseException) -> str:
    """`reason_of`, without the password of the query's connection."""
    return reason_of(problem, query.link.body.get("password"))


def reason_of(problem: BaseException, secret: str | None = None) -> str:
    """The first line of a server's or driver's message, without its preamble and without the password."""
    text = str(problem).strip() or type(problem).__name__
    if secret:
        text = text.replace(secret, "***")
    line = text.splitlines()[0]
    for preamble in ("IO: ", "[libpq] ", "connection failed: ", "Failed to connect: "):
        line = line.removeprefix(preamble)
    _, found, rest = line.partition(" failed: ")
    if found and "server at" in line:
        line = rest
    return line.removeprefix("FATAL:").removeprefix("ERROR:").strip().rstrip(".")
