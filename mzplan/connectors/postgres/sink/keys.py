"""Whether a PostgreSQL table can be written by key: its unique indexes, and NULL in the key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mzplan.connectors.api.outputs import never_null_outputs
from mzplan.connectors.api.protocols import Output, ResolvedQuery
from mzplan.connectors.postgres.probe import Check
from mzplan.connectors.postgres.sink.staging import has_other_unique, kept_whole
from mzplan.connectors.postgres.tables import Table, split_name
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


class KeyCheck(Check):
    """Whether a sink's key finds the rows of its table."""

    def problems(self, table: Table, outputs: Sequence[Output]) -> Iterator[Diagnostic]:
        """MZ055, MZ217, MZ218: the key has a unique index and no NULL, and nothing else is unique."""
        keys = key_of(self._query)
        columns = [column for key in keys if (column := table.column(key)) is not None]
        if not keys or len(columns) < len(keys):
            return
        wanted = sorted(column.name for column in columns)
        never_null = {name.lower() for name in never_null_outputs(self._query)}
        nullable = [name for (name,) in self._rows(_NULLABLE, (table.oid, wanted))]
        nullable = [name for name in nullable if name.lower() not in never_null]
        sql = shown_table(self._query)
        mended = [f"ALTER TABLE {sql} ALTER COLUMN {shown(name)} SET NOT NULL;" for name in nullable]
        if not any(sorted(index[0]) == wanted for index in self._rows(_UNIQUE, (table.oid,))):
            listed = ", ".join(shown(column.name) for column in columns)
            yield self._problem(
                "MZ055",
                f"Table {self._query.body['table']} has no unique index on the key",
                f"upsert by ({', '.join(keys)}) needs a unique index or primary key on exactly these columns "
                "(not partial, not deferrable).",
                "\n".join([f"CREATE UNIQUE INDEX ON {sql} ({listed});", *mended]),
            )
            return
        if nullable:
            yield self._null_key(nullable, mended)
        yield from self._other_unique(table, columns, outputs)

    def _null_key(self, nullable: Sequence[str], mended: Sequence[str]) -> Diagnostic:
        """In SQL, no NULL equals another one: not for a unique index, and not for a DELETE."""
        deleted = ", and a delete would do nothing." if self._query.keys else "."
        left_out = " AND ".join(f"{name} IS NOT NULL" for name in nullable)
        return self._problem(
            "MZ217",
            f"Table {self._query.body['table']} allows NULL in the key",
            f"{', '.join(nullable)} may be NULL there, and in what {self._query.address} writes. No row is "
            f"found by a key with NULL in it: an update would add another row{deleted}",
            "\n".join([*mended, f"-- and let `where` leave such rows out: {left_out}"]),
            severity="error" if self._query.keys else "warning",
        )

    def _other_unique(
        self, table: Table, keys: Sequence[TargetColumn], outputs: Sequence[Output]
    ) -> Iterator[Diagnostic]:
        """Below a keyed collection, rows may swap what is unique beside the key (see Move)."""
        if not self._query.keys or not has_other_unique(self._connection, table, keys):
            return
        written = [column for output in outputs if (column := table.column(output.name))]
        why = kept_whole(self._connection, table, written)
        if why:
            yield self._problem(
                "MZ218",
                f"Table {self._query.body['table']} has another unique index beside the key",
                "when rows hand on such a value among each other, and a micro-batch sees only the end of "
                "that, they would have to be deleted and inserted anew. Here they can't be: "
                f"{why}. Such a batch fails.",
                "drop that index, or make it an index that is not unique.",
                severity="warning",
            )


def key_of(query: ResolvedQuery) -> list[str]:
    """The columns by which a sink finds its rows; none where it only adds them."""
    return list(query.body.get("key", ())) if query.body["mode"] == "upsert" else []


def shown_table(query: ResolvedQuery) -> str:
    """The sink's table, for a statement that a person reads."""
    schema, name = split_name(query.body["table"])
    return f"{shown(schema)}.{shown(name)}" if schema else shown(name)
