"""Checks that a PostgreSQL source still reads the same tables.

Each step's note records tables, enum labels and partitions by oid, and columns by number, because names can
change. It also records the server's timeline.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import psycopg

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.postgres.client import open_conninfo
from mzplan.connectors.postgres.problems import state_of
from mzplan.connectors.postgres.source.replication import Lsn, ReplicationLink, lsn_of, lsn_text
from mzplan.connectors.postgres.source.slots import (
    Names,
    find_slot,
    insert_lsn,
    own_columns,
    published,
    session,
)
from mzplan.connectors.postgres.source.upstream_problems import (
    ANOTHER_COLUMN,
    ANOTHER_TABLE,
    RELABELLED,
    RETYPED,
    SLOT_GONE,
    SLOT_MOVED,
)
from mzplan.connectors.postgres.source.values import is_text
from mzplan.connectors.postgres.tables import Connection, Table, find_table
from mzplan.connectors.postgres.types import numeric_size
from mzplan.model.diagnostics import MzplanError

NO_SLOT = "it is missing: it was dropped, or the server was promoted or restored without it"

Types = Mapping[str, Mapping[str, Sequence[Any]]]
"""By table and declared column: type and typmod as in the catalog, the type for people, the column's number,
and an enum's labels by oid."""

_INTEGERS = ("int2", "int4", "int8")
_TIMES = ("timestamp", "timestamptz", "time", "timetz")


# ── the slot, and the timeline


def check_slot(query: ResolvedQuery, names: Names, connection: Connection, needed: Lsn) -> None:
    """Raise MzplanError MZ223 unless a slot has all changes since an LSN."""
    slot = find_slot(connection, names.slot)
    if slot is None:
        raise SLOT_GONE.error(query, slot=names.slot, why=NO_SLOT)
    if slot.lost:
        why = (
            "it is invalidated: the server discarded log that the slot still needed (max_slot_wal_keep_size)"
        )
        raise SLOT_GONE.error(query, slot=names.slot, why=why)
    end, _ = insert_lsn(connection)
    if end < needed:
        raise _slot_moved_error(query, names, f"the server's log ends at {lsn_text(end)}", needed)
    if slot.confirmed > needed:
        raise _slot_moved_error(query, names, f"it begins at {lsn_text(slot.confirmed)}", needed)


def _slot_moved_error(query: ResolvedQuery, names: Names, why: str, needed: Lsn) -> MzplanError:
    return SLOT_MOVED.error(query, slot=names.slot, why=why, needed=lsn_text(needed))


@contextlib.contextmanager
def streaming(query: ResolvedQuery, names: Names, after: Lsn) -> Iterator[ReplicationLink]:
    """Yield the slot's stream, for the changes after an LSN. Raises MzplanError MZ223, psycopg.Error."""
    with (
        open_conninfo(query, f"mzplan {query.address}") as info,
        contextlib.closing(ReplicationLink(info)) as link,
    ):
        link.stream(names.slot, names.publication)
        # Check the slot after the stream has started, because nothing else can advance it from then on.
        with session(query) as (_, connection):
            check_slot(query, names, connection, after)
        yield link


def check_timeline(
    query: ResolvedQuery,
    names: Names,
    info: str,
    current: int | None,
    recorded: int | None,
    last_read: Lsn,
    within_s: float = math.inf,
) -> None:
    """Check that the server's history contains everything that the source has read.

    A promoted or restored server may not have the end of the recorded timeline, and may have written other
    transactions instead. `within_s`: see `connect`. Raises MzplanError MZ223, psycopg.Error.
    """
    if recorded is None or current is None or recorded == current:
        return
    branch = _branch_lsn(info, current, recorded, within_s)
    if branch is not None and last_read <= branch:
        return
    why = (
        f"which branched off timeline {recorded} at {lsn_text(branch)}"
        if branch is not None
        else f"whose history doesn't say where it branched off timeline {recorded}"
    )
    raise _slot_moved_error(query, names, f"the server is on timeline {current}, {why}", last_read)


def _branch_lsn(info: str, current: int, recorded: int, within_s: float) -> Lsn | None:
    """Return the LSN at which a timeline branched off an earlier one, or None if unknown."""
    with contextlib.closing(ReplicationLink(info, within_s)) as link:
        try:
            rows = link.command(f"TIMELINE_HISTORY {current}".encode())
        except psycopg.OperationalError as problem:
            if state_of(problem) is None:
                raise  # not the server's answer, but a broken connection
            return None
    for line in (rows[0][1] or "").splitlines():
        number, *rest = line.split()[:2] or [""]
        if number == str(recorded) and rest:
            return lsn_of(rest[0])
    return None


# ── the tables


def check_tables(
    connection: Connection,
    query: ResolvedQuery,
    names: Names,
    read: Iterable[str],
    recorded: Mapping[str, int],
) -> dict[str, Table]:
    """Return the existing tables. Raises MZ043 if one isn't the recorded table, or isn't published."""
    present: dict[str, Table] = {}
    in_publication = published(connection, names.publication)
    for name in read:
        table, before = find_table(connection, name), recorded.get(name)
        why = None
        if table is None:
            why = "it no longer exists: it was dropped or renamed" if before is not None else None
        elif before is not None and table.oid != before:
            why = (
                f"its oid is {table.oid}, not {before}, the oid of the table that was read: it was dropped "
                "and recreated, or another table was given its name"
            )
        elif (table.schema, table.name) not in in_publication:
            why = f"publication {names.publication} does not publish it"
        elif filter_ := in_publication[table.schema, table.name][1]:
            why = f"publication {names.publication} publishes only its rows WHERE {filter_}"
        if why is not None:
            raise ANOTHER_TABLE.error(query, table=name, why=why)
        if table is not None:
            present[name] = table
    return present


class Shapes:
    """Compares the tables' columns with the recorded columns. `known`: the current columns."""

    def __init__(self, query: ResolvedQuery):
        self._query = query
        self._columns = own_columns(query)
        self.known: dict[str, dict[str, Sequence[Any]]] = {}

    def look(self, tables: Mapping[str, Table], recorded: Types) -> None:
        """Compare the tables with a step's record. Columns without a record count as unchanged.

        Raises MzplanError MZ230.
        """
        for name, table in tables.items():
            before = recorded.get(name, {})
            known: dict[str, Sequence[Any]] = {}
            for column in self._columns:
                current = table.column(column.name)
                if current is None:  # reported when a row without the column arrives
                    if column.name in before:
                        known[column.name] = before[column.name]
                    continue
                labels = dict(current.labels)
                new = [current.type, current.typmod, current.shown, current.number, labels]
                known[column.name] = new
                old = before.get(column.name, new)
                self._ensure_same(name, column.name, old, new)
                if not keeps_values(old, new, as_text=is_text(column.type)):
                    raise RETYPED.error(
                        self._query, table=name, column=column.name, was=old[2], now=current.shown
                    )
            self.known[name] = known

    def _ensure_same(self, table: str, column: str, old: Sequence[Any], new: Sequence[Any]) -> None:
        """Raise MzplanError MZ230 for a schema change that changes values but sends no rows."""
        if old[3] != new[3]:
            raise ANOTHER_COLUMN.error(self._query, table=table, column=column, was=old[3], now=new[3])
        renamed = [label for oid, label in old[4].items() if new[4].get(oid) != label]
        if renamed:
            raise RELABELLED.error(self._query, table=table, column=column, labels=", ".join(renamed))

    def added(self, recorded: Types) -> dict[str, list[str]]:
        """Return, by table, the columns declared since `recorded`. Earlier rows may not have them."""
        added = {
            name: [column.name for column in self._columns if column.name not in before]
            for name, before in recorded.items()
        }
        return {name: columns for name, columns in added.items() if columns}


def keeps_values(old_column: Sequence[Any], new_column: Sequence[Any], *, as_text: bool) -> bool:
    """Return whether a column's values stay the same with its new type.

    With `as_text`, their text must also stay the same.
    """
    (old, new), (old_typmod, new_typmod) = (
        (str(old_column[0]), str(new_column[0])),
        (int(old_column[1]), int(new_column[1])),
    )
    if (old, old_typmod) == (new, new_typmod):
        return True
    if old[:1] == "_" == new[:1]:  # arrays
        old, new = old[1:], new[1:]
    wider = new_typmod < 0 or 0 <= old_typmod <= new_typmod
    if old in ("varchar", "text") and new in ("varchar", "text"):
        return wider
    if old in _TIMES:
        return old == new and wider
    if old in _INTEGERS and new in _INTEGERS:
        return _INTEGERS.index(old) <= _INTEGERS.index(new)
    if old == "numeric" == new:
        return _keeps_digits(numeric_size(old_typmod), numeric_size(new_typmod), as_text=as_text)
    return not as_text and ((old in _INTEGERS and new == "numeric") or (old, new) == ("float4", "float8"))


def _keeps_digits(old: tuple[int, int] | None, new: tuple[int, int] | None, *, as_text: bool) -> bool:
    if old is None or new is None:
        return new is None
    return new[1] == old[1] or (new[1] > old[1] and not as_text)
