"""Edits of a resource's body: properties to set or to return to their defaults, by path of keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyEdit:
    """A property to set, or (`remove`) to take out, so that its default holds. The value may be what
    somebody took for a fit place for a secret: it is left out of the repr."""

    path: tuple[str, ...]
    remove: bool = False
    value: Any = field(default=None, repr=False)


def edited(body: Mapping[str, Any], edits: Iterable[PropertyEdit]) -> dict[str, Any]:
    """A copy of a body with the edits made; a mapping that a removal leaves empty goes as well."""
    result = dict(body)
    for edit in edits:
        result = _edited(result, edit.path, edit)
    return result


def _edited(body: Mapping[str, Any], path: tuple[str, ...], edit: PropertyEdit) -> dict[str, Any]:
    result, key, below = dict(body), path[0], path[1:]
    if not below:
        result.pop(key, None) if edit.remove else result.update({key: edit.value})
        return result
    if edit.remove and key not in result:
        return result
    inner = result.get(key)
    found = _edited(inner if isinstance(inner, Mapping) else {}, below, edit)
    if found or not edit.remove:
        result[key] = found
    else:
        del result[key]
    return result
