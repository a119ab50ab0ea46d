"""The tables of a database, as sources."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from mzplan.connectors.api.offers import Offer, declared
from mzplan.connectors.api.probes import PROBE_TIMEOUT_S, with_time_limit
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.postgres.client import connect, open_conninfo, probe_timeout_s
from mzplan.connectors.postgres.problems import connect_problem
from mzplan.connectors.postgres.source.values import wanted_types
from mzplan.connectors.postgres.statements import table_sql
from mzplan.connectors.postgres.tables import Connection, find_table, unique_indexes
from mzplan.model.diagnostics import MzplanError
from mzplan.schema.columns import Column

# Tables that this role may read, except partitions, the tables of extensions, and mzplan's own.
_TABLES = """
SELECT n.nspname::text, c.relname::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
  AND n.nspname !~ '^(pg_|information_schema$|mzplan)'
  AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')
ORDER BY 1, 2
"""
_GENERATED = (
    "SELECT attname::text FROM pg_attribute WHERE attrelid = %s AND attgenerated <> '' ORDER BY attnum"
)


def offers(query: ResolvedQuery) -> Sequence[Offer]:
    """Return the tables that the connection's role may read. Raises MzplanError for the server's errors."""
    with open_conninfo(query) as info:
        seconds = probe_timeout_s(query)
        try:
            return with_time_limit(lambda: _listed(info, seconds), seconds)
        except (psycopg.Error, TimeoutError, OSError) as problem:
            raise MzplanError(connect_problem(query, problem)) from None


def _listed(info: str, seconds: float) -> list[Offer]:
    with connect(info, PROBE_TIMEOUT_S, seconds) as connection:
        names = connection.execute(_TABLES.encode()).fetchall()
        return [_offer(connection, schema, name) for schema, name in names]


def _offer(connection: Connection, schema: str, name: str) -> Offer:
    shown = table_sql(schema, name)
    object_ = name if schema == "public" else f"{schema}.{name}"
    table = find_table(connection, shown)
    assert table is not None, "it is listed"
    generated = [column for (column,) in connection.execute(_GENERATED.encode(), (table.oid,)).fetchall()]
    columns = [Column(c.name, wanted_types(c)) for c in table.columns if c.name not in generated]
    indexes = sorted(unique_indexes(connection, table.oid), key=lambda index: (not index[1], len(index[0])))
    keys = next((key for key, _, _ in indexes if not set(key) & set(generated)), None)
    if keys is None:
        note = "It has no primary key or unique index, which a source needs to follow changes."
        return Offer(object=object_, body={}, notes=(note,))
    notes = [f"Left out, because PostgreSQL doesn't log generated columns: {', '.join(generated)}."]
    body = {"tables": [shown], "schema": declared(columns), "key": list(keys)}
    return Offer(object=object_, body=body, notes=tuple(notes if generated else ()))
