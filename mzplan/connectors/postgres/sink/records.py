"""Reads and removes the records of a sink's steps in mzplan's own tables."""

from __future__ import annotations

import contextlib
import logging

import psycopg

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.api.targets import Recorded
from mzplan.connectors.postgres.client import connect, open_conninfo
from mzplan.connectors.postgres.problems import Problem, connect_problem, reason
from mzplan.connectors.postgres.sink.writer import SETUP_LOCK, Writer, writer_of
from mzplan.connectors.postgres.tables import Connection
from mzplan.connectors.postgres.types import quoted, shown
from mzplan.endpoints.interface import Step, Written
from mzplan.model.diagnostics import MzplanError

log = logging.getLogger("mzplan.storage")

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
        log.info("schema %s stays in %s: %s", ledger.schema, query.link.address, str(problem).splitlines()[0])


def _drop_tables(connection: Connection, writer: Writer) -> None:
    """Drop the ledger's tables if they are empty. A run that has just created them fails, and is retried."""
    ledger = writer.ledger
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (SETUP_LOCK,))
        connection.execute(f"LOCK TABLE {ledger.writers} IN ACCESS EXCLUSIVE MODE")
        if connection.execute(f"SELECT 1 FROM {ledger.writers} LIMIT 1").fetchone() is None:
            connection.execute(f"DROP TABLE {ledger.writers}, {ledger.steps}")
