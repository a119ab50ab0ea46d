"""What the JSON Schemas under schemas/ declare of each kind and type of resource.

The schemas are the single source: validation, the planner (`x-change`), secrets (`x-sensitive`), ALTER
option names (`x-sql`) and references (`x-reference`) all come from them, through this module. So no other
module needs `if type == "kafka"` to find the effect of a change.

Files are standard JSON Schema (draft 2020-12) in mzplan's dialect of it (mzplan.schema.dialect); `allOf:
[{$ref}]` and `$ref` between files are resolved at load, so that a loaded schema stands alone.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal, cast

from mzplan.host.network import is_loopback
from mzplan.model.address import KINDS, Kind
from mzplan.model.plan import Effect
from mzplan.model.resources import Body
from mzplan.schema.columns import canonical
from mzplan.schema.dialect import fault_of, schema_folder
from mzplan.schema.plugins import all_plugins, broken_schema, find_plugin
from mzplan.secrets.references import placed_references

EditKind = Literal["added", "removed", "changed"]
Json = dict[str, Any]

_TYPE = re.compile(r"[a-z][a-z0-9_-]{0,63}\Z")
_COMMON = {"type", "description", "labels", "lifecycle"}


@cache
def load_schema(name: str) -> Json:
    """`"source.kafka"` → its JSON Schema with every reference to another file filled in.

    Raises KeyError when there is no such schema, MzplanError MZ080 when it is of a broken plug-in, ValueError
    when it is one of mzplan's own that violates the dialect of schemas.
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
        raise broken_schema(plugin, name, f"refers to {missing}, which is no schema of mzplan's") from None
    if not set(schema["properties"]) >= _COMMON:
        raise broken_schema(plugin, name, "lacks the keys that every resource has: refer to their schema")
    return schema


def _standalone(schema: Json) -> Json:
    """The schema with its `allOf` bases merged in (own properties win) and `$ref`s replaced.

    The rest of `allOf` are rules between properties (`if`/`then`, with messages); they stay.
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
            _referred(value["$ref"]) if "$ref" in value else properties.get(key, {}) | _inner(value)
        )
        if "const" in value and "type" in properties[key]:
            del properties[key]["type"]
    if properties:
        schema["properties"] = properties
        schema["additionalProperties"] = False
    if required:
        schema["required"] = sorted({*required, *schema.get("required", [])})
    return schema


def _referred(reference: str) -> Json:
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
    """Every resource schema, as `kind.type`, sorted. Includes plug-ins, so it is slow."""
    names = {path.stem for path in schema_folder().glob("*.json")}
    names |= {name for plugin in all_plugins() for name in plugin.schemas}
    return tuple(sorted(name for name in names if name.partition(".")[0] in KINDS and "." in name))


@cache
def types_of(kind: Kind) -> tuple[str, ...]:
    """The types that a kind has, sorted: `types_of("connection") == ("files", "kafka", …)`. Loads every
    plug-in; to check one type, use `is_type`."""
    return tuple(name.partition(".")[2] for name in schema_names() if name.startswith(f"{kind}."))


def is_type(kind: Kind, type_: Any) -> bool:
    """Whether a kind has this type. Raises MzplanError MZ080 when the plug-in that brings it is broken."""
    if not isinstance(type_, str) or not _TYPE.match(type_):
        return False
    try:
        load_schema(f"{kind}.{type_}")
    except KeyError:
        return False
    return True


@dataclass(frozen=True)
class Reference:
    """A property that names another resource, and the types it may have (empty: any)."""

    property: str
    kind: Kind
    types: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SqlOption:
    """An option of ALTER statements: the property that it sets, and that property's schema. `one`: it sets
    a list of one item. Two options of the same property exclude each other."""

    name: str
    path: tuple[str, ...]
    one: bool
    schema: Json


@dataclass(frozen=True)  # no slots: cached_property needs a __dict__
class ResourceKind:
    """One kind and type of resource, as its schema describes it."""

    kind: Kind
    type: str

    @cached_property
    def schema(self) -> Json:
        return load_schema(f"{self.kind}.{self.type}")

    @cached_property
    def references(self) -> tuple[Reference, ...]:
        """The properties that refer to other resources."""
        return tuple(
            Reference(name, cast(Kind, schema["x-reference"]), tuple(schema.get("x-reference-types", ())))
            for name, schema in self.schema["properties"].items()
            if "x-reference" in schema
        )

    @property
    def validates_live(self) -> bool:
        """Whether ALTER validates a connection of this type live by default (semantics.md §1, rule 7)."""
        return bool(self.schema.get("x-validate", False))

    @property
    def rotates_keys(self) -> tuple[str, str] | None:
        """The properties of the keys that ALTER … ROTATE KEYS rotates: the primary, the secondary."""
        found = self.schema.get("x-rotates-keys")
        return (found["primary"], found["secondary"]) if found else None

    def packages(self, body: Body) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The jars that Spark needs for this body, and the dependencies to exclude from them, as Maven
        coordinates (`x-packages`, `x-packages-excluded`)."""
        present = [schema for name, schema in self.schema["properties"].items() if name in body]
        wanted = (package for schema in present for package in schema.get("x-packages", ()))
        excluded = (package for schema in present for package in schema.get("x-packages-excluded", ()))
        return tuple(wanted), tuple(excluded)

    def query_type(self, kind: Kind) -> str | None:
        """The default type of a source or sink on this connection; None where it can't have one."""
        found = self.schema.get(f"x-{kind}-type")
        return str(found) if found else None

    def normalise(self, body: Body) -> Json:
        """The body with values equal to their defaults left out and keys sorted.

        Two bodies that mean the same are equal afterwards: reordered keys or a default written out are
        no change (semantics.md §1, rule 11).
        """
        return _normalise(self.schema, body)

    def with_defaults(self, body: Body) -> Json:
        """The body with every absent default filled in, at any depth."""
        return _with_defaults(self.schema, body)

    def identifying(self, body: Body) -> Json:
        """The part of a normalised body that a running query depends on: what does not change in place."""
        return _identifying(self.schema, body)

    def assumed(self, body: Body) -> dict[tuple[str, ...], Any]:
        """By path, what a body gets that is declared without it (`x-assumed`)."""
        found: dict[tuple[str, ...], Any] = {}
        for path, schema in self._assuming:
            rule = schema["x-assumed"]
            if not _holds(body, path) and not is_loopback(str(body.get(rule["unless-loopback"], ""))):
                found[path] = rule["value"]
        return found

    @cached_property
    def _assuming(self) -> tuple[tuple[tuple[str, ...], Json], ...]:
        return tuple(one for one in walk_properties(self.schema) if "x-assumed" in one[1])

    def property_schema(self, path: tuple[str | int, ...]) -> Json:
        """The schema of the property at a path of keys and indexes; the nearest one above where a
        schema does not go deeper (items of a list, free keys of a map)."""
        found = _annotated(self.schema, path)
        return found[-1] if found else self.schema

    def effect(self, path: tuple[str | int, ...], edit: EditKind) -> Effect:
        """The effect of an edit of this kind at this path on a running query (`x-change`)."""
        change = self.property_schema(path).get("x-change", "restart")
        if isinstance(change, Mapping):
            change = change.get(edit, "replace")
        return cast(Effect, change)

    def is_sensitive(self, path: tuple[str | int, ...]) -> bool:
        """Whether the value at a path is a secret (`x-sensitive`; `x-sensitive-keys` for free keys)."""
        return is_sensitive(self.schema, path)

    def takes_secret(self, path: tuple[str | int, ...]) -> bool:
        """Whether a secret reference may stand at a path: it is a secret, or allows one."""
        return takes_secret(self.schema, path)

    @cached_property
    def secret_paths(self) -> tuple[tuple[str, ...], ...]:
        """The properties that take a secret reference; of free keys, not which."""
        return tuple(path for path, _ in walk_properties(self.schema) if self.takes_secret(path))

    def secret_references(self, body: Body) -> set[str]:
        """The secret references of a body, as written: only those that stand where one may."""
        return {text for place, text in placed_references(body) if self.takes_secret(place)}

    @cached_property
    def restricted(self) -> tuple[tuple[str, Json], ...]:
        """The properties whose keys are not all free (`x-reserved`, `x-allowed`)."""
        properties = self.schema["properties"].items()
        return tuple(one for one in properties if "x-reserved" in one[1] or "x-allowed" in one[1])

    @cached_property
    def column_paths(self) -> tuple[tuple[str, ...], ...]:
        """The properties that decide a collection's columns (`x-diff: columns`, or `x-column`)."""
        return tuple(
            path
            for path, schema in walk_properties(self.schema)
            if schema.get("x-diff") == "columns" or "x-column" in schema
        )

    @cached_property
    def key_path(self) -> tuple[str, ...] | None:
        """The property that lists the columns of a keyed collection's key (`x-key`)."""
        found = (path for path, schema in walk_properties(self.schema) if schema.get("x-key"))
        return next(found, None)

    @property
    def is_key_certain(self) -> bool:
        """Whether the key's columns that come with a record's value are never NULL (`x-key-certain`)."""
        return self.key_path is not None and "x-key-certain" in self.property_schema(self.key_path)

    @cached_property
    def row_properties(self) -> tuple[str, ...]:
        """The properties of a sink that decide which rows a step makes (`x-rows`)."""
        return tuple(name for name, inner in self.schema["properties"].items() if inner.get("x-rows"))

    @cached_property
    def exclusive(self) -> dict[str, tuple[str, ...]]:
        """The properties whose value only one source may have, each with the properties of the connection
        that must be equal for that (`x-exclusive`)."""
        properties = self.schema["properties"].items()
        return {name: tuple(inner["x-exclusive"]) for name, inner in properties if "x-exclusive" in inner}

    @cached_property
    def channels(self) -> dict[str, str]:
        """The properties by which a sink can feed a source of the same type, each with the property of the
        connection that lists the servers (`x-channel`)."""
        properties = self.schema["properties"].items()
        return {name: str(inner["x-channel"]) for name, inner in properties if "x-channel" in inner}

    @property
    def takes_deletes(self) -> dict[str, tuple[Any, ...]] | None:
        """The values of a sink's properties with which it applies updates and deletes of a keyed collection
        (`x-deletes`); None for one that only adds rows."""
        return cast("dict[str, tuple[Any, ...]] | None", self.schema.get("x-deletes"))

    @cached_property
    def located_by(self) -> tuple[SqlOption, ...]:
        """The options of ALTER statements that say where a connection's server is (`x-locates`)."""
        return tuple(one for one in self.sql_options.values() if "x-locates" in one.schema and not one.one)

    @cached_property
    def sql_options(self) -> dict[str, SqlOption]:
        """The options of ALTER statements, by name (`x-sql`; `x-sql-one` for one item of a list)."""
        found: dict[str, SqlOption] = {}
        for path, schema in walk_properties(self.schema):
            for word, one in (("x-sql", False), ("x-sql-one", True)):
                if (name := schema.get(word)) is not None:
                    found[name] = SqlOption(name=name, path=path, one=one, schema=schema)
        return found

    @cached_property
    def sql_entries(self) -> dict[str, SqlOption]:
        """The options of ALTER statements for one entry of a mapping with free keys, by name
        (`x-sql-entry`); the path is that of the mapping, the schema that of an entry."""
        return {
            inner["x-sql-entry"]: SqlOption(
                name=inner["x-sql-entry"], path=path, one=False, schema=inner["additionalProperties"]
            )
            for path, inner in walk_properties(self.schema)
            if "x-sql-entry" in inner
        }

    def sql_option(self, name: str, key: str | None) -> SqlOption | None:
        """The option `name`, or with a key the entry `name "key"`; None where there is no such option."""
        if key is None:
            return self.sql_options.get(name)
        entry = self.sql_entries.get(name)
        return entry and dataclasses.replace(entry, name=f'{name} "{key}"', path=(*entry.path, key))

    @property
    def sql_names(self) -> list[str]:
        """The names of all options, sorted, as a person writes them."""
        return sorted([*self.sql_options, *(f'{name} "…"' for name in self.sql_entries)])


@cache
def resource_kind(kind: Kind, type_: str) -> ResourceKind:
    """The schema's view of a kind and type. Raises KeyError when there is no such schema."""
    found = ResourceKind(kind, type_)
    _ = found.schema
    return found


def walk_properties(schema: Json, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Json]]:
    """Every property of a schema at any depth, with its path."""
    for name, inner in schema.get("properties", {}).items():
        yield (*path, name), inner
        yield from walk_properties(inner, (*path, name))


def is_sensitive(schema: Json, path: tuple[str | int, ...]) -> bool:
    """Whether the value at a path is a secret, by `x-sensitive` of what it is in, or `x-sensitive-keys`."""
    for inner in _along(schema, path):
        pattern = inner.get("x-sensitive-keys")
        if inner.get("x-sensitive"):
            return True
        if pattern and any(isinstance(key, str) and re.search(pattern, key) for key in path):
            return True
    return False


def takes_secret(schema: Json, path: tuple[str | int, ...]) -> bool:
    """Whether a secret reference may stand at a path: the value is a secret, or `x-reference-allowed`."""
    return is_sensitive(schema, path) or any(s.get("x-reference-allowed") for s in _along(schema, path))


def _along(schema: Json, path: tuple[str | int, ...]) -> Iterator[Json]:
    """The schemas along a path, outermost first, through the items of lists and what free keys hold too."""
    for key in path:
        if isinstance(key, int):
            inner = schema.get("items")
        else:
            inner = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
        if not isinstance(inner, dict):
            return
        yield inner
        schema = inner


def _holds(body: Any, path: tuple[str, ...]) -> bool:
    for key in path:
        if not isinstance(body, Mapping) or key not in body:
            return False
        body = body[key]
    return True


def _annotated(schema: Json, path: tuple[str | int, ...]) -> list[Json]:
    """The schemas along a path, outermost first."""
    met: list[Json] = []
    for key in path:
        inner = schema.get("properties", {}).get(key) if isinstance(key, str) else None
        if inner is None:
            return met
        met.append(inner)
        schema = inner
    return met


def _normalise(schema: Json, body: Body) -> Json:
    properties: Mapping[str, Json] = schema.get("properties", {})
    result: Json = {}
    for key in sorted(body):
        value = body[key]
        inner = properties.get(key, {})
        if "properties" in inner:
            value = as_mapping(value)
        if isinstance(value, Mapping):
            value = _normalise(inner, value)
            if not value and "properties" in inner and not inner.get("required"):
                continue  # everything in it was a default written out
        elif inner.get("x-diff") == "columns" and isinstance(value, str):
            value = canonical(value)
        elif inner.get("type") == "integer" and isinstance(value, float) and value.is_integer():
            value = int(value)  # JSON Schema takes 5432.0 for an integer
        if "default" in inner and _same(value, inner["default"]):
            continue
        result[key] = value
    return result


def as_mapping(value: Any) -> Any:
    """`[key, headers]` → `{key: key, headers: headers}`, the short way to write such a mapping."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return {item: item for item in value}
    return value


def _same(value: Any, default: Any) -> bool:
    # True == 1 in Python, but not in a configuration.
    return bool(value == default) and isinstance(value, bool) == isinstance(default, bool)


def _with_defaults(schema: Json, body: Body) -> Json:
    result: Json = dict(body)
    for key, inner in schema.get("properties", {}).items():
        if key not in result and "default" in inner:
            result[key] = inner["default"]
        if isinstance(result.get(key), Mapping):
            result[key] = _with_defaults(inner, result[key])
    return result


def _identifying(schema: Json, body: Body) -> Json:
    properties: Mapping[str, Json] = schema.get("properties", {})
    result: Json = {}
    for key, value in body.items():
        inner = properties.get(key, {})
        if inner.get("x-change") == "in-place" or "x-reference" in inner:
            continue
        if not isinstance(value, Mapping):
            result[key] = value
        elif (identifying := _identifying(inner, value)) or not value:
            result[key] = identifying  # left out where everything in it changes in place
    return result
