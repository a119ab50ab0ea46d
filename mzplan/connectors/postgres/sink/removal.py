"""Removing what a sink's generation keeps in a PostgreSQL database, once nobody can bring it back."""

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
    """Remove its rows and its staging table, those of earlier generations too; then mzplan's own tables when
    no sink has a row in them, and their schema when nothing else is in it and the role could make it anew.
    Raises psycopg.Error."""
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
    """The ledger, if it is empty. A run that has just made it, and has no row yet, fails and begins again."""
    ledger = writer.ledger
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (SETUP_LOCK,))
        connection.execute(f"LOCK TABLE {ledger.writers} IN ACCESS EXCLUSIVE MODE")
        if connection.execute(f"SELECT 1 FROM {ledger.writers} LIMIT 1").fetchone() is None:
            connection.execute(f"DROP TABLE {ledger.writers}, {ledger.steps}")
