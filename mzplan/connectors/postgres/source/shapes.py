"""The declared columns of a source's tables, and the types that they had when they were read.

ALTER TABLE … TYPE writes all rows of a table anew, and no change tells of them: where that gives other
values, what was read before is no longer what the table holds. (What USING makes of values can't be seen.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mzplan.connectors.api.protocols import ResolvedQuery
from mzplan.connectors.postgres.source.problems import retyped
from mzplan.connectors.postgres.source.values import is_text
from mzplan.connectors.postgres.tables import Table
from mzplan.connectors.postgres.types import numeric_size
from mzplan.schema.source_columns import included_columns

Types = Mapping[str, Mapping[str, Sequence[Any]]]
"""By the source's name of a table, by declared column: type and typmod, as the catalogue has them, and as
people know them."""

_INTEGERS = ("int2", "int4", "int8")
_TIMES = ("timestamp", "timestamptz", "time", "timetz")


class Shapes:
    """`known`: what the tables' columns are now."""

    def __init__(self, query: ResolvedQuery):
        self._query = query
        included = included_columns(query.description.type, query.body)
        own = included["table"].name if "table" in included else None
        self._columns = [column for column in query.columns if column.name != own]
        self.known: dict[str, dict[str, Sequence[Any]]] = {}

    def look(self, tables: Mapping[str, Table], noted: Types) -> None:
        """Compare with what a step has noted; what it did not note is as it is. Raises MzplanError MZ230."""
        for name, table in tables.items():
            before = noted.get(name, {})
            known: dict[str, Sequence[Any]] = {}
            for column in self._columns:
                found = table.column(column.name)
                if found is None:  # that is told when a row lacks it
                    if column.name in before:
                        known[column.name] = before[column.name]
                    continue
                known[column.name] = now = [found.type, found.typmod, found.shown]
                was = before.get(column.name, now)
                if not keeps_values(was, now, as_text=is_text(column.type)):
                    raise retyped(self._query, name, column.name, str(was[2]), found.shown)
            self.known[name] = known

    def added(self, noted: Types) -> dict[str, list[str]]:
        """By table, the columns that are declared only since a step: rows from before may lack them."""
        found = {
            name: [column.name for column in self._columns if column.name not in before]
            for name, before in noted.items()
        }
        return {name: columns for name, columns in found.items() if columns}


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
