"""What a source or sink needs on its server, derived from the description alone: a sink's table, privileges,
a publication. mzplan creates a source's slot itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from mzplan.connectors.api.connector import Ddl
from mzplan.connectors.api.outputs import target_outputs
from mzplan.connectors.api.queries import Output, ResolvedQuery
from mzplan.connectors.postgres.problems import route
from mzplan.connectors.postgres.statements import (
    allow_replication,
    grant,
    grant_on_database,
    grant_on_schema,
    psql_connect,
    publish,
    role_of,
    table_sql,
    with_encoding,
)
from mzplan.connectors.postgres.types import created_type, shown, split_name
from mzplan.model.diagnostics import error
from mzplan.schema.target_writes import DIFFERENCE, VALID_FROM, keeps_history, may_compare_generations

# The schema of a new table whose name has no schema, with PostgreSQL's default search path.
PUBLIC = "public"


def key_of(query: ResolvedQuery) -> list[str]:
    """Return the columns that identify a row of the collection. Empty for an append."""
    return list(query.body.get("key", ())) if query.body["mode"] != "append" else []


def primary_key_of(query: ResolvedQuery) -> list[str]:
    """Return the columns by which a sink finds its rows in the table. Empty for an append."""
    return [*key_of(query), *([VALID_FROM] if keeps_history(query.body) else [])]


def shown_table(query: ResolvedQuery) -> str:
    """Return the sink's table for a statement that a person reads."""
    return table_sql(*split_name(query.body["table"]))


def create_table(query: ResolvedQuery, outputs: Sequence[Output], schema: str | None = None) -> str:
    """Return the CREATE TABLE statement for the sink's table.

    `...` stands for a type that only Spark knows. `schema` is used if the table's name has none.
    """
    name = f"{shown(schema)}.{shown_table(query)}" if schema else shown_table(query)
    return f"CREATE TABLE {name} {columns_sql(query, outputs)};"


def columns_sql(query: ResolvedQuery, outputs: Sequence[Output]) -> str:
    """Return the columns and the key, in parentheses."""
    keys = primary_key_of(query)
    lines = [f"  {column_sql(output)}" for output in target_outputs(query, outputs)]
    if keys:
        lines.append(f"  PRIMARY KEY ({', '.join(map(shown, keys))})")
    body = ",\n".join(lines)
    return f"(\n{body}\n)"


def column_sql(output: Output) -> str:
    """Return one column's definition. `...` stands for a type that only Spark knows."""
    return f"{shown(output.name)} {created_type(output.type) if output.type else '...'}"


def deletes_rows(query: ResolvedQuery) -> bool:
    """Return whether a sink deletes the rows that are deleted from its collection."""
    return bool(query.keys) and not keeps_history(query.body)


def table_privileges(query: ResolvedQuery) -> list[str]:
    """Return the privileges that a sink needs on its table's columns."""
    return ["INSERT", "SELECT", "UPDATE"] if key_of(query) else ["INSERT"]


def sink_ddl(query: ResolvedQuery, outputs: Sequence[Output]) -> Ddl:
    """Return the statements that create the table and grant all privileges that the role may need.

    Raises MzplanError MZ301 for a column whose type only Spark knows, and for an unknown role.
    """
    unknown = [output.name for output in outputs if output.type is None]
    if unknown and not query.body["create"]:
        raise error("MZ301.table-cannot", address=query.address, unknown=unknown)
    role, staging = role_of(query.link.body), query.body["staging_schema"]
    schema_in_name, name = split_name(query.body["table"])
    schema = schema_in_name or PUBLIC
    table, privileges = table_sql(schema, name), table_privileges(query)
    # A later replace may empty the table, or delete rows of other keys.
    emptied = ("truncate",) if keeps_history(query.body) else ("truncate", DIFFERENCE)
    deletes_former = query.body.get("on_replace") in emptied or may_compare_generations(query.description)
    if deletes_rows(query) or deletes_former:
        privileges.append("DELETE")
    statements = [] if schema == PUBLIC else [f"CREATE SCHEMA IF NOT EXISTS {shown(schema)};"]
    if query.body["create"]:
        # The role must create the table itself, because only an owner can add columns.
        statements.append(grant_on_schema("USAGE, CREATE", schema, role))
    else:
        statements += [
            f"CREATE TABLE IF NOT EXISTS {table} {columns_sql(query, outputs)};",
            grant_on_schema("USAGE", schema, role),
            grant(", ".join(privileges), table, role),
        ]
    statements += [
        f"CREATE SCHEMA IF NOT EXISTS {shown(staging)};",
        grant_on_schema("USAGE, CREATE", staging, role),
    ]
    notes = (f"The sink creates {table} itself (create: true).",) if query.body["create"] else ()
    return Ddl(
        place=route(query.link),
        enter=psql_connect(query.link.body),
        statements=with_encoding(statements),
        notes=notes,
    )


def source_ddl(query: ResolvedQuery) -> Ddl:
    """Return the statements that let the role replicate the tables, which must exist.

    Raises MzplanError MZ301.
    """
    body, link = query.body, query.link.body
    role = role_of(link)
    named = [split_name(table) for table in body["tables"]]
    tables = [(schema or PUBLIC, name) for schema, name in named]
    statements = [allow_replication(role)]
    statements += [
        grant_on_schema("USAGE", schema, role) for schema in dict.fromkeys(schema for schema, _ in tables)
    ]
    statements += [grant("SELECT", table_sql(*table), role) for table in tables]
    notes: list[str] = []
    if (publication := body.get("publication")) is not None:
        statements.append(publish(publication, tables))
    else:
        statements.append(grant_on_database("CREATE", link["database"], role))
        listed = ", ".join(table_sql(*table) for table in tables)
        notes.append(
            f"{role} creates the publication, so it must own {listed}; or name one in the source "
            "(publication: mzplan), and this script adds it."
        )
    return Ddl(
        place=route(query.link),
        enter=psql_connect(link),
        statements=with_encoding(statements),
        notes=tuple(notes),
    )
