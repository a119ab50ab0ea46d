"""The effect of a changed function, or of another version of its package, on a view's state.

Plans never see what a function does. So its author's word (`state`) gives the verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import unified_diff
from typing import Any

from mzplan.model.address import Address
from mzplan.model.observed import Observation, Status
from mzplan.model.query_changes import OperatorChange, QueryChange, StateEffect
from mzplan.model.state import ResourceState
from mzplan.schema.kinds import resource_kind
from mzplan.schema.user_functions import CODE

STATE = "state"  # the property with the digest of the stateful part of a query
_KEPT = "its author says that the state stays valid (state: kept)"


def function_properties(record: ResourceState) -> tuple[str, ...]:
    """Return the properties that say what a function computes; () for other queries."""
    property_ = resource_kind(record.address.kind, record.type).function_property
    return (property_, CODE) if property_ is not None else ()


def state_verdict(view: ResourceState) -> tuple[StateEffect, str]:
    """Return what another function or version can do with the view's state, and why."""
    kind = resource_kind(view.address.kind, view.type)
    body = kind.with_defaults(view.body)
    if kind.query_property is not None:
        return _verdict_of_sql(body)
    if view.snapshots or body.get("state", "none") == "none":
        return "kept", "the function keeps no state"
    if body["state"] == "kept":
        return "kept", _KEPT
    return "unknown", "nobody says whether the new function understands the state of the former one"


def _verdict_of_sql(body: Mapping[str, Any]) -> tuple[StateEffect, str]:
    """Return what another version of a function in a view's SQL can do with the view's state, and why."""
    if "state" not in body:
        return "kept", "the query keeps no state"
    if body["on_query_change"] == "resume":
        return "kept", "the view continues with the old state (on_query_change: resume)"
    return "unknown", "nobody says whether the new version of a function gives the values of the former one"


def function_change(before: ResourceState, after: ResourceState) -> QueryChange | None:
    """Return the change of a view's function; None if it doesn't change."""
    if not after.address.writes_collection:
        return None
    names = function_properties(after)
    if all(before.body.get(name) == after.body.get(name) for name in names):
        return None
    texts = ("\n".join(str(record.body.get(name, "")) for name in names) for record in (before, after))
    old, new = (text.splitlines() for text in texts)
    state, because = state_verdict(after)
    has_word = because == _KEPT
    return QueryChange(
        diff="\n".join(list(unified_diff(old, new, lineterm=""))[2:]),
        state=state,
        because=because,
        operators=(OperatorChange(kind="function", state=state, because=because),) if has_word else (),
    )


def upgraded_functions(
    records: Mapping[Address, ResourceState], statuses: Mapping[str, Status]
) -> dict[Address, str]:
    """Return the queries whose runner has another version of their function's package, and the reason."""
    upgraded = {}
    for status in statuses.values():
        for address, seen in status.observations.items():
            record = records.get(address)
            if (
                record is not None
                and record.instance == status.instance
                and (why := upgrade_of(record, seen))
            ):
                upgraded[address] = why
    return upgraded


def upgrade_of(record: ResourceState, seen: Observation) -> str:
    """Return why a query's function is of another version than the accepted one; "" if it isn't."""
    if seen.error_kind == "code-changed" and seen.wanted_digest == record.digest:
        return "another version of its function's package is installed"
    if seen.function_before and seen.digest == record.digest:
        return f"it runs {seen.function}, and its last apply accepted {seen.function_before}"
    return ""
