"""What of a plan comes before all else: what leads elsewhere, and what writes other rows."""

from __future__ import annotations

from collections.abc import Iterator

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.losses import CODE as LOSS
from mzplan.model.plan import Change, FieldChange, Plan
from mzplan.model.state import ResourceState
from mzplan.schema.kinds import resource_kind


def losing(plan: Plan) -> tuple[Diagnostic, ...]:
    """Of each source that begins again, what it can't read again, as far as that is known."""
    return tuple(one for one in plan.diagnostics if one.code == LOSS)


def leading_elsewhere(plan: Plan) -> list[tuple[Change, tuple[FieldChange, ...]]]:
    """The connections whose servers change (`x-server`), and what is connected, or runs, elsewhere by what
    itself says: each with the fields that do that."""
    found = []
    for change in plan.changes:
        if fields := tuple(_elsewhere(change)):
            found.append((change, fields))
    return found


def restarting_elsewhere(plan: Plan) -> frozenset[Address]:
    """The queries that restart and then run, or are connected, elsewhere."""
    moved = {change.address for change, _ in leading_elsewhere(plan)}
    return frozenset(
        change.address
        for change in plan.changes
        if change.fate == "restart" and (change.address in moved or not moved.isdisjoint(change.triggered_by))
    )


def writing_otherwise(plan: Plan) -> list[tuple[Change, tuple[FieldChange, ...]]]:
    """The sinks that decide otherwise which rows they write (`x-rows`)."""
    found = []
    for change in plan.changes:
        if fields := tuple(field for field in change.fields if _has(change, field, "x-rows")):
            found.append((change, fields))
    return found


def deciding_properties(record: ResourceState) -> frozenset[str]:
    """The properties of such a resource that say where it leads (`x-server`), or which rows it writes
    (`x-rows`)."""
    properties = resource_kind(record.address.kind, record.type).schema["properties"]
    return frozenset(name for name, one in properties.items() if one.get("x-server") or one.get("x-rows"))


def _elsewhere(change: Change) -> Iterator[FieldChange]:
    if change.before is None or change.after is None:
        return
    for field in change.fields:
        leads = field.path in change.after.references and field.path in change.before.references
        repointed = leads and field.effect != "in-place"
        runs = field.path == "instance" and change.address.kind != "connection"
        repointed = repointed and change.after.references[field.path].kind == "connection"
        if repointed or runs or _has(change, field, "x-server"):
            yield field


def _has(change: Change, field: FieldChange, word: str) -> bool:
    """Whether the schema says this of the property that the field is in."""
    record = change.after or change.before
    if record is None:
        return False
    properties = resource_kind(change.address.kind, record.type).schema["properties"]
    return bool(properties.get(field.property_name, {}).get(word))
