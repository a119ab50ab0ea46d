"""Probes a PostgreSQL server for a source or a sink, without changing anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psycopg

from mzplan.connectors.api.probes import PROBE_TIMEOUT_S, Memo, fingerprint, with_time_limit
from mzplan.connectors.api.queries import Probe, ResolvedQuery
from mzplan.connectors.postgres.client import connect, open_conninfo, probe_timeout_s
from mzplan.connectors.postgres.problems import connect_problem, diagnose
from mzplan.connectors.postgres.tables import Connection, fetch_row
from mzplan.connectors.postgres.types import shown
from mzplan.model.diagnostics import Diagnostic, MzplanError, Severity

_KEEP_FAILURE_S = 3.0


def reach(query: ResolvedQuery) -> Diagnostic | None:
    """Return why the server can't be reached, or None if it accepts a connection.

    Raises MzplanError if a tunnel can't be opened.
    """
    with open_conninfo(query) as info:
        problem = _try_connect(info, query)
    return connect_problem(query, problem) if problem is not None else None


def _try_connect(info: str, query: ResolvedQuery) -> Exception | None:
    """Connect and disconnect. Returns the error, if any."""
    try:
        seconds = probe_timeout_s(query)
        with_time_limit(lambda: connect(info, PROBE_TIMEOUT_S, seconds).close(), seconds)
    except (psycopg.Error, TimeoutError, OSError) as problem:
        return problem
    return None


class ServerProbe:
    """Probes servers. After a failed connection, it returns the same failure for a few seconds."""

    def __init__(self, explain: Callable[[ResolvedQuery, Exception], Diagnostic]) -> None:
        """`explain` turns an error of the server or driver during the probe into a diagnostic."""
        self._explain = explain
        self._failures: Memo[Exception | None] = Memo(_KEEP_FAILURE_S)

    def probe(self, query: ResolvedQuery, check: Callable[[Connection], Probe]) -> Probe:
        """Return the result of `check` over a connection, or a probe with the connection's error.

        Errors of the server are diagnostics of the probe; they are never raised.
        """
        try:
            with open_conninfo(query) as info:
                failed = self._failures.get(
                    fingerprint({"conninfo": info}), lambda: _try_connect(info, query)
                )
                if failed is not None:
                    return Probe(diagnostics=(connect_problem(query, failed),))
                seconds = probe_timeout_s(query)
                return with_time_limit(lambda: _connected(info, check, seconds), seconds)
        except MzplanError as problem:  # from the tunnel
            return Probe(diagnostics=problem.diagnostics)
        except (psycopg.Error, TimeoutError, OSError) as problem:
            return Probe(diagnostics=(self._explain(query, problem),))


def _connected(info: str, check: Callable[[Connection], Probe], seconds: float) -> Probe:
    """Open a connection and run `check` over it. `seconds`: the time limit for both."""
    with connect(info, PROBE_TIMEOUT_S, seconds) as connection:
        return check(connection)


class Check:
    """One query's check over one connection: helpers to query the server and to report problems."""

    def __init__(self, connection: Connection, query: ResolvedQuery):
        self._connection = connection
        self._query = query
        self._role = shown(query.link.body["user"])

    def _row(self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> Any:
        return fetch_row(self._connection, statement, values)

    def _rows(self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        return self._connection.execute(statement.encode(), values).fetchall()

    def _is_granted(self, statement: str, *values: Any) -> bool:
        """Return whether the server grants the privilege in a SQL expression."""
        return bool(self._row(f"SELECT {statement}", values)[0])

    def _problem(
        self, code: str, summary: str, why: str, fix: str, *, severity: Severity = "error"
    ) -> Diagnostic:
        return diagnose(self._query, code, summary, why, fix, severity=severity)
