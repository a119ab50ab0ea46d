"""Whether a PostgreSQL table can be written by key: its unique indexes, and NULL in the key."""

from __future__ import annotations

from collections.abc import Sequence

from mzplan.connectors.api.outputs import never_null_outputs
from mzplan.connectors.api.protocols import Output, ResolvedQuery
from mzplan.connectors.postgres.client import route
from mzplan.connectors.postgres.sink.staging import has_other_unique, kept_whole
from mzplan.connectors.postgres.tables import Connection, Table, split_name
from mzplan.connectors.postgres.types import TargetColumn, shown
from mzplan.model.diagnostics import Diagnostic

_UNIQUE = """
SELECT array_agg(a.attname::text) FROM pg_index i
CROSS JOIN LATERAL unnest(i.indkey[0:i.indnkeyatts - 1]) AS k(attnum)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
  AND i.indexprs IS NULL
GROUP BY i.indexrelid
"""
_NULLABLE = """
SELECT a.attname::text FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s AND a.attname = ANY(%s) AND NOT a.attnotnull AND NOT t.typnotnull ORDER BY a.attnum
"""


def check_key(
    connection: Connection, query: ResolvedQuery, table: Table, outputs: Sequence[Output]
) -> list[Diagnostic]:
    """MZ055, MZ217, MZ218: the key has a unique index and no NULL, and nothing else is unique."""
    keys = key_of(query)
    columns = [table.column(key) for key in keys]
    if not keys or None in columns:
        return []
    wanted = sorted(column.name for column in columns if column)
    indexes = connection.execute(_UNIQUE, (table.oid,)).fetchall()
    nullable = [name for (name,) in connection.execute(_NULLABLE, (table.oid, wanted)).fetchall()]
    never_null = {name.lower() for name in never_null_outputs(query)}
    nullable = [name for name in nullable if name.lower() not in never_null]
    mended = [
        f"ALTER TABLE {shown_table(query)} ALTER COLUMN {shown(name)} SET NOT NULL;" for name in nullable
    ]
    if not any(sorted(index[0]) == wanted for index in indexes):
        listed = ", ".join(shown(column.name) for column in columns if column)
        return [
            Diagnostic(
                code="MZ055",
                summary=f"Table {query.body['table']} has no unique index on the key",
                detail=f"{route(query.link)}: upsert by ({', '.join(keys)}) needs a unique index or primary "
                "key on exactly these columns (not partial, not deferrable).",
                hint="\n".join([f"CREATE UNIQUE INDEX ON {shown_table(query)} ({listed});", *mended]),
                address=query.address,
            )
        ]
    found = [_null_key(query, nullable, mended)] if nullable else []
    return found + _other_unique(connection, query, table, [c for c in columns if c], outputs)


def _other_unique(
    connection: Connection,
    query: ResolvedQuery,
    table: Table,
    keys: Sequence[TargetColumn],
    outputs: Sequence[Output],
) -> list[Diagnostic]:
    """Below a keyed collection, rows may swap what is unique beside the key (see Move)."""
    if not query.keys or not has_other_unique(connection, table, keys):
        return []
    written = [column for output in outputs if (column := table.column(output.name))]
    why = kept_whole(connection, table, written)
    if not why:
        return []
    return [
        Diagnostic(
            severity="warning",
            code="MZ218",
            summary=f"Table {query.body['table']} has another unique index beside the key",
            detail=f"{route(query.link)}: when rows hand on such a value among each other, and a micro-batch "
            "sees only the end of that, they would have to be deleted and inserted anew. Here they can't be: "
            f"{why}. Such a batch fails.",
            hint="drop that index, or make it an index that is not unique.",
            address=query.address,
        )
    ]


def _null_key(query: ResolvedQuery, nullable: Sequence[str], mended: Sequence[str]) -> Diagnostic:
    """In SQL, no NULL equals another one: not for a unique index, and not for a DELETE."""
    listed = ", ".join(nullable)
    return Diagnostic(
        severity="error" if query.keys else "warning",
        code="MZ217",
        summary=f"Table {query.body['table']} allows NULL in the key",
        detail=f"{route(query.link)}: {listed} may be NULL there, and in what {query.address} writes. No "
        "row is found by a key with NULL in it: an update would add another row"
        + (", and a delete would do nothing." if query.keys else "."),
        hint="\n".join([*mended, "-- and let `where` leave such rows out: " + _not_null(nullable)]),
        address=query.address,
    )


def _not_null(names: Sequence[str]) -> str:
    return " AND ".join(f"{name} IS NOT NULL" for name in names)


def key_of(query: ResolvedQuery) -> list[str]:
    """The columns by which a sink finds its rows; none where it only adds them."""
    return list(query.body.get("key", ())) if query.body["mode"] == "upsert" else []


def shown_table(query: ResolvedQuery) -> str:
    """The sink's table, for a statement that a person reads."""
    schema, name = split_name(query.body["table"])
    return f"{shown(schema)}.{shown(name)}" if schema else shown(name)
