"""Finds the columns and the key of the collection that a source or view writes.

Schemas mark the properties with columns: DDL (`x-diff: columns`), the default DDL of a format
(`x-default-columns`), and properties that add one column each (`x-column`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from mzplan.schema.columns import Column, DdlError, parse_columns
from mzplan.schema.kinds import ResourceKind, as_mapping, resource_kind
from mzplan.schema.loading import is_type, own_types


@cache
def collection_kind(type_: str) -> ResourceKind:
    """Return the kind of a query that writes a collection, by its type.

    No source and view share a type. Raises KeyError if there is no such type.
    """
    if type_ in own_types("source"):  # without a look for plug-ins, which is slow
        return resource_kind("source", type_)
    return resource_kind("view" if is_type("view", type_) else "source", type_)


def columns_of(type_: str, body: Mapping[str, Any]) -> tuple[Column, ...]:
    """Return the user's columns of the collection that a source or view of this type writes, in order.

    Raises DdlError for a schema that isn't Spark DDL.
    """
    return (*record_columns(type_, body), *included_columns(type_, body).values())


def record_columns(type_: str, body: Mapping[str, Any]) -> tuple[Column, ...]:
    """Return the columns from the record's value, without included columns. Raises DdlError."""
    kind = collection_kind(type_)
    columns: list[Column] = []
    for path in kind.column_paths:
        if kind.property_schema(path).get("x-diff") == "columns":
            ddl = _value(body, path) or default_ddl(kind, path, body)
            columns += parse_columns(ddl) if isinstance(ddl, str) else ()
    return tuple(columns)


def keys_of(type_: str, body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the key columns of a keyed collection; `()` for a collection that only gets new rows.

    `x-key` marks the property that lists them. Each has the name of its column, whose case it may not have.
    """
    kind = collection_kind(type_)
    listed = _value(body, kind.key_path) if kind.key_path is not None else None
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        return ()
    keys: list[str] = listed
    try:
        names = {column.name.lower(): column.name for column in columns_of(type_, body)}
    except DdlError:
        return tuple(keys)
    return tuple(names.get(name.lower(), name) for name in keys)


def default_ddl(kind: ResourceKind, path: tuple[str, ...], body: Mapping[str, Any]) -> str | None:
    """Return the columns of a format that needs no schema, as DDL; None for other formats."""
    type_ = _value(body, (*path[:-1], "type"))
    defaults: Mapping[str, str] = kind.property_schema(path).get("x-default-columns", {})
    return defaults.get(type_) if isinstance(type_, str) else None


def included_columns(type_: str, body: Mapping[str, Any]) -> dict[str, Column]:
    """Return the columns from other parts of the record, by part: `key`, `headers`, …."""
    kind = collection_kind(type_)
    columns: dict[str, Column] = {}
    for path in kind.column_paths:
        written = _value(body, path)
        column_type = kind.property_schema(path).get("x-column")
        if column_type is not None and isinstance(written, str):
            name, _, other = written.partition(" ")
            columns[path[-1]] = Column(name, other or column_type)
    return columns


def _value(body: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        body = as_mapping(body)
        if not isinstance(body, Mapping):
            return None
        body = body.get(key)
    return body
