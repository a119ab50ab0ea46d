"""What can go wrong with a PostgreSQL source, for people: what it is, and the statement that mends it."""

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
    "The PostgreSQL server's log does not have what a source needs",
    "{what}.",
    "set wal_level = logical on the server (ALTER SYSTEM SET wal_level = logical), and restart it.",
)
NO_WALSENDER = Problem(
    "MZ222",
    "The PostgreSQL server has no connection for replication left",
    "{what}.",
    "raise max_wal_senders (the server must be restarted), or end what replicates and is not needed: "
    "SELECT pid, application_name, state FROM pg_stat_replication; each source needs one.",
)
NO_SLOT_LEFT = Problem(
    "MZ222",
    "The PostgreSQL server has no replication slot left",
    "{what}.",
    "raise max_replication_slots and max_wal_senders on the server (it needs a restart), or drop slots that "
    "nobody uses: SELECT slot_name, active FROM pg_replication_slots. While a snapshot is read, a source may "
    "need two.",
)
# A policy would let the snapshot have some of the rows, while the changes are those of all.
HIDDEN_ROWS = Problem(
    "MZ054",
    "Not all rows that {address} reads may be read",
    "{what}. The snapshot would lack the rows that a policy hides, and the changes would not: the server's "
    "log knows no policies.",
    "ALTER ROLE {role} BYPASSRLS; or read as a role that is not subject to the table's policies.",
)
DENIED = Problem(
    "MZ221",
    "PostgreSQL does not let {user} read {address}",
    "{what}.",
    "let the role replicate (ALTER ROLE {quoted} REPLICATION) and read the tables (GRANT SELECT); to make "
    "the publication it must own them and have CREATE on the database: else make it yourself, and name it in "
    "the source: publication: NAME.",
)
LOCKED = Problem(
    "MZ239",
    "PostgreSQL let {address} wait too long for a lock",
    "{what}. Another session holds one on its tables or its publication, such as an ALTER TABLE that is not "
    "committed.",
    "end that transaction: SELECT pid, pg_blocking_pids(pid), state, xact_start FROM pg_stat_activity ORDER "
    "BY xact_start; it is tried again.",
)
# A slot begins when all transactions have ended that were open when it was requested.
SLOT_WAITS = Problem(
    "MZ239",
    "{address} waits for open transactions to begin its replication",
    "{what}. A replication slot begins once every transaction has ended that had written something when it "
    "was requested, in all databases of the server.{oldest}",
    "wait until it has ended, or end it: SELECT pg_terminate_backend(PID), for a prepared one ROLLBACK "
    "PREPARED; it is tried again.",
)
REFUSED = Problem(
    "MZ239",
    "PostgreSQL refused a statement of {address}",
    "{what}.",
    "correct what it says; it is tried again.",
)

# ── the slot

SLOT_IN_USE = Problem(
    "MZ225",
    "The replication slot of {address} is read by somebody else",
    "{what}.",
    "find out who: SELECT * FROM pg_stat_replication; one reader at a time can have a slot. It is tried "
    "again.",
)
SLOT_GONE = Problem(
    "MZ223",
    "The replication slot of {address} is lost",
    "{why}. The changes since its last step can't be had any more.",
    "{begin_anew}; and see that the slot survives a failover.",
    at=", slot {slot}",
    refused=True,
)
SLOT_MOVED = Problem(
    "MZ224",
    "The replication slot of {address} does not go on where its checkpoint does",
    "{why}, and the checkpoint goes on at {needed}. Either something else reads this slot, or the server or "
    "the checkpoint was restored from a backup.",
    "bring back the server or the checkpoint as they were together; or {begin_anew}.",
    at=", slot {slot}",
    refused=True,
)

# ── the tables, and their rows

ANOTHER_TABLE = Problem(
    "MZ236",
    "Table {table} is not the one that {address} has read",
    "{why}. What happened to its rows meanwhile is not in what the source reads.",
    "where the former table was only renamed, give it its name back; else {begin_anew}.",
    refused=True,
)
COLUMN_GONE = Problem(
    "MZ230",
    "Table {table} has no column {columns}",
    "{address} declares it, and the table does not have it (any more): it was dropped or renamed. Nothing "
    "after that change was read.",
    "correct schema of the source: without the column it needs a new generation (mzplan apply "
    "--allow-replace).",
)
RETYPED = Problem(
    "MZ230",
    "Column {column} of table {table} has another type than when it was read",
    "it was {was}, and is {now}. PostgreSQL wrote all rows anew, which may have other values now, and sends "
    "no changes of that: what was read before would keep the former ones.",
    "{begin_anew}.",
    refused=True,
)
ANOTHER_COLUMN = Problem(
    "MZ230",
    "Column {column} of table {table} is not the one that {address} has read",
    "it was column {was} of the table, and is column {now}: it was dropped and added again, or another "
    "column was given its name. PostgreSQL sends no changes of that: what was read before would keep the "
    "former column's values.",
    "{begin_anew}.",
    refused=True,
)
RELABELLED = Problem(
    "MZ230",
    "The enum of column {column} of table {table} has other labels than when it was read",
    "it no longer has {labels}: the label was renamed, or the column has another enum. PostgreSQL sends no "
    "changes of that: what was read before would keep the former label.",
    "{begin_anew}.",
    refused=True,
)
TRUNCATED = Problem(
    "MZ231",
    "{tables} was truncated",
    "a TRUNCATE does not say which rows are gone, so it can't be passed on to the sinks of {address}. "
    "Nothing after it was read.",
    "{begin_anew}; DELETE instead of TRUNCATE is passed on.",
)
# A row changed while the log did not have the key that it had before.
KEY_NOT_SENT = Problem(
    "MZ228",
    "The key of {table} is not in the log (any more)",
    "a row was updated or deleted when the table's replica identity did not have the columns ({key}): its "
    "primary key or REPLICA IDENTITY was changed. Which row it was is unknown; nothing of this step was "
    "written.",
    "ALTER TABLE {table} REPLICA IDENTITY FULL; or make the key that of the primary key; then {begin_anew}.",
    refused=True,
)
# A value that was stored out of line and did not change is not in the log.
NOT_SENT = Problem(
    "MZ229",
    "A value of {table}.{column} was not sent",
    "a row was updated, and PostgreSQL does not write a large value (TOAST) that did not change into its "
    "log.",
    "ALTER TABLE {table} REPLICA IDENTITY FULL (and of each of its partitions, which it does not reach) lets "
    "it do so from then on; then {begin_anew}.",
)
UNFIT = Problem(
    "MZ232",
    "A value of {table}.{column} does not fit its declared type",
    "{why}. Nothing of this step was written.",
    "declare another type than {type} (STRING takes every value) and {begin_anew}; or correct the row.",
)

_BY_STATE = {
    "42501": DENIED,  # insufficient_privilege
    "53400": NO_SLOT_LEFT,  # configuration_limit_exceeded: all slots, or all walsenders, are taken
    "55006": SLOT_IN_USE,  # object_in_use
    "55P03": LOCKED,  # lock_not_available
}


@contextlib.contextmanager
def explaining(query: ResolvedQuery) -> Iterator[None]:
    """What a server or a driver raises in here, as MzplanError."""
    try:
        yield
    except Exception as problem:
        if isinstance(problem, psycopg.Error) or type(problem).__module__.startswith("adbc_driver"):
            raise MzplanError(explained(query, problem)) from None
        raise


def explained(query: ResolvedQuery, problem: Exception) -> Diagnostic:
    """One error of a server or a driver."""
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
