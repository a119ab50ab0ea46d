"""Problems of a PostgreSQL source, each with a fix."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.postgres.problems import Problem, connect_problem, is_lost, reason, state_of
from mzplan.connectors.postgres.types import quoted
from mzplan.model.diagnostics import Diagnostic, MzplanError

# ── the server, and what the role may do

WAL_LEVEL = Problem(
    "MZ220",
    "The PostgreSQL server doesn't log enough for a source",
    "{what}.",
    "run ALTER SYSTEM SET wal_level = logical; on the server, and restart it.",
)
NO_WALSENDER = Problem(
    "MZ220",
    "The PostgreSQL server has no free replication connection",
    "{what}. Each source needs one.",
    "raise max_wal_senders and restart the server, or stop a client: SELECT * FROM pg_stat_replication;",
)
NO_SLOT_LEFT = Problem(
    "MZ220",
    "The PostgreSQL server has no free replication slot",
    "{what}. A source may need two while it reads a snapshot.",
    "raise max_replication_slots and max_wal_senders and restart the server, or drop an unused slot: "
    "SELECT slot_name, active FROM pg_replication_slots;",
)
# A row policy would hide rows from the snapshot, but replication would deliver them.
HIDDEN_ROWS = Problem(
    "MZ054",
    "{address} can't read all rows of its tables",
    "{what}. A row policy hides rows from the snapshot, but replication would deliver them.",
    "ALTER ROLE {role} BYPASSRLS; or read as a role that is not subject to the table's policies.",
)
DENIED = Problem(
    "MZ054",
    "PostgreSQL does not let {user} read {address}",
    "{what}.",
    "ALTER ROLE {quoted} REPLICATION; and GRANT SELECT on the tables. If the role may not create the "
    "publication, create it as the owner, and name it in the source: publication: NAME.",
)
LOCKED = Problem(
    "MZ059",
    "{address} waited too long for a lock in PostgreSQL",
    "{what}. Another session holds a lock on its tables or its publication.",
    "end that transaction, and mzplan retries: SELECT pid, pg_blocking_pids(pid), state, xact_start FROM "
    "pg_stat_activity ORDER BY xact_start;",
)
SLOT_WAITS = Problem(
    "MZ059",
    "{address} waits for open transactions to end",
    "{what}. A new replication slot waits until all open transactions of the server have ended.{oldest}",
    "wait, or end the transaction: SELECT pg_terminate_backend(PID), or ROLLBACK PREPARED if it is "
    "prepared; mzplan retries.",
)
REFUSED = Problem(
    "MZ059",
    "PostgreSQL refused a statement of {address}",
    "{what}.",
    "fix the cause; mzplan retries.",
)

# ── the slot

SLOT_IN_USE = Problem(
    "MZ225",
    "The replication slot of {address} is in use by another client",
    "{what}.",
    "stop the other client, and mzplan retries: SELECT * FROM pg_stat_replication;",
)
SLOT_GONE = Problem(
    "MZ223",
    "The replication slot of {address} is lost",
    "{why}. The changes since its last step are lost with it.",
    "{start_over}; and let the slot survive a failover.",
    at=", slot {slot}",
    is_refusal=True,
)
SLOT_MOVED = Problem(
    "MZ223",
    "The replication slot of {address} does not continue where its checkpoint ends",
    "{why}, and the checkpoint continues at {needed}. Another client reads the slot, or the server or "
    "the checkpoint was restored.",
    "restore a server and a checkpoint that match; or {start_over}.",
    at=", slot {slot}",
    is_refusal=True,
)

# ── the tables, and their rows

_UNSENT = "PostgreSQL sends no changes for this, so the collection would keep the former values."
ANOTHER_TABLE = Problem(
    "MZ043",
    "Table {table} is not the one that {address} has read",
    "{why}. The log doesn't say what happened to its rows.",
    "if the former table was only renamed, rename it back; otherwise {start_over}.",
    is_refusal=True,
)
COLUMN_GONE = Problem(
    "MZ230",
    "Table {table} has no column {columns}",
    "{address} declares it, but it was dropped or renamed. The source reads nothing beyond that change.",
    "remove it from the source's schema, and replace the source: mzplan apply --allow-replace.",
)
RETYPED = Problem(
    "MZ230",
    "Column {column} of table {table} has another type than when it was read",
    "it was {was}, and is now {now}. " + _UNSENT,
    "{start_over}.",
    is_refusal=True,
)
ANOTHER_COLUMN = Problem(
    "MZ230",
    "Column {column} of table {table} is not the one that {address} has read",
    "it was column number {was} of the table, and is now number {now}. " + _UNSENT,
    "{start_over}.",
    is_refusal=True,
)
RELABELLED = Problem(
    "MZ230",
    "The enum of column {column} of table {table} has other labels than when it was read",
    "it no longer has {labels}. " + _UNSENT,
    "{start_over}.",
    is_refusal=True,
)
TRUNCATED = Problem(
    "MZ231",
    "{tables} was truncated",
    "the log does not list the rows that a TRUNCATE removes, so {address} can't apply it.",
    "{start_over}; use DELETE instead of TRUNCATE.",
)
KEY_NOT_SENT = Problem(
    "MZ228",
    "The key of {table} isn't in the log",
    "a row was updated or deleted while the replica identity did not have the columns ({key}).",
    "ALTER TABLE {table} REPLICA IDENTITY FULL; or name the primary key in key; then {start_over}.",
    is_refusal=True,
)
NOT_SENT = Problem(
    "MZ228",
    "A value of {table}.{column} was not sent",
    "a row was updated, and the log doesn't have a large value (TOAST) that didn't change.",
    "ALTER TABLE {table} REPLICA IDENTITY FULL; (also of its partitions); then {start_over}.",
)
UNFIT = Problem(
    "MZ232",
    "A value of {table}.{column} does not fit its declared type",
    "{why}. No row of this step was written.",
    "declare another type than {type} (STRING accepts every value) and {start_over}; or correct the row.",
)

_BY_STATE = {
    "42501": DENIED,  # insufficient_privilege
    "53400": NO_SLOT_LEFT,  # configuration_limit_exceeded: all slots, or all walsenders, are taken
    "55006": SLOT_IN_USE,  # object_in_use
    "55P03": LOCKED,  # lock_not_available
}


@contextlib.contextmanager
def explaining(query: ResolvedQuery) -> Iterator[None]:
    """Raise errors of the server or driver inside the `with` block as MzplanError."""
    try:
        yield
    except Exception as problem:
        if isinstance(problem, psycopg.Error) or type(problem).__module__.startswith("adbc_driver"):
            raise MzplanError(explain(query, problem)) from None
        raise


def explain(query: ResolvedQuery, problem: Exception) -> Diagnostic:
    """Return the diagnostic for an error of a server or a driver."""
    state, text = state_of(problem), reason(query, problem)
    if is_lost(problem) or isinstance(problem, OSError):
        if "max_wal_senders" in text:
            return NO_WALSENDER.diagnostic(query, what=text)
        return connect_problem(query, problem)
    kind = _BY_STATE.get(state or "", REFUSED)
    if kind is DENIED and "row-level security" in text:
        kind = HIDDEN_ROWS
    if state == "55000" and "wal_level" in text:
        kind = WAL_LEVEL
    return kind.diagnostic(query, what=text, quoted=quoted(query.link.body["user"]))
