"""SQL for people to read and run: what an error prints as its fix, and `mzplan ddl` before there is one.

Names are quoted where they must be. Nothing here is made of anything but names, types and words of SQL.
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
    """`("public", "order")` → `public."order"`."""
    return f"{shown(schema)}.{shown(name)}" if schema else shown(name)


def grant(privileges: str, on: str, role: str) -> str:
    """The statement that grants privileges; `on` and `role` are given as they stand in SQL."""
    return f"GRANT {privileges} ON {on} TO {role};"


def grant_on_schema(privileges: str, schema: str, role: str) -> str:
    """The statement that grants privileges on a schema, given by its name."""
    return grant(privileges, f"SCHEMA {shown(schema)}", role)


def grant_on_database(privileges: str, database: str, role: str) -> str:
    """The statement that grants privileges on a database, given by its name."""
    return grant(privileges, f"DATABASE {shown(database)}", role)


def allow_replication(role: str) -> str:
    """For a role that makes a replication slot."""
    return f"ALTER ROLE {role} REPLICATION;"


def create_publication(name: str, tables: Iterable[str]) -> str:
    """A publication as a source needs it, of tables as they stand in SQL."""
    listed = ", ".join(tables)
    return f"CREATE PUBLICATION {shown(name)} FOR TABLE {listed} WITH (publish_via_partition_root);"


def publish(name: str, tables: Sequence[TableName]) -> str:
    """One statement that makes a publication where it is missing, and adds the tables that it lacks."""
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


def role_of(connection: Mapping[str, Any]) -> str:
    """The role of a connection, as it stands in SQL. Raises MzplanError MZ301 where only what runs the query
    knows it."""
    user: str = connection["user"]
    for reference in references_in(user):
        raise error(
            "MZ301",
            "The role to grant to is not known here",
            f"user is the secret reference {reference}, which only what runs the query resolves.",
            "write the name of the role out as `user`, or as ${var.NAME}: it is not a secret.",
        )
    return shown(user)


def psql_connect(connection: Mapping[str, Any]) -> str:
    """What leads psql to the database of a connection, as the user that it has."""
    where = {name: str(connection[name]) for name in ("host", "port", "database")}
    where["dbname"] = where.pop("database")
    info = " ".join(f"{name}='{_escaped(value)}'" for name, value in where.items())
    # Of psql: '' is a quote, and a backslash takes the next character as it is.
    text = info.replace("\\", "\\\\").replace("'", "''").replace("\n", "\\n").replace("\r", "\\r")
    return f"\\connect -reuse-previous=on '{text}'"


def _text(text: str) -> str:
    """A string constant, with nothing in it that a terminal would take for a command."""
    if safe(text) == text:
        return literal(text)
    return "E'" + "".join(f"\\U{ord(c):08X}" if safe(c) != c or c in "\\'" else c for c in text) + "'"


def _escaped(value: str) -> str:
    """Within quotes of a connection string."""
    return value.replace("\\", "\\\\").replace("'", "\\'")


def _block(lines: Sequence[str]) -> str:
    """Statements of PL/pgSQL as one statement of SQL."""
    body = "\n".join(["BEGIN", *lines, "END"])
    tag = "mzplan"
    while f"${tag}$" in body:
        tag += "_"
    return f"DO ${tag}$\n{body}\n${tag}$;"
