"""Kinds and types of resources, as their JSON Schemas under schemas/ describe them.

The schemas are the single source for validation, effects of changes (`x-change`), secrets (`x-sensitive`),
references (`x-reference`) and option names of ALTER (`x-sql`, mzplan.schema.statement_options). So no other
module needs `if type == "kafka"` to find the effect of a change.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal, cast

from mzplan.host.network import is_loopback
from mzplan.model.address import COLLECTIONS, Address, Kind
from mzplan.model.plan import Effect
from mzplan.model.resources import Body
from mzplan.model.times import brief_duration
from mzplan.schema.columns import canonical
from mzplan.schema.dialect import Json
from mzplan.schema.loading import load_schema, own_types
from mzplan.schema.properties import is_sensitive, takes_secret, value_at, walk_properties
from mzplan.schema.sql.sql_text import plain_sql
from mzplan.secrets.references import placed_references

EXACTLY_ONCE = "exactly-once"
EditKind = Literal["added", "removed", "changed"]
_REFERRED: Mapping[str, tuple[Kind, ...]] = {"collection": COLLECTIONS}


@dataclass(frozen=True)
class Reference:
    """A property that names another resource, or lists several.

    - `kinds`: the kinds that the resource may have; they share their names.
    - `types`: the types that it may have; empty for any.
    """

    property: str
    kinds: tuple[Kind, ...]
    types: tuple[str, ...]

    def words(self) -> str:
        """Return the kinds for messages: `connection`, `source or view`."""
        return " or ".join(self.kinds)

    def address(self, name: str, known: Container[Address]) -> Address:
        """Return the known address with this name; an address of the first kind if none is known."""
        addresses = [Address(kind, name) for kind in self.kinds]
        return next((address for address in addresses if address in known), addresses[0])


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
        """Return the properties that refer to other resources."""
        return tuple(
            Reference(
                name,
                _REFERRED.get(schema["x-reference"], (schema["x-reference"],)),
                tuple(schema.get("x-reference-types", ())),
            )
            for name, schema in self.schema["properties"].items()
            if "x-reference" in schema
        )

    def references_in(self, body: Body) -> Iterator[tuple[str, Reference, str]]:
        """Yield each name that a body refers to, with its role: `connection`, or `reads[0]` in a list."""
        for reference in self.references:
            value = body.get(reference.property)
            if isinstance(value, str):
                yield reference.property, reference, value
            elif isinstance(value, list):
                names = ((index, name) for index, name in enumerate(value) if isinstance(name, str))
                yield from ((f"{reference.property}[{index}]", reference, name) for index, name in names)

    @property
    def validates_live(self) -> bool:
        """Return whether ALTER validates such a connection live by default (semantics.md §1, rule 7)."""
        return bool(self.schema.get("x-validate", False))

    @property
    def rotates_keys(self) -> tuple[str, str] | None:
        """Return the properties of the keys that ALTER … ROTATE KEYS rotates: the primary, the secondary."""
        properties = self.schema.get("x-rotates-keys")
        return (properties["primary"], properties["secondary"]) if properties else None

    def packages(self, body: Body) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the jars that Spark needs for this body, and the dependencies to exclude from them.

        Both are Maven coordinates (`x-packages`, `x-packages-excluded`, `x-lists-packages`).
        """
        present = [schema for name, schema in self.schema["properties"].items() if name in body]
        wanted = (package for schema in present for package in schema.get("x-packages", ()))
        excluded = (package for schema in present for package in schema.get("x-packages-excluded", ()))
        return (*wanted, *self.listed_packages(body)), tuple(excluded)

    def listed_packages(self, body: Body) -> tuple[str, ...]:
        """Return the jars that a body itself names, as Maven coordinates (`x-lists-packages`)."""
        properties = self.schema["properties"].items()
        lists = (body.get(name, ()) for name, schema in properties if schema.get("x-lists-packages"))
        return tuple(package for given in lists for package in given)

    def query_type(self, kind: Kind) -> str | None:
        """Return the default type of a query of this kind on this connection; None if it can't have one."""
        type_name = self.schema.get(f"x-{kind}-type")
        return str(type_name) if type_name else None

    def normalise(self, body: Body) -> Json:
        """Return the body without values that equal their defaults or have no effect, and with sorted keys.

        Bodies with the same meaning are then equal: other orders of keys, and defaults written out, are no
        change (semantics.md §1, rule 11).
        """
        return _normalise(self.schema, body)

    def with_defaults(self, body: Body) -> Json:
        return with_defaults(self.schema, body)

    def identifying_part(self, body: Body) -> Json:
        """Return the properties that identify a running query, without those that change in place."""
        return _identifying(self.schema, body)

    def assumed_values(self, body: Body) -> dict[tuple[str, ...], Any]:
        """Return the values that mzplan assumes for properties that a new body doesn't set (`x-assumed`)."""
        assumed: dict[tuple[str, ...], Any] = {}
        for path, schema in self._assumed_properties:
            rule = schema["x-assumed"]
            if value_at(body, path) is None and not is_loopback(str(body.get(rule["unless-loopback"], ""))):
                assumed[path] = rule["value"]
        return assumed

    @cached_property
    def _assumed_properties(self) -> tuple[tuple[tuple[str, ...], Json], ...]:
        return tuple((path, schema) for path, schema in walk_properties(self.schema) if "x-assumed" in schema)

    def property_schema(self, path: tuple[str | int, ...]) -> Json:
        """Return the schema of the property at a path of keys and indexes.

        For items of a list and free keys of a mapping, return the schema of the list or mapping.
        """
        schema = self.schema
        for key in path:
            if key not in schema.get("properties", {}):
                break
            schema = schema["properties"][key]
        return schema

    def effect(self, path: tuple[str | int, ...], edit: EditKind) -> Effect:
        """Return the effect of an edit of this kind at this path on a running query (`x-change`)."""
        change = self.property_schema(path).get("x-change", "restart")
        if isinstance(change, Mapping):
            change = change.get(edit, "replace")
        return cast(Effect, change)

    def is_sensitive(self, path: tuple[str | int, ...]) -> bool:
        """Return whether the value at a path is a secret (`x-sensitive`, or `x-sensitive-keys`)."""
        return is_sensitive(self.schema, path)

    def takes_secret(self, path: tuple[str | int, ...]) -> bool:
        """Return whether the value at a path may be a secret reference."""
        return takes_secret(self.schema, path)

    def secret_references(self, body: Body) -> set[str]:
        """Return the secret references of a body, as written, in the places that allow them."""
        return {text for place, text in placed_references(body) if self.takes_secret(place)}

    def refused_keys(self, body: Body) -> Iterator[tuple[str, str, str]]:
        """Yield each free key of a body that can't be set: its property, the key, and the reason.

        The reason is the text in `x-reserved`, or "" if `x-allowed` doesn't list the key.
        """
        for name, schema in self._restricted_properties:
            given, allowed, reserved = body.get(name), schema.get("x-allowed"), schema.get("x-reserved", {})
            for key in given if isinstance(given, dict) else ():
                if key in reserved or (allowed is not None and key not in allowed):
                    yield name, key, reserved.get(key, "")

    @cached_property
    def _restricted_properties(self) -> tuple[tuple[str, Json], ...]:
        properties = self.schema["properties"].items()
        return tuple(
            (name, schema) for name, schema in properties if "x-reserved" in schema or "x-allowed" in schema
        )

    @cached_property
    def column_paths(self) -> tuple[tuple[str, ...], ...]:
        """Return the properties that decide a collection's columns (`x-diff: columns`, or `x-column`)."""
        return tuple(
            path
            for path, schema in walk_properties(self.schema)
            if schema.get("x-diff") == "columns" or "x-column" in schema
        )

    @cached_property
    def key_path(self) -> tuple[str, ...] | None:
        """Return the property that lists the columns of a keyed collection's key (`x-key`)."""
        paths = (path for path, schema in walk_properties(self.schema) if schema.get("x-key"))
        return next(paths, None)

    @cached_property
    def query_property(self) -> str | None:
        """Return the property with the SQL of a view (`x-query`)."""
        properties = self.schema["properties"].items()
        return next((name for name, inner in properties if inner.get("x-query")), None)

    @cached_property
    def function_property(self) -> str | None:
        """Return the property with the user's function (`x-function`)."""
        properties = self.schema["properties"].items()
        return next((name for name, inner in properties if inner.get("x-function")), None)

    @cached_property
    def environment_property(self) -> str | None:
        """Return the property that names the environment whose collection is read (`x-environment`)."""
        properties = self.schema["properties"].items()
        return next((name for name, inner in properties if inner.get("x-environment")), None)

    @property
    def is_key_certain(self) -> bool:
        """Return whether the key's columns in a record's value are never NULL (`x-key-certain`)."""
        return self.key_path is not None and "x-key-certain" in self.property_schema(self.key_path)

    @property
    def holds_upstream(self) -> bool:
        """Return whether a source reserves a resource of its upstream, such as a slot (`x-exclusive`)."""
        return any("x-exclusive" in schema for _, schema in walk_properties(self.schema))

    @cached_property
    def row_properties(self) -> tuple[str, ...]:
        """Return the properties of a sink or view that decide which rows a step writes (`x-rows`)."""
        return tuple(name for name, inner in self.schema["properties"].items() if inner.get("x-rows"))


@cache
def resource_kind(kind: Kind, type_: str) -> ResourceKind:
    """Return the kind and type. Raises KeyError if there is no such schema."""
    view = ResourceKind(kind, type_)
    _ = view.schema
    return view


def default_type(kind: Kind, body: Container[str]) -> str | None:
    """Return the type of a query that sets neither a type nor a connection.

    That is the type whose function or environment it sets (`x-function`, `x-environment`), or else mzplan's
    only other type of the kind. Returns None if there are several, or if the only one needs a connection.
    """
    by_property = default_types(kind)
    return next((type_ for name, type_ in by_property.items() if name in body), by_property.get(""))


@cache
def default_types(kind: Kind) -> Mapping[str, str]:
    """Return the types of `default_type`, by the property that implies each; "" for the only other one."""
    by_property: dict[str, str] = {}
    others = []
    for type_ in own_types(kind):
        known = resource_kind(kind, type_)
        if (name := known.function_property or known.environment_property) is not None:
            by_property[name] = type_
        else:
            others.append(type_)
    if len(others) == 1 and "connection" not in resource_kind(kind, others[0]).schema["properties"]:
        by_property[""] = others[0]
    return by_property


def _normalise(schema: Json, body: Body) -> Json:
    result: Json = {}
    for key in sorted(body):
        value = body[key]
        inner = _inner(schema, key)
        if "properties" in inner:
            value = as_mapping(value)
        if isinstance(value, Mapping):
            value = _normalise(inner, value)
            if not value and "properties" in inner and not inner.get("required"):
                continue  # it only had defaults
        elif inner.get("x-diff") == "columns" and isinstance(value, str):
            value = canonical(value)
        elif inner.get("x-duration") and isinstance(value, str):
            value = brief_duration(value)
        elif inner.get("type") == "integer" and isinstance(value, float) and value.is_integer():
            value = int(value)  # 5432.0 is an integer in JSON Schema
        if ("default" in inner and _same(value, inner["default"])) or inner.get("x-with", key) not in body:
            continue
        result[key] = value
    return result


def _inner(schema: Json, key: str) -> Json:
    """Return the schema of a property, or of a free key."""
    free = schema.get("additionalProperties")
    inner: Json = schema.get("properties", {}).get(key, free if isinstance(free, Mapping) else {})
    return inner


def as_mapping(value: Any) -> Any:
    """Return `{key: key, headers: headers}` for `[key, headers]`, the short way to write such a mapping."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return {item: item for item in value}
    return value


def _same(value: Any, default: Any) -> bool:
    # True == 1 in Python, but not in a configuration.
    return bool(value == default) and isinstance(value, bool) == isinstance(default, bool)


def with_defaults(schema: Json, body: Body) -> Json:
    """Return the body with every missing default of its schema filled in, at any depth."""
    result: Json = dict(body)
    for key, inner in schema.get("properties", {}).items():
        if key not in result and "default" in inner:
            result[key] = inner["default"]
        if isinstance(result.get(key), Mapping):
            result[key] = with_defaults(inner, result[key])
    return result


def _identifying(schema: Json, body: Body) -> Json:
    properties: Mapping[str, Json] = schema.get("properties", {})
    result: Json = {}
    for key, value in body.items():
        inner = properties.get(key, {})
        if inner.get("x-change") == "in-place" or "x-reference" in inner:
            continue
        if not isinstance(value, Mapping):
            result[key] = plain_sql(value) if inner.get("x-query") and isinstance(value, str) else value
        elif (identifying := _identifying(inner, value)) or not value:
            result[key] = identifying  # left out if everything in it changes in place
    return result
