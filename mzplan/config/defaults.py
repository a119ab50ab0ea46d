"""`defaults:`: values for properties that a resource doesn't set itself.

mzplan.yaml has defaults for each kind. A connection can have defaults for the sources and sinks that use
it. They override the defaults in mzplan.yaml. Mappings are merged key by key; any other value is replaced.
The state doesn't record where a value was written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mzplan.config.documents import MAX_NODES, Declaration, Document, size_of
from mzplan.config.findings import EnoughError, Findings, Location, Path, SourceFile
from mzplan.config.project_files import SECTIONS
from mzplan.model.address import Address, Kind
from mzplan.schema.kinds import default_types, resource_kind
from mzplan.schema.loading import types_of
from mzplan.schema.properties import value_at

# A resource gets the defaults of these keys only if it sets neither of them.
_TYPE_KEYS = ("type", "connection")
_CONNECTION_SECTIONS = ("sources", "sinks")


@dataclass(slots=True)
class Block:
    """Defaults for the resources of a kind, and where they are written.

    - `at`: the path of the block in the file.
    - `connection`: the connection that has the defaults; None for defaults in mzplan.yaml.
    - `known`: the keys that at least one resource's type has.
    - `fitting`: by type, the defaults for resources of that type.
    """

    kind: Kind
    body: dict[str, Any]
    file: SourceFile
    at: Path
    connection: str | None = None
    known: set[str] = field(default_factory=set)
    fitting: dict[str, dict[str, Any]] = field(default_factory=dict)
    size: int = 0  # keys and values

    def keys_of(self, type_: str) -> set[str]:
        """Return the keys that these defaults can give to a resource of a type."""
        keys = set(resource_kind(self.kind, type_).schema["properties"])
        return keys if self.connection is None else keys - {"connection"}

    def of_type(self, type_: str) -> dict[str, Any]:
        if type_ not in self.fitting:
            properties = self.keys_of(type_)
            fitting = {key: value for key, value in self.body.items() if key in properties}
            self.known |= fitting.keys()
            self.fitting[type_] = {key: fitting[key] for key in fitting if key not in _TYPE_KEYS}
        return self.fitting[type_]


class Defaults:
    """The defaults of a project."""

    def __init__(self, project: Document, findings: Findings):
        self.findings = findings
        self.by_kind: dict[str, Block] = {}
        self.by_connection: dict[tuple[str, str], Block] = {}  # (connection, kind)
        given = value_at(project.data, ("defaults",))
        # The check of the settings reports malformed defaults.
        for section, body in given.items() if isinstance(given, dict) else ():
            if section in SECTIONS and isinstance(body, dict):
                kind = SECTIONS[section]
                self.by_kind[kind] = Block(kind, body, project.file, ("defaults", section))

    def __bool__(self) -> bool:
        return bool(self.by_kind or self.by_connection)

    def extract(self, connection: Declaration) -> None:
        """Move the defaults for sources and sinks from a connection's body into this object."""
        given = connection.body["defaults"]
        connection.body = {key: value for key, value in connection.body.items() if key != "defaults"}
        if not isinstance(given, dict):
            self._wrong_type(connection, ("defaults",), given, "sources and sinks")
            return
        for section, body in given.items():
            path = ("defaults", section)
            if section not in _CONNECTION_SECTIONS:
                self.findings.add(
                    "MZ004.unknown-key-defaults",
                    connection.location(path, at_key=True),
                    conceal=True,
                    section=section,
                    label=connection.label,
                    connection_sections=_CONNECTION_SECTIONS,
                    did_you_mean=self.findings.did_you_mean(section, _CONNECTION_SECTIONS),
                )
            elif not isinstance(body, dict):
                self._wrong_type(connection, path, body, f"keys of {section}")
            else:
                kind, name = SECTIONS[section], connection.address.name
                place = connection.location(path).path
                self.by_connection[name, kind] = Block(kind, body, connection.file, place, name)

    def fill_connections(self, declared: Iterable[Declaration]) -> None:
        """Give the default type and connection of its kind to each query that sets neither.

        A query whose type follows from another key gets none.
        """
        for resource in declared if self.by_kind else ():
            block = self.by_kind.get(resource.address.kind)
            if block is None or resource.address.is_connection or not isinstance(resource.body, dict):
                continue
            implying = default_types(resource.address.kind).keys() - {""}
            if not any(key in resource.body for key in (*_TYPE_KEYS, *implying)):
                given = {key: block.body[key] for key in _TYPE_KEYS if key in block.body}
                self._give(resource, block, given)

    def fill_types(self, declared: Iterable[Declaration]) -> None:
        """Give each resource without a type its default type.

        A connection takes it from mzplan.yaml, a query from the `defaults` of its connection.
        """
        for resource in declared if self else ():
            is_connection = resource.address.is_connection
            block = self.by_kind.get("connection") if is_connection else self._connection_defaults(resource)
            if block is None or not isinstance(resource.body, dict):
                continue
            if "type" in block.body and "type" not in resource.body:
                self._give(resource, block, {"type": block.body["type"]})

    def fill_in(self, declared: Collection[Declaration]) -> None:
        """Give each resource of a known type the other defaults that its type has.

        Report each default that no type has.
        """
        for resource in declared:
            if resource.type is None:
                continue
            for block in (self._connection_defaults(resource), self.by_kind.get(resource.address.kind)):
                if block is not None:
                    self._give(resource, block, block.of_type(resource.type))
        for block in (*self.by_kind.values(), *self.by_connection.values()):
            if unknown := [key for key in block.body if key not in block.known]:
                self._check_known(block, unknown, declared)

    def _give(self, resource: Declaration, block: Block, given: Mapping[str, Any]) -> None:
        if not given:
            return
        self._count(block)
        if not resource.given:
            resource.own = resource.body
        resource.body = _merge(resource.body, given)
        resource.given = (*resource.given, (block.file, block.at, given))

    def _count(self, block: Block) -> None:
        """Count the keys and values of a block once more, for the resource that gets it.

        Resources share the block in memory, but code that walks through them visits it in each.
        Raises EnoughError if the project exceeds its limit.
        """
        block.size = block.size or size_of(block.body)
        self.findings.nodes += block.size
        if self.findings.nodes > MAX_NODES:
            self.findings.add(
                "MZ007.defaults-make", Location(block.file, block.at, at_key=True), max_nodes=MAX_NODES
            )
            raise EnoughError

    def _connection_defaults(self, resource: Declaration) -> Block | None:
        name = value_at(resource.body, ("connection",)) if self.by_connection else None
        return self.by_connection.get((name, resource.address.kind)) if isinstance(name, str) else None

    def _check_known(self, block: Block, unknown: list[str], declared: Collection[Declaration]) -> None:
        types: Iterable[str] = types_of(block.kind)
        if block.connection is not None:
            used = Address("connection", block.connection)
            of = next((resource.type for resource in declared if resource.address == used), None)
            types = [type_ for type_ in types if of is None or _can_use(block.kind, type_, of)]
        known = {key for type_ in types for key in block.keys_of(type_)}
        for key in unknown:
            if key in known:
                continue
            self.findings.add(
                "MZ004.unknown-key-no-type",
                Location(block.file, (*block.at, key), at_key=True),
                conceal=True,
                key=key,
                kind_=block.kind,
                known=sorted(known),
                did_you_mean=self.findings.did_you_mean(key, known),
            )

    def _wrong_type(self, connection: Declaration, path: Path, found: Any, wanted: str) -> None:
        self.findings.add(
            "MZ005.wrong-type-expected-mapping-found",
            connection.location(path),
            key=str(path[-1]),
            label=connection.label,
            wanted=wanted,
            found=found,
        )


def _merge(own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a new mapping with the entries of both mappings. For a key in both, the value in `own` wins.

    Two mappings under the same key are merged in the same way.
    """
    result = {**given, **own}
    for key in given.keys() & own.keys():
        if isinstance(own[key], dict) and isinstance(given[key], dict):
            result[key] = _merge(own[key], given[key])
    return result


def _can_use(kind: Kind, type_: str, connection: str) -> bool:
    """Return whether a source or sink of this type can use a connection of that type."""
    type_lists: Iterator[tuple[str, ...]] = (
        reference.types
        for reference in resource_kind(kind, type_).references
        if reference.property == "connection"
    )
    types = next(type_lists, None)
    return types is not None and (not types or connection in types)
