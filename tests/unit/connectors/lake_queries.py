"""Queries on a Delta table in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mzplan.connectors.api.queries import ResolvedConnection, ResolvedQuery
from mzplan.model.address import Address
from mzplan.schema.columns import parse_columns
from mzplan.schema.description import Description


def on_table(table: Path, address: Address, body: dict[str, Any], columns: str) -> ResolvedQuery:
    """The source or sink of that table, with this body beside its path; `columns`: of the source."""
    lake = ResolvedConnection(
        address=Address("connection", "lake"), type="files", body={"path": str(table.parent)}, connections={}
    )
    body = {"path": table.name, **body}
    return ResolvedQuery(
        description=Description(address=address, id="o", generation=1, digest="1:a", type="delta", body=body),
        body=body,
        connection=lake,
        columns=parse_columns(columns),
        directory=str(table.parent),
        connections={"connection": lake},
        keys=tuple(body.get("key", ())) if address.kind == "source" else (),
    )
