"""The parts of a plan that a reviewer must see first: what leads elsewhere, and what writes other rows."""

from __future__ import annotations

from collections.abc import Iterator

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.plan import Change, FieldChange, Plan
from mzplan.model.state import ResourceState
from mzplan.schema.dialect import Json
from mzplan.schema.kinds import resource_kind
from mzplan.schema.loading import load_schema
from mzplan.schema.properties import leads

_ENDS = {None, "127.0.0.1"}  # where only its own machine reaches a runner


def changed_settings(plan: Plan) -> tuple[tuple[FieldChange, ...], tuple[FieldChange, ...]]:
    """The changed settings that lead, or are open to, somewhere else (`x-server`), the places of servers
    before those of instances; and the others. By the schema of mzplan.yaml."""
    schema = load_schema("project")
    ahead = [field for field in plan.settings_changes if _is_led(schema, field)]
    ahead.sort(key=lambda field: field.path.startswith("instances."))
    return tuple(ahead), tuple(field for field in plan.settings_changes if field not in ahead)


def _is_led(schema: Json, field: FieldChange) -> bool:
    ends_here = not field.sensitive and {field.before, field.after} <= _ENDS
    return leads(schema, tuple(field.path.split("."))) and not ends_here


def losing(plan: Plan) -> tuple[Diagnostic, ...]:
    """The diagnostics of sources that begin again: what each can't read again, as far as that is known."""
    return tuple(diagnostic for diagnostic in plan.diagnostics if diagnostic.kind == "data-loss")


def leading_elsewhere(plan: Plan) -> list[tuple[Change, tuple[FieldChange, ...]]]:
    """The connections whose servers change (`x-server`), and the resources that their own fields connect,
    or have run, elsewhere; each change with those fields."""
    leading = []
    for change in plan.changes:
        if fields := tuple(_elsewhere(change)):
            leading.append((change, fields))
    return leading


def restarting_elsewhere(plan: Plan) -> frozenset[Address]:
    """The queries that restart and then run, or are connected, elsewhere."""
    moved = {change.address for change, _ in leading_elsewhere(plan)}
    return frozenset(
        change.address
        for change in plan.changes
        if change.fate == "restart" and (change.address in moved or not moved.isdisjoint(change.triggered_by))
    )


def writing_otherwise(plan: Plan) -> list[tuple[Change, tuple[FieldChange, ...]]]:
    """The sinks that will write other rows (`x-rows`), each with the fields that decide it."""
    writing = []
    for change in plan.changes:
        if fields := tuple(field for field in change.fields if _has(change, field, "x-rows")):
            writing.append((change, fields))
    return writing


def deciding_properties(record: ResourceState) -> frozenset[str]:
    """The names of the properties that say where a resource leads (`x-server`), or which rows it writes
    (`x-rows`)."""
    properties = resource_kind(record.address.kind, record.type).schema["properties"]
    return frozenset(
        name for name, schema in properties.items() if schema.get("x-server") or schema.get("x-rows")
    )


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
    """Whether the schema has this word at the property that the field is in."""
    record = change.after or change.before
    if record is None:
        return False
    properties = resource_kind(change.address.kind, record.type).schema["properties"]
    return bool(properties.get(field.property_name, {}).get(word))
