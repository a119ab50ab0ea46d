"""The column lineage of queries: which columns of their inputs they use, and what a column reaches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

from mzplan.model.address import Address, Kind
from mzplan.model.graph import DependencyGraph
from mzplan.model.resources import Resource
from mzplan.model.state import ResourceState
from mzplan.schema.columns import Column
from mzplan.schema.kinds import resource_kind
from mzplan.schema.relations.analysis import NAMES, analyse
from mzplan.schema.relations.nodes import QueryError
from mzplan.schema.relations.parse import is_relational, parse_query
from mzplan.schema.relations.scopes import Field
from mzplan.schema.relations.tree import Analysis, Input
from mzplan.schema.source_columns import columns_of, keys_of
from mzplan.schema.sql.expressions import parse_select, parse_where
from mzplan.schema.sql.view_query import parse_view

ColumnRead = tuple[str, str]
"""A column of an input: the input's name, and the column's name as declared."""


class Readable(Protocol):
    """A Resource, ResourceState or CollectionRead that writes a collection."""

    @property
    def type(self) -> str: ...

    @property
    def body(self) -> Mapping[str, Any]: ...


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


def lineage_of(kind: Kind, type_: str, body: Mapping[str, Any], inputs: Mapping[str, Readable]) -> Lineage:
    """Return the column lineage of a sink or view. `inputs`: the collections that it reads, by name.

    If only Spark or a function knows it, each column is computed from all columns.
    """
    property_ = resource_kind(kind, type_).query_property
    columns = {name: columns_of(read.type, read.body) for name, read in inputs.items()}
    if property_ is None:
        written = kind in _WRITERS
        return _of_function(columns, columns_of(type_, body)) if written else _of_rows(body, inputs, columns)
    if not is_relational(body):
        return _of_rows(parse_view(str(body[property_])).body, inputs, columns)
    marks, tables = body.get("watermarks") or {}, body.get("snapshots") or ()
    times = {name: mark.get("column", "") for name, mark in marks.items()}
    read = tuple(
        (
            n,
            Input.of(one.type, one.body, n, stream=n not in tables, event_time=times.get(n, "")),
        )
        for n, one in inputs.items()
    )
    lineage = _of_query(str(body[property_]), read)
    return lineage or _of_function(columns, columns_of(type_, body))


_WRITERS: Sequence[Kind] = ("source", "view")


@lru_cache(maxsize=1024)
def _of_query(sql: str, inputs: tuple[tuple[str, Input], ...]) -> Lineage | None:
    """Return the lineage of a relational query; None for a query of another version."""
    try:
        return lineage_of_analysis(analyse(parse_query(sql), dict(inputs), {}, NAMES))
    except (QueryError, KeyError):
        return None


def _of_function(columns: Mapping[str, Sequence[Column]], outputs: Iterable[Column]) -> Lineage:
    every = frozenset((name, column.name) for name, listed in columns.items() for column in listed)
    return Lineage({column.name: every for column in outputs}, every, is_ordered=True)


def _of_rows(
    body: Mapping[str, Any], inputs: Mapping[str, Readable], columns: Mapping[str, Sequence[Column]]
) -> Lineage:
    """Return the lineage of `select` and `where` over one collection. A keyed one is read by its key."""
    ((name, read),) = inputs.items()
    known = {column.name.lower(): frozenset([(name, column.name)]) for column in columns[name]}
    keys = frozenset[ColumnRead]().union(
        *(known.get(key.lower(), ()) for key in keys_of(read.type, read.body))
    )
    outputs: dict[str, frozenset[ColumnRead]] = {}
    is_ordered = False
    for item in body.get("select") or ["*"]:
        parsed = parse_select(item)
        if parsed.star:
            is_ordered = True
            starred = (c.name for c in columns[name] if c.name.lower() not in parsed.without)
            outputs.update((column, known[column.lower()]) for column in starred)
        else:
            found = frozenset(_reads(parsed.columns, known, outputs))
            outputs[parsed.name or item] = found
    where = parse_where(body["where"]).columns if "where" in body else ()
    return Lineage(outputs, keys.union(_reads(where, known, {})), is_ordered=is_ordered)


def _reads(
    names: Iterable[tuple[str, int]],
    known: Mapping[str, frozenset[ColumnRead]],
    earlier: Mapping[str, frozenset[ColumnRead]],
) -> Iterator[ColumnRead]:
    """Yield the columns that names stand for: columns, or else earlier items. Variables stand for none."""
    items = {name.lower(): reads for name, reads in earlier.items()}
    for name, _ in names:
        yield from known.get(name.lower(), items.get(name.lower(), frozenset()))


def lineage_of_analysis(analysis: Analysis) -> Lineage:
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


@dataclass(frozen=True, slots=True)
class Reached:
    """How a query depends on a column, directly or through other queries.

    - `columns`: its columns that are computed from the column.
    - `rows`: whether the column decides which rows it has.
    """

    columns: tuple[str, ...]
    rows: bool = False


Resources: TypeAlias = Mapping[Address, Resource] | Mapping[Address, ResourceState]


def reach_of_column(
    address: Address, columns: Collection[str], resources: Resources, graph: DependencyGraph | None = None
) -> dict[Address, Reached]:
    """Return what columns of a collection reach, in dependency order, without the collection itself.

    A query that names a column without needing it is reached, too: it couldn't run without the column.
    `graph`: of these resources, if the caller has it.
    """
    graph = graph or DependencyGraph.of(resources)
    found = {address: Reached(tuple(columns))}
    for reader in graph.order(graph.all_dependents([address])):
        resource = resources[reader]
        inputs = {a.name: resources[a] for a in resource.references.values() if a.writes_collection}
        before = {a.name: found[a] for a in resource.references.values() if a in found}
        lineage = lineage_of(reader.kind, resource.type, resource.body, inputs) if before else None
        if lineage is not None and (reached := _reached(lineage, before)) is not None:
            found[reader] = reached
    del found[address]
    return found


def _reached(lineage: Lineage, before: Mapping[str, Reached]) -> Reached | None:
    """Return how a query depends on its reached inputs, by name; None if it doesn't."""
    read = frozenset((name, column) for name, one in before.items() for column in one.columns)
    rows = any(one.rows for one in before.values()) or not lineage.rows.isdisjoint(read)
    columns = tuple(name for name, columns in lineage.columns.items() if not columns.isdisjoint(read))
    return Reached(columns, rows) if rows or not lineage.used.isdisjoint(read) else None
