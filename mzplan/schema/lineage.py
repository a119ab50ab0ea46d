"""The column lineage of sinks and views: which columns of their inputs they use, and for what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from mzplan.model.address import Kind
from mzplan.schema.columns import Column, spark_type
from mzplan.schema.expressions import parse_select, parse_where
from mzplan.schema.kinds import resource_kind
from mzplan.schema.relations.analysis import NAMES, analyse
from mzplan.schema.relations.lineage import ColumnRead, Lineage
from mzplan.schema.relations.lineage import lineage_of as lineage_of_analysis
from mzplan.schema.relations.nodes import QueryError
from mzplan.schema.relations.parse import is_relational, parse_query
from mzplan.schema.relations.tree import Input
from mzplan.schema.source_columns import columns_of, keys_of
from mzplan.schema.view_query import parse_view


class Collection(Protocol):
    """A Resource, ResourceState or CollectionRead that writes a collection."""

    @property
    def type(self) -> str: ...

    @property
    def body(self) -> Mapping[str, Any]: ...


def lineage_of(kind: Kind, type_: str, body: Mapping[str, Any], inputs: Mapping[str, Collection]) -> Lineage:
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
    read = tuple(
        (name, columns[name], name not in tables, marks.get(name, {}).get("column", "")) for name in columns
    )
    lineage = _of_query(str(body[property_]), read)
    return lineage or _of_function(columns, columns_of(type_, body))


_WRITERS: Sequence[Kind] = ("source", "view")


@lru_cache(maxsize=1024)
def _of_query(sql: str, read: tuple[tuple[str, tuple[Column, ...], bool, str], ...]) -> Lineage | None:
    """Return the lineage of a relational query; None for a query of another version.

    `read`: for each input its name, its columns, whether it is a stream, and the column with the watermark.
    """
    inputs = {
        name: Input(
            tuple(Column(c.name, spark_type(c.type), c.nullable) for c in columns), name, is_stream, mark
        )
        for name, columns, is_stream, mark in read
    }
    try:
        return lineage_of_analysis(analyse(parse_query(sql), inputs, {}, NAMES))
    except (QueryError, KeyError):
        return None


def _of_function(columns: Mapping[str, Sequence[Column]], outputs: Iterable[Column]) -> Lineage:
    every = frozenset((name, column.name) for name, listed in columns.items() for column in listed)
    return Lineage({column.name: every for column in outputs}, every, is_ordered=True)


def _of_rows(
    body: Mapping[str, Any], inputs: Mapping[str, Collection], columns: Mapping[str, Sequence[Column]]
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
