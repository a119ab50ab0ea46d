"""The partitions of a source's tables. PostgreSQL sends no change when one is attached: rows that it brings
are to be read from it, as in a snapshot."""

from __future__ import annotations

from collections.abc import Mapping

from mzplan.connectors.postgres_target import Connection

_LEAVES = """
SELECT c.oid::bigint, n.nspname, c.relname, coalesce(pg_relation_size(c.oid), 0) > 0
FROM pg_partition_tree(%s) t JOIN pg_class c ON c.oid = t.relid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE t.isleaf ORDER BY 1
"""


class Leaves:
    """`known`: by the source's name of a table, the oids of its partitions whose rows are read, or come as
    changes; one that was empty when it was seen first is. `attached`: those that were not, as (schema,
    name) by oid."""

    def __init__(self) -> None:
        self.known: dict[str, list[int]] = {}
        self.attached: dict[str, dict[int, tuple[str, str]]] = {}

    def look(self, connection: Connection, tables: Mapping[str, int], noted: Mapping[str, list[int]]) -> None:
        """See what came, to tables by oid, since the step that `noted` is of. Where it noted nothing, all
        that is there is known."""
        for name, table in tables.items():
            rows = connection.execute(_LEAVES, (table,)).fetchall()
            before = self.known.get(name, noted.get(name))
            new = {oid: (schema, leaf) for oid, schema, leaf, filled in rows if filled and before is not None}
            for oid in before or ():
                new.pop(oid, None)
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
