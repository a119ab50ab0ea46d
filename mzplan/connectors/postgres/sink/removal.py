"""Removes a sink generation's data from mzplan's own tables, once nothing can restore the sink."""

from __future__ import annotations

import logging

import psycopg

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.postgres.sink.writer import SETUP_LOCK, Writer, writer_of
from mzplan.connectors.postgres.tables import Connection
from mzplan.connectors.postgres.types import quoted

log = logging.getLogger("mzplan.storage")

_MAY_CREATE = "SELECT has_database_privilege(current_database(), 'CREATE')"


def forget(connection: Connection, query: ResolvedQuery) -> None:
    """Remove the ledger's rows and the staging table of this and earlier generations.

    Then drop mzplan's own tables if no sink has a row in them. Also drop their schema if it is empty and
    the role could create it again. Raises psycopg.Error.
    """
    writer = writer_of(query)
    ledger, schema = writer.ledger, quoted(writer.schema)
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
            connection.execute(f"DROP SCHEMA IF EXISTS {schema}")
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.DependentObjectsStillExist) as problem:
        log.info("schema %s stays in %s: %s", writer.schema, query.link.address, str(problem).splitlines()[0])


def _drop_tables(connection: Connection, writer: Writer) -> None:
    """Drop the ledger if it is empty. A run that just created it, but has no row yet, fails and restarts."""
    ledger = writer.ledger
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (SETUP_LOCK,))
        connection.execute(f"LOCK TABLE {ledger.writers} IN ACCESS EXCLUSIVE MODE")
        if connection.execute(f"SELECT 1 FROM {ledger.writers} LIMIT 1").fetchone() is None:
            connection.execute(f"DROP TABLE {ledger.writers}, {ledger.steps}")
