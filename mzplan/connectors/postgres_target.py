"""A sink's side of a PostgreSQL database: the table, the staging, and which steps are written.

In the schema `staging_schema`:
- `writers`: one row per sink and generation: who may write (epoch, query) and the last step written.
- `steps`: one row per step: what was written when.
- `stage_<id>_g<n>`: rows on their way, UNLOGGED; worthless outside a step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from mzplan.connectors.interface import Output
from mzplan.connectors.postgres_types import TargetColumn, quoted, staged_type
from mzplan.model.diagnostics import MzplanError, error

Connection = psycopg.Connection[Any]

# An advisory lock's number: who creates mzplan's own tables does so alone.
_SETUP_LOCK = 0x6D7A706C616E

_COLUMNS = """
SELECT a.attname, b.typname, n.nspname, b.typcategory, a.atttypmod, b.typtypmod,
       format_type(a.atttypid, a.atttypmod),
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = '', a.attgenerated = '' AND a.attidentity <> 'a'
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
JOIN pg_namespace n ON n.oid = b.typnamespace
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_SHAPE = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table that is there: its full name, and its columns in order."""

    oid: int
    schema: str
    name: str
    columns: tuple[TargetColumn, ...]

    @property
    def sql(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    def column(self, name: str) -> TargetColumn | None:
        """The column of that name; else the one that differs in nothing but case, if there is just one."""
        exact = [c for c in self.columns if c.name == name]
        alike = exact or [c for c in self.columns if c.name.lower() == name.lower()]
        return alike[0] if len(alike) == 1 else None


def split_name(table: str) -> tuple[str | None, str]:
    """`"public.orders"` → `("public", "orders")`."""
    schema, dot, name = table.rpartition(".")
    return (schema if dot else None), name


def find_table(connection: Connection, table: str) -> Table | None:
    """The table, found as PostgreSQL would (search_path, where no schema is given)."""
    schema, name = split_name(table)
    # By name in the catalogue, where a schema is given: to_regclass fails without USAGE of the schema, and
    # then nobody would learn which privilege is missing.
    which = "n.nspname = %(schema)s AND c.relname = %(name)s" if schema else "c.oid = to_regclass(%(quoted)s)"
    found = connection.execute(
        "SELECT c.oid, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        f"WHERE {which} AND c.relkind IN ('r', 'p', 'v', 'f')",
        {"schema": schema, "name": name, "quoted": quoted(name)},
    ).fetchone()
    if found is None:
        return None
    columns = [
        TargetColumn(
            name=name,
            type=type_,
            type_schema=type_schema,
            category=category,
            typmod=typmod if typmod >= 0 else domain_typmod,
            shown=shown,
            required=required,
            writable=writable,
        )
        for name, type_, type_schema, category, typmod, domain_typmod, shown, required, writable in (
            connection.execute(_COLUMNS, (found[0],)).fetchall()
        )
    ]
    return Table(oid=found[0], schema=found[1], name=found[2], columns=tuple(columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Who writes: one sink's generation, at one run. Every step passes through its row in `writers`."""

    schema: str
    sink: str
    address: str
    generation: int
    epoch: int
    query_id: str

    @property
    def stage(self) -> str:
        """The staging table's name."""
        name = f"stage_{self.sink}_g{self.generation}"
        if len(name.encode()) > 63:  # PostgreSQL would cut it
            name = f"stage_{hashlib.sha256(name.encode()).hexdigest()[:48]}"
        return name

    @property
    def stage_sql(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.stage)}"

    def register(
        self, connection: Connection, shape: Sequence[tuple[str, str]], emptied: Table | None = None
    ) -> None:
        """Once a run: make what is missing, take over from older runs and generations, and lay out the
        staging table. The table `emptied`, if any, is emptied by a generation's first run, and only once.

        Raises MzplanError MZ068 when a newer runner has taken over, MZ069 when another checkpoint wrote.
        """
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_SETUP_LOCK,))
            self._create(connection)
        with connection.transaction():
            # Locked, so that an earlier generation's transaction is over, or sees that we have begun.
            connection.execute(
                f"SELECT 1 FROM {quoted(self.schema)}.writers WHERE sink = %s AND generation < %s FOR UPDATE",
                (self.sink, self.generation),
            )
            begun = connection.execute(
                f"INSERT INTO {quoted(self.schema)}.writers "
                "(sink, generation, address, epoch, query_id, step) "
                "VALUES (%s, %s, %s, %s, %s, -1) ON CONFLICT DO NOTHING",
                (self.sink, self.generation, self.address, self.epoch, self.query_id),
            )
            if begun.rowcount and emptied is not None:
                connection.execute(f"DELETE FROM {emptied.sql}")
            self.lock(connection)
            connection.execute(
                f"UPDATE {quoted(self.schema)}.writers SET epoch = %s, address = %s, updated_at = now() "
                "WHERE sink = %s AND generation = %s",
                (self.epoch, self.address, self.sink, self.generation),
            )
            wanted = [("_attempt", "bigint"), *shape]
            if connection.execute(_SHAPE, (self.stage_sql,)).fetchall() != wanted:
                columns = ", ".join(f"{quoted(name)} {type_}" for name, type_ in wanted)
                connection.execute(f"DROP TABLE IF EXISTS {self.stage_sql}")
                connection.execute(f"CREATE UNLOGGED TABLE {self.stage_sql} ({columns})")

    def lock(self, connection: Connection, for_update: bool = True) -> int:
        """The last step written (-1: none), with our row locked until the transaction ends."""
        found = connection.execute(
            f"SELECT epoch, query_id, step FROM {quoted(self.schema)}.writers "
            f"WHERE sink = %s AND generation = %s{' FOR UPDATE' if for_update else ''}",
            (self.sink, self.generation),
        ).fetchone()
        if found is None:
            raise self._lost("its row in writers is gone")
        epoch, query_id, step = found
        newer = connection.execute(
            f"SELECT max(generation) FROM {quoted(self.schema)}.writers WHERE sink = %s", (self.sink,)
        ).fetchone()
        if newer is not None and newer[0] > self.generation:
            raise error(
                "MZ068",
                f"{self.address} was replaced",
                f"Generation {newer[0]} writes now; this one, generation {self.generation}, writes no more.",
                "nothing to do: the newer generation goes on.",
            )
        if epoch > self.epoch:
            raise error(
                "MZ068",
                f"{self.address} is written by a newer runner",
                f"A runner of epoch {epoch} has taken over; this one, of epoch {self.epoch}, writes no more.",
                "nothing to do: this runner was cut off or frozen, and the other one goes on.",
            )
        if query_id != self.query_id:
            raise self._lost(f"steps up to {step} come from another checkpoint (query {query_id})")
        return int(step)

    def expect(self, last: int, step: int) -> bool:
        """Whether `step` is to be written now (False: it was). Raises MzplanError MZ069 on a gap."""
        if step <= last:
            return False
        if step > last + 1:
            raise self._lost(f"the last step written here is {last}, and the checkpoint goes on with {step}")
        return True

    def record(self, connection: Connection, step: int, rows: int) -> None:
        """Note the step down, in the transaction of its rows."""
        connection.execute(
            f"WITH w AS (UPDATE {quoted(self.schema)}.writers SET step = %(step)s, updated_at = now() "
            "WHERE sink = %(sink)s AND generation = %(generation)s) "
            f"INSERT INTO {quoted(self.schema)}.steps (sink, generation, step, row_count, epoch) "
            "VALUES (%(sink)s, %(generation)s, %(step)s, %(rows)s, %(epoch)s)",
            {
                "sink": self.sink,
                "generation": self.generation,
                "step": step,
                "rows": rows,
                "epoch": self.epoch,
            },
        )

    def _create(self, connection: Connection) -> None:
        # Asked first: CREATE … IF NOT EXISTS needs the privilege to create also where nothing is to do.
        schema = quoted(self.schema)
        tables = {
            "writers": "sink text, generation integer, address text NOT NULL, epoch bigint NOT NULL, "
            "query_id text NOT NULL, step bigint NOT NULL, updated_at timestamptz NOT NULL DEFAULT now(), "
            "PRIMARY KEY (sink, generation)",
            "steps": "sink text, generation integer, step bigint, row_count bigint NOT NULL, "
            "epoch bigint NOT NULL, written_at timestamptz NOT NULL DEFAULT now(), "
            "PRIMARY KEY (sink, generation, step)",
        }
        if connection.execute("SELECT to_regnamespace(%s)", (schema,)).fetchone() == (None,):
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        for name, columns in tables.items():
            if connection.execute("SELECT to_regclass(%s)", (f"{schema}.{name}",)).fetchone() == (None,):
                connection.execute(f"CREATE TABLE IF NOT EXISTS {schema}.{name} ({columns})")

    def _lost(self, what: str) -> MzplanError:
        return error(
            "MZ069",
            f"{self.address} and its target disagree about what was written",
            f"In schema {self.schema}, {what}. The database or the checkpoint was restored from a backup, or "
            "removed; going on would lose rows or write them twice.",
            f"bring back the one that was changed, or begin anew: mzplan apply --replace {self.address} "
            "--allow-replace (with append, empty the table first).",
        )


def staging_shape(
    outputs: Sequence[Output], targets: Sequence[TargetColumn], position: Sequence[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Names and types of the staging columns: `c0, c1, …` for the outputs, `p0, …` for the position."""
    columns = [
        (f"c{i}", staged_type(output.type or "STRING", target))
        for i, (output, target) in enumerate(zip(outputs, targets, strict=True))
    ]
    return columns + [(f"p{i}", type_) for i, (_, type_) in enumerate(position)]
