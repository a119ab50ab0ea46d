"""Explains errors of PostgreSQL and its driver, with a fix and without the password."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mzplan.connectors.api.queries import ResolvedConnection, ResolvedQuery
from mzplan.connectors.api.upstreams import start_over_hint
from mzplan.connectors.network.tunnels import ROLE, tunnel_problem
from mzplan.connectors.postgres.types import shown
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError, Severity

_SHUTDOWN_STATES = "57P"  # prefix of SQLSTATEs for a server or session that is shutting down or starting up


def route(connection: ResolvedConnection) -> str:
    """Format a connection and its destination for people."""
    body, tunnel = connection.body, connection.connections.get(ROLE)
    through = f", through {tunnel.address}" if tunnel is not None else ""
    return f"{connection.address} ({body['host']}:{body['port']}, database {body['database']}{through})"


def diagnose(
    query: ResolvedQuery, message: str, *, severity: Severity | None = None, **values: Any
) -> Diagnostic:
    """Return a diagnostic about a query. Its texts may also use `address` and `route`."""
    return Diagnostic.of(message, address=query.address, severity=severity, route=route(query.link), **values)


@dataclass(frozen=True, slots=True)
class Problem:
    """One kind of problem of a query, as format strings.

    They may use the values that `diagnostic` gets, and also `address`, `user`, `role` (the user as SQL) and
    `start_over` (a hint how to start a source over).

    `at`: the object on the server, such as `, table orders`.
    """

    code: str
    summary: str
    detail: str
    fix: str
    at: str = ""
    is_refusal: bool = False

    def diagnostic(self, query: ResolvedQuery, **values: object) -> Diagnostic:
        user = query.link.body["user"]
        fields = {
            "address": query.address,
            "user": user,
            "role": shown(user),
            "start_over": start_over_hint(query),
        }
        summary, why, fix, at = (
            text.format(**fields, **values) for text in (self.summary, self.detail, self.fix, self.at)
        )
        return Diagnostic(
            code=self.code,
            summary=summary,
            detail=f"{route(query.link)}{at}: {why}",
            hint=fix,
            address=query.address,
            exit_code=ExitCode.REFUSED if self.is_refusal else ExitCode.ERROR,
        )

    def error(self, query: ResolvedQuery, **values: object) -> MzplanError:
        return MzplanError(self.diagnostic(query, **values))


def connect_problem(query: ResolvedQuery, problem: BaseException) -> Diagnostic:
    """Return why there is no connection.

    MZ051 if the server refused the credentials, MZ052 if the database doesn't exist, MZ050 otherwise, or
    the SSH tunnel's own problem.
    """
    link, body = query.link, query.link.body
    in_tunnel = tunnel_problem(link, body["host"], body["port"], query.directory, query.address)
    if in_tunnel is not None:
        return in_tunnel
    text = reason(query, problem)
    signs = ("password", "authentication", "no pg_hba.conf entry", f'role "{body["user"]}"')
    if any(sign in text for sign in signs):
        fix = f"check user and password of {link.address}, and pg_hba.conf on the server."
        return diagnose(query, "MZ051.postgresql-refused", text=text, fix=fix)
    if "database" in text and "does not exist" in text:
        fix = f"create it (CREATE DATABASE), or correct `database` in {link.address}."
        return diagnose(query, "MZ052.database-not", database=body["database"], text=text, fix=fix)
    return diagnose(query, "MZ050.postgresql-cannot", text=text, resource=link.address)


def state_of(problem: BaseException) -> str | None:
    """Return the SQLSTATE of a server's error, or None for a broken connection or another error."""
    return getattr(problem, "state", None) or getattr(problem, "sqlstate", None)


def is_lost(problem: BaseException) -> bool:
    """Return whether the connection is gone, or about to go because the server shuts down."""
    import psycopg  # only after a driver's error: planning from files doesn't need it

    state = state_of(problem)
    return isinstance(problem, psycopg.OperationalError) and (
        state is None or state.startswith(_SHUTDOWN_STATES)
    )


def reason(query: ResolvedQuery, problem: BaseException) -> str:
    """Return the first line of a server's or driver's message, without the prefix and the password."""
    text = str(problem).strip() or type(problem).__name__
    if secret := query.link.body.get("password"):
        text = text.replace(secret, "***")
    line = text.splitlines()[0]
    for preamble in ("IO: ", "[libpq] ", "connection failed: ", "Failed to connect: "):
        line = line.removeprefix(preamble)
    _, separator, rest = line.partition(" failed: ")
    if separator and "server at" in line:
        line = rest
    return line.removeprefix("FATAL:").removeprefix("ERROR:").strip().rstrip(".")
