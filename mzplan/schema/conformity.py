"""Checks whether a description from the store or the warehouse fits the schemas of this process.

A newer mzplan, or one with another version of a plug-in, may have written it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mzplan.model.address import Address
from mzplan.model.resources import Body
from mzplan.schema.columns import DdlError
from mzplan.schema.description import CollectionRead, Description, InlinedConnection
from mzplan.schema.kinds import resource_kind
from mzplan.schema.loading import is_type
from mzplan.schema.source_columns import columns_of
from mzplan.schema.validators import Path, validator

_SHOWN = 80  # characters of a key or type in a message


def fault_of(description: Description) -> str:
    """Return the first fault of a query's description, as a clause without any value; "" if it has none.

    Raises MzplanError MZ080 for a broken plug-in.
    """
    return next(_faults(description), "")


def fault_of_connection(inlined: InlinedConnection) -> str:
    """Return the first fault of a connection and the connections that it uses; "" if it has none."""
    return next(_connection_faults(inlined), "")


def _faults(description: Description) -> Iterator[str]:
    yield from _body_faults(description.address, description.type, description.body)
    for inlined in description.connections.values():
        yield from _connection_faults(inlined)
    for read in description.inputs.values():
        yield from _body_faults(read.address, read.type, read.body)
        yield from _column_faults(read)
    if description.address.writes_collection:
        yield from _column_faults(description)


def _connection_faults(inlined: InlinedConnection) -> Iterator[str]:
    yield from _body_faults(inlined.address, inlined.type, inlined.body)
    for inner in inlined.connections.values():
        yield from _connection_faults(inner)


def _column_faults(written: Description | CollectionRead) -> Iterator[str]:
    try:
        columns_of(written.type, written.body)
    except DdlError:
        yield f"the schema of {written.address} is not Spark DDL"


def _body_faults(address: Address, type_: str, body: Body) -> Iterator[str]:
    if not is_type(address.kind, type_):
        yield f"{_cut(type_)} is not a type of a {address.kind} here"
        return
    for error in validator(f"{address.kind}.{type_}").iter_errors(body):
        yield f"{address}{_where(tuple(error.instance_path))}: {_rule(error)}"
    for name, key, _ in resource_kind(address.kind, type_).refused_keys(body):
        yield f"{address}.{name}: {_cut(key)} can't be set"


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
