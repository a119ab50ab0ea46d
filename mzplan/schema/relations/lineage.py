"""The column lineage of an analysed query: from which columns of its inputs each column is computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mzplan.schema.relations.scopes import Field
from mzplan.schema.relations.tree import Analysis

ColumnRead = tuple[str, str]
"""A column of an input: the input's name, and the column's name as declared."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """The columns that a query reads.

    - `columns`: for each column of the result, the columns that it is computed from.
    - `rows`: the columns that decide which rows there are.
    - `others`: columns that the query names, although its result doesn't need them.
    - `is_ordered`: the order of an input's columns matters, because the query has a `*`.
    """

    columns: Mapping[str, frozenset[ColumnRead]]
    rows: frozenset[ColumnRead] = frozenset()
    others: frozenset[ColumnRead] = frozenset()
    is_ordered: bool = False

    @property
    def used(self) -> frozenset[ColumnRead]:
        """All columns that the query reads."""
        return self.rows.union(self.others, *self.columns.values())


def lineage_of(analysis: Analysis) -> Lineage:
    """Return the column lineage of a query whose names are resolved."""
    inputs = {id(column): (name, column.name) for name, column in analysis.read}
    times = {(name, i.event_time.lower()) for name, i in analysis.inputs.items() if i.event_time}
    watermarks = [column for name, column in analysis.read if (name, column.name.lower()) in times]
    deciding = (column for _, column in analysis.read if column in analysis.deciding)
    return Lineage(
        {item.field.name: frozenset(_leaves([item.field], inputs)) for item in analysis.root.items},
        frozenset(_leaves([*deciding, *watermarks], inputs)),
        frozenset(inputs[id(column)] for _, column in analysis.read if column in analysis.used),
        any(column in analysis.used for column in analysis.starred),
    )


def _leaves(fields: Iterable[Field], inputs: Mapping[int, ColumnRead]) -> Iterator[ColumnRead]:
    """Yield the columns of inputs from which these columns are computed."""
    open_, seen = list(fields), set[int]()
    while open_:
        column = open_.pop()
        if id(column) in seen:
            continue
        seen.add(id(column))
        if (read := inputs.get(id(column))) is not None:
            yield read
        open_ += column.parts
