"""Checks whether files could have given a description.

mzplan.config reports the same mistakes with their places in a file; here the answer is yes, or no with a
reason. Others may write the store and the warehouse, so a runner may find anything there that has the form
of a description.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mzplan.model.address import Address, Kind
from mzplan.model.resources import Body
from mzplan.model.words import unusable_character
from mzplan.schema.columns import DdlError
from mzplan.schema.description import CollectionRead, Description, InlinedConnection
from mzplan.schema.expressions import parse_select, parse_where
from mzplan.schema.kinds import ResourceKind, resource_kind
from mzplan.schema.loading import is_type
from mzplan.schema.relations.parse import QueryError, is_relational, parse_query
from mzplan.schema.source_columns import columns_of, keys_of
from mzplan.schema.validators import Path, validator
from mzplan.schema.view_query import parse_view

_SHOWN = 80  # characters of a key that somebody may have chosen


def fault_of(description: Description) -> str:
    """Return the first fault of a description, as a clause for people without any value; "" if it has none.

    Raises MzplanError MZ080 for a broken plug-in.
    """
    return next(_faults(description), "")


def fault_of_connection(inlined: InlinedConnection) -> str:
    """Return the first fault of a connection and the connections that it uses; "" if it is right."""
    return next(_connection_faults(inlined), "")


def _faults(description: Description) -> Iterator[str]:
    address = description.address
    if address.is_connection or bool(description.reads) != address.reads_collections:
        yield f"{address} is no query, or reads what it can't"
        return
    yield from _resource_faults(address, description.type, description.body, description.connections)
    for read in description.inputs.values():
        yield from _read_faults(description, read)
    if description.reads:
        yield from _expression_faults(address, description.body)
        yield from _query_faults(description)
    if address.writes_collection:
        yield from _collection_faults(description)


def _read_faults(description: Description, read: CollectionRead) -> Iterator[str]:
    """Yield the faults of a collection that the query reads."""
    yield from _body_faults(read.address, read.type, read.body)
    yield from _collection_faults(read)
    is_origin = is_type("source", read.origin) or (is_type("view", read.origin) and read.origin != read.type)
    if read.origin and not (read.address.reads_collections and is_origin):
        yield f"{_cut(read.origin)} is not a type of a source here"
    if read.place == description.place:
        yield f"{description.address} reads what it writes"


def _collection_faults(read: Description | CollectionRead) -> Iterator[str]:
    """Yield the faults in the columns of a collection and of its former generations.

    The collection's body conforms to its schema.
    """
    bodies, predecessor = [read.body], read.predecessor
    while predecessor is not None:
        yield from _body_faults(read.address, read.type, predecessor.body)
        bodies, predecessor = [*bodies, predecessor.body], predecessor.predecessor
    try:
        if not all(columns_of(read.type, body) for body in bodies):
            yield f"{read.address} has no columns"
    except DdlError:
        yield f"the schema of {read.address} is not Spark DDL"


def _query_faults(description: Description) -> Iterator[str]:
    """Yield the faults in the SQL of a view: it may read only the collections that it declares."""
    address, source = description.address, description.input
    property_ = resource_kind(address.kind, description.type).query_property
    if property_ is None:
        return
    if source is None or is_relational(description.body):
        yield from _relational_faults(description, property_)
        return
    query = parse_view(description.body[property_])
    if query.problem:
        yield f"{address}.{property_}: {query.problem}"
    elif not query.collection.text == source.address.name == description.body.get("from"):
        yield f"{address}.{property_} reads another collection than {source.address}"
    key = keys_of(description.type, description.body)
    if not query.problem and query.key(keys_of(source.type, source.body)) != key:
        yield f"{address} has another key than what it reads"
    for _, parsed in query.expressions():
        if parsed.problem:
            yield f"{address}.{property_}: {parsed.problem}"


def _relational_faults(description: Description, property_: str) -> Iterator[str]:
    address, body = description.address, description.body
    try:
        query = parse_query(body[property_])
    except QueryError as refused:
        yield f"{address}.{property_}: {refused.problem}"
        return
    if "from" in body or set(query.places) != set(description.inputs):
        yield f"{address}.{property_} reads other collections than {', '.join(description.inputs)}"
    if any(keys_of(read.type, read.body) for read in description.reads.values()):
        yield f"{address} reads a keyed collection as a stream"


def _connection_faults(inlined: InlinedConnection) -> Iterator[str]:
    if inlined.address.is_query:
        yield f"{inlined.address} is no connection"
        return
    yield from _resource_faults(inlined.address, inlined.type, inlined.body, inlined.connections)


def _resource_faults(
    address: Address, type_: str, body: Body, connections: Mapping[str, InlinedConnection]
) -> Iterator[str]:
    fault = next(_body_faults(address, type_, body), "")
    if fault:
        yield fault
        return
    yield from _reference_faults(address, resource_kind(address.kind, type_), body, connections)
    for inlined in connections.values():
        yield from _connection_faults(inlined)


def _reference_faults(
    address: Address, kind: ResourceKind, body: Body, connections: Mapping[str, InlinedConnection]
) -> Iterator[str]:
    """Yield a fault for each reference to a connection that is missing, unexpected, or of a wrong type."""
    named = {
        r.property: r.types for r in kind.references if r.kinds == ("connection",) and r.property in body
    }
    for role in sorted(named.keys() ^ connections.keys()):
        yield f"{address} has no connection, or no use for one, as {_cut(role)}"
    for role in sorted(named.keys() & connections.keys()):
        if named[role] and connections[role].type not in named[role]:
            yield f"the {role} of {address} has another type than {' or '.join(named[role])}"


def _body_faults(address: Address, type_: str, body: Body) -> Iterator[str]:
    kind: Kind = address.kind
    if not is_type(kind, type_):
        yield f"{_cut(type_)} is not a type of a {kind} here"
        return
    if place := _unusable_text(body):
        yield f"{address}{_where(place)}: a control character, which no file can hold"
        return
    for error in validator(f"{kind}.{type_}").iter_errors(body):
        yield f"{address}{_where(tuple(error.instance_path))}: {_rule(error)}"
        return
    for name, schema in resource_kind(kind, type_).restricted_properties:
        given, allowed, reserved = body.get(name), schema.get("x-allowed"), schema.get("x-reserved", {})
        for key in given if isinstance(given, dict) else ():
            if key in reserved or (allowed is not None and key not in allowed):
                yield f"{address}.{name}: {_cut(key)} can't be set"


def _unusable_text(value: Any, place: Path = ()) -> Path | None:
    """Return the place of a text with a character that YAML refuses.

    A library that takes such a character for the end of the text would go elsewhere than the text seems to
    lead. The key of a mapping counts as its place.
    """
    if isinstance(value, str):
        return place if unusable_character(value) else None
    entries: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        entries = value.items()
    elif isinstance(value, list | tuple):
        entries = enumerate(value)
    for key, inner in entries:
        if unusable_character(str(key)):
            return (*place, key)
        if (inner_place := _unusable_text(inner, (*place, key))) is not None:
            return inner_place
    return None


def _expression_faults(address: Address, body: Body) -> Iterator[str]:
    for index, text in enumerate(body.get("select", ())):
        if problem := parse_select(text).problem:
            yield f"{address}.select[{index}]: {problem}"
    if "where" in body and (problem := parse_where(body["where"]).problem):
        yield f"{address}.where: {problem}"


def _rule(error: Any) -> str:
    """Return the rule that a value violates, without the value."""
    if error.kind.name == "additionalProperties":
        return f"unknown key {_cut(next(iter(error.kind.unexpected), ''))}"
    if error.kind.name == "required":
        return f"the key {error.kind.property} is missing"
    return {"type": "a wrong type", "enum": "none of its values"}.get(error.kind.name, "a wrong value")


def _where(path: Path) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{_cut(key)}" for key in path)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
