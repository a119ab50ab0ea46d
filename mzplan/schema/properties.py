"""Finds the schema and the value of a property, given its path in a resource's body."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from mzplan.schema.dialect import Json


def walk_properties(schema: Json, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Json]]:
    """Yield every property of a schema, at any depth, with its path."""
    for name, inner in schema.get("properties", {}).items():
        yield (*path, name), inner
        yield from walk_properties(inner, (*path, name))


def value_at(body: Any, path: Iterable[str | int], default: Any = None) -> Any:
    """Return the value at a path of keys and indexes; `default` if there is none."""
    for key in path:
        try:
            body = body[key]
        except (KeyError, IndexError, TypeError):
            return default
    return body


def is_sensitive(schema: Json, path: tuple[str | int, ...]) -> bool:
    """Return whether the value at a path is a secret, by `x-sensitive` or `x-sensitive-keys`."""
    for inner in _along(schema, path):
        pattern = inner.get("x-sensitive-keys")
        if inner.get("x-sensitive"):
            return True
        if pattern and any(isinstance(key, str) and re.search(pattern, key) for key in path):
            return True
    return False


def takes_secret(schema: Json, path: tuple[str | int, ...]) -> bool:
    """Return whether the value at a path may be a secret reference (also by `x-reference-allowed`)."""
    return is_sensitive(schema, path) or any(s.get("x-reference-allowed") for s in _along(schema, path))


def leads(schema: Json, path: tuple[str | int, ...]) -> bool:
    """Return whether the value at a path is part of the address of a server or a listener (`x-server`)."""
    return any(inner.get("x-server") for inner in _along(schema, path))


def schema_at(schema: Json, path: tuple[str | int, ...]) -> Json:
    """Return the schema of the value at a path; {} if the schema says nothing of it."""
    schemas = [schema, *_along(schema, path)]
    return schemas[len(path)] if len(schemas) > len(path) else {}


def _along(schema: Json, path: tuple[str | int, ...]) -> Iterator[Json]:
    """Yield the schema of each element of a path, outermost first.

    An index leads to the schema of the list's items. A key without a declared property leads to the schema in
    `additionalProperties`."""
    for key in path:
        if isinstance(key, int):
            inner = schema.get("items")
        else:
            inner = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
        if not isinstance(inner, dict):
            return
        yield inner
        schema = inner
