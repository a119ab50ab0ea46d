"""The parts of a plan that reviewers must see first: changed servers, and changed rows in targets."""

from __future__ import annotations

from collections.abc import Iterator

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.plan import Change, FieldChange, Plan
from mzplan.model.state import ResourceState
from mzplan.schema.dialect import Json
from mzplan.schema.expectations import EXPECT, deciding_rows
from mzplan.schema.kinds import resource_kind
from mzplan.schema.loading import load_schema
from mzplan.schema.properties import leads
from mzplan.schema.sql.view_query import gives_same_rows

_LOCAL_HOSTS = {None, "127.0.0.1"}  # addresses that only the runner's own machine can reach


def changed_settings(plan: Plan) -> tuple[tuple[FieldChange, ...], tuple[FieldChange, ...]]:
    """Return the changed settings that name a server or open a port (`x-server`), and the rest.

    The first part lists servers before the ports of instances. The schema of mzplan.yaml decides.
    """
    schema = load_schema("project")
    ahead = [field for field in plan.settings_changes if _names_server(schema, field)]
    ahead.sort(key=lambda field: field.path.startswith("instances."))
    return tuple(ahead), tuple(field for field in plan.settings_changes if field not in ahead)


def _names_server(schema: Json, field: FieldChange) -> bool:
    is_local = not field.sensitive and {field.before, field.after} <= _LOCAL_HOSTS
    return leads(schema, tuple(field.path.split("."))) and not is_local


def losses(plan: Plan) -> tuple[Diagnostic, ...]:
    """Return the warnings about records that replaced sources can't read again."""
    return tuple(diagnostic for diagnostic in plan.diagnostics if diagnostic.kind == "data-loss")


def server_changes(plan: Plan) -> list[tuple[Change, tuple[FieldChange, ...]]]:
    """Return the changes that connect or run a resource elsewhere, with the deciding fields.

    They are connections whose servers change (`x-server`), and resources that use another connection or
    instance.
    """
    changes = []
    for change in plan.changes:
        if fields := tuple(_server_fields(change)):
            changes.append((change, fields))
    return changes


def restarts_elsewhere(plan: Plan) -> frozenset[Address]:
    """Return the queries that restart and then run elsewhere, or are connected elsewhere."""
    moved = {change.address for change, _ in server_changes(plan)}
    return frozenset(
        change.address
        for change in plan.changes
        if change.fate == "restart" and (change.address in moved or not moved.isdisjoint(change.triggered_by))
    )


def has_same_query(change: Change) -> bool:
    """Whether a view's query means the same. A rewrite of a stateless query counts as another."""
    if change.before is None or change.after is None or change.before.type != change.after.type:
        return False
    if change.action == "replace":  # perhaps for another input, which looks like a new name
        return False
    if change.query is not None and change.query.is_rewritten:
        return True
    kind = resource_kind(change.address.kind, change.after.type)
    bodies = (
        {name: record.body.get(name) for name in kind.row_properties}
        for record in (change.before, change.after)
    )
    return kind.query_property is not None and gives_same_rows(kind, *bodies)


def row_changes(plan: Plan) -> list[tuple[Change, tuple[FieldChange, ...]]]:
    """Return the changes that lead to other rows in targets, with the deciding fields (`x-rows`)."""
    changes = []
    for change in plan.changes:
        fields = tuple(field for field in change.fields if _decides_rows(change, field))
        if fields and not has_same_query(change):
            changes.append((change, fields))
    return changes


def row_fields(change: Change) -> tuple[FieldChange, ...]:
    """Return the changed fields that affect rows from now on (`x-rows`, `x-affects-rows`)."""
    if change.before is None or change.after is None or has_same_query(change):
        return ()
    kind = resource_kind(change.address.kind, change.after.type)
    return tuple(
        field
        for field in change.fields
        if "x-affects-rows" in kind.property_schema(tuple(field.path.split(".")))
        or _decides_rows(change, field)
    )


def deciding_properties(record: ResourceState) -> frozenset[str]:
    """Return the properties that decide a resource's servers (`x-server`) or rows (`x-rows`)."""
    properties = resource_kind(record.address.kind, record.type).schema["properties"]
    return frozenset(
        name for name, schema in properties.items() if schema.get("x-server") or schema.get("x-rows")
    )


def _server_fields(change: Change) -> Iterator[FieldChange]:
    if change.before is None or change.after is None:
        return
    for field in change.fields:
        is_reference = field.path in change.after.references and field.path in change.before.references
        repointed = is_reference and field.effect != "in-place"
        is_instance = field.path == "instance" and change.address.is_query
        repointed = repointed and change.after.references[field.path].is_connection
        if repointed or is_instance or _has_keyword(change, field, "x-server"):
            yield field


def _decides_rows(change: Change, field: FieldChange) -> bool:
    """Whether the field's property decides which rows a step writes; not so if rows are only counted."""
    if field.property_name == EXPECT and change.before is not None and change.after is not None:
        records = (change.before, change.after)
        before, after = (deciding_rows(record.body).get(EXPECT, {}) for record in records)
        named = field.path.split(".")[1:2] or {*before, *after}
        return any(before.get(name) != after.get(name) for name in named)
    return _has_keyword(change, field, "x-rows")


def _has_keyword(change: Change, field: FieldChange, keyword: str) -> bool:
    """Whether the schema has this keyword at the field's property."""
    record = change.after or change.before
    if record is None:
        return False
    properties = resource_kind(change.address.kind, record.type).schema["properties"]
    return bool(properties.get(field.property_name, {}).get(keyword))
