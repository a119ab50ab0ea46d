"""SQL for people to read and run: the fixes in errors, and the output of `mzplan ddl`.

Names are quoted if necessary. No statement contains a value, so none reveals data or a secret.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mzplan.connectors.postgres.types import literal, shown
from mzplan.model.diagnostics import error
from mzplan.model.words import safe
from mzplan.secrets.references import references_in

TableName = tuple[str, str]
"""Schema and name."""


def table_sql(schema: str | None, name: str) -> str:
    """Format a table's name for people: `("public", "order")` → `public."order"`."""
    return f"{shown(schema)}.{shown(name)}" if schema else shown(name)


def grant(privileges: str, on: str, role: str) -> str:
    """Return a GRANT statement. `on` and `role` are already SQL."""
    return f"GRANT {privileges} ON {on} TO {role};"


def grant_on_schema(privileges: str, schema: str, role: str) -> str:
    """Return the statement that grants privileges on a schema, given by name."""
    return grant(privileges, f"SCHEMA {shown(schema)}", role)


def grant_on_database(privileges: str, database: str, role: str) -> str:
    """Return the statement that grants privileges on a database, given by name."""
    return grant(privileges, f"DATABASE {shown(database)}", role)


def allow_replication(role: str) -> str:
    """Return the statement that lets a role create replication slots."""
    return f"ALTER ROLE {role} REPLICATION;"


def create_publication(name: str, tables: Iterable[str]) -> str:
    """Return the statement that creates a source's publication. `tables` are already SQL."""
    listed = ", ".join(tables)
    return f"CREATE PUBLICATION {shown(name)} FOR TABLE {listed} WITH (publish_via_partition_root);"


def publish(name: str, tables: Sequence[TableName]) -> str:
    """Return a statement that creates a publication if necessary, and adds missing tables to it."""
    lines = [
        f"  IF NOT EXISTS (SELECT FROM pg_publication WHERE pubname = {_text(name)}) THEN",
        f"    {create_publication(name, [table_sql(*table) for table in tables])}",
        "  END IF;",
    ]
    for schema, table in tables:
        lines += [
            f"  IF NOT EXISTS (SELECT FROM pg_publication_tables WHERE pubname = {_text(name)}",
            f"                 AND schemaname = {_text(schema)} AND tablename = {_text(table)}) THEN",
            f"    ALTER PUBLICATION {shown(name)} ADD TABLE {table_sql(schema, table)};",
            "  END IF;",
        ]
    return _block(lines)


def with_encoding(statements: Sequence[str]) -> tuple[str, ...]:
    """Return the statements, and before them the statement that sets their encoding, if it matters.

    If psql reads a file, it assumes the encoding that the database sets, which may be LATIN1.
    """
    if all(statement.isascii() for statement in statements):
        return tuple(statements)
    return ("SET client_encoding = 'UTF8';", *statements)


def role_of(connection: Mapping[str, Any]) -> str:
    """Return the connection's role as SQL.

    Raises MzplanError MZ301 if the role is a secret, because only the query's process can resolve it.
    """
    user: str = connection["user"]
    for reference in references_in(user):
        raise error("MZ301.role-gets", reference=reference)
    return shown(user)


def psql_connect(connection: Mapping[str, Any]) -> str:
    """Return the psql command that connects to the connection's database. psql keeps its current user."""
    where = {name: str(connection[name]) for name in ("host", "port", "database")}
    where["dbname"] = where.pop("database")
    info = " ".join(f"{name}='{_escaped(value)}'" for name, value in where.items())
    # In psql, '' is a quote, and a backslash escapes the next character.
    text = info.replace("\\", "\\\\").replace("'", "''").replace("\n", "\\n").replace("\r", "\\r")
    return f"\\connect -reuse-previous=on '{text}'"


def _text(text: str) -> str:
    """Return a string constant that contains no control characters for a terminal."""
    if safe(text) == text:
        return literal(text)
    return "E'" + "".join(f"\\U{ord(c):08X}" if safe(c) != c or c in "\\'" else c for c in text) + "'"


def _escaped(value: str) -> str:
    """Escape a value inside quotes of a connection string."""
    return value.replace("\\", "\\\\").replace("'", "\\'")


def _block(lines: Sequence[str]) -> str:
    """Return PL/pgSQL statements as one SQL statement."""
    body = "\n".join(["BEGIN", *lines, "END"])
    tag = "mzplan"
    while f"${tag}$" in body:
        tag += "_"
    return f"DO ${tag}$\n{body}\n${tag}$;"
