"""A source's privileges and publication, derived from the description. mzplan creates the slot itself."""

from __future__ import annotations

from mzplan.connectors.api.connector import Ddl
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.postgres.problems import route
from mzplan.connectors.postgres.tables import (
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
from mzplan.connectors.postgres.types import split_name

_PUBLIC = "public"


def ddl(query: ResolvedQuery) -> Ddl:
    """Return the statements that let the role replicate the tables, which must exist.

    Raises MzplanError MZ301.
    """
    body, link = query.body, query.link.body
    role = role_of(link)
    named = [split_name(table) for table in body["tables"]]
    tables = [(schema or _PUBLIC, name) for schema, name in named]
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
