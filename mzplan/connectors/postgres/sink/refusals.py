"""Explains why PostgreSQL refused a batch of a sink."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import psycopg

from mzplan.connectors.api.queries import Output, ResolvedQuery
from mzplan.connectors.postgres.client import connect, open_conninfo
from mzplan.connectors.postgres.problems import Problem, connect_problem, is_lost, reason, state_of
from mzplan.connectors.postgres.sink.privileges import PrivilegeCheck
from mzplan.connectors.postgres.sink.staging import Move
from mzplan.connectors.postgres.sink.target_table import describe_fix, find_target
from mzplan.model.diagnostics import MzplanError

_DATA_EXCEPTION = "22"  # prefix of its SQLSTATEs
REFUSED = Problem(
    "MZ059",
    "PostgreSQL refused a batch of {address}",
    "{why}.",
    "correct the table or the sink's select and where; mzplan retries the whole batch.",
    at=", table {table}",
)
_TOO_NARROW = replace(REFUSED, fix="{fix}")
_DENIED = Problem(
    "MZ054",
    "{address} is missing a privilege in PostgreSQL",
    "{why}.",
    "grant it to {user} (docs/how-to/grant-privileges.md); mzplan retries the whole batch.",
    at=", table {table}",
)


def explain_batch_error(
    query: ResolvedQuery, outputs: Sequence[Output], move: Move | None, problem: BaseException
) -> BaseException:
    """Return the problem as an error for people, if it comes from the server or a task."""
    if isinstance(problem, MzplanError):
        return problem
    if is_lost(problem):
        return MzplanError(connect_problem(query, problem))
    if isinstance(problem, psycopg.errors.InsufficientPrivilege):
        return _denied_error(query, outputs, problem)
    if isinstance(problem, psycopg.Error):
        is_value = (state_of(problem) or "").startswith(_DATA_EXCEPTION)
        return _refused_error(query, outputs, move if is_value else None, reason(query, problem))
    _, marked, text = str(problem).partition("mzplan[COPY]: ")
    if not marked:
        return problem
    why = RuntimeError(text.splitlines()[0])
    if any(sign in str(why) for sign in ("connect", "terminat", "closed the connection")):
        return MzplanError(connect_problem(query, why))
    if "permission denied" in str(why):
        return _denied_error(query, outputs, why)
    return _refused_error(query, outputs, move if " (column " in text else None, reason(query, why))


def _denied_error(query: ResolvedQuery, outputs: Sequence[Output], problem: Exception) -> MzplanError:
    """Return an error with all missing privileges and the statements that grant them.

    Privileges are checked again, because other roles may have created objects since the probe. If that finds
    nothing, the error has the server's message.
    """
    with (
        suppress(psycopg.Error, MzplanError, OSError),
        open_conninfo(query) as info,
        connect(info, statement_timeout_s=30) as connection,
    ):
        table = find_target(connection, query)
        check = PrivilegeCheck(connection, query)
        if (missing := check.problem(table, outputs)) is not None:
            return MzplanError(missing)
    return _DENIED.error(query, why=reason(query, problem), table=query.body["table"])


def _refused_error(
    query: ResolvedQuery, outputs: Sequence[Output], move: Move | None, why: str
) -> MzplanError:
    """Return MZ059. Pass `move` if a value doesn't fit: it reveals the columns that may be too small."""
    problem, fix = REFUSED, ""
    if move is not None:
        written = list(zip(outputs, move.targets, strict=True))
        suspects = [pair for pair in written if pair[1].shown in why or f"(column {pair[1].name})" in why]
        if suspects:
            mismatches = (
                f"its column {target.name} is {target.shown}, and the sink writes {output.type}"
                for output, target in suspects
            )
            why = f"{why}; {'; '.join(mismatches)}"
            problem, fix = _TOO_NARROW, describe_fix(move.table, [output for output, _ in suspects], {})
    return problem.error(query, why=why, fix=fix, table=query.body["table"])
