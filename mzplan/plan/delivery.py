"""Delivery: what a chain from a source to a sink is asked for, and what its schemas say it can give."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.plan import Change
from mzplan.model.state import ResourceState
from mzplan.schema.kinds import resource_kind

EXACTLY_ONCE = "exactly-once"


def check_delivery(
    changes: Iterable[Change], resources: Mapping[Address, ResourceState]
) -> Iterator[Diagnostic]:
    """MZ085, a warning, for each changed sink whose chain is weaker than it asks for. (A source of another
    type replaces its sinks, so these are all.) `resources` are those that there will be."""
    for change in changes:
        resource = change.after
        if resource is None or change.address.kind != "sink" or change.action == "delete":
            continue
        kind = resource_kind("sink", resource.type)
        if kind.with_defaults(resource.body).get("delivery") != EXACTLY_ONCE:
            continue
        source = resources.get(resource.references["from"])
        weak = [one for one in (source, resource) if one is not None and not gives_exactly_once(one)]
        if weak:
            yield _weaker(change.address, weak)


def gives_exactly_once(resource: ResourceState) -> bool:
    """Whether the schema of a source's or sink's type says so (`x-delivery`)."""
    offered = resource_kind(resource.address.kind, resource.type).schema.get("x-delivery", ())
    return EXACTLY_ONCE in offered


def _weaker(address: Address, weak: list[ResourceState]) -> Diagnostic:
    which = " and ".join(f"{one.address}, of type {one.type}," for one in weak)
    verb = "delivers" if len(weak) == 1 else "deliver"
    return Diagnostic(
        severity="warning",
        code="MZ085",
        summary=f"{address} asks for {EXACTLY_ONCE}, and gets at-least-once",
        detail=f"{which} {verb} at least once: after a crash, rows may be in the target twice.",
        hint="say delivery: at-least-once if that will do; or use another type.",
        address=address,
    )
