"""Tables of PostgreSQL, as the server's catalog describes them, for sources and sinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from mzplan.connectors.postgres.types import TargetColumn, quoted, split_name

Connection = psycopg.Connection[Any]

_COLUMNS = """
SELECT a.attname AS name, b.typname AS type, n.nspname AS type_schema, b.typcategory AS category,
       CASE WHEN a.atttypmod >= 0 THEN a.atttypmod ELSE b.typtypmod END AS typmod,
       format_type(a.atttypid, a.atttypmod) AS shown, b.typdelim::text AS delimiter,
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AS required,
       a.attgenerated = '' AND a.attidentity <> 'a' AS writable,
       EXISTS (SELECT FROM pg_index i
               WHERE i.indrelid = a.attrelid AND i.indisprimary AND a.attnum = ANY(i.indkey)) AS in_key,
       a.attnum AS number,
       array(SELECT ARRAY[e.oid::text, e.enumlabel::text] FROM pg_enum e
             WHERE e.enumtypid IN (b.oid, CASE WHEN b.typcategory = 'A' THEN b.typelem END) ORDER BY e.oid)
         AS labels
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
JOIN pg_namespace n ON n.oid = b.typnamespace
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""

_IN_PATH = (
    "n.nspname = ANY(current_schemas(true)) "
    "AND NOT (n.nspname = %(staging)s AND (c.relname IN ('writers', 'steps') OR c.relname LIKE 'stage\\_%%'))"
)

_INDEXES = """
SELECT array_agg(a.attname::text), i.indisprimary, i.indisreplident
FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey[0:i.indnkeyatts - 1]) AS k(attnum)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
  AND i.indexprs IS NULL
GROUP BY i.indexrelid, i.indisprimary, i.indisreplident
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """An existing table: its full name, and its columns in order.

    `takes_copy`: COPY has the same effect as INSERT. False for views, and with rules or row-level security.
    """

    oid: int
    schema: str
    name: str
    columns: tuple[TargetColumn, ...]
    takes_copy: bool

    @property
    def sql(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    def column(self, name: str) -> TargetColumn | None:
        """Return the column of that name, otherwise the only column whose name differs only in case."""
        exact = [c for c in self.columns if c.name == name]
        candidates = exact or [c for c in self.columns if c.name.lower() == name.lower()]
        return candidates[0] if len(candidates) == 1 else None


def find_table(connection: Connection, table: str, staging_schema: str = "") -> Table | None:
    """Return a table, or None. A table without a schema is searched in the search_path.

    `staging_schema`: the schema with mzplan's own tables. It is searched last, and mzplan's own tables in it
      are ignored.
    """
    schema, name = split_name(table)
    # Look it up in the catalog by name, because to_regclass fails without USAGE on the schema. The missing
    # privilege is reported later.
    condition = "n.nspname = %(schema)s" if schema else _IN_PATH
    entry = connection.execute(
        "SELECT c.oid, n.nspname, c.relname, "
        "c.relkind IN ('r', 'p') AND NOT c.relhasrules AND NOT c.relrowsecurity "
        "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        f"WHERE {condition} AND c.relname = %(name)s AND c.relkind IN ('r', 'p', 'v', 'f') "
        "ORDER BY n.nspname = %(staging)s, array_position(current_schemas(true), n.nspname) LIMIT 1",
        {"schema": schema, "name": name, "staging": staging_schema},
    ).fetchone()
    if entry is None:
        return None
    with connection.cursor(row_factory=dict_row) as cursor:
        columns = tuple(TargetColumn(**row) for row in cursor.execute(_COLUMNS, (entry[0],)))
    return Table(oid=entry[0], schema=entry[1], name=entry[2], columns=columns, takes_copy=entry[3])


def fetch_row(
    connection: Connection, statement: str, values: Sequence[Any] | Mapping[str, Any] | None = None
) -> Any:
    """Return the row of a query that always has one."""
    row = connection.execute(statement.encode(), values).fetchone()
    assert row is not None, "the query always has a row"
    return row


def unique_indexes(connection: Connection, oid: int) -> list[tuple[list[str], bool, bool]]:
    """Return the table's unique, immediate, non-partial indexes.

    Each is a tuple of its columns, whether it is the primary key, and whether it is the replica identity.
    """
    return connection.execute(_INDEXES, (oid,)).fetchall()
