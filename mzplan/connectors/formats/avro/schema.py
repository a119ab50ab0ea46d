"""Parsed Avro schemas of a registry.

This module is sent to the executors whole (see task_code).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
# Debezium's names for the meaning of numbers and texts, where Avro has no logical type.
_DEBEZIUM = {
    "io.debezium.time.Date": "date",
    "io.debezium.time.Time": "time-millis",
    "io.debezium.time.MicroTime": "time-micros",
    "io.debezium.time.NanoTime": "time-nanos",
    "io.debezium.time.Timestamp": "wall-millis",
    "io.debezium.time.MicroTimestamp": "wall-micros",
    "io.debezium.time.NanoTimestamp": "wall-nanos",
    "io.debezium.time.ZonedTimestamp": "zoned",
}


class SchemaError(ValueError):
    """A text that is not an Avro schema. The message is for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroSchema:
    """`root`: parsed by fastavro, with all names in full; `names`: the named schemas in it; `raw`: the same
    without logical types, to read values as they were written. `is_recursive`: a record may contain another
    one of its kind, at any depth."""

    root: AvroNode
    raw: Any
    is_recursive: bool


@dataclass(frozen=True, slots=True)
class AvroNode:
    """A schema within a schema: its definition or name, and all named schemas to look names up in."""

    written: Any
    names: Mapping[str, Any]

    @property
    def definition(self) -> Any:
        """The schema itself: a list for a union, a mapping for all others."""
        found = self.written
        while True:
            if isinstance(found, str):
                if found in PRIMITIVES:
                    return {"type": found}
                found = self.names[found]
            elif isinstance(found, Mapping) and not isinstance(found["type"], str):
                found = found["type"]
            elif isinstance(found, Mapping) and found["type"] in self.names:
                found = self.names[found["type"]]
            else:
                return found

    @property
    def type(self) -> str:
        """`record`, `union`, `long`, …"""
        found = self.definition
        return "union" if isinstance(found, list) else str(found["type"])

    @property
    def logical(self) -> str:
        """The logical type, empty where there is none. `wall-…` is Debezium's time without a zone."""
        found = self.definition
        if isinstance(found, list):
            return ""
        named = found.get("connect.name")
        return str(found.get("logicalType") or (_DEBEZIUM.get(named, "") if isinstance(named, str) else ""))

    @property
    def branches(self) -> list[AvroNode]:
        """The branches of a union except null; any other schema is its only branch."""
        found = self.definition
        parts = [AvroNode(one, self.names) for one in found] if isinstance(found, list) else [self]
        return [part for part in parts if part.type != "null"]

    @property
    def fields(self) -> dict[str, Field]:
        """The fields of a record, or of the only record in a union with null; {} for any other schema."""
        branches = self.branches
        if len(branches) != 1 or branches[0].type != "record":
            return {}
        return {one["name"]: Field(one, self.names) for one in branches[0].definition["fields"]}

    def inner(self, key: str) -> AvroNode:
        """The `items` of an array, the `values` of a map."""
        return AvroNode(self.definition[key], self.names)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record."""

    written: Mapping[str, Any]
    names: Mapping[str, Any]

    @property
    def node(self) -> AvroNode:
        # A field's attributes beside `type` (doc, default, …) do not belong to its type.
        return AvroNode(self.written["type"], self.names)

    @property
    def name(self) -> str:
        return str(self.written["name"])

    def written_in(self, fields: Mapping[str, Field]) -> Field | None:
        """The field of another schema that corresponds to this one: by its name, or one of its aliases."""
        names = (self.name, *self.written.get("aliases", ()))
        return next((fields[name] for name in names if name in fields), None)

    @property
    def default(self) -> Any:
        """The default, as it would be read from a record; None where there is none."""
        return _value(self.node, self.written.get("default"))


def parse_avro(texts: Sequence[str]) -> AvroSchema:
    """Parse the texts of the schemas that one refers to, and last its own. Raises SchemaError."""
    import fastavro

    names: dict[str, Any] = {}
    raw_names: dict[str, Any] = {}
    root = raw = None
    try:
        for text in texts:
            written = json.loads(text)
            root = fastavro.parse_schema(written, named_schemas=names)
            raw = fastavro.parse_schema(_without_logical_types(written), named_schemas=raw_names)
        is_recursive = _is_recursive(root, names, set(), set())
    except RecursionError:
        raise SchemaError("its schema is nested too deeply") from None
    except Exception as problem:  # a registry may contain anything
        raise SchemaError(f"its schema is not an Avro schema: {_line(problem)}") from None
    return AvroSchema(root=AvroNode(root, names), raw=raw, is_recursive=is_recursive)


def _is_recursive(written: Any, names: Mapping[str, Any], within: set[str], done: set[str]) -> bool:
    """Whether a schema contains a record that it is `within`. `done`: the records that don't."""
    if isinstance(written, list):
        return any(_is_recursive(one, names, within, done) for one in written)
    if isinstance(written, str):
        if written in PRIMITIVES or written in done:
            return False
        return written in within or _is_recursive(names[written], names, within, done)
    type_ = written["type"]
    if type_ in ("array", "map"):
        return _is_recursive(written["items" if type_ == "array" else "values"], names, within, done)
    if type_ not in ("record", "error"):
        return type_ not in ("enum", "fixed") and _is_recursive(type_, names, within, done)
    name = written["name"]
    parts = [field["type"] for field in written["fields"]]
    if any(_is_recursive(part, names, {*within, name}, done) for part in parts):
        return True
    done.add(name)
    return False


def parse_record(texts: Sequence[str]) -> AvroNode:
    """The same for a schema that must be a record. Raises SchemaError."""
    root = parse_avro(texts).root
    if root.type != "record":
        raise SchemaError(f"its schema is {root.type}, and no record")
    return root


def _line(problem: Exception) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0][:200]


def _without_logical_types(written: Any) -> Any:
    if isinstance(written, list):
        return [_without_logical_types(one) for one in written]
    if isinstance(written, dict):
        return {key: _without_logical_types(one) for key, one in written.items() if key != "logicalType"}
    return written


def _value(node: AvroNode, default: Any) -> Any:
    """A default in JSON → the value as fastavro would read it."""
    if default is None or not node.branches:
        return None
    branch = node.branches[0]
    match branch.type:
        case "bytes" | "fixed":
            return str(default).encode("latin-1", "replace")
        case "array":
            return [_value(branch.inner("items"), one) for one in default]
        case "map":
            return {key: _value(branch.inner("values"), one) for key, one in default.items()}
        case "record":
            return {
                name: _value(field.node, default[name]) if name in default else field.default
                for name, field in branch.fields.items()
            }
    return default
