"""The JSON Schema validators, compiled once; for large bodies they check in portions."""

from __future__ import annotations

from functools import cache
from typing import Any

from mzplan.schema.dialect import Json
from mzplan.schema.loading import load_schema
from mzplan.schema.object_names import FORMATS
from mzplan.schema.properties import schema_at

Path = tuple[str | int, ...]
_PORTION = 1000  # items of a list, or keys of a mapping with free keys, that are checked together


@cache
def validator(name: str) -> Any:
    """Return the compiled validator of a schema such as `source.kafka`."""
    import jsonschema_rs

    return jsonschema_rs.Draft202012Validator(load_schema(name), formats=FORMATS, validate_formats=True)


def is_valid(name: str, body: Any) -> bool:
    return bool(validator(name).is_valid(body))


def errors_of(name: str, schema: Json, body: Any) -> list[tuple[Path, Any]]:
    """Return errors of a body with their paths: all errors, or those of the first portion that has any.

    The validator computes all errors at once, which can be a million for one long list. So long lists and
    mappings are checked in portions.
    """
    longs = _LongValues(schema, body)
    for start in range(0, longs.longest, _PORTION):
        part = longs.portion(schema, body, start)
        errors = list(validator(name).iter_errors(part))
        if errors:
            return [(_whole_path(body, _path_in(part, error), start), error) for error in errors]
    return [(_path_in(body, error), error) for error in validator(name).iter_errors(body)]


def _path_in(body: Any, error: Any) -> Path:
    """Return the path of an error, with the empty keys that the validator leaves out of paths."""
    path: list[str | int] = []
    for step in error.instance_path:
        while isinstance(body, dict) and step not in body and "" in body:
            path.append("")
            body = body[""]
        if isinstance(body, dict) and step not in body:
            break  # the empty key isn't unique, so use the path of the mapping above
        path.append(step)
        body = body[step]
    return tuple(path)


class _LongValues:
    """The lists, and mappings with free keys, of a body that are longer than a portion."""

    def __init__(self, schema: Json, body: Any):
        # Items by `id()` of the list or mapping, so that each portion is a quick slice.
        self.children: dict[int, list[tuple[Any, Any]]] = {}
        below = [(schema, body)]
        while below:
            inner, value = below.pop()
            if _is_long(inner, value):
                self.children[id(value)] = list(_children(value))
            for key, child in _children(value):
                if isinstance(child, dict | list):
                    below.append((schema_at(inner, (key,)), child))

    @property
    def longest(self) -> int:
        """Return the length of the longest list or mapping; 0 if there is none."""
        return max(map(len, self.children.values()), default=0)

    def portion(self, schema: Json, value: Any, start: int) -> Any:
        """Return the value with one portion of each long list and mapping in it."""
        if not isinstance(value, dict | list):
            return value
        children = _children(value)
        if _is_long(schema, value):
            # A list that ends before `start` gets its last items, because an empty list may be an error.
            first = start if start < len(value) else len(value) - _PORTION
            children = self.children[id(value)][first : first + _PORTION]
        parts = [(key, self.portion(schema_at(schema, (key,)), child, start)) for key, child in children]
        return dict(parts) if isinstance(value, dict) else [part for _, part in parts]


def _whole_path(body: Any, path: Path, start: int) -> Path:
    """Return the path in the whole body for a path in a portion of it."""
    whole: list[str | int] = []
    for step in path:
        key = step
        if isinstance(body, list) and isinstance(key, int) and len(body) > _PORTION:
            key += start if start < len(body) else len(body) - _PORTION
        whole.append(key)
        body = body[key]
    return tuple(whole)


def _is_long(schema: Json, value: Any) -> bool:
    free = isinstance(value, list) or (isinstance(value, dict) and not schema.get("properties"))
    return free and len(value) > _PORTION


def _children(value: Any) -> Any:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()
