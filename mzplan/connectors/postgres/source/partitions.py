"""Finds attached partitions of a PostgreSQL source's tables, because they may already have rows."""

from __future__ import annotations

from collections.abc import Mapping

import psycopg

from mzplan.connectors.postgres.tables import Connection, fetch_row
from mzplan.connectors.postgres.types import quoted

# For each partition: whether it, or a parent, was attached by a later transaction than the transaction that
# created it. If not, also that transaction, and the number of its command that attached the partition. The
# catalog's rows of a table's system columns reveal this, because they never change.
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


class LeafPartitions:
    """Tracks partitions (leaf tables), by the name of the source's table.

    - `known`: oids of partitions whose rows have been read or arrive as changes.
    - `attached`: new partitions that may have had rows when they were attached, as {oid: (schema, name)}.
    """

    def __init__(self) -> None:
        self.known: dict[str, list[int]] = {}
        self.attached: dict[str, dict[int, tuple[str, str]]] = {}

    def find_attached(
        self, connection: Connection, tables: Mapping[str, int], recorded: Mapping[str, list[int]]
    ) -> None:
        """Find partitions that were added to tables (given by oid).

        `recorded`: the partitions' oids in a step's note. For a table that isn't recorded, all current
          partitions count as known.
        """
        for name, table in tables.items():
            rows = connection.execute(_LEAVES, {"table": table}).fetchall()
            before = self.known.get(name, recorded.get(name))
            new = {
                oid: (schema, leaf)
                for oid, schema, leaf, has_rows, *attachment in rows
                if before is not None and oid not in before and has_rows
                if _may_have_brought_rows(connection, schema, leaf, *attachment)
            }
            self.known[name] = [oid for oid, *_ in rows if oid not in new]
            self.attached.pop(name, None)
            if new:
                self.attached[name] = new

    def take_attached(self) -> dict[str, set[tuple[str, str]]]:
        """Return the attached partitions by table. They count as known from now on.

        The caller must read them in a snapshot that begins later.
        """
        attached, self.attached = self.attached, {}
        for name, leaves in attached.items():
            self.known[name] = sorted([*self.known[name], *leaves])
        return {name: set(leaves.values()) for name, leaves in attached.items()}


def _may_have_brought_rows(
    connection: Connection, schema: str, leaf: str, later: bool, creator: str, command: int | None
) -> bool:
    """Return whether a partition may have had rows before it was attached.

    Returns False in the usual case, a table created as a partition.
    """
    if later or command is None:
        return True
    # Created and attached in one transaction. Rows inserted in between would be the first rows of its file.
    statement = f"SELECT EXISTS (SELECT 1 FROM ONLY {quoted(schema)}.{quoted(leaf)} {_BEFORE})"
    try:
        return bool(fetch_row(connection, statement, (creator, command))[0])
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedTable):
        return False
