"""What only one source at a time can read, and what it has read is gone for another: a replication slot that
sources name themselves (`x-exclusive`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mzplan.config.declarations import Declared
from mzplan.config.findings import HERE, Findings
from mzplan.config.text import shown
from mzplan.model.address import Address
from mzplan.model.resources import Resource
from mzplan.schema.kinds import resource_kind


def check_exclusive(
    checked: Mapping[Address, Resource], declared: Mapping[Address, Declared], findings: Findings
) -> None:
    """MZ237 for a source that names what another one reads. Whether two connections lead to one server is
    told by what is written in them."""
    first: dict[Any, Address] = {}
    for address, resource in checked.items():
        link = checked.get(resource.references["connection"]) if "connection" in resource.references else None
        if address.kind != "source" or link is None:
            continue
        for name, server in resource_kind("source", resource.type).exclusive.items():
            value = resource.body.get(name)
            if value is None:
                continue
            there = resource_kind("connection", link.type).with_defaults(link.body)
            other = first.setdefault((link.type, *(there.get(one) for one in server), name, value), address)
            if other == address:
                continue
            findings.add(
                "MZ237",
                f"Two sources read {name} {shown(value)}",
                f"{other} names it too, at {HERE}. What one of them has read, the server discards, and the "
                "other one misses it.",
                f"leave `{name}` out of one of them: then mzplan makes one for it.",
                address=address,
                location=declared[address].location((name,)),
                related=declared[other].location((name,)),
            )
