"""Warns about a sink that gets the target of another sink."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from mzplan.model.address import Address, natural
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.plan import Change
from mzplan.model.state import ResourceState
from mzplan.schema.kinds import resource_kind
from mzplan.schema.object_names import identity

Resources = Mapping[Address, ResourceState]
Target = tuple[object, ...]


def check_shared_targets(changes: Iterable[Change], resources: Resources) -> Iterator[Diagnostic]:
    """Yield MZ311, a warning, for each sink that gets the target of another sink (`x-target`).

    `resources` are as they are after the plan.
    """
    gained = [c for c in changes if c.after is not None and _gains_target(c, c.after)]
    if not gained:
        return
    sinks: dict[Target, list[Address]] = {}
    for address, resource in resources.items():
        if (target := _target_of(resource, resources)) is not None:
            sinks.setdefault(target, []).append(address)
    for change in gained:
        target = _target_of(change.after, resources) if change.after is not None else None
        others = sorted({*sinks.get(target or (), ())} - {change.address}, key=natural)
        if others:
            yield _shared(change.address, others[0])


def _gains_target(change: Change, after: ResourceState) -> bool:
    """Return whether a sink is new, or has another target or connection."""
    properties = resource_kind(change.address.kind, after.type).schema["properties"]
    changed = (properties.get(leaf.property_name, {}) for leaf in change.fields)
    return change.before is None or any("x-target" in one or "x-reference" in one for one in changed)


def _target_of(resource: ResourceState, resources: Resources) -> Target | None:
    """Return what identifies a sink's target, or None if its schema doesn't say."""
    link = resources.get(resource.references["connection"]) if "connection" in resource.references else None
    if not resource.address.writes_target or link is None:
        return None
    for name, schema in resource_kind("sink", resource.type).schema["properties"].items():
        if "x-target" in schema and name in resource.body:
            connection = resource_kind("connection", link.type).with_defaults(link.body)
            server = (str(connection.get(property_)) for property_ in schema["x-target"])
            return (link.type, *server, *identity(schema.get("format", ""), resource.body[name]))
    return None


def _shared(address: Address, other: Address) -> Diagnostic:
    return Diagnostic(
        severity="warning",
        code="MZ311",
        summary=f"{address} writes to the target of {other}",
        detail="Rows of both sinks with the same key replace each other. If a replace of one sink empties "
        "the target, the other sink's rows are gone as well.",
        hint="write to another target; or do nothing, if you accept this.",
        address=address,
    )
