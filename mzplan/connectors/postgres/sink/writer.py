"""Makes a run the only writer of a sink, and creates mzplan's own tables in the database.

This runs on the driver. Next to the ledger's tables, the schema `staging_schema` has `stage_<id>_g<n>`, an
UNLOGGED table for staged rows. Its rows are needed only during a step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.postgres.sink.output import Ledger
from mzplan.connectors.postgres.tables import Connection, Table
from mzplan.connectors.postgres.types import quoted
from mzplan.endpoints.interface import Written
from mzplan.model.diagnostics import MzplanError, error

# Number of the advisory lock that serializes the creation of mzplan's own tables.
SETUP_LOCK = 0x6D7A706C616E
# Number of steps to keep in `steps`, and after how many steps older rows are removed.
_KEPT_STEPS = 100_000
_PRUNE_EVERY = 1_000


_SHAPE = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


def writer_of(query: ResolvedQuery, epoch: int = 0, query_id: str = "") -> Writer:
    return Writer(
        address=str(query.address),
        ledger=Ledger(
            schema=query.body["staging_schema"],
            sink=query.description.id,
            generation=query.description.generation,
            epoch=epoch,
            query_id=query_id,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """The writer of a sink: one run of one generation. Each step updates its row in `writers`."""

    address: str
    ledger: Ledger

    @property
    def application(self) -> str:
        """Return the application name of our connections. A later run finds them by it."""
        return f"mzplan {self.stage}"[:63]

    @property
    def stage(self) -> str:
        """Return the staging table's name."""
        name = f"stage_{self.ledger.sink}_g{self.ledger.generation}"
        if len(name.encode()) > 63:  # PostgreSQL would truncate it
            name = f"stage_{hashlib.sha256(name.encode()).hexdigest()[:48]}"
        return name

    @property
    def stage_sql(self) -> str:
        return f"{quoted(self.ledger.schema)}.{quoted(self.stage)}"

    def register(
        self,
        connection: Connection,
        shape: Sequence[tuple[str, str]] | None,
        table_to_empty: Table | None = None,
        resume_step: int | None = None,
    ) -> None:
        """Create missing tables, and take over from earlier runs and generations. Called once per run.

        `shape`: the columns of the staging table; None if it isn't used.
        `table_to_empty`: the table that the first run of a generation empties.
        `resume_step`: continue with this step, whatever the ledger says.

        Raises MzplanError MZ068 if a newer runner has taken over, MZ069 if another checkpoint wrote.
        """
        # Any user of the database could hold this lock, so take it only if something must be created.
        if self._missing_statements(connection):
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (SETUP_LOCK,))
                for statement in self._missing_statements(connection):
                    connection.execute(statement.encode())
        self._end_earlier_runs(connection)
        with connection.transaction():
            self._insert_row(connection, table_to_empty)
            if resume_step is not None:
                self._resume(connection, resume_step - 1)
            self.lock(connection)
            connection.execute(
                f"UPDATE {self.ledger.writers} SET epoch = %s, address = %s, updated_at = now() "
                "WHERE sink = %s AND generation = %s",
                (self.ledger.epoch, self.address, *self.ledger.place),
            )
            if shape is not None:
                self._lay_out(connection, [("_attempt", "bigint"), *shape])

    def _end_earlier_runs(self, connection: Connection) -> None:
        """End the connections of earlier runs of this sink, whose locks would block this run.

        A newer runner's connections stay, because it has recorded its epoch.
        """
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s "
            "AND usename = current_user AND datname = current_database() AND pid <> pg_backend_pid() "
            f"AND NOT EXISTS (SELECT 1 FROM {self.ledger.writers} "
            "WHERE sink = %s AND generation = %s AND epoch > %s)",
            (self.application, *self.ledger.place, self.ledger.epoch),
        )

    def _insert_row(self, connection: Connection, table_to_empty: Table | None) -> None:
        # Lock the rows of earlier generations: their open transactions end first, and later ones see our row.
        connection.execute(
            f"SELECT 1 FROM {self.ledger.writers} WHERE sink = %s AND generation < %s FOR UPDATE",
            self.ledger.place,
        )
        inserted = connection.execute(
            f"INSERT INTO {self.ledger.writers} (sink, generation, address, epoch, query_id, step) "
            "VALUES (%s, %s, %s, %s, %s, -1) ON CONFLICT DO NOTHING",
            (*self.ledger.place, self.address, self.ledger.epoch, self.ledger.query_id),
        )
        if inserted.rowcount and table_to_empty is not None:
            connection.execute(f"DELETE FROM {table_to_empty.sql}")

    def _resume(self, connection: Connection, last: int) -> None:
        connection.execute(
            f"UPDATE {self.ledger.writers} SET query_id = %s, target = NULL, step = %s "
            "WHERE sink = %s AND generation = %s AND epoch <= %s AND (query_id <> %s OR step < %s)",
            (self.ledger.query_id, last, *self.ledger.place, self.ledger.epoch, self.ledger.query_id, last),
        )

    def _lay_out(self, connection: Connection, wanted: list[tuple[str, str]]) -> None:
        if connection.execute(_SHAPE, (self.stage_sql,)).fetchall() != wanted:
            columns = ", ".join(f"{quoted(name)} {type_}" for name, type_ in wanted)
            connection.execute(f"DROP TABLE IF EXISTS {self.stage_sql}")
            connection.execute(f"CREATE UNLOGGED TABLE {self.stage_sql} ({columns})")

    def lock(self, connection: Connection, for_update: bool = True) -> int:
        """Return the last written step, -1 if none. Raises MzplanError MZ068 or MZ069 if another run writes.

        `for_update`: lock the sink's row until the transaction ends.
        """
        ledger = self.ledger
        row = connection.execute(
            f"SELECT epoch, query_id, step FROM {ledger.writers} "
            f"WHERE sink = %s AND generation = %s{' FOR UPDATE' if for_update else ''}",
            ledger.place,
        ).fetchone()
        if row is None:
            raise self._mismatch_error("its row in writers is missing")
        epoch, query_id, step = row
        newer = connection.execute(
            f"SELECT max(generation) FROM {ledger.writers} WHERE sink = %s", (ledger.sink,)
        ).fetchone()
        if newer is not None and newer[0] > ledger.generation:
            raise error(
                "MZ068.replaced-generation-writes",
                resource=self.address,
                newer_instance=newer[0],
                generation=ledger.generation,
            )
        if epoch > ledger.epoch:
            raise error(
                "MZ068.written-newer-runner", resource=self.address, epoch=epoch, current_epoch=ledger.epoch
            )
        if query_id != ledger.query_id:
            raise self._mismatch_error(f"steps up to {step} come from another checkpoint (query {query_id})")
        return int(step)

    def is_due(self, last: int, step: int) -> bool:
        """Return whether `step` comes next; False if it was written. Raises MzplanError MZ069 for a gap."""
        if step <= last:
            return False
        if step > last + 1:
            raise self._mismatch_error(
                f"the last step written here is {last}, and the checkpoint continues with {step}"
            )
        return True

    def written(self, connection: Connection, step: int, last: int) -> Written | None:
        """Return the record of a written step, or None if it has expired.

        Raises MzplanError MZ069 if the last step's record is missing, because it never expires.
        """
        row = connection.execute(self.ledger.written(step).encode()).fetchone()
        if row is None and step == last:
            raise self._mismatch_error(f"step {step} was written, but its row in steps is missing")
        return Written(rows=row[0], digest=row[1]) if row is not None else None

    def expire(self, connection: Connection, step: int) -> None:
        """Delete the records of old steps, once every _PRUNE_EVERY steps."""
        if step % _PRUNE_EVERY == _PRUNE_EVERY - 1:
            connection.execute(self.ledger.expire(step - _KEPT_STEPS).encode())

    def check_target(self, connection: Connection, table: Table) -> None:
        """Check that the table wasn't recreated or truncated. Raises MzplanError MZ069.

        A rewritten table (VACUUM FULL, TRUNCATE) has another file. A DELETE of all rows can't be detected.
        """
        ledger = self.ledger
        row = connection.execute(
            "SELECT c.oid || '/' || coalesce(pg_relation_filenode(c.oid), 0), w.target, w.step "
            f"FROM pg_class c, {ledger.writers} w WHERE c.oid = %s AND w.sink = %s AND w.generation = %s",
            (table.oid, *ledger.place),
        ).fetchone()
        if row is None:
            raise self._rows_gone_error(f"table {table.sql} was dropped")
        now, before, step = row
        if before == now:
            return
        if before is not None and step >= 0:
            if before.split("/")[0] != now.split("/")[0]:
                raise self._rows_gone_error(f"table {table.sql} was dropped and recreated")
            if self._is_empty(connection, table):
                raise self._rows_gone_error(f"table {table.sql} was truncated")
        connection.execute(
            f"UPDATE {ledger.writers} SET target = %s WHERE sink = %s AND generation = %s AND epoch = %s",
            (now, *ledger.place, ledger.epoch),
        )

    def _is_empty(self, connection: Connection, table: Table) -> bool:
        """Return whether rows were written, but the table's size is 0. Reading rows would need SELECT."""
        written = connection.execute(
            f"SELECT 1 FROM {self.ledger.steps} "
            "WHERE sink = %s AND generation = %s AND row_count > 0 LIMIT 1",
            self.ledger.place,
        ).fetchone()
        size = connection.execute("SELECT pg_relation_size(%s::oid::regclass)", (table.oid,)).fetchone()
        return bool(written) and size == (0,)

    def _rows_gone_error(self, event: str) -> MzplanError:
        return error(
            "MZ069.rows-written",
            resource=self.address,
            event_first=event[0].upper(),
            event_rest=event[1:],
            writers=self.ledger.writers,
            sink=self.ledger.sink,
        )

    def _missing_statements(self, connection: Connection) -> list[str]:
        """Return the statements that create the missing parts of mzplan's own tables."""
        # Look first, because CREATE … IF NOT EXISTS needs CREATE privileges even if nothing is missing.
        schema = quoted(self.ledger.schema)
        tables = {
            "writers": "sink text, generation integer, address text NOT NULL, epoch bigint NOT NULL, "
            "query_id text NOT NULL, step bigint NOT NULL, updated_at timestamptz NOT NULL DEFAULT now(), "
            "target text, PRIMARY KEY (sink, generation)",
            "steps": "sink text, generation integer, step bigint, row_count bigint NOT NULL, "
            "epoch bigint NOT NULL, written_at timestamptz NOT NULL DEFAULT now(), content_hash text, "
            "source_first bigint, source_last bigint, PRIMARY KEY (sink, generation, step)",
        }
        missing = []
        if connection.execute("SELECT to_regnamespace(%s)", (schema,)).fetchone() == (None,):
            missing.append(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        for name, columns in tables.items():
            if connection.execute("SELECT to_regclass(%s)", (f"{schema}.{name}",)).fetchone() == (None,):
                missing.append(f"CREATE TABLE IF NOT EXISTS {schema}.{name} ({columns})")
        return missing

    def _mismatch_error(self, why: str) -> MzplanError:
        return error("MZ069.target-disagree-about", resource=self.address, schema=self.ledger.schema, why=why)
