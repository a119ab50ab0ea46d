"""What a sink writes: its columns, as far as they are known without Spark."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mzplan.connectors.api.queries import Output, ResolvedQuery
from mzplan.schema.columns import Column, DdlError, parse_columns
from mzplan.schema.expressions import parse_select, parse_where
from mzplan.schema.kinds import resource_kind
from mzplan.schema.source_columns import record_columns

_PLAIN = re.compile(r"\s*(?:(\w+)|`((?:[^`]|``)+)`)\s*(?:(?:[Aa][Ss]\s+)?(?:(\w+)|`((?:[^`]|``)+)`)\s*)?\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Of which columns of the collection a column that a sink writes is made; `is_copy`: it is one of them as
    it is."""

    name: str
    columns: tuple[str, ...]
    is_copy: bool


def outputs_without_spark(query: ResolvedQuery) -> tuple[Output, ...]:
    """The columns of a sink, best effort: names of all, types of plain columns and of casts.

    An item that can't be read at all is left out: Spark will say what is wrong with it.
    """
    items = query.body.get("select")
    if not items:
        return tuple(Output(name=column.name, type=column.type) for column in query.columns)
    found: list[Output] = []
    for item in items:
        if (all_of_them := _star(item, query.columns)) is not None:
            found += [Output(name=column.name, type=column.type) for column in all_of_them]
            continue
        plain = _plain(item, query.columns)
        output = Output(name=plain[0], type=plain[1].type) if plain else _expression(item)
        if output is not None:
            found.append(output)
    return tuple(found)


def column_origins(query: ResolvedQuery) -> tuple[Origin, ...]:
    """What each column of a sink is made of, in order. One that is made of no column is left out."""
    found: list[Origin] = []
    for item in query.body.get("select") or ["*"]:
        if (all_of_them := _star(item, query.columns)) is not None:
            found += [Origin(name=one.name, columns=(one.name,), is_copy=True) for one in all_of_them]
            continue
        parsed = parse_select(item)
        columns = _existing(parsed.columns, query.columns)
        if not parsed.problem and parsed.name and columns:
            copied = _plain(item, query.columns) is not None
            found.append(Origin(name=parsed.name, columns=columns, is_copy=copied))
    return tuple(found)


def filter_columns(query: ResolvedQuery) -> tuple[str, ...]:
    """The columns by which `where` chooses rows."""
    where = query.body.get("where")
    return _existing(parse_where(where).columns, query.columns) if where else ()


def plain_columns(query: ResolvedQuery) -> dict[str, str] | None:
    """What a sink writes, as columns of the collection by the names that they get; None where it computes or
    filters anything."""
    if "where" in query.body:
        return None
    found: dict[str, str] = {}
    for item in query.body.get("select") or ["*"]:
        if item.strip() == "*":
            found |= {column.name: column.name for column in query.columns}
            continue
        plain = _plain(item, query.columns)
        if plain is None:
            return None
        found[plain[0]] = plain[1].name
    return found


def never_null_outputs(query: ResolvedQuery) -> tuple[str, ...]:
    """Names of what a sink writes that is never NULL for certain: columns as they are that say NOT NULL, or
    are of the collection's key where a record without a value for it is malformed (`x-key-certain`)."""
    certain = {column.name for column in query.columns if not column.nullable}
    source = query.description.source
    if source is not None and resource_kind("source", source.type).is_key_certain:
        certain |= {c.name for c in record_columns(source.type, source.body)} & set(query.keys)
    found: list[str] = []
    for item in query.body.get("select") or ["*"]:
        if item.strip() == "*":
            found += [column.name for column in query.columns if column.name in certain]
        elif (plain := _plain(item, query.columns)) is not None and plain[1].name in certain:
            found.append(plain[0])
    return tuple(found)


def _star(item: str, columns: tuple[Column, ...]) -> list[Column] | None:
    """The columns that `*`, or `* EXCEPT (…)`, stands for; None for an item of another form."""
    if item.strip() == "*":
        return list(columns)
    if not item.lstrip().startswith("*"):
        return None
    parsed = parse_select(item)
    return [one for one in columns if one.name.lower() not in parsed.without] if parsed.star else None


def _existing(read: tuple[tuple[str, int], ...], columns: tuple[Column, ...]) -> tuple[str, ...]:
    """Those of what an expression reads that are columns (a variable of a lambda is none), each once."""
    found = (_column(name, columns) for name, _ in read)
    return tuple(dict.fromkeys(column.name for column in found if column is not None))


def _plain(item: str, columns: tuple[Column, ...]) -> tuple[str, Column] | None:
    """The name that an item of `select` gets, and the column that it is; None for anything else."""
    match = _PLAIN.match(item)
    column = _column(_unquoted(match[1], match[2]), columns) if match else None
    if match is None or column is None:
        return None
    return _unquoted(match[3], match[4]) or column.name, column


def _expression(item: str) -> Output | None:
    parsed = parse_select(item)
    if parsed.problem or not parsed.name:
        return None
    return Output(name=parsed.name, type=canonical_type(parsed.cast) if parsed.cast else None)


def canonical_type(text: str) -> str | None:
    """A Spark type in canonical DDL (`decimal(10,2)` → `DECIMAL(10,2)`); None for one we don't know."""
    try:
        return parse_columns(f"x {text}")[0].type
    except DdlError:
        return None


def _column(name: str | None, columns: tuple[Column, ...]) -> Column | None:
    return next((column for column in columns if name and column.name.lower() == name.lower()), None)


def _unquoted(word: str | None, quoted: str | None) -> str | None:
    return quoted.replace("``", "`") if quoted else word
