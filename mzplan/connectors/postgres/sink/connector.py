"""The postgres sink: rows by Arrow and binary COPY, with rows and step in one transaction.

There are two ways to write a batch. Both write exactly once, even if the driver or the server is killed:

- Straight: for an append to columns that accept the values without a cast. One task copies the batch into the
  table and records the step in the same transaction.
- Staged: if values must be cast, or if the latest row of each key must be found. The batch's tasks copy in
  parallel into an unlogged staging table. Each attempt marks its rows, so a task that Spark retries
  duplicates nothing. The row count reveals a staging table that a crash has emptied. One transaction on the
  driver then moves the staged rows into the table and records the step.

Each step updates the sink's row in `writers`. The row has the last step, so no step is written twice. It also
has the newest runner's epoch, which fences earlier runners.

The module also reads and removes the records of a sink's steps in mzplan's own tables.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import psycopg

from mzplan.connectors.api.connector import SinkConnector
from mzplan.connectors.api.queries import Output, Probe, ResolvedQuery, SinkRun
from mzplan.connectors.api.targets import Content, Recorded
from mzplan.connectors.frames.merges import writing_as
from mzplan.connectors.frames.micro_batches import micro_batch
from mzplan.connectors.postgres.client import connect, open_conninfo
from mzplan.connectors.postgres.definition import key_of
from mzplan.connectors.postgres.identity import ServerProbe
from mzplan.connectors.postgres.problems import Problem, connect_problem, reason, route
from mzplan.connectors.postgres.sink.batches import Batches
from mzplan.connectors.postgres.sink.content import PostgresContent
from mzplan.connectors.postgres.sink.target_probe import explain, probe_target
from mzplan.connectors.postgres.sink.target_table import create_missing
from mzplan.connectors.postgres.sink.writer import SETUP_LOCK, Writer, writer_of
from mzplan.connectors.postgres.tables import Connection
from mzplan.connectors.postgres.types import quoted, shown
from mzplan.endpoints.interface import Step, Written
from mzplan.model.diagnostics import MzplanError
from mzplan.schema.columns import POSITION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_storage_log = logging.getLogger("mzplan.storage")

_SILENCE_S = 30.0
_MAY_CREATE = "SELECT has_database_privilege(current_database(), 'CREATE')"
_UNREADABLE = Problem(
    "MZ054",
    "The steps of {address} can't be read",
    "{why}.",
    "GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT SELECT ON {steps} TO {role};",
    at=", {steps}",
)


class PostgresRecorded(Recorded):
    """The ledger's rows, which are written in the transactions of the steps."""

    def __init__(self, query: ResolvedQuery):
        self._query = query
        self._ledger = writer_of(query).ledger
        with contextlib.ExitStack() as opened:
            try:
                info = opened.enter_context(open_conninfo(query))
                self._connection = opened.enter_context(connect(info, _SILENCE_S))
            except psycopg.Error as problem:
                raise MzplanError(connect_problem(query, problem)) from None
            self._opened = opened.pop_all()

    def step(self, step: Step) -> Written | None:
        try:
            row = self._connection.execute(self._ledger.written(step).encode()).fetchone()
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return None
        except psycopg.OperationalError as problem:
            raise MzplanError(connect_problem(self._query, problem)) from None
        except psycopg.Error as problem:
            ledger = self._ledger
            details = {"schema": shown(ledger.schema), "steps": ledger.steps}
            raise _UNREADABLE.error(self._query, why=reason(self._query, problem), **details) from None
        return Written(rows=row[0], digest=row[1]) if row else None

    def close(self) -> None:
        self._opened.close()


def forget(connection: Connection, query: ResolvedQuery) -> None:
    """Remove the records of this and earlier generations, and the staging table.

    Then drop mzplan's own tables, if no other sink has a record in them. Also drop their schema, if it is
    empty and the role could create it again. Raises psycopg.Error.
    """
    writer = writer_of(query)
    ledger = writer.ledger
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (SETUP_LOCK,))
        if connection.execute("SELECT to_regclass(%s)", (ledger.writers,)).fetchone() == (None,):
            return
        for table in (ledger.steps, ledger.writers):
            connection.execute(
                f"DELETE FROM {table} WHERE sink = %s AND generation <= %s", query.description.place
            )
        connection.execute(f"DROP TABLE IF EXISTS {writer.stage_sql}")
    try:
        _drop_tables(connection, writer)
        if connection.execute(_MAY_CREATE).fetchone() == (True,):
            connection.execute(f"DROP SCHEMA IF EXISTS {quoted(ledger.schema)}")
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.DependentObjectsStillExist) as problem:
        _storage_log.info(
            "schema %s stays in %s: %s", ledger.schema, query.link.address, str(problem).splitlines()[0]
        )


def _drop_tables(connection: Connection, writer: Writer) -> None:
    """Drop the ledger's tables if they are empty. A run that has just created them fails, and is retried."""
    ledger = writer.ledger
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (SETUP_LOCK,))
        connection.execute(f"LOCK TABLE {ledger.writers} IN ACCESS EXCLUSIVE MODE")
        if connection.execute(f"SELECT 1 FROM {ledger.writers} LIMIT 1").fetchone() is None:
            connection.execute(f"DROP TABLE {ledger.writers}, {ledger.steps}")


log = logging.getLogger("mzplan.connectors")

_NOT_CREATED = Problem(
    "MZ059",
    "{address} couldn't create the missing parts of its table",
    "{why}. Nothing was changed.",
    "fix the cause, and the runner retries; or run the statements that mzplan ddl {address} prints.",
    at=", table {table}",
)
_NOT_FORGOTTEN = Problem(
    "MZ059",
    "The records of {address} couldn't be removed from PostgreSQL",
    "{why}. They stay in mzplan's own tables and do no harm.",
    "DELETE FROM {schema}.steps WHERE sink = '{id}'; DELETE FROM {schema}.writers WHERE sink = '{id}';",
)


class PostgresSink(SinkConnector):
    """Appends to a table, or keeps the latest row of each key or all versions of it."""

    needs_cleanup = True

    def __init__(self) -> None:
        self._servers = ServerProbe(explain)

    def probe(self, query: ResolvedQuery, outputs: Sequence[Output]) -> Probe:
        """Connect, and check the table, its columns, privileges and (for upsert) its unique index."""
        return self._servers.probe(query, lambda connection: probe_target(connection, query, outputs))

    def prepare(self, query: ResolvedQuery, outputs: Sequence[Output]) -> None:
        """Create the table or its missing columns, if the sink sets `create`. Raises MzplanError MZ059."""
        try:
            with open_conninfo(query) as info, connect(info, statement_timeout_s=30) as connection:
                statements = create_missing(connection, query, outputs)
        except psycopg.Error as problem:
            raise _NOT_CREATED.error(query, why=reason(query, problem), table=query.body["table"]) from None
        if statements:
            log.info("%s: %s", query.address, " ".join(" ".join(statements).split()))

    def route(self, query: ResolvedQuery) -> str:
        return route(query.link)

    def recorded(self, query: ResolvedQuery, outputs: Sequence[Output]) -> Recorded:
        """Return the row counts and hashes of the newest 100,000 steps."""
        return PostgresRecorded(query)

    def content(self, query: ResolvedQuery, outputs: Sequence[Output], spark: SparkSession) -> Content:
        """Return the table in one snapshot."""
        return PostgresContent(query, outputs)

    def forget(self, query: ResolvedQuery) -> None:
        """Remove the sink's rows from mzplan's own tables; drop the tables and their schema if empty.

        Raises MzplanError.
        """
        try:
            with open_conninfo(query) as info, connect(info, statement_timeout_s=30) as connection:
                forget(connection, query)
        except psycopg.Error as problem:
            schema, id_ = quoted(query.body["staging_schema"]), query.description.id
            raise _NOT_FORGOTTEN.error(query, why=reason(query, problem), schema=schema, id=id_) from None

    def put_again(self, rows: DataFrame, run: SinkRun, name: str) -> None:
        """Write rows again in one transaction. The records of steps don't change.

        The transaction locks the sink's row in `writers` and checks its epoch, so a frozen runner is refused.
        """
        batches = Batches(run)
        try:
            with writing_as(rows.sparkSession, run.checkpoint.log.query_id() or ""):
                batches.write_again(rows)
        except Exception as problem:
            raise batches.explain(problem) from None

    def write(self, rows: DataFrame, run: SinkRun) -> DataStreamWriter:
        batches = Batches(run)

        def write_batch(batch: DataFrame, step: int) -> None:
            with micro_batch(lambda problem: run.fail(batches.explain(problem))):
                batches.write(batch, step)

        if not key_of(run.query):
            # Drop the position before foreachBatch, so that Spark doesn't read it.
            rows = rows.drop(POSITION)
        return rows.writeStream.foreachBatch(run.writer_of(write_batch))
