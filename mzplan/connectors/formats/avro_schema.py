"""Parsed Avro schemas of a registry."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mzplan.connectors.formats.decoder import SchemaError

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
# Debezium's names for the meaning of numbers and texts without a logical type in Avro.
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

_HINTS = ("__fastavro_parsed", "__named_schemas")
_MAX_FREE = 16  # values in a record that take no bytes: null, empty records, fixed of size 0
_MAX_DEPTH = 300  # levels: the compiled reader crashes the process at some thousands
_MAX_DEFAULT_SIZE = 100_000  # values and characters that a schema's defaults create


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroSchema:
    """A parsed schema.

    - `root`: the schema as fastavro parsed it, with all names in full.
    - `raw`: the parsed schema without logical types, to read values as they were written.
    - `is_recursive`: whether a record may contain another one of its kind, at any depth.
    """

    root: AvroNode
    raw: Any
    is_recursive: bool


@dataclass(frozen=True, slots=True)
class AvroNode:
    """A schema within a schema: its definition or name, and all named schemas for looking up names."""

    written: Any
    names: Mapping[str, Any]

    @property
    def definition(self) -> Any:
        """Return the schema itself: a list for a union, otherwise a mapping.

        Names of schemas occur only as text. A mapping's `type` is always one of Avro's own words."""
        if not isinstance(self.written, str):
            return self.written
        return {"type": self.written} if self.written in PRIMITIVES else self.names[self.written]

    @property
    def type(self) -> str:
        """`record`, `union`, `long`, …"""
        definition = self.definition
        return "union" if isinstance(definition, list) else str(definition["type"])

    @property
    def logical(self) -> str:
        """Return the logical type, or "". `wall-…` is Debezium's time without a zone."""
        definition = self.definition
        if isinstance(definition, list):
            return ""
        named = definition.get("connect.name")
        return str(
            definition.get("logicalType") or (_DEBEZIUM.get(named, "") if isinstance(named, str) else "")
        )

    @property
    def branches(self) -> list[AvroNode]:
        """Return the branches of a union except null. Any other schema is its own only branch."""
        definition = self.definition
        parts = (
            [AvroNode(branch, self.names) for branch in definition]
            if isinstance(definition, list)
            else [self]
        )
        return [part for part in parts if part.type != "null"]

    @property
    def fields(self) -> dict[str, Field]:
        """Return the fields of a record, or of the only record in a union with null; {} for any other
        schema."""
        branches = self.branches
        if len(branches) != 1 or branches[0].type != "record":
            return {}
        return {field["name"]: Field(field, self.names) for field in branches[0].definition["fields"]}

    @property
    def name(self) -> str:
        """The full name of a record."""
        return str(self.definition["name"])

    def reads(self, written: AvroNode) -> bool:
        """Whether this schema may read the other's records, by Avro's rules for names.

        Their names without namespaces are the same, or the other's full name is an alias of this schema."""
        namespace, _, own = self.name.rpartition(".")
        if own == written.name.rpartition(".")[2]:
            return True
        written_aliases = self.definition.get("aliases", ())
        aliases = {
            str(alias) if "." in str(alias) else f"{namespace}.{alias}".lstrip(".")
            for alias in written_aliases
        }
        return written.name in aliases

    def inner(self, key: str) -> AvroNode:
        """Return the `items` of an array or the `values` of a map."""
        return AvroNode(self.definition[key], self.names)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record."""

    written: Mapping[str, Any]
    names: Mapping[str, Any]

    @property
    def node(self) -> AvroNode:
        # A field's other attributes (doc, default, …) don't belong to its type.
        return AvroNode(self.written["type"], self.names)

    @property
    def name(self) -> str:
        return str(self.written["name"])

    def written_in(self, fields: Mapping[str, Field]) -> Field | None:
        """Return the corresponding field of another schema, by name or alias, or None."""
        names = (self.name, *self.written.get("aliases", ()))
        return next((fields[name] for name in names if isinstance(name, str) and name in fields), None)

    @property
    def default(self) -> Any:
        """Return the default as it would be read from a record, or None."""
        return _value(self.node, self.written.get("default"))


def parse_avro(texts: Sequence[str]) -> AvroSchema:
    """Parse a schema. Raises SchemaError.

    `texts`: the texts of the schemas that the schema refers to, then the schema's own text.
    """
    import fastavro

    names: dict[str, Any] = {}
    raw_names: dict[str, Any] = {}
    root = raw = None
    try:
        for text in texts:
            written = json.loads(text, object_hook=_without_hints)
            root = fastavro.parse_schema(written, named_schemas=names)
            raw = fastavro.parse_schema(_without_logical_types(written), named_schemas=raw_names)
        survey = _Survey(names)
        if survey.extent(root).depth > _MAX_DEPTH:
            raise RecursionError
    except SchemaError:
        raise
    except RecursionError:
        raise SchemaError("its schema is nested too deeply") from None
    except Exception as problem:  # a registry may contain anything
        raise SchemaError(f"its schema is not an Avro schema: {_line(problem)}") from None
    return AvroSchema(root=AvroNode(root, names), raw=raw, is_recursive=survey.is_recursive)


@dataclass(frozen=True, slots=True)
class _Extent:
    """The size of a schema's values.

    - `takes_bytes`: whether a value takes bytes in a record.
    - `free`: how many values inside it take no bytes.
    """

    takes_bytes: bool
    free: int
    depth: int


class _Survey:
    """Measures a schema, visiting each of its records once.

    Refuses a schema with which a few bytes could become millions of values.
    `is_recursive`: see AvroSchema."""

    def __init__(self, names: Mapping[str, Any]):
        self.is_recursive = False
        self._names = names
        self._default_size = 0  # values and characters that defaults create
        # Keyed by the list of fields, because a name may stand for another record in a schema that this one
        # refers to.
        self._records: dict[int, _Extent | None] = {}  # None: being visited

    def extent(self, written: Any) -> _Extent:
        """Return the extent of a schema's values. Raises SchemaError."""
        definition = AvroNode(written, self._names).definition
        if isinstance(definition, list):
            return _Extent(True, 0, 1 + max((self.extent(part).depth for part in definition), default=0))
        match definition["type"]:
            case "null":
                return _Extent(False, 1, 1)
            case "fixed":
                sized = definition["size"] > 0
                return _Extent(sized, not sized, 1)
            case "array":
                items = self.extent(definition["items"])
                if not items.takes_bytes:
                    raise SchemaError(
                        "its schema has an array whose items take no bytes: it could be endless"
                    )
                return _Extent(True, 0, 1 + items.depth)
            case "map":
                return _Extent(True, 0, 1 + self.extent(definition["values"]).depth)
            case "record" | "error":
                return self._record(definition["fields"])
        return _Extent(True, 0, 1)

    def _record(self, fields: Sequence[Mapping[str, Any]]) -> _Extent:
        key = id(fields)
        if key in self._records:
            known = self._records[key]
            self.is_recursive = self.is_recursive or known is None
            # a record directly within itself is endless, and has no count
            return known or _Extent(True, 0, 0)
        self._records[key] = None
        parts = []
        for field in fields:
            if not isinstance(field["name"], str):
                raise SchemaError("its schema has a field whose name is not text")
            parts.append(self.extent(field["type"]))
            self._fill(field["type"], field.get("default"))
        free = sum(part.free for part in parts) if parts else 1
        if free > _MAX_FREE:
            raise SchemaError(f"its schema has a record with more than {_MAX_FREE} values that take no bytes")
        depth = 1 + max((part.depth for part in parts), default=0)
        extent = self._records[key] = _Extent(any(part.takes_bytes for part in parts), free, depth)
        return extent

    def _fill(self, written: Any, default: Any) -> None:
        """Count the values that a default creates. Records in it are filled with their own fields' defaults,
        at any depth. For a union, each branch counts."""
        self._default_size += len(default) if isinstance(default, str) else isinstance(default, list | dict)
        if self._default_size > _MAX_DEFAULT_SIZE:
            raise SchemaError(
                f"its schema's defaults make more than {_MAX_DEFAULT_SIZE:,} values and characters"
            )
        if not isinstance(default, list | dict):
            return
        definition = AvroNode(written, self._names).definition
        if isinstance(definition, list):
            for branch in definition:
                self._fill(branch, default)
            return
        match definition["type"], default:
            case "array", list():
                self._default_size += len(default)
                for entry in default:
                    self._fill(definition["items"], entry)
            case "map", dict():
                self._default_size += len(default)
                for entry in default.values():
                    self._fill(definition["values"], entry)
            case "record" | "error", dict():
                self._default_size += len(definition["fields"])
                for field in definition["fields"]:
                    self._fill(field["type"], default.get(field["name"], field.get("default")))


def _without_hints(written: dict[str, Any]) -> dict[str, Any]:
    """Return part of a schema without the keys that make fastavro believe it is already parsed."""
    return {key: part for key, part in written.items() if key not in _HINTS}


def parse_record(texts: Sequence[str]) -> AvroNode:
    """Parse texts as parse_avro does, for a schema that must be a record. Raises SchemaError."""
    root = parse_avro(texts).root
    if root.type != "record":
        raise SchemaError(f"its schema is {root.type}, not a record")
    return root


def _line(problem: Exception) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0][:200]


def _without_logical_types(written: Any) -> Any:
    if isinstance(written, list):
        return [_without_logical_types(part) for part in written]
    if isinstance(written, dict):
        return {key: _without_logical_types(part) for key, part in written.items() if key != "logicalType"}
    return written


def _value(node: AvroNode, default: Any) -> Any:
    """Return a JSON default as the value that fastavro would read."""
    if default is None or not node.branches:
        return None
    branch = node.branches[0]
    match branch.type:
        case "bytes" | "fixed":
            return str(default).encode("latin-1", "replace")
        case "array":
            return [_value(branch.inner("items"), entry) for entry in default]
        case "map":
            return {key: _value(branch.inner("values"), entry) for key, entry in default.items()}
        case "record":
            return {
                name: _value(field.node, default[name]) if name in default else field.default
                for name, field in branch.fields.items()
            }
    return default
