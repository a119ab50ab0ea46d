"""The partitions of a source's tables. PostgreSQL sends no change when one is attached: rows that it brings
are to be read from it, as in a snapshot."""

from __future__ import annotations

from collections.abc import Mapping

import psycopg

from mzplan.connectors.postgres.tables import Connection
from mzplan.connectors.postgres.types import quoted

# Whether a partition, or one that it is a part of, was attached by a transaction after the one that made it;
# else which one that was, and by which of its commands it became a part. The catalogue's rows say it: those
# of a table's system columns are never changed.
_LEAVES = """
SELECT c.oid::bigint, n.nspname, c.relname, coalesce(pg_relation_size(c.oid), 0) > 0,
       coalesce(up.later, true), a.xmin::text, up.command
FROM pg_partition_tree(%(table)s) t JOIN pg_class c ON c.oid = t.relid
JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = -1
CROSS JOIN LATERAL (
  SELECT bool_or(age(i.xmin) < age(a.xmin)) AS later,
         max(i.cmin::text::bigint) FILTER (WHERE i.xmin = a.xmin) AS command
  FROM pg_partition_ancestors(c.oid) p JOIN pg_inherits i ON i.inhrelid = p.relid
  WHERE p.relid <> %(table)s AND p.relid IN (SELECT relid FROM pg_partition_tree(%(table)s))
) up
WHERE t.isleaf AND c.oid <> %(table)s ORDER BY 1
"""
_BEFORE = "WHERE ctid < '(8,0)' AND xmin = %s::xid AND cmin::text::bigint < %s"


class Leaves:
    """`known`: by the source's name of a table, the oids of its partitions whose rows are read, or come as
    changes. `attached`: those that came with rows of their own, perhaps, as (schema, name) by oid."""

    def __init__(self) -> None:
        self.known: dict[str, list[int]] = {}
        self.attached: dict[str, dict[int, tuple[str, str]]] = {}

    def look(self, connection: Connection, tables: Mapping[str, int], noted: Mapping[str, list[int]]) -> None:
        """See what came, to tables by oid, since the step that `noted` is of. Where it noted nothing, all
        that is there is known."""
        for name, table in tables.items():
            rows = connection.execute(_LEAVES, {"table": table}).fetchall()
            before = self.known.get(name, noted.get(name))
            new = {
                oid: (schema, leaf)
                for oid, schema, leaf, filled, *how in rows
                if before is not None and oid not in before and filled
                if _came_with_rows(connection, schema, leaf, *how)
            }
            self.known[name] = [oid for oid, *_ in rows if oid not in new]
            self.attached.pop(name, None)
            if new:
                self.attached[name] = new

    def take(self) -> dict[str, set[tuple[str, str]]]:
        """What was attached, by table. It is known from now on: who asks reads it in a snapshot that begins
        after it was seen."""
        taken, self.attached = self.attached, {}
        for name, leaves in taken.items():
            self.known[name] = sorted([*self.known[name], *leaves])
        return {name: set(leaves.values()) for name, leaves in taken.items()}


def _came_with_rows(
    connection: Connection, schema: str, leaf: str, later: bool, maker: str, command: int | None
) -> bool:
    """Whether a partition that has rows now may have had some before it was one: so not the common one, that
    is made as a partition."""
    if later or command is None:
        return True
    # Made and attached in one transaction, with rows between, which are its first ones.
    statement = f"SELECT EXISTS (SELECT 1 FROM ONLY {quoted(schema)}.{quoted(leaf)} {_BEFORE})"
    try:
        found = connection.execute(statement.encode(), (maker, command)).fetchone()
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedTable):
        return False
    return found is not None and bool(found[0])
