"""Probes whether a sink can write to a PostgreSQL server: table, columns, privileges, unique index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import psycopg

from mzplan.connectors.api.outputs import never_null_outputs
from mzplan.connectors.api.queries import Output, Probe, ResolvedQuery
from mzplan.connectors.api.targets import unreadable
from mzplan.connectors.formats.written import unfit_keys
from mzplan.connectors.postgres.definition import create_table, primary_key_of, shown_table
from mzplan.connectors.postgres.identity import Check, compare_target, identify, written_steps
from mzplan.connectors.postgres.problems import connect_problem, diagnose, is_lost, reason
from mzplan.connectors.postgres.sink.privileges import PrivilegeCheck
from mzplan.connectors.postgres.sink.staging import has_other_unique, why_not_replaceable
from mzplan.connectors.postgres.sink.target_table import (
    compare_columns,
    creation_statements,
    describe_fix,
    find_target,
    missing_schema,
)
from mzplan.connectors.postgres.tables import Connection, Table, unique_indexes
from mzplan.connectors.postgres.types import TargetColumn, shown
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.schema.object_names import CUT, size_of, too_long
from mzplan.schema.target_writes import VALID_FROM, keeps_history

_READ_ONLY = "SELECT pg_is_in_recovery(), current_setting('transaction_read_only')::boolean"
_NULLABLE = """
SELECT a.attname::text FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s AND a.attname = ANY(%s) AND NOT a.attnotnull AND NOT t.typnotnull ORDER BY a.attnum
"""


def probe_target(connection: Connection, query: ResolvedQuery, outputs: Sequence[Output]) -> Probe:
    """Probe the target of this sink without changing anything. Raises psycopg.Error."""
    target = identify(connection)
    check = _TargetCheck(connection, query)
    diagnostics = [*check.problems(outputs), *_check_database(connection, query, target)]
    return Probe(
        diagnostics=tuple(diagnostics),
        upstream=target,
        must_create=bool(check.statements),
        missing=tuple(check.missing_parts),
    )


# ── the table and its columns


def check_table(
    query: ResolvedQuery, table: Table | None, outputs: Sequence[Output], schema: str | None = None
) -> Diagnostic | None:
    """Return MZ052 if the table is missing, or MZ053 or MZ310 if it can't have the sink's columns.

    `schema`: where to create the table, if its name has no schema.
    """
    name = query.body["table"]
    if long := too_long([output.name for output in outputs]):
        summary = f"The column's name {long[0]} is too long for PostgreSQL"
        why = f"{CUT} {' and '.join(map(size_of, long))}."
        fix = "give the column a shorter name in the view, or in the sink's select: LONG_NAME AS SHORT_NAME."
        return diagnose(query, "MZ310.target", what=summary, why=why, fix=fix)
    if table is None:
        reason = (
            "mzplan does not create target tables"
            if not query.body["create"]
            else "the sink must create it first"
        )
        why = f"it has no table {name}; {reason}."
        unknown = (
            " (replace `...` with a type; only Spark knows it)"
            if any(o.type is None for o in outputs)
            else ""
        )
        fix = f"create it{unknown}:\n{create_table(query, outputs, schema)}"
        return diagnose(query, "MZ052.table-not", name=name, why=why, fix=fix)
    columns = compare_columns(query, table, outputs)
    wrong = [*columns.missing.values(), *columns.narrow.values(), *columns.wrong.values(), *columns.others]
    if not wrong:
        return None
    summary = f"Table {name} can't store the columns of {query.address}"
    fix = describe_fix(table, [*columns.missing, *columns.narrow, *columns.wrong], columns.others)
    return diagnose(query, "MZ053.target", what=summary, wrong="; ".join(wrong), fix=fix)


def usable_table(connection: Connection, query: ResolvedQuery, outputs: Sequence[Output]) -> Table:
    """Return the sink's table. Raises MzplanError MZ052 or MZ053 (see `check_table`)."""
    table = find_target(connection, query)
    problem = check_table(query, table, outputs)
    if problem is not None:
        raise MzplanError(problem)
    assert table is not None, "otherwise there is a problem"
    return table


# ── the table, and what the role may do


class _TargetCheck(Check):
    """Finds problems of writing to the table, and to mzplan's own tables.

    `statements`: the statements with which the sink would create missing parts.
    `missing_parts`: these parts, as errors.
    """

    statements: Sequence[str] = ()
    missing_parts: Sequence[Diagnostic] = ()

    def problems(self, outputs: Sequence[Output]) -> Iterator[Diagnostic]:
        yield from self._read_only()
        yield from unfit_keys(self._query, outputs)
        table = find_target(self._connection, self._query)
        schema = missing_schema(self._connection, self._query) if table is None else None
        statements = self.statements = creation_statements(self._query, table, outputs, schema)
        problem = check_table(self._query, table, outputs, schema)
        if problem is not None and statements:
            planned = f"\nOr let mzplan create it: mzplan restart {self._query.address}"
            self.missing_parts = [replace(problem, hint=problem.hint + planned)]
        elif problem is not None:
            yield problem
        missing_privileges = PrivilegeCheck(self._connection, self._query).problem(
            table, outputs, statements, schema
        )
        if missing_privileges is not None:
            yield missing_privileges
        elif statements:
            yield self._problem(
                "MZ045.create-missing", table=self._query.body["table"], statements="\n".join(statements)
            )
        if table is not None:
            yield from self._in_staging_schema(table)
            yield from self._key(table, outputs)

    def _in_staging_schema(self, table: Table) -> Iterator[Diagnostic]:
        """Warn about a table in mzplan's own schema.

        If that schema has the role's name, it is first in the default search path (`"$user"`). Then
        PostgreSQL creates the role's tables in it, unless their names have a schema.
        """
        if table.schema == self._query.body["staging_schema"]:
            yield self._problem(
                "MZ158.table-schema",
                name=table.name,
                schema=table.schema,
                schema_sql=shown(table.schema),
                table_sql=shown(table.name),
            )

    def _read_only(self) -> Iterator[Diagnostic]:
        standby, read_only = self._row(_READ_ONLY)
        if standby:
            why, fix = "it is a standby", f"set `host` in {self._query.link.address} to the primary."
        else:
            role = f"ALTER ROLE {self._role} RESET default_transaction_read_only;"
            why = "default_transaction_read_only is on for the role, the database or the server"
            fix = f"turn it off. For the role, run: {role}"
        if standby or read_only:
            yield self._problem("MZ159.server-read", why=why, fix=fix)

    # ── the key

    def _key(self, table: Table, outputs: Sequence[Output]) -> Iterator[Diagnostic]:
        """Yield MZ055 if the key has no unique index or allows NULL, or if there is another unique index."""
        keys = primary_key_of(self._query)
        columns = [column for key in keys if (column := table.column(key)) is not None]
        if not keys or len(columns) < len(keys):
            return
        key_names = sorted(column.name for column in columns)
        never_null = {VALID_FROM, *(name.lower() for name in never_null_outputs(self._query))}
        nullable = [name for (name,) in self._rows(_NULLABLE, (table.oid, key_names))]
        nullable = [name for name in nullable if name.lower() not in never_null]
        sql = shown_table(self._query)
        fixes = [f"ALTER TABLE {sql} ALTER COLUMN {shown(name)} SET NOT NULL;" for name in nullable]
        indexes = unique_indexes(self._connection, table.oid)
        if not any(sorted(names) == key_names for names, _, _ in indexes):
            listed = ", ".join(shown(column.name) for column in columns)
            yield self._problem(
                "MZ055.table-no",
                table=self._query.body["table"],
                keys=keys,
                fix="\n".join([f"CREATE UNIQUE INDEX ON {sql} ({listed});", *fixes]),
            )
            return
        if nullable:
            yield self._null_key(nullable, fixes)
        if not keeps_history(self._query.body):
            yield from self._other_unique(table, columns, outputs)

    def _null_key(self, nullable: Sequence[str], fixes: Sequence[str]) -> Diagnostic:
        """Return MZ055 for a key that allows NULL, because in SQL no NULL equals another."""
        deleted = ", and a delete would delete nothing." if self._query.keys else "."
        condition = " AND ".join(f"{name} IS NOT NULL" for name in nullable)
        return self._problem(
            "MZ055.table-allows",
            severity="error" if self._query.keys else "warning",
            table=self._query.body["table"],
            nullable=nullable,
            deleted=deleted,
            fix="\n".join([*fixes, f"-- and exclude such rows in the sink: where: {condition}"]),
        )

    def _other_unique(
        self, table: Table, keys: Sequence[TargetColumn], outputs: Sequence[Output]
    ) -> Iterator[Diagnostic]:
        """Warn if mzplan can't write rows that swap values of another unique index (see Move._put)."""
        if not self._query.keys or not has_other_unique(self._connection, table, keys):
            return
        written = [column for output in outputs if (column := table.column(output.name))]
        why = why_not_replaceable(self._connection, table, written)
        if why:
            yield self._problem("MZ055.table-another", table=self._query.body["table"], why=why)


def _check_database(
    connection: Connection, query: ResolvedQuery, target: Mapping[str, Any] | None
) -> list[Diagnostic]:
    """Return the reasons why the sink can't continue in this database."""
    try:
        return compare_target(query, target, written_steps(connection, query))
    except psycopg.errors.InsufficientPrivilege:
        return []  # the privilege check reports it
    except OSError as problem:
        return [unreadable(query, problem)]


def explain(query: ResolvedQuery, problem: Exception) -> Diagnostic:
    """Return the diagnostic for an error of a server or a driver."""
    if is_lost(problem):
        return connect_problem(query, problem)
    return diagnose(query, "MZ050.postgresql-not", reason=reason(query, problem))
