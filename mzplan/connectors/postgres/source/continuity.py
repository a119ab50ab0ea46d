"""Is it still what was read? A PostgreSQL source notes with each step, beside its bounds, which tables they
were (by oid: a name can come to mean another table) and on which timeline of the server they lie.

What a step of an earlier version did not note is not checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import psycopg

from mzplan.connectors.api.protocols import ResolvedQuery
from mzplan.connectors.postgres.source.problems import another_table, slot_gone, slot_moved
from mzplan.connectors.postgres.source.replication import Lsn, ReplicationLink, lsn_of, lsn_text
from mzplan.connectors.postgres.source.slots import Names, find_slot, insert_lsn, session
from mzplan.connectors.postgres.tables import Connection, Table, find_table

# Of what is written now.
_TIMELINE = "SELECT ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int"
_PUBLISHED = "SELECT schemaname, tablename, {filter} FROM pg_publication_tables WHERE pubname = %s"


def check_tables(
    connection: Connection,
    query: ResolvedQuery,
    names: Names,
    read: Iterable[str],
    noted: Mapping[str, int],
) -> dict[str, Table]:
    """The tables that were read, if they are those that are there, and published. Raises MZ236."""
    there: dict[str, Table] = {}
    # Row filters are there since PostgreSQL 15.
    statement = _PUBLISHED.format(filter="rowfilter" if connection.info.server_version >= 150000 else "NULL")
    rows = connection.execute(statement.encode(), (names.publication,)).fetchall()
    published = {(schema, table): filter_ for schema, table, filter_ in rows}
    for name in read:
        table, before = find_table(connection, name), noted.get(name)
        if table is None:
            if before is not None:
                raise another_table(query, name, "it is not there any more: it was dropped or renamed")
        elif before is not None and table.oid != before:
            raise another_table(
                query,
                name,
                f"its oid is {table.oid}, and that of the table that was read is {before}: it was dropped "
                "and made anew, or another table was given its name",
            )
        elif (table.schema, table.name) not in published:
            raise another_table(
                query, name, f"publication {names.publication} does not publish it (any more)"
            )
        elif filter_ := published[table.schema, table.name]:
            raise another_table(
                query, name, f"publication {names.publication} publishes only its rows WHERE {filter_}"
            )
        if table is not None:
            there[name] = table
    return there


def check_slot(query: ResolvedQuery, names: Names, connection: Connection, needed: Lsn) -> None:
    """Whether a slot holds the changes since an LSN. Raises MzplanError MZ223, MZ224."""
    slot = find_slot(connection, names.slot)
    if slot is None:
        raise slot_gone(query, names.slot)
    if slot.lost:
        raise slot_gone(query, names.slot, lost=True)
    end, _ = insert_lsn(connection)
    if end < needed:
        raise slot_moved(query, names.slot, f"the server's log ends at {lsn_text(end)}", needed)
    if slot.confirmed > needed:
        raise slot_moved(query, names.slot, f"it begins at {lsn_text(slot.confirmed)}", needed)


def check_not_ahead(query: ResolvedQuery, names: Names, after: Lsn) -> None:
    """`check_slot`, to be asked once the slot is streamed: then nobody else can advance it any more. Raises
    MzplanError MZ223, MZ224, psycopg.Error."""
    with session(query) as (_, connection):
        check_slot(query, names, connection, after)


def timeline_of(connection: Connection) -> int | None:
    """On which timeline the server writes; None where it does not tell."""
    try:
        found = connection.execute(_TIMELINE).fetchone()
    except (
        psycopg.errors.InsufficientPrivilege,
        psycopg.errors.ObjectNotInPrerequisiteState,
        psycopg.errors.FeatureNotSupported,
    ):
        return None
    return int(found[0]) if found is not None else None


def check_timeline(
    query: ResolvedQuery, names: Names, info: str, now: int | None, noted: int | None, reached: Lsn
) -> None:
    """Whether what was read up to an LSN of one timeline is in the history of the server's own: a server that
    was promoted or restored may lack the end of it, and have written other things there since.

    Raises MzplanError MZ224, psycopg.Error.
    """
    if noted is None or now is None or noted == now:
        return
    left = _left(info, now, noted)
    if left is not None and reached <= left:
        return
    why = (
        f"it left timeline {noted}, of which the last step is, at {lsn_text(left)}"
        if left is not None
        else f"its history does not tell where it left timeline {noted}, of which the last step is"
    )
    raise slot_moved(query, names.slot, f"the server is on timeline {now}, and {why}", reached)


def _left(info: str, now: int, noted: int) -> Lsn | None:
    """Where the history of a timeline leaves another one; None if it does not tell."""
    link = ReplicationLink(info)
    try:
        rows = link.command(f"TIMELINE_HISTORY {now}".encode())
    except psycopg.OperationalError as problem:
        if getattr(problem, "state", None) is None:
            raise  # it could not be asked
        return None
    finally:
        link.close()
    for line in (rows[0][1] or "").splitlines():
        number, *rest = line.split()[:2] or [""]
        if number == str(noted) and rest:
            return lsn_of(rest[0])
    return None
