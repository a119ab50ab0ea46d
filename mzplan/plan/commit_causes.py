"""Why a commit starts or stops queries: the Cause that it writes into each affected record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mzplan.model.address import Address
from mzplan.model.cause import Cause
from mzplan.model.plan import Change, FieldChange, Plan
from mzplan.model.state import ResourceState
from mzplan.model.words import changed_parts, one_line, safe

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
    own = _edits(change.fields)
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
        text = "; ".join(filter(None, (own, *others))) or change.reason
    return Cause(
        cause=change.cause or "change",
        serial=serial,
        through=change.triggered_by[0] if change.triggered_by else None,
        detail=one_line(text, MAX_DETAIL),
    )


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
