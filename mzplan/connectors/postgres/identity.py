"""Probes a PostgreSQL server, and checks whether a sink's database still is the one of its checkpoint.

System identifier and database oid identify a database; a recreated database has another oid. A new timeline
means that the server was promoted or restored. mzplan's own tables then decide, because a step is recorded in
the transaction of its rows. If they have the checkpoint's last step, the failover lost nothing and the sink
continues. If they don't, the sink is refused before it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from mzplan.connectors.api.probes import PROBE_TIMEOUT_S, Memo, fingerprint, with_time_limit
from mzplan.connectors.api.queries import Probe, ResolvedQuery
from mzplan.connectors.api.targets import another_target, refused_or_accepted
from mzplan.connectors.postgres.client import connect, open_conninfo, probe_timeout_s
from mzplan.connectors.postgres.problems import connect_problem, diagnose, route
from mzplan.connectors.postgres.tables import Connection, fetch_row
from mzplan.connectors.postgres.types import quoted, shown
from mzplan.model.diagnostics import Diagnostic, MzplanError, Severity
from mzplan.warehouse.checkpoints import Checkpoint

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

    def _problem(self, message: str, *, severity: Severity | None = None, **values: Any) -> Diagnostic:
        return diagnose(self._query, message, severity=severity, **values)


# The current WAL position's timeline. The control file may lag: it has the last checkpoint's timeline.
_TIMELINE = "SELECT ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int"
_IDENTITY = f"""
SELECT (SELECT system_identifier FROM pg_control_system())::text, ({_TIMELINE}),
       current_database()::text, (SELECT oid FROM pg_database WHERE datname = current_database())::bigint
"""
_LONGEST = 256  # characters; PostgreSQL's names have at most 63


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenSteps:
    """The query and last step that mzplan's own tables record for a sink's generation."""

    query_id: str
    step: int


def identify(connection: Connection) -> dict[str, Any] | None:
    """Return the identity of the database, or None if the server hides it, as some managed services do.

    Also returns None for values of other types, because the identity is stored and compared.
    """
    match _fetch_if_allowed(connection, _IDENTITY):
        case (str() as system, int() as timeline, str() as database, int() as oid):
            names = {"system_identifier": system[:_LONGEST], "database": database[:_LONGEST]}
            return {"type": "postgres", **names, "timeline": timeline, "database_oid": oid}
        case _:
            return None


def timeline_of(connection: Connection) -> int | None:
    """Return the timeline on which the server writes, or None if the server hides it."""
    row = _fetch_if_allowed(connection, _TIMELINE)
    return int(row[0]) if row is not None else None


def _fetch_if_allowed(connection: Connection, statement: str) -> Any:
    try:
        return connection.execute(statement.encode()).fetchone()
    except (
        psycopg.errors.InsufficientPrivilege,
        psycopg.errors.ObjectNotInPrerequisiteState,
        psycopg.errors.FeatureNotSupported,  # another server that speaks PostgreSQL's protocol
    ):
        return None


def written_steps(connection: Connection, query: ResolvedQuery) -> WrittenSteps | None:
    """Return the sink's last step in the database, or None if the database has no record of the sink."""
    writers = f"{quoted(query.body['staging_schema'])}.writers"
    if connection.execute("SELECT to_regclass(%s)", (writers,)).fetchone() == (None,):
        return None
    row = connection.execute(
        f"SELECT query_id, step FROM {writers} WHERE sink = %s AND generation = %s",
        query.description.place,
    ).fetchone()
    return WrittenSteps(query_id=row[0], step=row[1]) if row is not None else None


def check_database(connection: Connection, query: ResolvedQuery) -> bool:
    """Return whether the sink accepts a database without its steps (`on_target_change: accept`).

    Returns False if the database has the steps. Otherwise raises MzplanError MZ043 or MZ069. Raises OSError.
    """
    diagnostics = compare_target(query, identify(connection), written_steps(connection, query))
    errors = [d for d in diagnostics if d.severity == "error"]
    if errors:
        raise MzplanError(errors)
    return any(d.kind in ("another-upstream", "target-restored") for d in diagnostics)


def record_target(connection: Connection, checkpoint: Checkpoint) -> None:
    """Record the database's identity.

    Call this last, so that a run after a crash makes the same decision.
    """
    target = identify(connection)
    note = {"delivery": "exactly-once", "target": target}
    if target is not None and checkpoint.delivery() != note:
        checkpoint.record_delivery(note)


def compare_target(
    query: ResolvedQuery, current: Mapping[str, Any] | None, written: WrittenSteps | None
) -> list[Diagnostic]:
    """Return the reasons why the sink's checkpoint can't continue in this database; none if it can.

    MZ043 and MZ069 are errors. If the sink sets `on_target_change`, they are notices of the consequences.
    Raises OSError.
    """
    checkpoint = query.checkpoint
    if checkpoint is None:
        return []
    last_step = checkpoint.log.committed()
    if last_step < 0:
        return []  # no step is written yet, so any database will do
    note = checkpoint.delivery() or {}
    recorded: Mapping[str, Any] = note.get("target") or {}
    difference = _other_database(recorded, current or {})
    if difference:
        return [another_target(query, f"{route(query.link)}: {difference}")]
    why_missing = _missing_steps(written, checkpoint.log.query_id(), last_step)
    promoted = _differs(recorded, current or {}, "timeline")
    if why_missing:
        since = (
            f" It was restored from a backup, or promoted: {_timelines(recorded, current)}."
            if promoted
            else ""
        )
        return [refused_or_accepted(query, _target_behind(query, why_missing, last_step, since))]
    if promoted:
        return [
            diagnose(
                query, "MZ043.server-promoted", timelines=_timelines(recorded, current), last_step=last_step
            )
        ]
    return []


def _other_database(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    if _differs(recorded, current, "system_identifier"):
        return (
            f"a server with system identifier {current['system_identifier']} instead of "
            f"{recorded['system_identifier']}"
        )
    if not _differs(recorded, current, "database_oid"):
        return ""  # a renamed database is still the same
    if _differs(recorded, current, "database"):
        return f"database {current['database']} instead of {recorded['database']}"
    return f"a database {current['database']} that was dropped and recreated"


def _differs(recorded: Mapping[str, Any], current: Mapping[str, Any], name: str) -> bool:
    """Return whether both values are known and differ."""
    before, now = recorded.get(name), current.get(name)
    return before is not None and now is not None and before != now


def _missing_steps(written: WrittenSteps | None, query_id: str | None, last_step: int) -> str:
    if written is None:
        return "it has no record of this sink"
    if written.step >= 0 and query_id is not None and written.query_id != query_id:
        return f"its steps come from another checkpoint (query {written.query_id})"
    if written.step < last_step:
        return f"its last step is {written.step}" if written.step >= 0 else "no step is written in it"
    return ""


def _timelines(recorded: Mapping[str, Any], current: Mapping[str, Any] | None) -> str:
    return f"timeline {(current or {}).get('timeline')} instead of {recorded.get('timeline')}"


def _target_behind(query: ResolvedQuery, missing: str, last_step: int, since: str) -> Diagnostic:
    return diagnose(
        query,
        "MZ069.target-missing-steps",
        missing=missing,
        staging_schema=query.body["staging_schema"],
        last_step=last_step,
        since=since,
    )
