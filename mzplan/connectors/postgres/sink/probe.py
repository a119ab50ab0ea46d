"""Asking a PostgreSQL server whether a sink could write: table, columns, privileges, unique index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from mzplan.connectors.api.deadline import bounded
from mzplan.connectors.api.probe_memo import Memo, fingerprint
from mzplan.connectors.api.protocols import PROBE_TIMEOUT_S, Output, Probe, ResolvedQuery
from mzplan.connectors.api.target_change import unreadable
from mzplan.connectors.postgres.client import (
    connect,
    connect_problem,
    patience,
    reached,
    reason_of,
    route,
)
from mzplan.connectors.postgres.identity import compare_target, identify, written
from mzplan.connectors.postgres.sink.keys import check_key, key_of, shown_table
from mzplan.connectors.postgres.tables import Connection, Table, find_table
from mzplan.connectors.postgres.types import created_type, fit, shown, why_not
from mzplan.model.diagnostics import Diagnostic, MzplanError

_KEEP_FAILURE_S = 3.0

# Of the tables in the staging schema that all sinks share.
_OWN_TABLES = {"writers": "SELECT, INSERT, UPDATE", "steps": "SELECT, INSERT, DELETE"}
_STAGING = """
SELECT current_database(), has_database_privilege(current_database(), 'CREATE'), n.oid IS NOT NULL,
       has_schema_privilege(n.oid, 'USAGE'), has_schema_privilege(n.oid, 'CREATE')
FROM (VALUES (%(schema)s::text)) AS wanted (name) LEFT JOIN pg_namespace n ON n.nspname = wanted.name
"""


class PostgresProbe:
    """Probes sinks. A server that was just found dead or closed isn't asked again for a moment."""

    def __init__(self) -> None:
        self._failures: Memo[Exception | None] = Memo(_KEEP_FAILURE_S)

    def probe(self, query: ResolvedQuery, outputs: Sequence[Output]) -> Probe:
        """What stands in the way of this sink; nothing is changed. Never raises for what a server did."""
        try:
            with reached(query) as info:
                return self._ask(info, query, outputs)
        except MzplanError as problem:  # of its tunnel
            return Probe(diagnostics=problem.diagnostics)

    def _ask(self, info: str, query: ResolvedQuery, outputs: Sequence[Output]) -> Probe:
        def reach() -> Exception | None:
            try:
                bounded(lambda: connect(info, PROBE_TIMEOUT_S).close(), patience(query))
            except (psycopg.Error, TimeoutError, OSError) as problem:
                return problem
            return None

        failed = self._failures.get(fingerprint({"conninfo": info}), reach)
        if failed is not None:
            return Probe(diagnostics=(connect_problem(query, failed),))
        try:
            return bounded(lambda: _ask(info, query, outputs), patience(query))
        except psycopg.OperationalError as problem:
            lost = problem.sqlstate is None
            return Probe(diagnostics=(connect_problem(query, problem) if lost else _failed(query, problem),))
        except (psycopg.Error, TimeoutError, OSError) as problem:
            return Probe(diagnostics=(_failed(query, problem),))


def check_table(query: ResolvedQuery, table: Table | None, outputs: Sequence[Output]) -> list[Diagnostic]:
    """Whether the table is there (MZ052) and takes the sink's columns (MZ053)."""
    name = query.body["table"]
    where = route(query.link)
    expected = create_table(query, outputs)
    if table is None:
        return [
            Diagnostic(
                code="MZ052",
                summary=f"Table {name} does not exist",
                detail=f"{where} has no table {name}; mzplan does not create target tables.",
                hint=f"create it:\n{expected}",
                address=query.address,
            )
        ]
    wrong, narrow = _column_problems(query, table, outputs)
    found = []
    if wrong:
        found.append(
            Diagnostic(
                code="MZ053",
                summary=f"Table {name} does not take the columns of {query.address}",
                detail=f"{where}: {'; '.join(wrong)}.",
                hint=f"alter the table or the sink's select; this table would do:\n{expected}",
                address=query.address,
            )
        )
    if narrow:
        found.append(
            Diagnostic(
                severity="warning",
                code="MZ053",
                summary=f"Table {name} may be too narrow for {query.address}",
                detail=f"{where}: {'; '.join(narrow)}. A value that does not fit stops the sink.",
                hint=f"widen the table; this one would take every value:\n{expected}",
                address=query.address,
            )
        )
    return found


def _column_problems(
    query: ResolvedQuery, table: Table, outputs: Sequence[Output]
) -> tuple[list[str], list[str]]:
    wrong: list[str] = []
    narrow: list[str] = []
    written: set[str] = set()
    for output in outputs:
        target = table.column(output.name)
        if target is None:
            wrong.append(f"it has no column {output.name}" + (f" ({output.type})" if output.type else ""))
            continue
        if target.name in written:
            wrong.append(f"two outputs go into its column {target.name}")
        written.add(target.name)
        if not target.writable:
            wrong.append(f"its column {target.name} is generated and can't be written")
        elif output.type is not None:
            fits = fit(output.type, target)
            if fits == "no":
                why = why_not(output.type, target)
                wrong.append(f"its column {target.name} is {target.shown}, which {why}")
            elif fits == "narrow":
                narrow.append(
                    f"its column {target.name} is {target.shown}, and the sink writes {output.type}"
                )
    wrong += [
        f"its column {column.name} is NOT NULL without a default, and the sink does not write it"
        for column in table.columns
        if column.required and column.writable and column.name not in written
    ]
    names = {output.name.lower() for output in outputs}
    wrong += [
        f"key column {key} is not among the sink's columns"
        for key in key_of(query)
        if key.lower() not in names
    ]
    return wrong, narrow


def create_table(query: ResolvedQuery, outputs: Sequence[Output]) -> str:
    """The CREATE TABLE that the sink expects. `...` stands where only Spark could tell the type."""
    keys = key_of(query)
    lines = [
        f"  {shown(output.name)} {created_type(output.type) if output.type else '...'}" for output in outputs
    ]
    if keys:
        lines.append(f"  PRIMARY KEY ({', '.join(map(shown, keys))})")
    body = ",\n".join(lines)
    return f"CREATE TABLE {shown_table(query)} (\n{body}\n);"


def _ask(info: str, query: ResolvedQuery, outputs: Sequence[Output]) -> Probe:
    with connect(info, PROBE_TIMEOUT_S) as connection:
        target = identify(connection)
        found = [*_ask_table(connection, query, outputs), *_compare(connection, query, target)]
    return Probe(diagnostics=tuple(found), upstream=target)


def _compare(
    connection: Connection, query: ResolvedQuery, target: Mapping[str, Any] | None
) -> list[Diagnostic]:
    """Whether it is the database that the checkpoint's steps are in."""
    try:
        return compare_target(query, target, written(connection, query))
    except psycopg.errors.InsufficientPrivilege:
        return []  # what is missing is among the other findings
    except OSError as problem:
        return [unreadable(query, problem)]


def _ask_table(connection: Connection, query: ResolvedQuery, outputs: Sequence[Output]) -> list[Diagnostic]:
    table = find_table(connection, query.body["table"])
    found = check_table(query, table, outputs)
    if table is not None:
        found += _privileges(connection, query, table, outputs)
        found += check_key(connection, query, table, outputs)
    return found + _staging_privileges(connection, query)


def _privileges(
    connection: Connection, query: ResolvedQuery, table: Table, outputs: Sequence[Output]
) -> list[Diagnostic]:
    columns = [column.name for output in outputs if (column := table.column(output.name))]
    wanted = ["INSERT", "SELECT", "UPDATE"] if key_of(query) else ["INSERT"]
    missing = []
    for privilege in wanted:
        allowed = connection.execute(
            "SELECT coalesce(bool_and(has_column_privilege(%s, c, %s)), true) FROM unnest(%s::text[]) AS c",
            (table.oid, privilege, columns),
        ).fetchone()
        if not (allowed and allowed[0]):
            missing.append(privilege)
    if query.keys:  # what goes from its collection is deleted here
        allowed = connection.execute("SELECT has_table_privilege(%s, 'DELETE')", (table.oid,)).fetchone()
        if not (allowed and allowed[0]):
            missing.append("DELETE")
    grants = [f"GRANT {', '.join(missing)} ON {shown_table(query)} TO {_user(query)};"] if missing else []
    usable = connection.execute("SELECT has_schema_privilege(%s, 'USAGE')", (table.schema,)).fetchone()
    if not (usable and usable[0]):
        grants.insert(0, f"GRANT USAGE ON SCHEMA {shown(table.schema)} TO {_user(query)};")
        missing.insert(0, f"USAGE of schema {table.schema}")
    if not grants:
        return []
    return [_forbidden(query, f"table {query.body['table']} lacks {', '.join(missing)}", grants)]


def _staging_privileges(connection: Connection, query: ResolvedQuery) -> list[Diagnostic]:
    """Whether mzplan's own tables can be made, or used where they are."""
    schema = query.body["staging_schema"]
    found = connection.execute(_STAGING, {"schema": schema}).fetchone()
    assert found is not None, "a SELECT of expressions has a row"
    database, may_create, there, usable, may_create_in = found
    if not there:
        if may_create:
            return []
        grants = [
            f"GRANT CREATE ON DATABASE {shown(database)} TO {_user(query)};",
            f"-- or: CREATE SCHEMA {shown(schema)} AUTHORIZATION {_user(query)};",
        ]
        return [_forbidden(query, f"staging schema {schema} is missing and may not be created", grants)]
    if not (usable and may_create_in):
        grant = f"GRANT USAGE, CREATE ON SCHEMA {shown(schema)} TO {_user(query)};"
        return [_forbidden(query, f"staging schema {schema} lacks USAGE or CREATE", [grant])]
    grants = [
        f"GRANT {privileges} ON {shown(schema)}.{name} TO {_user(query)};"
        for name, privileges in _OWN_TABLES.items()
        if not _has_all(connection, schema, name, privileges)
    ]
    return (
        [_forbidden(query, f"tables of staging schema {schema} can't be written", grants)] if grants else []
    )


def _has_all(connection: Connection, schema: str, name: str, privileges: str) -> bool:
    """Whether a table may be used so; one that is not there yet will be our own."""
    found = connection.execute(
        "SELECT bool_and(has_table_privilege(c.oid, p)) FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace CROSS JOIN unnest(%s::text[]) AS p "
        "WHERE n.nspname = %s AND c.relname = %s",
        (privileges.split(", "), schema, name),
    ).fetchone()
    return found is None or found[0] is None or bool(found[0])


def _forbidden(query: ResolvedQuery, what: str, grants: Sequence[str]) -> Diagnostic:
    return Diagnostic(
        code="MZ054",
        summary=f"{query.address} lacks a privilege in PostgreSQL",
        detail=f"{route(query.link)}: for user {query.link.body['user']}, {what}.",
        hint="as its owner or a superuser run:\n" + "\n".join(grants),
        address=query.address,
    )


def _failed(query: ResolvedQuery, problem: BaseException) -> Diagnostic:
    return Diagnostic(
        code="MZ050",
        summary="PostgreSQL did not answer a question",
        detail=f"{route(query.link)}: {reason_of(problem, query.link.body.get('password'))}.",
        hint="try again; if it stays so, look into the server's log.",
        address=query.address,
    )


def _user(query: ResolvedQuery) -> str:
    return shown(query.link.body["user"])
