"""Is it still what was read? A PostgreSQL source records with each step, beside its bounds, which tables they
were (by oid: a name can come to mean another table), what their columns and their partitions were (a column
by its number, an enum's label by its oid), and on which timeline of the server they lie.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import psycopg

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.postgres.client import reached
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
from mzplan.connectors.postgres.types import numeric_size, quoted
from mzplan.model.diagnostics import MzplanError

NO_SLOT = "it is not there: somebody dropped it, or the server was promoted or restored without it"
# Whether a partition, or one that it is a part of, was attached by a transaction after the one that made it;
# else which one that was, and by which of its commands it became a part. The catalogue's rows say it: those
# of a table's system columns are never changed.
_LEAVES = """
SELECT c.oid::bigint, n.nspname, c.relname, coalesce(pg_relation_size(c.oid), 0) > 0,
       coalesce(up.later, true), a.xmin::text, up.command
FROM pg_partition_tree(%(table)s) t JOIN pg_class c ON c.oid = t.relid
JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = -1
CROSS JOIN LATERAL (
  SELECT bool_or(age(i.xmin) < age(a.xmin)) AS later,
         max(i.cmin::text::bigint) FILTER (WHERE i.xmin = a.xmin) AS command
  FROM pg_partition_ancestors(c.oid) p JOIN pg_inherits i ON i.inhrelid = p.relid
  WHERE p.relid <> %(table)s AND p.relid IN (SELECT relid FROM pg_partition_tree(%(table)s))
) up
WHERE t.isleaf AND c.oid <> %(table)s ORDER BY 1
"""
_BEFORE = "WHERE ctid < '(8,0)' AND xmin = %s::xid AND cmin::text::bigint < %s"

Types = Mapping[str, Mapping[str, Sequence[Any]]]
"""By the source's name of a table, by declared column: type and typmod, as the catalogue has them, and as
people know them; then its number, and an enum's labels by their oids."""

_INTEGERS = ("int2", "int4", "int8")
_TIMES = ("timestamp", "timestamptz", "time", "timetz")


# ── the slot, and the timeline


def check_slot(query: ResolvedQuery, names: Names, connection: Connection, needed: Lsn) -> None:
    """Whether a slot holds the changes since an LSN. Raises MzplanError MZ223."""
    slot = find_slot(connection, names.slot)
    if slot is None:
        raise SLOT_GONE.error(query, slot=names.slot, why=NO_SLOT)
    if slot.lost:
        why = "it is invalidated: the server has discarded log that it still needed (max_slot_wal_keep_size)"
        raise SLOT_GONE.error(query, slot=names.slot, why=why)
    end, _ = insert_lsn(connection)
    if end < needed:
        raise _moved(query, names, f"the server's log ends at {lsn_text(end)}", needed)
    if slot.confirmed > needed:
        raise _moved(query, names, f"it begins at {lsn_text(slot.confirmed)}", needed)


def _moved(query: ResolvedQuery, names: Names, why: str, needed: Lsn) -> MzplanError:
    return SLOT_MOVED.error(query, slot=names.slot, why=why, needed=lsn_text(needed))


@contextlib.contextmanager
def streaming(query: ResolvedQuery, names: Names, after: Lsn) -> Iterator[ReplicationLink]:
    """The slot's stream, with what comes after an LSN. Raises MzplanError MZ223, psycopg.Error."""
    with (
        reached(query, f"mzplan {query.address}") as info,
        contextlib.closing(ReplicationLink(info)) as link,
    ):
        link.stream(names.slot, names.publication)
        # Only now: while the slot is streamed, nobody else can advance it.
        with session(query) as (_, connection):
            check_slot(query, names, connection, after)
        yield link


def check_timeline(
    query: ResolvedQuery,
    names: Names,
    info: str,
    now: int | None,
    recorded: int | None,
    reached: Lsn,
    within_s: float = math.inf,
) -> None:
    """Whether what was read up to an LSN of one timeline is in the history of the server's own: a server that
    was promoted or restored may lack the end of it, and have written other things there since.

    `within_s`: see `connect`. Raises MzplanError MZ223, psycopg.Error.
    """
    if recorded is None or now is None or recorded == now:
        return
    left = _left(info, now, recorded, within_s)
    if left is not None and reached <= left:
        return
    why = (
        f"it left timeline {recorded}, of which the last step is, at {lsn_text(left)}"
        if left is not None
        else f"its history does not say where it left timeline {recorded}, of which the last step is"
    )
    raise _moved(query, names, f"the server is on timeline {now}, and {why}", reached)


def _left(info: str, now: int, recorded: int, within_s: float) -> Lsn | None:
    """Where the history of a timeline leaves another one; None if it does not say."""
    with contextlib.closing(ReplicationLink(info, within_s)) as link:
        try:
            rows = link.command(f"TIMELINE_HISTORY {now}".encode())
        except psycopg.OperationalError as problem:
            if state_of(problem) is None:
                raise  # the question did not arrive
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
    """The tables that were read, if they are those that are there, and published. Raises MZ043."""
    present: dict[str, Table] = {}
    in_publication = published(connection, names.publication)
    for name in read:
        table, before = find_table(connection, name), recorded.get(name)
        why = None
        if table is None:
            why = "it is not there any more: it was dropped or renamed" if before is not None else None
        elif before is not None and table.oid != before:
            why = (
                f"its oid is {table.oid}, and that of the table that was read is {before}: it was dropped "
                "and made anew, or another table was given its name"
            )
        elif (table.schema, table.name) not in in_publication:
            why = f"publication {names.publication} does not publish it (any more)"
        elif filter_ := in_publication[table.schema, table.name][1]:
            why = f"publication {names.publication} publishes only its rows WHERE {filter_}"
        if why is not None:
            raise ANOTHER_TABLE.error(query, table=name, why=why)
        if table is not None:
            present[name] = table
    return present


class Shapes:
    """`known`: what the tables' columns are now."""

    def __init__(self, query: ResolvedQuery):
        self._query = query
        self._columns = own_columns(query)
        self.known: dict[str, dict[str, Sequence[Any]]] = {}

    def look(self, tables: Mapping[str, Table], recorded: Types) -> None:
        """Compare with what a step has recorded; what it has not is as it is. Raises MzplanError MZ230."""
        for name, table in tables.items():
            before = recorded.get(name, {})
            known: dict[str, Sequence[Any]] = {}
            for column in self._columns:
                current = table.column(column.name)
                if current is None:  # reported when a row lacks it
                    if column.name in before:
                        known[column.name] = before[column.name]
                    continue
                labels = dict(current.labels)
                now = [current.type, current.typmod, current.shown, current.number, labels]
                known[column.name] = now
                was = before.get(column.name, now)
                self._ensure_same(name, column.name, was, now)
                if not keeps_values(was, now, as_text=is_text(column.type)):
                    raise RETYPED.error(
                        self._query, table=name, column=column.name, was=was[2], now=current.shown
                    )
            self.known[name] = known

    def _ensure_same(self, table: str, column: str, was: Sequence[Any], now: Sequence[Any]) -> None:
        """Raise MzplanError MZ230 for what changes values and sends no row."""
        if was[3] != now[3]:
            raise ANOTHER_COLUMN.error(self._query, table=table, column=column, was=was[3], now=now[3])
        renamed = [label for oid, label in was[4].items() if now[4].get(oid) != label]
        if renamed:
            raise RELABELLED.error(self._query, table=table, column=column, labels=", ".join(renamed))

    def added(self, recorded: Types) -> dict[str, list[str]]:
        """By table, the columns that are declared only since a step: rows from before may lack them."""
        added = {
            name: [column.name for column in self._columns if column.name not in before]
            for name, before in recorded.items()
        }
        return {name: columns for name, columns in added.items() if columns}


def keeps_values(was: Sequence[Any], now: Sequence[Any], *, as_text: bool) -> bool:
    """Whether a column that gets another type has the same values as before, also as text if that is what
    is read of them."""
    (old, new), (old_typmod, new_typmod) = (str(was[0]), str(now[0])), (int(was[1]), int(now[1]))
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


def _keeps_digits(was: tuple[int, int] | None, now: tuple[int, int] | None, *, as_text: bool) -> bool:
    if was is None or now is None:
        return now is None
    return now[1] == was[1] or (now[1] > was[1] and not as_text)


# ── their partitions


class Leaves:
    """`known`: by the source's name of a table, the oids of its partitions whose rows are read, or come as
    changes. `attached`: those that came with rows of their own, perhaps, as (schema, name) by oid."""

    def __init__(self) -> None:
        self.known: dict[str, list[int]] = {}
        self.attached: dict[str, dict[int, tuple[str, str]]] = {}

    def look(
        self, connection: Connection, tables: Mapping[str, int], recorded: Mapping[str, list[int]]
    ) -> None:
        """See what came, to tables by oid, since the step that `recorded` is of. Where that is nothing, all
        that is there is known."""
        for name, table in tables.items():
            rows = connection.execute(_LEAVES, {"table": table}).fetchall()
            before = self.known.get(name, recorded.get(name))
            new = {
                oid: (schema, leaf)
                for oid, schema, leaf, filled, *how in rows
                if before is not None and oid not in before and filled
                if _came_with_rows(connection, schema, leaf, *how)
            }
            self.known[name] = [oid for oid, *_ in rows if oid not in new]
            self.attached.pop(name, None)
            if new:
                self.attached[name] = new

    def take(self) -> dict[str, set[tuple[str, str]]]:
        """What was attached, by table. It is known from now on: who asks reads it in a snapshot that begins
        after it was seen."""
        taken, self.attached = self.attached, {}
        for name, leaves in taken.items():
            self.known[name] = sorted([*self.known[name], *leaves])
        return {name: set(leaves.values()) for name, leaves in taken.items()}


def _came_with_rows(
    connection: Connection, schema: str, leaf: str, later: bool, maker: str, command: int | None
) -> bool:
    """Whether a partition that has rows now may have had some before it was one: so not the common one, that
    is made as a partition."""
    if later or command is None:
        return True
    # Made and attached in one transaction, with rows between, which are its first ones.
    statement = f"SELECT EXISTS (SELECT 1 FROM ONLY {quoted(schema)}.{quoted(leaf)} {_BEFORE})"
    try:
        row = connection.execute(statement.encode(), (maker, command)).fetchone()
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedTable):
        return False
    return row is not None and bool(row[0])
