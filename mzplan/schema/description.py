"""Descriptions: a query with everything that it depends on, and its digest.

Files and the state refer to connections by name. A description has the connections themselves (seed 002,
`into_inline_connection`). Its digest decides whether a running query must restart: a change that doesn't
change the digest restarts nothing. Secrets stay references here. Only the runner resolves them, when it makes
options for Spark.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mzplan.model.address import Address, Place
from mzplan.model.state import Predecessor, ResourceState
from mzplan.model.stored import SPARSE, Id, Positive
from mzplan.model.tasks import Task
from mzplan.schema.kinds import resource_kind
from mzplan.schema.loading import types_of
from mzplan.schema.properties import value_at
from mzplan.schema.source_columns import collection_kind, columns_of
from mzplan.schema.sql.view_query import with_collection

DIGEST_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class InlinedConnection:
    """A connection with the connections that it uses itself, at any depth."""

    address: Address
    type: str
    body: Mapping[str, Any]
    connections: Mapping[str, InlinedConnection] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionRead:
    """A collection that a query reads.

    - `type`, `body`: the type and body of the query that writes the collection. They determine the
      collection's columns and key.
    - `predecessor`: the generation whose rows the collection begins with.
    - `origin`: for a view, the type of the first query in the chain of single inputs: a source, or a view
      with several inputs. "" if that type equals `type`.
    """

    address: Address
    id: Id
    generation: Positive
    type: str
    body: Mapping[str, Any]
    predecessor: Predecessor | None = field(default=None, metadata=SPARSE)
    origin: str = field(default="", metadata=SPARSE)

    @property
    def place(self) -> Place:
        return (self.id, self.generation)

    @property
    def position_type(self) -> str:
        """The type of the query whose connector declares the rows' `_position`."""
        return self.origin or position_type_of(self.type, self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A query as the runner starts it.

    Bodies are as committed: without defaults (see ResourceKind.with_defaults), with secrets as references.

    - `reads`: each collection that the query reads as a stream, by name; empty for a source.
    - `snapshots`: each collection that a view reads as a table, by name.
    - `tasks`: one-off work that the query does before it starts, each once.
    - `may_lose`: this generation may begin even if the upstream no longer has all rows of the previous
      generation.
    - `predecessor`: the generation of this query whose rows the collection begins with.
    """

    address: Address
    id: Id
    generation: Positive
    digest: str
    type: str
    body: Mapping[str, Any]
    connections: Mapping[str, InlinedConnection] = field(default_factory=dict)
    reads: Mapping[str, CollectionRead] = field(default_factory=dict, metadata=SPARSE)
    snapshots: Mapping[str, CollectionRead] = field(default_factory=dict, metadata=SPARSE)
    tasks: tuple[Task, ...] = field(default=(), metadata=SPARSE)
    may_lose: bool = field(default=False, metadata=SPARSE)
    predecessor: Predecessor | None = field(default=None, metadata=SPARSE)

    @property
    def collection(self) -> Description | None:
        """The collection that the query writes, with its columns and key; None for a sink."""
        return self if self.address.writes_collection else None

    @property
    def inputs(self) -> dict[str, CollectionRead]:
        """Each collection that the query reads, as a stream or as a table, by name."""
        return {**self.reads, **self.snapshots}

    @property
    def input(self) -> CollectionRead | None:
        """The collection that the query reads as a stream, if it reads exactly one."""
        return next(iter(self.reads.values())) if len(self.reads) == 1 else None

    @property
    def rows_of(self) -> Description | CollectionRead:
        """The collection whose columns and key the query's rows have: its own or, for a sink, its input."""
        collection = self.collection or self.input
        assert collection is not None, f"{self.address} neither writes nor reads a collection"
        return collection

    @property
    def position_type(self) -> str:
        """The type of the query whose connector declares `_position`; see CollectionRead.origin."""
        if self.input is not None:
            return self.input.position_type
        return position_type_of(self.type, self.body)

    @property
    def place(self) -> Place:
        return (self.id, self.generation)


def position_type_of(type_: str, body: Mapping[str, Any]) -> str:
    """Return the type of a query and, after a `+`, the variant of its rows' `_position` (`x-position`)."""
    properties = collection_kind(type_).schema.get("properties", {})
    variants = (properties[name].get("x-position") for name in body if name in properties)
    variant = next(filter(None, variants), "")
    return f"{type_}+{variant}" if variant else type_


def references_of(description: Description) -> set[str]:
    """Return the secret references of a query: its own, and those of its connections at any depth.

    References in properties that don't allow secrets don't count, because mzplan never resolves them (see
    connectors.api.queries.resolve).
    """
    own = resource_kind(description.address.kind, description.type).secret_references(description.body)
    return own | references_of_connections(description.connections.values())


def references_of_connections(connections: Iterable[InlinedConnection]) -> set[str]:
    """Return the secret references of connections, and of the connections that they use, at any depth."""
    references: set[str] = set()
    below = list(connections)
    while below:
        connection = below.pop()
        references |= resource_kind("connection", connection.type).secret_references(connection.body)
        below += connection.connections.values()
    return references


def describe(resource: ResourceState, resources: Mapping[Address, ResourceState]) -> Description:
    """Return the description of a query in a state. Raises KeyError for a dangling reference."""
    connections: dict[str, InlinedConnection] = {}
    reads: dict[str, CollectionRead] = {}
    snapshots: dict[str, CollectionRead] = {}
    tables = resource.snapshots
    for role, target in resource.references.items():
        record = resources[target]
        if target.is_connection:
            connections[role] = inline_connection(record, resources)
        else:
            (snapshots if role in tables else reads)[target.name] = CollectionRead(
                address=target,
                id=record.id,
                generation=record.generation,
                type=record.type,
                body=record.body,
                predecessor=record.predecessor,
                origin=_origin(record, resources),
            )
    return Description(
        address=resource.address,
        id=resource.id,
        generation=resource.generation,
        digest=resource.digest,
        type=resource.type,
        body=resource.body,
        connections=connections,
        reads=reads,
        snapshots=snapshots,
        tasks=resource.own_tasks,
        may_lose=resource.may_lose == resource.generation,
        predecessor=resource.predecessor,
    )


def _origin(record: ResourceState, resources: Mapping[Address, ResourceState]) -> str:
    """Return `origin` of a CollectionRead. Raises KeyError for a dangling reference."""
    first = record
    while len(read := first.reads) == 1:
        first = resources[next(iter(read.values()))]
    origin = position_type_of(first.type, first.body)
    return origin if origin != position_type_of(record.type, record.body) else ""


def inline_connection(
    resource: ResourceState, resources: Mapping[Address, ResourceState]
) -> InlinedConnection:
    """Return a connection with the connections that it uses written into it, at any depth."""
    return InlinedConnection(
        address=resource.address,
        type=resource.type,
        body=resource.body,
        connections={
            role: inline_connection(resources[target], resources)
            for role, target in resource.references.items()
        },
    )


def as_description(resource: ResourceState, resources: Mapping[Address, ResourceState]) -> Description:
    """Return a connection as a Description, so that it can be checked without a query."""
    inlined = inline_connection(resource, resources)
    return Description(
        address=resource.address,
        id=resource.id,
        generation=resource.generation,
        digest="",
        type=resource.type,
        body=inlined.body,
        connections=inlined.connections,
    )


def as_connection(description: Description) -> InlinedConnection:
    """Return the connection of a description that `as_description` made."""
    return InlinedConnection(
        address=description.address,
        type=description.type,
        body=description.body,
        connections=description.connections,
    )


PACKAGES = "spark.jars.packages"


def packages_of_schemas() -> frozenset[str]:
    """Return the jars that the schemas of connections name for their own properties (`x-packages`)."""
    schemas = (resource_kind("connection", type_).schema["properties"] for type_ in types_of("connection"))
    return frozenset(
        package for schema in schemas for one in schema.values() for package in one.get("x-packages", ())
    )


def packages_of(resources: Mapping[Address, ResourceState]) -> dict[str, tuple[str, ...]]:
    """Return the additional jars that Spark needs for the resources of a state, as settings of Spark.

    The settings are `spark.jars.packages` and `spark.jars.excludes`; both are empty if Spark needs none.
    """
    pairs = [resource_kind(a.kind, r.type).packages(r.body) for a, r in resources.items()]
    names = (PACKAGES, "spark.jars.excludes")
    by_setting = {
        name: sorted({package for pair in pairs for package in pair[i]}) for i, name in enumerate(names)
    }
    return {name: tuple(packages) for name, packages in by_setting.items() if packages}


def digest_of(
    resource: ResourceState,
    resources: Mapping[Address, ResourceState],
    memo: dict[Address, Any] | None = None,
) -> str:
    """Return the digest of a query's inlined description, `"2:<64 hex digits>"`; "" for a connection.

    The digest leaves out properties that change in place, default values, the names of the resource and its
    connections, and the columns of its inputs that it doesn't use. So renaming a connection restarts nothing,
    and neither does a new column that a query doesn't use. The digest covers the query's tasks. A query that
    runs with this digest has done them, even after a rollback to an earlier `restart_token`.

    `memo` keeps inlined connections between calls on the same resources.
    """
    if resource.address.is_connection:
        return ""
    memo = {} if memo is None else memo
    content = [resource.address.kind, *_identity(resource, resources, memo)]
    content.append([resource.generation, resource.restart_token])
    if tasks := resource.own_tasks:
        content.append([[task.kind, task.serial, task.arguments] for task in tasks])
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"{DIGEST_VERSION}:{hashlib.sha256(text.encode()).hexdigest()}"


def _identity(
    resource: ResourceState, resources: Mapping[Address, ResourceState], memo: dict[Address, Any]
) -> list[Any]:
    kind = resource_kind(resource.address.kind, resource.type)
    references: dict[str, Any] = {}
    used = columns_used(resource, resources)
    for role, target in resource.references.items():
        record = resources[target]
        if target not in memo:
            is_connection = target.is_connection
            memo[target] = (
                _identity(record, resources, memo) if is_connection else [record.type, record.generation]
            )
        columns = [list(used[role])] if role in used else []
        # A view's SQL contains its inputs' names, so they count, but not their order. A row view's input
        # doesn't (see below).
        by_name = role != "from" and resource.address.writes_collection and target.writes_collection
        place = f"{role.partition('[')[0]}.{target.name}" if by_name else role
        references[place] = [*memo[target], *columns]
    identifying = kind.identifying_part(resource.body)
    if (property_ := kind.query_property) in identifying and "from" in resource.references:
        identifying = {**identifying, property_: with_collection(identifying[property_], "_")}
    return [resource.type, identifying, references]


def columns_used(
    resource: ResourceState, resources: Mapping[Address, ResourceState]
) -> dict[str, tuple[str, ...]]:
    """Return the columns that a query uses of each collection that it reads, by role, as DDL.

    They are in the order of the collection if that matters, else sorted. Raises KeyError for a dangling
    reference.
    """
    inputs = {**resource.reads, **resource.snapshots}
    if not inputs:
        return {}
    from mzplan.schema.lineage import lineage_of  # parses SQL: only for a query that changed

    records = {address.name: resources[address] for address in inputs.values()}
    lineage = lineage_of(resource.address.kind, resource.type, resource.body, records)
    used: dict[str, tuple[str, ...]] = {}
    for role, address in inputs.items():
        record = records[address.name]
        listed = [
            str(column)
            for column in columns_of(record.type, record.body)
            if (address.name, column.name) in lineage.used
        ]
        used[role] = tuple(listed if lineage.is_ordered else sorted(listed))
    return used


def collection_columns(source: ResourceState) -> Any:
    """Return the properties of a source that determine the columns of its collection, by path."""
    kind = resource_kind(source.address.kind, source.type)
    values = {"/".join(path): value_at(source.body, path) for path in kind.column_paths}
    return {path: value for path, value in values.items() if value is not None}
