"""Loads the JSON Schemas under schemas/ and of plug-ins, and resolves their references.

The files are JSON Schema (draft 2020-12) in mzplan's dialect (mzplan.schema.dialect). This module resolves
`allOf: [{$ref}]` and `$ref` between files, so that a loaded schema refers to no other file.
"""

from __future__ import annotations

import copy
import json
import re
from functools import cache
from typing import Any

from mzplan.model.address import KINDS, Kind
from mzplan.schema.dialect import Json, fault_of, schema_folder
from mzplan.schema.plugins import all_plugins, broken_schema, find_plugin

_TYPE = re.compile(r"[a-z][a-z0-9_-]{0,63}\Z")
_COMMON = {"type", "description", "labels", "lifecycle"}


@cache
def load_schema(name: str) -> Json:
    """Return the JSON Schema of a kind and type (`"source.kafka"`), with references to other files filled in.

    Raises KeyError if there is no such schema, MzplanError MZ080 for the schema of a broken plug-in, and
    ValueError for a schema of mzplan's own that violates the dialect.
    """
    path = schema_folder() / f"{name}.json"
    if not path.is_file():
        return _of_plugin(name)
    schema = json.loads(path.read_text(encoding="utf-8"))
    if fault := fault_of(schema, own=True):
        raise ValueError(f"{path.name} {fault}")
    return _standalone(schema)


def _of_plugin(name: str) -> Json:
    kind, _, type_ = name.partition(".")
    plugin = find_plugin(type_) if kind in KINDS and type_ else None
    if plugin is None or name not in plugin.schemas:
        raise KeyError(name)
    try:
        schema = _standalone(copy.deepcopy(plugin.schemas[name]))
    except KeyError as missing:
        raise broken_schema(plugin, name, f"refers to {missing}, which is not a schema of mzplan's") from None
    if not set(schema["properties"]) >= _COMMON:
        raise broken_schema(
            plugin, name, "is missing the keys that every resource has: refer to their schema"
        )
    return schema


def _standalone(schema: Json) -> Json:
    """Return the schema with the bases in `allOf` merged in (own properties win) and each `$ref` replaced.

    The rules in `allOf` (`if`/`then`, with messages) stay.
    """
    all_of = schema.pop("allOf", [])
    bases = [load_schema(base["$ref"].removesuffix(".json")) for base in all_of if "$ref" in base]
    rules = [rule for base in bases for rule in base.get("allOf", [])]
    rules += [rule for rule in all_of if "$ref" not in rule]
    if rules:
        schema["allOf"] = rules
    properties: Json = {}
    required: list[str] = []
    for base in bases:
        properties |= base.get("properties", {})
        required += base.get("required", [])
    for key, value in schema.get("properties", {}).items():
        properties[key] = (
            _referenced_schema(value["$ref"]) if "$ref" in value else properties.get(key, {}) | _inner(value)
        )
        if "const" in value and "type" in properties[key]:
            del properties[key]["type"]
    if properties:
        schema["properties"] = properties
        schema["additionalProperties"] = False
    if required:
        schema["required"] = sorted({*required, *schema.get("required", [])})
    return schema


def _referenced_schema(reference: str) -> Json:
    schema = dict(load_schema(reference.removesuffix(".json")))
    for key in ("$schema", "$id", "title"):
        schema.pop(key, None)
    return schema


def _inner(schema: Json) -> Json:
    free = schema.get("additionalProperties")
    if isinstance(free, dict) and "properties" in free:
        schema = {**schema, "additionalProperties": _standalone(dict(free))}
    return _standalone(dict(schema)) if "properties" in schema else schema


@cache
def schema_names() -> tuple[str, ...]:
    """Return every resource schema as `kind.type`, sorted. This loads all plug-ins, so it is slow."""
    names = {path.stem for path in schema_folder().glob("*.json")}
    names |= {name for plugin in all_plugins() for name in plugin.schemas}
    return tuple(sorted(name for name in names if name.partition(".")[0] in KINDS and "." in name))


@cache
def types_of(kind: Kind) -> tuple[str, ...]:
    """Return the types of a kind, sorted: `types_of("connection") == ("files", "kafka", …)`.

    This loads every plug-in; use `is_type` to check one type.
    """
    return tuple(name.partition(".")[2] for name in schema_names() if name.startswith(f"{kind}."))


def own_types(kind: Kind) -> tuple[str, ...]:
    """Return the types of a kind that mzplan brings itself, sorted. Loads no plug-in."""
    files = (path.stem.partition(".") for path in schema_folder().glob(f"{kind}.*.json"))
    return tuple(sorted(type_ for _, _, type_ in files))


def is_type(kind: Kind, type_: Any) -> bool:
    """Return whether a kind has this type. Raises MzplanError MZ080 if the plug-in that provides it is
    broken."""
    if not isinstance(type_, str) or not _TYPE.match(type_):
        return False
    try:
        load_schema(f"{kind}.{type_}")
    except KeyError:
        return False
    return True
