"""Checks all privileges that a sink will ever need, and returns a script that grants the missing ones.

Each statement of Writer, Ledger and Move is covered by one of these checks. If you add a statement to one of
these classes, add its check to this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from mzplan.connectors.api.outputs import target_outputs
from mzplan.connectors.api.queries import Output, ResolvedQuery, empties_target
from mzplan.connectors.postgres.definition import deletes_rows, key_of, table_privileges
from mzplan.connectors.postgres.identity import Check, written_steps
from mzplan.connectors.postgres.sink.staging import can_copy_straight, staging_shape
from mzplan.connectors.postgres.sink.writer import writer_of
from mzplan.connectors.postgres.statements import grant, grant_on_database, grant_on_schema, table_sql
from mzplan.connectors.postgres.tables import Connection, Table
from mzplan.connectors.postgres.types import TargetColumn, shown, split_name
from mzplan.model.diagnostics import Diagnostic
from mzplan.schema.target_writes import (
    keeps_history,
    writes_difference,
    writes_generation_difference,
)

# Privileges on mzplan's own tables. Ledger.note updates rows in `steps`.
_LEDGER_PRIVILEGES = {
    "writers": ("SELECT", "INSERT", "UPDATE"),
    "steps": ("SELECT", "INSERT", "UPDATE", "DELETE"),
}
_STAGING_PRIVILEGES = ("SELECT", "INSERT", "DELETE", "TRUNCATE")

_SCHEMA = """
SELECT current_database(), has_database_privilege(current_database(), 'CREATE'), n.oid IS NOT NULL,
       has_schema_privilege(n.oid, 'USAGE') AND has_schema_privilege(n.oid, 'CREATE')
FROM (VALUES (%(schema)s::text)) AS wanted (name) LEFT JOIN pg_namespace n ON n.nspname = wanted.name
"""
_OWNS = "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = %s"
# Looked up in the catalog by name, because to_regclass fails without USAGE on the schema.
_TABLE = """
SELECT pg_has_role(c.relowner, 'USAGE'), pg_get_userbyid(c.relowner)::text,
       ARRAY(SELECT p FROM unnest(%(wanted)s::text[]) AS p WHERE NOT has_table_privilege(c.oid, p)),
       ARRAY(SELECT ARRAY[a.attname::text, format_type(a.atttypid, a.atttypmod)] FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relname = %(name)s
"""
# Sequences for columns that the sink doesn't write. Identity columns need no privilege. The CASE is
# necessary, because the function fails for other relations and PostgreSQL may reorder conditions.
_SEQUENCES = """
SELECT n.nspname::text, s.relname::text FROM pg_attrdef d
JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
JOIN pg_depend p ON p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid
JOIN pg_class s ON p.refclassid = 'pg_class'::regclass AND s.oid = p.refobjid
JOIN pg_namespace n ON n.oid = s.relnamespace
WHERE d.adrelid = %s AND a.attname <> ALL(%s)
  AND CASE WHEN s.relkind = 'S' THEN NOT has_sequence_privilege(s.oid, 'USAGE, UPDATE') ELSE false END
"""


class PrivilegeCheck(Check):
    """Finds the privileges that a sink's role is missing."""

    def __init__(self, connection: Connection, query: ResolvedQuery):
        super().__init__(connection, query)
        self._staging: str = query.body["staging_schema"]
        self._missing: list[str] = []
        self._script: list[str] = []

    def problem(
        self,
        table: Table | None,
        outputs: Sequence[Output],
        statements: Sequence[str] = (),
        schema: str | None = None,
    ) -> Diagnostic | None:
        """Return MZ054 with everything that is missing, or None.

        `table`: the sink's table, if it exists.
        `statements`: the statements with which the sink creates missing objects.
        `schema`: where it creates the table, if the table's name has no schema.
        """
        if statements:
            self._check_creation(table, statements, schema)
        if table is not None:
            written = target_outputs(self._query, outputs)
            self._check_target(table, [c for output in written if (c := table.column(output.name))])
        if self._check_staging_schema():
            for name, wanted in _LEDGER_PRIVILEGES.items():
                self._check_ledger_table(name, wanted)
            if table is not None:
                self._check_staging_table(table, outputs)
        if not self._missing:
            return None
        return self._problem(
            "MZ054.missing-privilege",
            user=self._query.link.body["user"],
            missing="; ".join(self._missing),
            script="\n".join(self._script),
        )

    def _add_missing(self, privilege: str, *script: str) -> None:
        self._missing.append(privilege)
        self._script += script

    def _check_target(self, table: Table, columns: Sequence[TargetColumn]) -> None:
        for schema in dict.fromkeys([table.schema, *(column.type_schema for column in columns)]):
            if not self._is_granted("has_schema_privilege(%s, 'USAGE')", schema):
                self._add_missing(f"USAGE on schema {schema}", grant_on_schema("USAGE", schema, self._role))
        names = [column.name for column in columns]
        granted = "coalesce(bool_and(has_column_privilege(%s, c, %s)), true) FROM unnest(%s::text[]) AS c"
        wanted = table_privileges(self._query)
        missing = [
            privilege for privilege in wanted if not self._is_granted(granted, table.oid, privilege, names)
        ]
        # A row that is deleted from the collection is also deleted from the table.
        description = self._query.description
        deletes_former = (
            empties_target(self._query)
            or (writes_difference(description) and not keeps_history(self._query.body))
            or writes_generation_difference(description)
        )
        needs_delete = deletes_rows(self._query) or (deletes_former and not self._is_registered())
        if needs_delete and not self._is_granted("has_table_privilege(%s, 'DELETE')", table.oid):
            missing.append("DELETE")
        if missing:
            privileges, name = ", ".join(missing), table_sql(table.schema, table.name)
            self._add_missing(f"{privileges} on table {table.name}", grant(privileges, name, self._role))
        for schema, name in self._rows(_SEQUENCES, (table.oid, names)):
            granted = grant("USAGE", f"SEQUENCE {table_sql(schema, name)}", self._role)
            self._add_missing(f"USAGE on sequence {name}, which fills a column by default", granted)

    def _check_creation(self, table: Table | None, statements: Sequence[str], schema: str | None) -> None:
        """Check the privileges for CREATE TABLE (on the schema) or for adding columns (ownership)."""
        if table is not None:
            if not self._row(_OWNS, (table.oid,))[0]:
                sql = table_sql(table.schema, table.name)
                owner = f"-- or: ALTER TABLE {sql} OWNER TO {self._role};"
                self._add_missing(f"ownership of table {table.name}, to add columns", *statements, owner)
            return
        name = split_name(self._query.body["table"])[0] or schema or ""
        _, _, exists, may_use = self._row(_SCHEMA, {"schema": name})
        granted = grant_on_schema("USAGE, CREATE", name, self._role)
        if not exists:
            self._add_missing(f"schema {name}, which is missing", f"CREATE SCHEMA {shown(name)};", granted)
        elif not may_use:
            self._add_missing(f"USAGE and CREATE on schema {name}", granted)

    def _is_registered(self) -> bool:
        try:
            return written_steps(self._connection, self._query) is not None
        except psycopg.errors.InsufficientPrivilege:
            return False

    def _check_staging_schema(self) -> bool:
        """Check the staging schema's privileges, and return whether the schema exists."""
        schema, role = shown(self._staging), self._role
        database, may_create, exists, may_use = self._row(_SCHEMA, {"schema": self._staging})
        if not exists and not may_create:
            self._add_missing(
                f"CREATE on the database, because the staging schema {self._staging} is missing",
                grant_on_database("CREATE", database, role),
                f"-- or: CREATE SCHEMA {schema} AUTHORIZATION {role};",
            )
        if exists and not may_use:
            granted = grant_on_schema("USAGE, CREATE", self._staging, role)
            self._add_missing(f"USAGE and CREATE on the staging schema {self._staging}", granted)
        return bool(exists)

    def _check_ledger_table(self, name: str, wanted: Sequence[str]) -> None:
        row = self._find_table(name, wanted)
        if row is None:
            return  # the role will create it, and then own it
        _, _, missing, _ = row
        if missing:
            sql, privileges = self._sql(name), ", ".join(missing)
            self._add_missing(f"{privileges} on {sql}", grant(privileges, sql, self._role))

    def _check_staging_table(self, table: Table, outputs: Sequence[Output]) -> None:
        """Check an existing staging table. It may belong to the connection's previous user.

        If its columns change, it must be recreated, which only its owner can do.
        """
        name = writer_of(self._query).stage
        targets = [table.column(output.name) for output in outputs]
        known_targets = [target for target in targets if target is not None]
        keys = key_of(self._query)
        if len(known_targets) < len(outputs) or can_copy_straight(table, outputs, known_targets, keys):
            return
        row = self._find_table(name, _STAGING_PRIVILEGES)
        if row is None:
            return
        is_owner, owner, missing, columns = row
        staged = [(column, type_) for column, type_ in columns if column.startswith("c")]
        shape_fits = _shape_fits(outputs, staging_shape(outputs, known_targets, ()), staged)
        if is_owner or (shape_fits and not missing):
            return
        sql = self._sql(name)
        self._add_missing(
            f"ownership of {sql}, which belongs to {owner}",
            f"ALTER TABLE {sql} OWNER TO {self._role};",
            grant(", ".join(_STAGING_PRIVILEGES), sql, shown(owner)) + "  -- which may still be writing",
        )

    def _find_table(self, name: str, wanted: Sequence[str]) -> Any:
        rows = self._rows(_TABLE, {"schema": self._staging, "name": name, "wanted": list(wanted)})
        return rows[0] if rows else None

    def _sql(self, name: str) -> str:
        return f"{shown(self._staging)}.{shown(name)}"


def _shape_fits(
    outputs: Sequence[Output], wanted: Sequence[tuple[str, str]], existing: Sequence[tuple[str, str]]
) -> bool:
    """Return whether a staging table has the wanted columns. Types that only Spark knows count as equal."""
    if len(wanted) != len(existing):
        return False
    pairs = zip(outputs, wanted, existing, strict=True)
    return all(output.type is None or expected == actual for output, expected, actual in pairs)
