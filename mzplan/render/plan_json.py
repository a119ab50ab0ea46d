"""A plan as JSON: the versioned contract that scripts depend on (interface.md, "JSON")."""

from __future__ import annotations

from typing import Any

from mzplan.model.address import natural_item
from mzplan.model.codec import encode
from mzplan.model.plan import Change, Plan
from mzplan.plan.comparison import all_fields
from mzplan.plan.file import digest_of_plan
from mzplan.plan.highlights import restarts_elsewhere
from mzplan.render.cause_text import cause_to_json, drift_to_json
from mzplan.render.diagnostics import diagnostics_to_json
from mzplan.render.previews import NO_PREVIEWS, Previews, preview_to_json
from mzplan.secrets.references import REFERENCE, format_place, placed_references


def plan_to_json(plan: Plan, previews: Previews = NO_PREVIEWS) -> dict[str, Any]:
    """Return the plan as JSON values. Keys have the contract's order; equal plans have equal bytes.

    It lists only changes, so its size depends on the change and not on the project. A sensitive leaf has null
    before and after. `previews`: of changed queries (`plan --preview`).
    """
    return {
        "format_version": plan.format_version,
        "project": plan.project,
        "lineage": plan.lineage,
        "serial": plan.serial,
        "digest": digest_of_plan(plan),
        "summary": plan.summary(),
        "changes": [
            change_to_json(change) | _started(change, plan) | _previewed(change, previews)
            for change in plan.changes
        ],
        "unaffected": plan.unaffected,
        "downstream": [str(address) for address in plan.downstream],
        "pending": [encode(pending) for pending in plan.pending],
        "drift": drift_to_json(plan.drift),
        "diagnostics": diagnostics_to_json(plan.diagnostics),
        "fates": {**{fate: n for fate, n in plan.fates().items() if n}, **_elsewhere(plan)},
        **({"environment": plan.environment} if plan.environment else {}),
        **({"settings": [encode(field) for field in plan.settings_changes]} if plan.settings_changes else {}),
        **_canaries(plan),
        **({"variables": dict(sorted(plan.variables.items()))} if plan.variables else {}),
    }


def _elsewhere(plan: Plan) -> dict[str, int]:
    away = len(restarts_elsewhere(plan))
    return {"elsewhere": away} if away else {}


def _started(change: Change, plan: Plan) -> dict[str, Any]:
    """Return why the changed query was started; {} if no runner reports it."""
    cause = plan.started.get(change.address)
    return {"started_because": cause_to_json(cause)} if cause is not None else {}


def _previewed(change: Change, previews: Previews) -> dict[str, Any]:
    preview = previews.get(change.address)
    return {"preview": preview_to_json(preview)} if preview is not None else {}


def _canaries(plan: Plan) -> dict[str, Any]:
    """Return the canaries, and the queries that resume after a failed one; {} if there are none."""
    document: dict[str, Any] = {}
    if plan.canaries:
        document["canaries"] = [
            {"address": str(c.address), "holds": [str(held) for held in c.holds], "wait": c.wait}
            for c in plan.canaries
        ]
    if plan.resuming:
        document["resuming"] = [str(address) for address in plan.resuming]
    return document


def change_to_json(change: Change) -> dict[str, Any]:
    """Return one change. A created resource has each leaf of its body as a field."""
    fields = change.fields
    if change.action == "create" and change.after is not None:
        fields = all_fields(change.after)
    return {
        "address": str(change.address),
        "action": change.action,
        "effect": change.effect,
        **({"fate": change.fate} if change.fate != change.action else {}),
        "fields": [encode(field) for field in fields],
        "reason": change.reason,
        "triggered_by": [str(address) for address in change.triggered_by],
        **({"query": encode(change.query)} if change.query is not None else {}),
        **({"inputs": [encode(extent) for extent in change.inputs]} if change.inputs else {}),
        **({"target": encode(change.target)} if change.target is not None else {}),
        **_for_policies(change),
        **_through(change),
        **_moved_from(change),
    }


def _through(change: Change) -> dict[str, Any]:
    """Return the connections between each indirect cause and the change; {} if all causes are direct."""
    ways = sorted(change.ways.items(), key=natural_item)
    return {"through": {str(cause): [str(address) for address in way] for cause, way in ways}} if ways else {}


def _for_policies(change: Change) -> dict[str, Any]:
    """Return a resource's labels and the providers of its secrets, which policies check.

    A secret is `{"path": "password", "provider": "env"}`. Without labels or secrets, the key is missing. A
    deletion has the values of the deleted resource.
    """
    record = change.after or change.before
    body = record.body if record is not None else {}
    document: dict[str, Any] = {}
    if labels := body.get("labels"):
        document["labels"] = dict(sorted(labels.items()))
    secrets = [
        {"path": format_place(place), "provider": match["provider"]}
        for place, reference in placed_references(body)
        if (match := REFERENCE.match(reference)) is not None
    ]
    if secrets:
        document["secrets"] = secrets
    return document


def _moved_from(change: Change) -> dict[str, str]:
    """Return the address before a rename; {} for other changes."""
    if change.before is None or change.before.address == change.address:
        return {}
    return {"moved_from": str(change.before.address)}
