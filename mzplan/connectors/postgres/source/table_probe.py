"""Checks whether a source can read a table: its kind, privileges, columns, and replica identity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.postgres.identity import Check
from mzplan.connectors.postgres.source.slots import own_columns, own_key
from mzplan.connectors.postgres.source.upstream_problems import HIDDEN_ROWS
from mzplan.connectors.postgres.source.values import is_readable, wanted_types
from mzplan.connectors.postgres.statements import grant, grant_on_schema, table_sql
from mzplan.connectors.postgres.tables import Connection, Table, unique_indexes
from mzplan.connectors.postgres.types import TargetColumn, quoted, shown
from mzplan.model.diagnostics import Diagnostic

_TABLE = """
SELECT c.relkind::text, c.relpersistence::text, c.relreplident::text,
       EXISTS (SELECT 1 FROM pg_class l LEFT JOIN pg_partition_tree(c.oid) t ON t.relid = l.oid
               WHERE (l.oid = c.oid OR t.relid IS NOT NULL) AND l.reltoastrelid <> 0),
       has_schema_privilege(c.relnamespace, 'USAGE'),
       array(SELECT p.oid::regclass::text
             FROM pg_class p LEFT JOIN pg_partition_tree(c.oid) t ON t.relid = p.oid
             WHERE (p.oid = c.oid OR t.isleaf) AND p.relkind = 'r' AND row_security_active(p.oid) ORDER BY 1)
FROM pg_class c WHERE c.oid = %s
"""
_LEAVES = """
SELECT c.oid, quote_ident(n.nspname) || '.' || quote_ident(c.relname), c.relreplident::text,
       has_table_privilege(c.oid, 'SELECT'), has_schema_privilege(n.oid, 'USAGE'), quote_ident(n.nspname)
FROM pg_partition_tree(%(oid)s) t JOIN pg_class c ON c.oid = t.relid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE t.isleaf AND c.oid <> %(oid)s ORDER BY 2
"""
_CHILDREN = """
SELECT array(SELECT i.inhrelid::regclass::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhparent
             WHERE i.inhparent = %s AND c.relkind = 'r' ORDER BY 1)
"""
_LARGE = """
SELECT attname::text FROM pg_attribute
WHERE attrelid = ANY(%s) AND attnum > 0 AND NOT attisdropped AND attlen = -1 AND attstorage <> 'p'
"""


class TableCheck(Check):
    """Finds the problems of reading one table of a source."""

    def __init__(self, connection: Connection, query: ResolvedQuery):
        super().__init__(connection, query)
        self._columns, self._key = own_columns(query), own_key(query)

    def problems(self, name: str, table: Table) -> Iterator[Diagnostic]:
        """Yield all problems of a table. Raises psycopg.Error."""
        kind, persistence, identity, toasted, usable, hidden = self._row(_TABLE, (table.oid,))
        if kind not in ("r", "p") or persistence != "p":
            kind_text = {"v": "a view", "m": "a materialised view", "f": "a foreign table"}.get(
                kind, "not logged"
            )
            yield self._problem("MZ233.cannot-replicated", name=name, kind_text=kind_text)
            return
        leaves = self._leaves(table)
        yield from self._readable(name, table, usable, leaves)
        if hidden:
            yield HIDDEN_ROWS.diagnostic(self._query, what=f"{', '.join(hidden)} has row-level security")
        yield from self._children(name, table)
        yield from self._types(name, table)
        yield from self._identity(name, table, identity, leaves)
        if toasted:
            yield from self._large(name, table, identity, leaves)

    def _children(self, name: str, table: Table) -> Iterator[Diagnostic]:
        children = self._row(_CHILDREN, (table.oid,))[0]
        if children:
            yield self._problem("MZ233.rows-tables", name=name, children=children)

    def _leaves(self, table: Table) -> Sequence[_Leaf]:
        """Return the partitions that hold the table's rows.

        They need checks of their own. PostgreSQL logs each partition's rows with the replica identity of the
        partition, and a snapshot reads each partition by itself.
        """
        return [_Leaf(*row) for row in self._rows(_LEAVES, {"oid": table.oid})]

    def _readable(
        self, name: str, table: Table, usable: bool, leaves: Sequence[_Leaf]
    ) -> Iterator[Diagnostic]:
        grants = []
        if not usable:
            grants.append(grant_on_schema("USAGE", table.schema, self._role))
        if not self._is_granted("has_table_privilege(%s, 'SELECT')", table.oid):
            grants.append(grant("SELECT", table_sql(table.schema, table.name), self._role))
        for schema in sorted({leaf.schema for leaf in leaves if not leaf.usable} - {quoted(table.schema)}):
            grants.append(grant("USAGE", f"SCHEMA {schema}", self._role))
        unreadable = [leaf.sql for leaf in leaves if not leaf.readable]
        if unreadable:
            grants.append(grant("SELECT", ", ".join(unreadable), self._role))
        if grants:
            parts = f" on the partitions {', '.join(unreadable)}" if unreadable else ""
            yield self._problem(
                "MZ054.cannot-read",
                name=name,
                user=self._query.link.body["user"],
                parts=parts,
                grants=" ".join(grants),
            )

    def _types(self, name: str, table: Table) -> Iterator[Diagnostic]:
        wrong = []
        for column in self._columns:
            actual = table.column(column.name)
            if actual is None:
                wrong.append(f"it has no column {column.name}")
            elif not actual.writable and self._is_generated(table, actual):
                wrong.append(f"{column.name} is generated, so it is not in the log")
            elif not is_readable(column.type, actual):
                wrong.append(
                    f"{column.name} is {actual.shown}, not {column.type}; "
                    f"declare it as {wanted_types(actual)}"
                )
        if wrong:
            yield self._problem("MZ230.table-not-columns", name=name, wrong="; ".join(wrong))

    def _is_generated(self, table: Table, column: TargetColumn) -> bool:
        statement = "SELECT attgenerated <> '' FROM pg_attribute WHERE attrelid = %s AND attname = %s"
        return bool(self._row(statement, (table.oid, column.name))[0])

    def _identity(
        self, name: str, table: Table, identity: str, leaves: Sequence[_Leaf]
    ) -> Iterator[Diagnostic]:
        key = {column.name for key_name in self._key if (column := table.column(key_name)) is not None}
        indexes = unique_indexes(self._connection, table.oid)
        sql = f"{shown(table.schema)}.{shown(table.name)}"
        if not any(set(columns) <= key for columns, _, _ in indexes):
            yield self._problem(
                "MZ228.key-not", name=name, key=self._key, sql=sql, key_sql=map(shown, sorted(key))
            )
            return
        incomplete = [] if _logs_key(identity, indexes, key) else [sql]
        incomplete += [leaf.sql for leaf in leaves if not self._leaf_logs_key(leaf, key)]
        if incomplete:
            suffix = f" ({', '.join(incomplete)})" if incomplete != [sql] else ""
            yield self._problem(
                "MZ228.key-not-log",
                name=name,
                key=self._key,
                suffix=suffix,
                set_identity_full=_set_identity_full(incomplete),
            )

    def _leaf_logs_key(self, leaf: _Leaf, key: set[str]) -> bool:
        return leaf.identity == "f" or _logs_key(
            leaf.identity, unique_indexes(self._connection, leaf.oid), key
        )

    def _large(self, name: str, table: Table, identity: str, leaves: Sequence[_Leaf]) -> Iterator[Diagnostic]:
        oids = [table.oid, *(leaf.oid for leaf in leaves)]
        large = {row[0] for row in self._rows(_LARGE, (oids,))}
        column_names = [
            column.name for c in self._columns if (column := table.column(c.name)) and column.name in large
        ]
        incomplete = [f"{shown(table.schema)}.{shown(table.name)}"] if identity != "f" else []
        # ALTER TABLE on a partitioned table doesn't change its partitions.
        incomplete += [leaf.sql for leaf in leaves if leaf.identity != "f"]
        if column_names and incomplete:
            suffix = f" ({len(leaves)} partitions; each has a replica identity of its own)" if leaves else ""
            yield self._problem(
                "MZ228.large-values",
                name=name,
                column_names=column_names,
                suffix=suffix,
                set_identity_full=_set_identity_full(incomplete),
            )


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A partition that holds rows. `sql` and `schema` are quoted. `identity`: as in `_TABLE`."""

    oid: int
    sql: str
    identity: str
    readable: bool
    usable: bool
    schema: str


def _logs_key(identity: str, indexes: Sequence[Any], key: set[str]) -> bool:
    """Return whether the log contains the source's key for updated and deleted rows."""
    return identity == "f" or any(
        key <= set(columns)
        for columns, primary, chosen in indexes
        if (identity == "d" and primary) or (identity == "i" and chosen)
    )


def _set_identity_full(tables: Sequence[str]) -> str:
    return " ".join(f"ALTER TABLE {table} REPLICA IDENTITY FULL;" for table in tables)
