"""Descriptions and resolved queries for the tests of connectors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mzplan.connectors.api.queries import ResolvedConnection, ResolvedQuery
from mzplan.model.address import Address
from mzplan.schema.columns import parse_columns
from mzplan.schema.description import Description, InlinedConnection
from mzplan.schema.kinds import resource_kind


def inlined(name: str, body: Mapping[str, Any], **connections: InlinedConnection) -> InlinedConnection:
    """Return a connection by its body, which has its type, and the connections that it uses."""
    address = Address("connection", name)
    return InlinedConnection(address=address, type=body["type"], body=dict(body), connections=connections)


def linked(type_: str, **body: Any) -> ResolvedConnection:
    """Return a connection with the defaults of its type, as a connector gets it."""
    whole = resource_kind("connection", type_).with_defaults({"type": type_, **body})
    return ResolvedConnection(address=Address("connection", "c"), type=type_, body=whole)


def described(
    address: str, type_: str, body: Mapping[str, Any], link: InlinedConnection | None = None, **more: Any
) -> Description:
    """Return the description of the first generation of a query."""
    where = Address.parse(address)
    connections = {"connection": link} if link else {}
    given = {"id": where.name, "generation": 1, "digest": "1:a", "connections": connections, **more}
    return Description(address=where, type=type_, body=dict(body), **given)


def on_table(table: Path, address: Address, body: dict[str, Any], columns: str) -> ResolvedQuery:
    """Return the source or sink of a Delta table in a folder. `columns`: of the source."""
    lake = linked("files", path=str(table.parent))
    body = {"path": table.name, **body}
    return ResolvedQuery(
        description=described(str(address), "delta", body),
        body=body,
        connection=lake,
        columns=parse_columns(columns),
        directory=str(table.parent),
        connections={"connection": lake},
        keys=tuple(body.get("key", ())) if address.kind == "source" else (),
    )
