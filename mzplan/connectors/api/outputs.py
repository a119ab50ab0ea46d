"""The columns that a sink writes, as far as they are known without Spark."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mzplan.connectors.api.queries import Output, ResolvedQuery
from mzplan.schema.columns import Column
from mzplan.schema.source_columns import collection_kind, record_columns
from mzplan.schema.sql.expressions import parse_select, parse_where
from mzplan.schema.sql.sql_types import type_of
from mzplan.schema.target_writes import VERSION_COLUMNS, keeps_history
from mzplan.schema.user_functions import returned_types

_PLAIN = re.compile(r"\s*(?:(\w+)|`((?:[^`]|``)+)`)\s*(?:(?:[Aa][Ss]\s+)?(?:(\w+)|`((?:[^`]|``)+)`)\s*)?\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The origin of one of a sink's columns.

    - `columns`: the columns of the collection from which it is computed.
    - `is_copy`: whether it is a copy of a single column.
    """

    name: str
    columns: tuple[str, ...]
    is_copy: bool


class SelectedColumn(NamedTuple):
    """A column that an expression produces. `type` is canonical Spark DDL, or None if only Spark knows it."""

    name: str
    type: str | None
    nullable: bool = True


def outputs_without_spark(query: ResolvedQuery) -> tuple[Output, ...]:
    """Return the columns of a sink, with the types that are certain without Spark (schema.sql.sql_types).

    Leaves out items that can't be parsed. Spark reports the error later."""
    items = query.body.get("select") or ["*"]
    returned = returned_types(query.body)
    column_groups = (columns_selected(item, query.columns, returned) for item in items)
    return tuple(Output(name=c.name, type=c.type) for columns in column_groups for c in columns)


def columns_selected(
    item: str, columns: tuple[Column, ...], returned: Mapping[str, str]
) -> tuple[SelectedColumn, ...]:
    """Return the columns that an item of `select` produces, or () if it can't be parsed.

    `returned`: the types of the user's functions, by name.
    """
    if (all_of_them := _star_columns(item, columns)) is not None:
        return tuple(SelectedColumn(c.name, c.type, c.nullable) for c in all_of_them)
    if (plain := _plain_column(item, columns)) is not None:
        name, column = plain
        return (SelectedColumn(name, column.type, column.nullable),)
    parsed = parse_select(item)
    if parsed.problem or not parsed.name:
        return ()
    return (SelectedColumn(parsed.name, type_of(item, columns, returned)),)


def target_outputs(query: ResolvedQuery, outputs: Sequence[Output]) -> tuple[Output, ...]:
    """Return the columns of a sink's target: its outputs, and the columns of a history."""
    added = VERSION_COLUMNS if keeps_history(query.body) else ()
    return (*outputs, *(Output(name=column.name, type=column.type) for column in added))


def unfit_time(query: ResolvedQuery, outputs: Sequence[Output]) -> str:
    """Return why the column `valid_from` isn't the time of versions; "" if it is, or isn't named."""
    name = query.body.get("valid_from")
    types = {output.name.lower(): output.type for output in outputs}
    if name is None or types.get(name.lower(), "") in (None, "TIMESTAMP"):
        return ""
    if name.lower() not in types:
        return f"it has no column {name}, which `valid_from` names"
    return f"its column {name}, which `valid_from` names, is {types[name.lower()]}, not TIMESTAMP"


def column_origins(query: ResolvedQuery) -> tuple[Origin, ...]:
    """Return the origins of a sink's columns, in order. Leaves out columns that read no column."""
    origins: list[Origin] = []
    for item in query.body.get("select") or ["*"]:
        if (all_of_them := _star_columns(item, query.columns)) is not None:
            origins += [
                Origin(name=column.name, columns=(column.name,), is_copy=True) for column in all_of_them
            ]
            continue
        parsed = parse_select(item)
        columns = _existing_columns(parsed.columns, query.columns)
        if not parsed.problem and parsed.name and columns:
            is_copy = _plain_column(item, query.columns) is not None
            origins.append(Origin(name=parsed.name, columns=columns, is_copy=is_copy))
    return tuple(origins)


def filter_columns(query: ResolvedQuery) -> tuple[str, ...]:
    """Return the columns that `where` reads."""
    where = query.body.get("where")
    return _existing_columns(parse_where(where).columns, query.columns) if where else ()


def plain_columns(query: ResolvedQuery) -> dict[str, str] | None:
    """Return the collection's columns that a sink copies, by output name.

    Returns None if the sink computes or filters anything."""
    if "where" in query.body:
        return None
    columns: dict[str, str] = {}
    for item in query.body.get("select") or ["*"]:
        if item.strip() == "*":
            columns |= {column.name: column.name for column in query.columns}
            continue
        plain = _plain_column(item, query.columns)
        if plain is None:
            return None
        columns[plain[0]] = plain[1].name
    return columns


def never_null_outputs(query: ResolvedQuery) -> tuple[str, ...]:
    """Return the names of the outputs that are never NULL.

    These outputs copy NOT NULL columns, or key columns without which a record is malformed
    (`x-key-certain`)."""
    certain = {column.name for column in query.columns if not column.nullable}
    source = query.description.input
    if source is not None and collection_kind(source.type).is_key_certain:
        certain |= {c.name for c in record_columns(source.type, source.body)} & set(query.keys)
    names: list[str] = []
    for item in query.body.get("select") or ["*"]:
        if item.strip() == "*":
            names += [column.name for column in query.columns if column.name in certain]
        elif (plain := _plain_column(item, query.columns)) is not None and plain[1].name in certain:
            names.append(plain[0])
    return tuple(names)


def may_be_null(query: ResolvedQuery, name: str) -> bool:
    """Return whether an output may be NULL, unless `where` says `name IS NOT NULL`."""
    is_not_null = rf"\b{re.escape(name)}`?\s+IS\s+NOT\s+NULL"
    if re.search(is_not_null, query.body.get("where") or "", re.IGNORECASE):
        return False
    return name.lower() not in {output.lower() for output in never_null_outputs(query)}


def _star_columns(item: str, columns: tuple[Column, ...]) -> list[Column] | None:
    """Return the columns that `*` or `* EXCEPT (…)` stands for, or None for any other item."""
    if item.strip() == "*":
        return list(columns)
    if not item.lstrip().startswith("*"):
        return None
    parsed = parse_select(item)
    return (
        [column for column in columns if column.name.lower() not in parsed.without] if parsed.star else None
    )


def _existing_columns(names: tuple[tuple[str, int], ...], columns: tuple[Column, ...]) -> tuple[str, ...]:
    """Return the columns that an expression reads, each once. Leaves out the variables of lambdas."""
    columns_read = (_column(name, columns) for name, _ in names)
    return tuple(dict.fromkeys(column.name for column in columns_read if column is not None))


def _plain_column(item: str, columns: tuple[Column, ...]) -> tuple[str, Column] | None:
    """Return the output name and the column that an item of `select` copies, or None for any other item."""
    match = _PLAIN.match(item)
    column = _column(_unquoted(match[1], match[2]), columns) if match else None
    if match is None or column is None:
        return None
    return _unquoted(match[3], match[4]) or column.name, column


def _column(name: str | None, columns: tuple[Column, ...]) -> Column | None:
    return next((column for column in columns if name and column.name.lower() == name.lower()), None)


def _unquoted(word: str | None, quoted_word: str | None) -> str | None:
    return quoted_word.replace("``", "`") if quoted_word else word
