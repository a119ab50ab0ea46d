"""Whether a PostgreSQL server lets a sink write: table, columns, privileges, unique index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg

from mzplan.connectors.api.protocols import Output, Probe, ResolvedQuery
from mzplan.connectors.api.target_change import unreadable
from mzplan.connectors.postgres.identity import compare_target, identify, written
from mzplan.connectors.postgres.probe import Check, ServerProbe
from mzplan.connectors.postgres.problems import connect_problem, diagnose, is_lost, reason
from mzplan.connectors.postgres.sink.keys import KeyCheck, key_of, shown_table
from mzplan.connectors.postgres.tables import Connection, Table, find_table
from mzplan.connectors.postgres.types import created_type, fit, shown, why_not
from mzplan.model.diagnostics import Diagnostic

# Of the tables in the staging schema that all sinks share.
_OWN_TABLES = {"writers": "SELECT, INSERT, UPDATE", "steps": "SELECT, INSERT, DELETE"}
_HAS_ALL = """
SELECT coalesce(bool_and(has_table_privilege(c.oid, p)), true) FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace CROSS JOIN unnest(%s::text[]) AS p
WHERE n.nspname = %s AND c.relname = %s
"""
_STAGING = """
SELECT current_database(), has_database_privilege(current_database(), 'CREATE'), n.oid IS NOT NULL,
       has_schema_privilege(n.oid, 'USAGE'), has_schema_privilege(n.oid, 'CREATE')
FROM (VALUES (%(schema)s::text)) AS wanted (name) LEFT JOIN pg_namespace n ON n.nspname = wanted.name
"""


class PostgresProbe:
    """Probes sinks. A server that was just found dead or closed is left alone for a moment."""

    def __init__(self) -> None:
        self._servers = ServerProbe(_failed)

    def probe(self, query: ResolvedQuery, outputs: Sequence[Output]) -> Probe:
        """What stands in the way of this sink; nothing is changed. Never raises for what a server did."""

        def look(connection: Connection) -> Probe:
            target = identify(connection)
            found = [*_TargetCheck(connection, query).problems(outputs), *_compare(connection, query, target)]
            return Probe(diagnostics=tuple(found), upstream=target)

        return self._servers.look(query, look)


# ── the table and its columns


def check_table(query: ResolvedQuery, table: Table | None, outputs: Sequence[Output]) -> list[Diagnostic]:
    """Whether the table is there (MZ052) and takes the sink's columns (MZ053)."""
    name = query.body["table"]
    expected = create_table(query, outputs)
    if table is None:
        why = f"it has no table {name}; mzplan does not create target tables."
        return [diagnose(query, "MZ052", f"Table {name} does not exist", why, f"create it:\n{expected}")]
    wrong, narrow = _column_problems(query, table, outputs)
    found = []
    if wrong:
        summary = f"Table {name} does not take the columns of {query.address}"
        fix = f"alter the table or the sink's select; this table would do:\n{expected}"
        found.append(diagnose(query, "MZ053", summary, f"{'; '.join(wrong)}.", fix))
    if narrow:
        summary = f"Table {name} may be too narrow for {query.address}"
        why = f"{'; '.join(narrow)}. A value that does not fit stops the sink."
        fix = f"widen the table; this one would take every value:\n{expected}"
        found.append(diagnose(query, "MZ053", summary, why, fix, severity="warning"))
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
    """The CREATE TABLE that the sink expects. `...` stands where only Spark knows the type."""
    keys = key_of(query)
    lines = [
        f"  {shown(output.name)} {created_type(output.type) if output.type else '...'}" for output in outputs
    ]
    if keys:
        lines.append(f"  PRIMARY KEY ({', '.join(map(shown, keys))})")
    body = ",\n".join(lines)
    return f"CREATE TABLE {shown_table(query)} (\n{body}\n);"


# ── what the role may do


class _TargetCheck(Check):
    """What stands in the way of writing to the table, and to mzplan's own."""

    def problems(self, outputs: Sequence[Output]) -> Iterator[Diagnostic]:
        table = find_table(self._connection, self._query.body["table"])
        yield from check_table(self._query, table, outputs)
        if table is not None:
            yield from self._privileges(table, outputs)
            yield from KeyCheck(self._connection, self._query).problems(table, outputs)
        yield from self._staging_privileges()

    def _privileges(self, table: Table, outputs: Sequence[Output]) -> Iterator[Diagnostic]:
        columns = [column.name for output in outputs if (column := table.column(output.name))]
        wanted = ["INSERT", "SELECT", "UPDATE"] if key_of(self._query) else ["INSERT"]
        granted = "coalesce(bool_and(has_column_privilege(%s, c, %s)), true) FROM unnest(%s::text[]) AS c"
        missing = [one for one in wanted if not self._may(granted, table.oid, one, columns)]
        # What goes from its collection is deleted here.
        if self._query.keys and not self._may("has_table_privilege(%s, 'DELETE')", table.oid):
            missing.append("DELETE")
        lacks, grants = list(missing), []
        if not self._may("has_schema_privilege(%s, 'USAGE')", table.schema):
            lacks.insert(0, f"USAGE of schema {table.schema}")
            grants.append(f"GRANT USAGE ON SCHEMA {shown(table.schema)} TO {self._role};")
        if missing:
            grants.append(f"GRANT {', '.join(missing)} ON {shown_table(self._query)} TO {self._role};")
        if grants:
            yield self._forbidden(f"table {self._query.body['table']} lacks {', '.join(lacks)}", *grants)

    def _staging_privileges(self) -> Iterator[Diagnostic]:
        """Whether mzplan's own tables can be made, or used where they are."""
        name = self._query.body["staging_schema"]
        schema, role = shown(name), self._role
        database, may_create, there, usable, may_create_in = self._row(_STAGING, {"schema": name})
        if not there:
            if not may_create:
                yield self._forbidden(
                    f"staging schema {name} is missing and may not be created",
                    f"GRANT CREATE ON DATABASE {shown(database)} TO {role};",
                    f"-- or: CREATE SCHEMA {schema} AUTHORIZATION {role};",
                )
            return
        if not (usable and may_create_in):
            grant = f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {role};"
            yield self._forbidden(f"staging schema {name} lacks USAGE or CREATE", grant)
            return
        grants = [
            f"GRANT {privileges} ON {schema}.{table} TO {role};"
            for table, privileges in _OWN_TABLES.items()
            # One that is not there yet will be our own.
            if not self._row(_HAS_ALL, (privileges.split(", "), name, table))[0]
        ]
        if grants:
            yield self._forbidden(f"tables of staging schema {name} can't be written", *grants)

    def _forbidden(self, what: str, *grants: str) -> Diagnostic:
        return self._problem(
            "MZ054",
            f"{self._query.address} lacks a privilege in PostgreSQL",
            f"for user {self._query.link.body['user']}, {what}.",
            "as its owner or a superuser run:\n" + "\n".join(grants),
        )


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


def _failed(query: ResolvedQuery, problem: Exception) -> Diagnostic:
    if is_lost(problem):
        return connect_problem(query, problem)
    fix = "try again; if it stays so, look into the server's log."
    why = f"{reason(query, problem)}."
    return diagnose(query, "MZ050", "PostgreSQL did not answer a question", why, fix)
