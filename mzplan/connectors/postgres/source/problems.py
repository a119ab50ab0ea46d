"""What can go wrong with a PostgreSQL source, for people: what it is, and the statement that mends it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import psycopg

from mzplan.connectors.api.protocols import ResolvedQuery
from mzplan.connectors.postgres.client import connect_problem, reason_of, route
from mzplan.connectors.postgres.source.replication import Lsn, is_in_use, lsn_text
from mzplan.connectors.postgres.types import shown
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError, error
from mzplan.schema.columns import Column


@contextlib.contextmanager
def explaining(query: ResolvedQuery) -> Iterator[None]:
    """What a server or a driver raises in here, as MzplanError."""
    try:
        yield
    except psycopg.Error as problem:
        raise explained(query, problem) from None
    except Exception as problem:
        if type(problem).__module__.startswith("adbc_driver"):
            raise explained(query, problem) from None
        raise


def explained(query: ResolvedQuery, problem: Exception) -> MzplanError:
    """One error of a server or a driver."""
    state = getattr(problem, "state", None) or getattr(problem, "sqlstate", None)
    what = reason_of(problem, query.link.body.get("password"))
    if state is None and isinstance(problem, psycopg.OperationalError):
        if "max_wal_senders" in what:
            return MzplanError((no_walsender(query, what),))
        return MzplanError(connect_problem(query, problem))
    if is_in_use(problem) or isinstance(problem, psycopg.errors.ObjectInUse):
        return slot_in_use(query, what)
    match state:
        case "42501" if "row-level security" in what:
            return MzplanError((hidden_rows(query, what),))
        case "42501":  # insufficient_privilege
            return _denied(query, what)
        case "53400":  # configuration_limit_exceeded: all slots, or all walsenders, are taken
            return error(
                "MZ222",
                "The PostgreSQL server has no replication slot left",
                f"{route(query.link)}: {what}.",
                "raise max_replication_slots and max_wal_senders on the server (it needs a restart), or drop "
                "slots that nobody uses: SELECT slot_name, active FROM pg_replication_slots. While a "
                "snapshot is read, a source may need two.",
                address=query.address,
            )
        case "55000" if "wal_level" in what:
            return wal_level(query, what)
        case "55P03":  # lock_not_available
            return error(
                "MZ239",
                f"PostgreSQL let {query.address} wait too long for a lock",
                f"{route(query.link)}: {what}. Another session holds one on its tables or its publication, "
                "such as an ALTER TABLE that is not committed.",
                "end that transaction: SELECT pid, pg_blocking_pids(pid), state, xact_start FROM "
                "pg_stat_activity ORDER BY xact_start; it is tried again.",
                address=query.address,
            )
    return error(
        "MZ239",
        f"PostgreSQL refused what {query.address} asked of it",
        f"{route(query.link)}: {what}.",
        "correct what it says; it is tried again.",
        address=query.address,
    )


def hidden_rows(query: ResolvedQuery, what: str) -> Diagnostic:
    """A policy would let the snapshot have some of the rows, while the changes are those of all."""
    return Diagnostic(
        code="MZ054",
        summary=f"Not all rows that {query.address} reads may be read",
        detail=f"{route(query.link)}: {what}. The snapshot would lack the rows that a policy hides, and the "
        "changes would not: the server's log knows no policies.",
        hint=f"ALTER ROLE {shown(query.link.body['user'])} BYPASSRLS; or read as a role that is not subject "
        "to the table's policies.",
        address=query.address,
    )


def no_walsender(query: ResolvedQuery, what: str) -> Diagnostic:
    return Diagnostic(
        code="MZ222",
        summary="The PostgreSQL server has no connection for replication left",
        detail=f"{route(query.link)}: {what}.",
        hint="raise max_wal_senders (the server must be restarted), or end what replicates and is not "
        "needed: SELECT pid, application_name, state FROM pg_stat_replication; each source needs one.",
        address=query.address,
    )


def slot_waits(query: ResolvedQuery, what: str, oldest: str | None) -> MzplanError:
    """A slot begins when all transactions have ended that were open when it was asked for."""
    who = f" The oldest is {oldest}." if oldest is not None else ""
    return error(
        "MZ239",
        f"{query.address} waits for open transactions to begin its replication",
        f"{route(query.link)}: {what}. A replication slot begins once every transaction has ended that had "
        f"written something when it was asked for, in all databases of the server.{who}",
        "wait until it has ended, or end it: SELECT pg_terminate_backend(PID), for a prepared one ROLLBACK "
        "PREPARED; it is tried again.",
        address=query.address,
    )


def wal_level(query: ResolvedQuery, what: str) -> MzplanError:
    return error(
        "MZ220",
        "The PostgreSQL server's log does not have what a source needs",
        f"{route(query.link)}: {what}.",
        "set wal_level = logical on the server (ALTER SYSTEM SET wal_level = logical), and restart it.",
        address=query.address,
    )


def _denied(query: ResolvedQuery, what: str) -> MzplanError:
    user = query.link.body["user"]
    return error(
        "MZ221",
        f"PostgreSQL does not let {user} read {query.address}",
        f"{route(query.link)}: {what}.",
        f'let the role replicate (ALTER ROLE "{user}" REPLICATION) and read the tables (GRANT SELECT); to '
        "make the publication it must own them and have CREATE on the database: else make it yourself, and "
        "name it in the source: publication: NAME.",
        address=query.address,
    )


def slot_gone(query: ResolvedQuery, slot: str, *, lost: bool = False) -> MzplanError:
    why = (
        "it is invalidated: the server has discarded log that it still needed (max_slot_wal_keep_size)"
        if lost
        else "it is not there: somebody dropped it, or the server was promoted or restored without it"
    )
    return error(
        "MZ223",
        f"The replication slot of {query.address} is lost",
        f"{route(query.link)}, slot {slot}: {why}. The changes since its last step can't be had any more.",
        "let the source begin anew, with its sinks: "
        f"mzplan apply --replace {query.address} --allow-replace; and see that the slot survives a failover.",
        address=query.address,
        exit_code=ExitCode.REFUSED,
    )


def slot_moved(query: ResolvedQuery, slot: str, why: str, needed: Lsn) -> MzplanError:
    return error(
        "MZ224",
        f"The replication slot of {query.address} does not go on where its checkpoint does",
        f"{route(query.link)}, slot {slot}: {why}, and the checkpoint goes on at {lsn_text(needed)}. Either "
        "something else reads this slot, or the server or the checkpoint was restored from a backup.",
        "bring back the server or the checkpoint as they were together; or let the source begin anew, with "
        f"its sinks: mzplan apply --replace {query.address} --allow-replace.",
        address=query.address,
        exit_code=ExitCode.REFUSED,
    )


def slot_in_use(query: ResolvedQuery, what: str) -> MzplanError:
    return error(
        "MZ225",
        f"The replication slot of {query.address} is read by somebody else",
        f"{route(query.link)}: {what}.",
        "find out who: SELECT * FROM pg_stat_replication; one reader at a time can have a slot. It is tried "
        "again.",
        address=query.address,
    )


def not_sent(query: ResolvedQuery, table: str, column: str) -> MzplanError:
    """A value that was stored out of line and did not change is not in the log."""
    return error(
        "MZ229",
        f"A value of {table}.{column} was not sent",
        f"{route(query.link)}: a row was updated, and PostgreSQL does not write a large value (TOAST) that "
        "did not change into its log.",
        f"ALTER TABLE {table} REPLICA IDENTITY FULL (and of each of its partitions, which it does not reach) "
        "lets it do so from then on; then let the source begin anew, with its sinks: "
        f"mzplan apply --replace {query.address} --allow-replace.",
        address=query.address,
    )


def key_not_sent(query: ResolvedQuery, table: str, key: Sequence[str]) -> MzplanError:
    """A row changed while the log did not have the key that it had before."""
    return error(
        "MZ228",
        f"The key of {table} is not in the log (any more)",
        f"{route(query.link)}: a row was updated or deleted when the table's replica identity did not have "
        f"the columns ({', '.join(key)}): its primary key or REPLICA IDENTITY was changed. Which row it was "
        "can't be told; nothing of this step was written.",
        f"ALTER TABLE {table} REPLICA IDENTITY FULL; or make the key that of the primary key; then let the "
        f"source begin anew, with its sinks: mzplan apply --replace {query.address} --allow-replace.",
        address=query.address,
        exit_code=ExitCode.REFUSED,
    )


def another_table(query: ResolvedQuery, table: str, why: str) -> MzplanError:
    return error(
        "MZ236",
        f"Table {table} is not the one that {query.address} has read",
        f"{route(query.link)}: {why}. What happened to its rows meanwhile is not in what the source reads.",
        "where the former table was only renamed, give it its name back; else let the source begin anew, "
        f"with its sinks: mzplan apply --replace {query.address} --allow-replace.",
        address=query.address,
        exit_code=ExitCode.REFUSED,
    )


def column_gone(query: ResolvedQuery, table: str, columns: Sequence[str]) -> MzplanError:
    return error(
        "MZ230",
        f"Table {table} has no column {', '.join(columns)}",
        f"{route(query.link)}: {query.address} declares it, and the table does not have it (any more): it "
        "was dropped or renamed. Nothing after that change was read.",
        "correct schema of the source: without the column it needs a new generation (mzplan apply "
        "--allow-replace).",
        address=query.address,
    )


def retyped(query: ResolvedQuery, table: str, column: str, was: str, now: str) -> MzplanError:
    return error(
        "MZ230",
        f"Column {column} of table {table} has another type than when it was read",
        f"{route(query.link)}: it was {was}, and is {now}. PostgreSQL wrote all rows anew, which may have "
        "other values now, and sends no changes of that: what was read before would keep the former ones.",
        f"let the source begin anew, with its sinks: mzplan apply --replace {query.address} --allow-replace.",
        address=query.address,
        exit_code=ExitCode.REFUSED,
    )


def truncated(query: ResolvedQuery, tables: Sequence[str]) -> MzplanError:
    return error(
        "MZ231",
        f"{', '.join(tables)} was truncated",
        f"{route(query.link)}: a TRUNCATE does not tell which rows are gone, so it can't be passed on to the "
        f"sinks of {query.address}. Nothing after it was read.",
        "let the source begin anew, with its sinks: "
        f"mzplan apply --replace {query.address} --allow-replace; DELETE instead of TRUNCATE is passed on.",
        address=query.address,
    )


def unfit(query: ResolvedQuery, table: str, column: Column, why: str) -> MzplanError:
    return error(
        "MZ232",
        f"A value of {table}.{column.name} does not fit its declared type",
        f"{route(query.link)}: {why}. Nothing of this step was written.",
        f"declare another type than {column.type} (STRING takes every value) and let the source begin anew: "
        f"mzplan apply --replace {query.address} --allow-replace; or correct the row.",
        address=query.address,
    )
