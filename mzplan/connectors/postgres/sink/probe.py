"""Whether a PostgreSQL server lets a sink write: table, columns, privileges, unique index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg

from mzplan.connectors.api.outputs import never_null_outputs
from mzplan.connectors.api.protocols import Output, Probe, ResolvedQuery
from mzplan.connectors.api.target_change import unreadable
from mzplan.connectors.postgres.identity import compare_target, identify, written
from mzplan.connectors.postgres.probe import Check, ServerProbe
from mzplan.connectors.postgres.problems import connect_problem, diagnose, is_lost, reason
from mzplan.connectors.postgres.sink.staging import has_other_unique, kept_whole
from mzplan.connectors.postgres.tables import Connection, Table, find_table, split_name, unique_indexes
from mzplan.connectors.postgres.types import TargetColumn, created_type, fit, shown, why_not
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
_NULLABLE = """
SELECT a.attname::text FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s AND a.attname = ANY(%s) AND NOT a.attnotnull AND NOT t.typnotnull ORDER BY a.attnum
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


def key_of(query: ResolvedQuery) -> list[str]:
    """The columns by which a sink finds its rows; none where it only adds them."""
    return list(query.body.get("key", ())) if query.body["mode"] == "upsert" else []


def shown_table(query: ResolvedQuery) -> str:
    """The sink's table, for a statement that a person reads."""
    schema, name = split_name(query.body["table"])
    return f"{shown(schema)}.{shown(name)}" if schema else shown(name)


# ── what the role may do


class _TargetCheck(Check):
    """What stands in the way of writing to the table, and to mzplan's own."""

    def problems(self, outputs: Sequence[Output]) -> Iterator[Diagnostic]:
        table = find_table(self._connection, self._query.body["table"])
        yield from check_table(self._query, table, outputs)
        if table is not None:
            yield from self._privileges(table, outputs)
            yield from _KeyCheck(self._connection, self._query).problems(table, outputs)
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


# ── the key, and the database


class _KeyCheck(Check):
    """Whether a sink's key finds the rows of its table."""

    def problems(self, table: Table, outputs: Sequence[Output]) -> Iterator[Diagnostic]:
        """MZ055, MZ217, MZ218: the key has a unique index and no NULL, and nothing else is unique."""
        keys = key_of(self._query)
        columns = [column for key in keys if (column := table.column(key)) is not None]
        if not keys or len(columns) < len(keys):
            return
        wanted = sorted(column.name for column in columns)
        never_null = {name.lower() for name in never_null_outputs(self._query)}
        nullable = [name for (name,) in self._rows(_NULLABLE, (table.oid, wanted))]
        nullable = [name for name in nullable if name.lower() not in never_null]
        sql = shown_table(self._query)
        mended = [f"ALTER TABLE {sql} ALTER COLUMN {shown(name)} SET NOT NULL;" for name in nullable]
        indexes = unique_indexes(self._connection, table.oid)
        if not any(sorted(names) == wanted for names, _, _ in indexes):
            listed = ", ".join(shown(column.name) for column in columns)
            yield self._problem(
                "MZ055",
                f"Table {self._query.body['table']} has no unique index on the key",
                f"upsert by ({', '.join(keys)}) needs a unique index or primary key on exactly these columns "
                "(not partial, not deferrable).",
                "\n".join([f"CREATE UNIQUE INDEX ON {sql} ({listed});", *mended]),
            )
            return
        if nullable:
            yield self._null_key(nullable, mended)
        yield from self._other_unique(table, columns, outputs)

    def _null_key(self, nullable: Sequence[str], mended: Sequence[str]) -> Diagnostic:
        """In SQL, no NULL equals another one: not for a unique index, and not for a DELETE."""
        deleted = ", and a delete would do nothing." if self._query.keys else "."
        left_out = " AND ".join(f"{name} IS NOT NULL" for name in nullable)
        return self._problem(
            "MZ217",
            f"Table {self._query.body['table']} allows NULL in the key",
            f"{', '.join(nullable)} may be NULL there, and in what {self._query.address} writes. No row is "
            f"found by a key with NULL in it: an update would add another row{deleted}",
            "\n".join([*mended, f"-- and let `where` leave such rows out: {left_out}"]),
            severity="error" if self._query.keys else "warning",
        )

    def _other_unique(
        self, table: Table, keys: Sequence[TargetColumn], outputs: Sequence[Output]
    ) -> Iterator[Diagnostic]:
        """Below a keyed collection, rows may swap what is unique beside the key (see Move)."""
        if not self._query.keys or not has_other_unique(self._connection, table, keys):
            return
        written = [column for output in outputs if (column := table.column(output.name))]
        why = kept_whole(self._connection, table, written)
        if why:
            yield self._problem(
                "MZ218",
                f"Table {self._query.body['table']} has another unique index beside the key",
                "when rows hand on such a value among each other, and a micro-batch sees only the end of "
                "that, they would have to be deleted and inserted anew. Here they can't be: "
                f"{why}. Such a batch fails.",
                "drop that index, or make it an index that is not unique.",
                severity="warning",
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
