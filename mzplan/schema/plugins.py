"""Third-party connectors: packages with an entry point in the group `mzplan.connectors`.

    [project.entry-points."mzplan.connectors"]
    sqlite = "mzplan_sqlite:connector"          # the name is the connector's type

mzplan searches for plug-ins only if it doesn't know a type, so that other projects start fast.
docs/internals/endpoints.md describes the connector object. This module checks the object, so that errors name
the plug-in's package and don't look like defects of mzplan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from mzplan.host.extras import missing_extras_reported
from mzplan.model.address import KINDS
from mzplan.model.diagnostics import MzplanError, error
from mzplan.schema.dialect import Json, fault_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "mzplan.connectors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A connector of another package. `package`: the package's name and version, for messages."""

    type: str
    package: str
    connector: Any
    schemas: Mapping[str, Json]


@cache
def find_plugin(type_: str) -> Plugin | None:
    """Return the plug-in that provides a type; None if no package does.

    Raises MzplanError MZ080, with the package's name, for a plug-in that can't be used.
    """
    entries = [entry for entry in _entries() if entry.name == type_]
    if not entries:
        return None
    if len({package_of(entry) for entry in entries}) > 1:
        packages = " and ".join(sorted({package_of(entry) for entry in entries}))
        raise _broken_plugin(
            type_, packages, "more than one package provides this type", "uninstall all but one."
        )
    return _load(entries[0])


@cache
def all_plugins() -> tuple[Plugin, ...]:
    """Return every plug-in that works, by type. A broken one is reported when its type is used."""
    plugins = []
    for name in sorted({entry.name for entry in _entries()}):
        try:
            plugin = find_plugin(name)
        except MzplanError:
            continue
        if plugin is not None:
            plugins.append(plugin)
    return tuple(plugins)


def package_of(entry: EntryPoint) -> str:
    """Return a plug-in's package, such as `mzplan-sqlite 1.0`; the entry point's value if it is unknown."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value


def broken_schema(plugin: Plugin, name: str, why: str) -> MzplanError:
    """Return error MZ080: a schema of this plug-in can't be used."""
    return _broken_plugin(plugin.type, plugin.package, f"its schema {name} {why}")


@cache
def _entries() -> tuple[EntryPoint, ...]:
    from importlib.metadata import entry_points

    return tuple(entry_points(group=GROUP))


def _load(entry: EntryPoint) -> Plugin:
    package = package_of(entry)
    try:
        with missing_extras_reported():
            connector = entry.load()
        schemas = {str(name): dict(schema) for name, schema in connector.schemas().items()}
    except MzplanError:
        raise
    except Exception as problem:  # anything can be raised by another package's import
        message = f"{type(problem).__name__}: {problem}".splitlines()[0]
        raise _broken_plugin(entry.name, package, f"{entry.value} can't be loaded: {message}") from None
    why = next(_problems(entry.name, connector, schemas), None)
    if why is not None:
        raise _broken_plugin(entry.name, package, why)
    return Plugin(type=entry.name, package=package, connector=connector, schemas=schemas)


def _problems(type_: str, connector: Any, schemas: Mapping[str, Json]) -> Iterator[str]:
    if connector.type != type_:
        yield f"its entry point is called {type_!r}, but its connector has the type {connector.type!r}"
    allowed = {f"{kind}.{type_}" for kind in KINDS}
    if not schemas or not set(schemas) <= allowed:
        yield f"its schemas are {sorted(schemas)}; they can only be of {sorted(allowed)}"
    if {f"source.{type_}", f"view.{type_}"} <= set(schemas):
        yield "it has both a source and a view of its type"
    methods = (("source", "input_factory"), ("view", "compute"), ("sink", "output_factory"))
    for kind, method in methods:
        if f"{kind}.{type_}" in schemas and not callable(getattr(connector, method, None)):
            yield f"it has a {kind} schema but no {method}()"
    for name, schema in schemas.items():
        yield from (f"its schema {name} {why}" for why in _schema_problems(type_, name, schema))


def _schema_problems(type_: str, name: str, schema: Json) -> Iterator[str]:
    if fault := fault_of(schema):
        yield fault
        return
    properties = schema.get("properties", {})
    if properties.get("type", {}).get("const") != type_:
        yield f'has no property type with "const": "{type_}"'
    if schema.get("type") != "object" or not any("$ref" in base for base in schema.get("allOf", [])):
        bases = {"connection": "common.json", "sink": "sink.json"}
        wanted = bases.get(name.partition(".")[0], "query.json")
        yield f'is not "type": "object" with "allOf": [{{"$ref": "{wanted}"}}]'
    if name.startswith("view.") and any("x-key" in inner for inner in properties.values()):
        yield "has a key, but views of plug-ins only add rows"
    if not name.startswith(("connection.", "sink.")) and not _has_columns(schema):
        yield 'has no property with "x-diff": "columns" for the collection\'s columns as Spark DDL'


def _has_columns(schema: Json) -> bool:
    below = schema.get("properties", {}).values()
    return any(inner.get("x-diff") == "columns" or _has_columns(inner) for inner in below)


def _broken_plugin(type_: str, package: str, why: str, hint: str = "") -> MzplanError:
    return error("MZ080.unusable-connector", type=type_, package=package, why=why, fix=hint)
