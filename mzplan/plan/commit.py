"""Commit: the State after a plan, with its records. The store writes it.

Each affected record gets a Cause: why the commit starts or stops the query.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from mzplan.model.address import Address
from mzplan.model.cause import Cause
from mzplan.model.history import CommitRecord
from mzplan.model.plan import Change, FieldChange, Plan
from mzplan.model.query_changes import column_text
from mzplan.model.resources import ProjectSettings, Resource
from mzplan.model.state import ResourceState, State, needed_by
from mzplan.model.words import changed_parts, one_line, safe
from mzplan.plan.canaries import canaries_after
from mzplan.plan.effects.function_change import STATE

MAX_DETAIL = 300  # characters; the state holds it once for each query
_MAX_FIELDS = 5  # per resource
_MAX_VALUE = 60


def causes_of(plan: Plan, serial: int) -> Mapping[Address, Cause]:
    """Return the cause for each query that starts, stops or moves because of the plan."""
    changes = {change.address: change for change in plan.changes}
    edits: dict[Address, str] = {}
    return {
        change.address: _cause(change, serial, changes, edits)
        for change in plan.changes
        if change.after is not None and _affects_runner(change.before, change.after)
    }


def _affects_runner(before: ResourceState | None, after: ResourceState) -> bool:
    """Whether a runner has to act on the change."""
    if after.address.is_connection:
        return False
    return before is None or _run_of(before) != _run_of(after)


def _run_of(record: ResourceState) -> tuple[Any, ...]:
    return (record.address, record.place, record.digest, record.paused, record.instance)


def _cause(
    change: Change, serial: int, changes: Mapping[Address, Change], edits: dict[Address, str]
) -> Cause:
    own = _edits(tuple(f for f in change.fields if change.query is None or f.path != STATE))
    if change.cause is not None or change.before is None:
        text = change.reason
    else:
        alone = not own and len(change.triggered_by) == 1
        for address in change.triggered_by:
            if address not in edits:
                edits[address] = _edits(changes[address].fields) if address in changes else ""
        others = [
            edits[address] if alone else f"{address}: {edits[address]}"
            for address in change.triggered_by
            if edits[address]
        ]
        text = "; ".join(filter(None, (_columns(change), own, *others))) or change.reason
    return Cause(
        cause=change.cause or "change",
        serial=serial,
        through=change.triggered_by[0] if change.triggered_by else None,
        detail=one_line(text, MAX_DETAIL),
    )


def _columns(change: Change) -> str:
    """Return from which step a resumed view computes its columns differently; "" if it is replaced."""
    if change.query is None or change.action == "replace":
        return ""
    state = f"state {change.query.state}" if change.query.state != "kept" else ""
    shown = map(column_text, change.query.columns[:_MAX_FIELDS])
    return safe("; ".join(filter(None, (state, *shown))))


def _edits(fields: tuple[FieldChange, ...]) -> str:
    shown = [_edit(field) for field in fields[:_MAX_FIELDS]]
    more = [f"{len(fields) - _MAX_FIELDS} more"] if len(fields) > _MAX_FIELDS else []
    return ", ".join((*shown, *more))


def _edit(field: FieldChange) -> str:
    """Format a change as `brokers[0] a:9092 → b:9092`, without the values of a sensitive field."""
    if field.sensitive:
        return f"{field.path} changed"
    if field.before is None:
        return f"{field.path} added: {one_line(_text(field.after), _MAX_VALUE)}"
    if field.after is None:
        return f"{field.path} removed"
    old, new = changed_parts(_text(field.before), _text(field.after), _MAX_VALUE)
    return f"{field.path} {old} → {new}"


def _text(value: Any) -> str:
    return safe(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def new_id() -> str:
    """Return a random id of 16 hex digits, which names a checkpoint and a collection."""
    return os.urandom(8).hex()  # like secrets.token_hex, without that module's imports


def new_lineage() -> str:
    """Return a new lineage. It tells apart the states of two projects with equal serials."""
    import uuid  # needed only for a project's first apply

    return str(uuid.uuid4())


def apply_changes(
    state: State,
    plan: Plan,
    make_id: Callable[[], str] = new_id,
    make_lineage: Callable[[], str] = new_lineage,
    *,
    record: CommitRecord | None = None,
    allow_loss: bool = False,
) -> State:
    """Return the state after the plan: one serial later, with ids for created resources.

    Records that the plan doesn't change stay as they are, except their analyses. The caller checks the plan's
    diagnostics, which say whether it may be applied.

    - `record`: who commits the plan, when, from what, and why.
    - `allow_loss`: sources that the plan replaces may begin without the records that can't be read again.
    """
    resources = dict(state.resources)
    causes = causes_of(plan, state.serial + 1)
    for change in plan.changes:
        if change.after is None:
            resources.pop(change.address, None)
        else:
            after = change.after
            if allow_loss and change.action == "replace" and change.address.reads_upstream:
                after = dataclasses.replace(after, may_lose=after.generation)
            former = None
            if change.before is not None:
                former = resources.pop(change.before.address, None)  # another address if it was moved
            because = causes.get(change.address) or (former.because if former is not None else None)
            after = dataclasses.replace(after, because=because)
            resources[change.address] = after if after.id else dataclasses.replace(after, id=make_id())
    for address, analysis in plan.analyses.items():
        if address in resources and resources[address].analysis != analysis:
            resources[address] = dataclasses.replace(resources[address], analysis=analysis)
    used_ids = {resource.id for resource in resources.values()} if state.forgotten else set()
    return State(
        format_version=state.format_version,
        project=plan.project,
        lineage=state.lineage or make_lineage(),
        serial=state.serial + 1,
        warehouse=plan.warehouse,
        instances=plan.instances,
        resources=resources,
        forgotten={id_: place for id_, place in state.forgotten.items() if id_ not in used_ids},
        canaries=canaries_after(state, plan, resources) if state.canaries or plan.canaries else (),
        commit=record,
        environment=plan.environment,
        settings=plan.settings or state.settings,
    )


def declared_records(resources: Mapping[Address, Resource]) -> dict[Address, ResourceState]:
    """Return the records that resources would have after their first commit, with made-up ids."""
    return {
        address: dataclasses.replace(wanted_state(resource, None), id=f"declared-{number}")
        for number, (address, resource) in enumerate(resources.items())
    }


def declared_state(settings: ProjectSettings, resources: Mapping[Address, Resource]) -> State:
    """Return the state that a project would have after its first commit, with made-up ids."""
    return State(
        project=settings.project, warehouse=settings.warehouse, resources=declared_records(resources)
    )


def wanted_state(resource: Resource, before: ResourceState | None) -> ResourceState:
    """Return the planned record: the declaration, with everything else from the committed record."""
    record = before or ResourceState(address=resource.address, id="", type=resource.type, body={})
    return dataclasses.replace(
        record,
        address=resource.address,
        type=resource.type,
        body=resource.body,
        dependencies=needed_by(resource.references),
        references=resource.references,
        because=None,
        analysis="",
    )
