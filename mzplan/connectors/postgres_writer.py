"""Who writes, and which steps are written: mzplan's own tables in a PostgreSQL database.

In the schema `staging_schema`:
- `writers`: one row per sink and generation: who may write (epoch, query) and the last step written.
- `steps`: one row per step: what was written when, and the content hash of its rows.
- `stage_<id>_g<n>`: rows on their way, UNLOGGED; worthless outside a step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from mzplan.connectors.postgres_target import Connection, Table
from mzplan.connectors.postgres_types import quoted
from mzplan.content_hash import ContentHash
from mzplan.model.diagnostics import MzplanError, error

# An advisory lock's number: who creates mzplan's own tables does so alone.
_SETUP_LOCK = 0x6D7A706C616E
# Steps whose rows in `steps` are kept, and how often older ones are removed, in steps.
_KEPT_STEPS = 100_000
_PRUNE_EVERY = 1_000

# Columns that tables of earlier versions lack.
_ADDED = {"writers": "target text", "steps": "content_hash text"}

_SHAPE = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A step that is about to be written. `after` is the step that must be the last one then: the one before
    it, or itself, of which `rows` (with `hash`, None: not known) are written already."""

    step: int
    after: int
    rows: int = 0
    hash: str | None = str(ContentHash())

    @property
    def continues(self) -> bool:
        """Whether the step is there, and only what is beyond its length is to be written."""
        return self.after == self.step

    @property
    def total(self) -> int:
        return int(self.hash, 16) if self.hash is not None else 0


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
    def application(self) -> str:
        """What our connections call themselves, so that a later run can end what an earlier one left."""
        return f"mzplan {self.stage}"[:63]

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
        self,
        connection: Connection,
        shape: Sequence[tuple[str, str]] | None,
        emptied: Table | None = None,
        goes_on: int | None = None,
    ) -> None:
        """Once a run: make what is missing, take over from older runs and generations, and lay out the
        staging table in that shape (None: it is not used). The table `emptied`, if any, is emptied by a
        generation's first run, and only once. `goes_on`: the steps before
        this one are taken for written, and for ours, whatever is found.

        Raises MzplanError MZ068 when a newer runner has taken over, MZ069 when another checkpoint wrote.
        """
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_SETUP_LOCK,))
            self._create(connection)
        self._end_earlier_runs(connection)
        with connection.transaction():
            self._begin(connection, emptied)
            if goes_on is not None:
                self._go_on(connection, goes_on - 1)
            self.lock(connection)
            connection.execute(
                f"UPDATE {self._writers} SET epoch = %s, address = %s, updated_at = now() "
                "WHERE sink = %s AND generation = %s",
                (self.epoch, self.address, self.sink, self.generation),
            )
            if shape is not None:
                self._lay_out(connection, [("_attempt", "bigint"), *shape])

    def _end_earlier_runs(self, connection: Connection) -> None:
        """End connections of an earlier run of this sink, frozen or cut off: their locks would keep us
        waiting. Not those of a newer runner, which has noted down its epoch before it wrote."""
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s "
            "AND usename = current_user AND datname = current_database() AND pid <> pg_backend_pid() "
            f"AND NOT EXISTS (SELECT 1 FROM {self._writers} "
            "WHERE sink = %s AND generation = %s AND epoch > %s)",
            (self.application, self.sink, self.generation, self.epoch),
        )

    def _begin(self, connection: Connection, emptied: Table | None) -> None:
        # Locked, so that an earlier generation's transaction is over, or sees that we have begun.
        connection.execute(
            f"SELECT 1 FROM {self._writers} WHERE sink = %s AND generation < %s FOR UPDATE",
            (self.sink, self.generation),
        )
        begun = connection.execute(
            f"INSERT INTO {self._writers} (sink, generation, address, epoch, query_id, step) "
            "VALUES (%s, %s, %s, %s, %s, -1) ON CONFLICT DO NOTHING",
            (self.sink, self.generation, self.address, self.epoch, self.query_id),
        )
        if begun.rowcount and emptied is not None:
            connection.execute(f"DELETE FROM {emptied.sql}")

    def _go_on(self, connection: Connection, last: int) -> None:
        connection.execute(
            f"UPDATE {self._writers} SET query_id = %s, target = NULL, step = %s "
            "WHERE sink = %s AND generation = %s AND epoch <= %s AND (query_id <> %s OR step < %s)",
            (self.query_id, last, self.sink, self.generation, self.epoch, self.query_id, last),
        )

    def _lay_out(self, connection: Connection, wanted: list[tuple[str, str]]) -> None:
        if connection.execute(_SHAPE, (self.stage_sql,)).fetchall() != wanted:
            columns = ", ".join(f"{quoted(name)} {type_}" for name, type_ in wanted)
            connection.execute(f"DROP TABLE IF EXISTS {self.stage_sql}")
            connection.execute(f"CREATE UNLOGGED TABLE {self.stage_sql} ({columns})")

    def lock(self, connection: Connection, for_update: bool = True) -> int:
        """The last step written (-1: none), with our row locked until the transaction ends."""
        found = connection.execute(
            f"SELECT epoch, query_id, step FROM {self._writers} "
            f"WHERE sink = %s AND generation = %s{' FOR UPDATE' if for_update else ''}",
            (self.sink, self.generation),
        ).fetchone()
        if found is None:
            raise self._lost("its row in writers is gone")
        epoch, query_id, step = found
        newer = connection.execute(
            f"SELECT max(generation) FROM {self._writers} WHERE sink = %s", (self.sink,)
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

    def written(self, connection: Connection, step: int) -> Entry:
        """What is noted down of a step that is written. Raises MzplanError MZ069 where its row is gone."""
        found = connection.execute(
            f"SELECT row_count, content_hash FROM {self._steps} "
            "WHERE sink = %s AND generation = %s AND step = %s",
            (self.sink, self.generation, step),
        ).fetchone()
        if found is None:
            raise self._lost(f"step {step} is written, and its row in steps is gone")
        return Entry(step=step, after=step, rows=found[0], hash=found[1])

    def is_due(self, connection: Connection, entry: Entry, for_update: bool = False) -> bool:
        """Whether the entry is still to be written. Raises MzplanError as `lock` and `expect` do."""
        last = self.lock(connection, for_update)
        if not entry.continues:
            return self.expect(last, entry.step)
        return last == entry.step and self.written(connection, entry.step).rows == entry.rows

    def record(self, connection: Connection, entry: Entry, rows: int, total: int) -> None:
        """Note the step down, in the transaction of its rows; `total` is the sum of their hashes."""
        connection.execute(self.claim(entry).encode())
        hash_ = f"{(entry.total + total) % 2**64:016x}"
        connection.execute(self.note(entry).replace("{rows}", str(rows)).replace("{hash}", hash_).encode())

    def prune(self, connection: Connection, step: int) -> None:
        """Forget steps long past, now and then: one a second makes thirty million a year."""
        if step % _PRUNE_EVERY == _PRUNE_EVERY - 1:
            connection.execute(
                f"DELETE FROM {self._steps} WHERE sink = %s AND generation = %s AND step < %s",
                (self.sink, self.generation, step - _KEPT_STEPS),
            )

    def claim(self, entry: Entry) -> str:
        """A statement for a transaction that has written the entry's rows: it notes the step down as the last
        one, and affects one row; none when we are fenced, or the rows are written, or another step is due."""
        length = (
            f" AND EXISTS (SELECT 1 FROM {self._steps} s WHERE s.sink = w.sink "
            "AND s.generation = w.generation AND s.step = w.step AND s.row_count = {before})"
        )
        return self._filled(
            f"UPDATE {self._writers} AS w SET step = {{step}}, updated_at = now() WHERE sink = {{sink}} "
            "AND generation = {generation} AND epoch = {epoch} AND query_id = {query_id} AND step = {after} "
            f"AND NOT EXISTS (SELECT 1 FROM {self._writers} n WHERE n.sink = w.sink "
            f"AND n.generation > w.generation){length if entry.continues else ''}",
            entry,
        )

    def note(self, entry: Entry) -> str:
        """The statement that goes with `claim`: the step's own row. `{rows}` stands for how many rows were
        written, and `{hash}` for the content hash of the whole step."""
        hash_ = "NULL" if entry.hash is None else "'{hash}'"
        return self._filled(
            f"INSERT INTO {self._steps} AS s (sink, generation, step, row_count, epoch, content_hash) "
            f"VALUES ({{sink}}, {{generation}}, {{step}}, {{rows}}, {{epoch}}, {hash_}) "
            "ON CONFLICT (sink, generation, step) DO UPDATE "
            "SET row_count = s.row_count + EXCLUDED.row_count, epoch = EXCLUDED.epoch, "
            "content_hash = EXCLUDED.content_hash, written_at = now()",
            entry,
        )

    def _filled(self, statement: str, entry: Entry) -> str:
        values = {
            "sink": self.sink,
            "generation": self.generation,
            "epoch": self.epoch,
            "query_id": self.query_id,
            "step": entry.step,
            "after": entry.after,
            "before": entry.rows,
        }
        literals = {name: sql.Literal(value).as_string(None) for name, value in values.items()}
        return statement.format(**literals, rows="{rows}", hash="{hash}")

    def check_target(self, connection: Connection, table: Table) -> None:
        """See that the table is the one that was written until now, and was not emptied. A rewritten table
        (VACUUM FULL, TRUNCATE) has another file; one that lost its rows to DELETE looks like any other.

        Raises MzplanError MZ069.
        """
        found = connection.execute(
            "SELECT c.oid || '/' || coalesce(pg_relation_filenode(c.oid), 0), w.target, w.step "
            f"FROM pg_class c, {self._writers} w WHERE c.oid = %s AND w.sink = %s AND w.generation = %s",
            (table.oid, self.sink, self.generation),
        ).fetchone()
        if found is None:
            raise self._gone(f"table {table.sql} was dropped")
        now, before, step = found
        if before == now:
            return
        if before is not None and step >= 0:
            if before.split("/")[0] != now.split("/")[0]:
                raise self._gone(f"table {table.sql} was dropped and made anew")
            if self._is_empty(connection, table):
                raise self._gone(f"table {table.sql} was truncated")
        connection.execute(
            f"UPDATE {self._writers} SET target = %s WHERE sink = %s AND generation = %s AND epoch = %s",
            (now, self.sink, self.generation, self.epoch),
        )

    def _is_empty(self, connection: Connection, table: Table) -> bool:
        written = connection.execute(
            f"SELECT 1 FROM {self._steps} WHERE sink = %s AND generation = %s AND row_count > 0 LIMIT 1",
            (self.sink, self.generation),
        ).fetchone()
        return bool(written) and connection.execute(f"SELECT 1 FROM {table.sql} LIMIT 1").fetchone() is None

    def _gone(self, what: str) -> MzplanError:
        return error(
            "MZ069",
            f"The rows that {self.address} has written are gone",
            f"{what[0].upper()}{what[1:]} meanwhile, and going on would only add what comes now.",
            f"to write all rows again: mzplan apply --replace {self.address} --allow-replace; to go on "
            f"without them: UPDATE {self._writers} SET target = NULL WHERE sink = '{self.sink}'.",
        )

    @property
    def _steps(self) -> str:
        return f"{quoted(self.schema)}.steps"

    @property
    def _writers(self) -> str:
        return f"{quoted(self.schema)}.writers"

    def _create(self, connection: Connection) -> None:
        # Asked first: CREATE … IF NOT EXISTS needs the privilege to create also where nothing is to do.
        schema = quoted(self.schema)
        tables = {
            "writers": "sink text, generation integer, address text NOT NULL, epoch bigint NOT NULL, "
            "query_id text NOT NULL, step bigint NOT NULL, updated_at timestamptz NOT NULL DEFAULT now(), "
            "target text, PRIMARY KEY (sink, generation)",
            "steps": "sink text, generation integer, step bigint, row_count bigint NOT NULL, "
            "epoch bigint NOT NULL, written_at timestamptz NOT NULL DEFAULT now(), content_hash text, "
            "PRIMARY KEY (sink, generation, step)",
        }
        if connection.execute("SELECT to_regnamespace(%s)", (schema,)).fetchone() == (None,):
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        for name, columns in tables.items():
            if connection.execute("SELECT to_regclass(%s)", (f"{schema}.{name}",)).fetchone() == (None,):
                connection.execute(f"CREATE TABLE IF NOT EXISTS {schema}.{name} ({columns})")
        for name, column in _ADDED.items():
            shape = connection.execute(_SHAPE, (f"{schema}.{name}",)).fetchall()
            if column.split()[0] not in {found for found, _ in shape}:
                connection.execute(f"ALTER TABLE {schema}.{name} ADD COLUMN IF NOT EXISTS {column}")

    def _lost(self, what: str) -> MzplanError:
        return error(
            "MZ069",
            f"{self.address} and its target disagree about what was written",
            f"In schema {self.schema}, {what}. The database or the checkpoint was restored from a backup, or "
            "removed; going on would lose rows or write them twice.",
            f"bring back the one that was changed, or begin anew: mzplan apply --replace {self.address} "
            "--allow-replace (with append, empty the table first).",
        )
