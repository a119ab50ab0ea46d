"""Replication slots that sources name themselves: only one source at a time can read one, and what it has
read is gone for another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mzplan.config.declarations import Declared
from mzplan.config.findings import HERE, Findings
from mzplan.config.text import shown
from mzplan.model.address import Address
from mzplan.model.resources import Resource

_PORT = 5432  # where it is left out


def check_slots(
    checked: Mapping[Address, Resource], declared: Mapping[Address, Declared], findings: Findings
) -> None:
    """MZ237 for a source that names the slot of another one. Slots are of a server, whatever the database;
    whether two connections lead to one server is told by what is written in them."""
    first: dict[Any, Address] = {}
    for address, resource in checked.items():
        slot = resource.body.get("slot") if resource.type == "postgres" else None
        link = checked.get(resource.references["connection"]) if "connection" in resource.references else None
        if address.kind != "source" or slot is None or link is None:
            continue
        other = first.setdefault((link.body["host"], link.body.get("port", _PORT), slot), address)
        if other == address:
            continue
        findings.add(
            "MZ237",
            f"Two sources read slot {shown(slot)}",
            f"{other} names it too, at {HERE}. What one of them has read, the server discards, and the other "
            "one misses it.",
            "leave `slot` out of one of them: then mzplan makes one for it.",
            address=address,
            place=declared[address].place(("slot",)),
            related=declared[other].place(("slot",)),
        )
