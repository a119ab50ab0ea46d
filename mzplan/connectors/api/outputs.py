"""What a sink writes: its columns, as far as they are known without Spark."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from mzplan.connectors.api.queries import Output, ResolvedQuery
from mzplan.schema.columns import Column
from mzplan.schema.expressions import parse_select, parse_where
from mzplan.schema.source_columns import collection_kind, record_columns
from mzplan.schema.sql_types import type_of

_PLAIN = re.compile(r"\s*(?:(\w+)|`((?:[^`]|``)+)`)\s*(?:(?:[Aa][Ss]\s+)?(?:(\w+)|`((?:[^`]|``)+)`)\s*)?\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Of which columns of the collection a column that a sink writes is made; `is_copy`: it is one of them as
    it is."""

    name: str
    columns: tuple[str, ...]
    is_copy: bool


class Selected(NamedTuple):
    """A column that comes out of an expression. `type` in canonical Spark DDL; None where only Spark knows
    it."""

    name: str
    type: str | None
    nullable: bool = True


def outputs_without_spark(query: ResolvedQuery) -> tuple[Output, ...]:
    """The columns of a sink, best effort: names of all, types as far as they are certain (schema.sql_types).

    An item that can't be read at all is left out: Spark will say what is wrong with it.
    """
    items = query.body.get("select") or ["*"]
    selected = (columns_selected(item, query.columns) for item in items)
    return tuple(Output(name=c.name, type=c.type) for columns in selected for c in columns)


def columns_selected(item: str, columns: tuple[Column, ...]) -> tuple[Selected, ...]:
    """What an item of `select` gives, of these columns; nothing of one that can't be read."""
    if (all_of_them := _star(item, columns)) is not None:
        return tuple(Selected(c.name, c.type, c.nullable) for c in all_of_them)
    if (plain := _plain(item, columns)) is not None:
        name, column = plain
        return (Selected(name, column.type, column.nullable),)
    parsed = parse_select(item)
    if parsed.problem or not parsed.name:
        return ()
    return (Selected(parsed.name, type_of(item, columns)),)


def column_origins(query: ResolvedQuery) -> tuple[Origin, ...]:
    """What each column of a sink is made of, in order. One that is made of no column is left out."""
    origins: list[Origin] = []
    for item in query.body.get("select") or ["*"]:
        if (all_of_them := _star(item, query.columns)) is not None:
            origins += [
                Origin(name=column.name, columns=(column.name,), is_copy=True) for column in all_of_them
            ]
            continue
        parsed = parse_select(item)
        columns = _existing(parsed.columns, query.columns)
        if not parsed.problem and parsed.name and columns:
            copied = _plain(item, query.columns) is not None
            origins.append(Origin(name=parsed.name, columns=columns, is_copy=copied))
    return tuple(origins)


def filter_columns(query: ResolvedQuery) -> tuple[str, ...]:
    """The columns by which `where` chooses rows."""
    where = query.body.get("where")
    return _existing(parse_where(where).columns, query.columns) if where else ()


def plain_columns(query: ResolvedQuery) -> dict[str, str] | None:
    """What a sink writes, as columns of the collection by the names that they get; None where it computes or
    filters anything."""
    if "where" in query.body:
        return None
    columns: dict[str, str] = {}
    for item in query.body.get("select") or ["*"]:
        if item.strip() == "*":
            columns |= {column.name: column.name for column in query.columns}
            continue
        plain = _plain(item, query.columns)
        if plain is None:
            return None
        columns[plain[0]] = plain[1].name
    return columns


def never_null_outputs(query: ResolvedQuery) -> tuple[str, ...]:
    """Names of what a sink writes that is never NULL for certain: columns as they are that say NOT NULL, or
    are of the collection's key where a record without a value for it is malformed (`x-key-certain`)."""
    certain = {column.name for column in query.columns if not column.nullable}
    source = query.description.input
    if source is not None and collection_kind(source.type).is_key_certain:
        certain |= {c.name for c in record_columns(source.type, source.body)} & set(query.keys)
    names: list[str] = []
    for item in query.body.get("select") or ["*"]:
        if item.strip() == "*":
            names += [column.name for column in query.columns if column.name in certain]
        elif (plain := _plain(item, query.columns)) is not None and plain[1].name in certain:
            names.append(plain[0])
    return tuple(names)


def _star(item: str, columns: tuple[Column, ...]) -> list[Column] | None:
    """The columns that `*`, or `* EXCEPT (…)`, stands for; None for an item of another form."""
    if item.strip() == "*":
        return list(columns)
    if not item.lstrip().startswith("*"):
        return None
    parsed = parse_select(item)
    return (
        [column for column in columns if column.name.lower() not in parsed.without] if parsed.star else None
    )


def _existing(read: tuple[tuple[str, int], ...], columns: tuple[Column, ...]) -> tuple[str, ...]:
    """The columns among the names that an expression reads, each once; a variable of a lambda is none."""
    known = (_column(name, columns) for name, _ in read)
    return tuple(dict.fromkeys(column.name for column in known if column is not None))


def _plain(item: str, columns: tuple[Column, ...]) -> tuple[str, Column] | None:
    """The name that an item of `select` gets, and the column that it is; None for anything else."""
    match = _PLAIN.match(item)
    column = _column(_unquoted(match[1], match[2]), columns) if match else None
    if match is None or column is None:
        return None
    return _unquoted(match[3], match[4]) or column.name, column


def _column(name: str | None, columns: tuple[Column, ...]) -> Column | None:
    return next((column for column in columns if name and column.name.lower() == name.lower()), None)


def _unquoted(word: str | None, quoted: str | None) -> str | None:
    return quoted.replace("``", "`") if quoted else word
