"""The plan file: a plan saved for review, and applied later exactly as it was reviewed.

Deterministic JSON with a checksum. It holds each change's whole record before and after, as the state
does: references to secrets, never their values. The only module of this package that touches a file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError, error
from mzplan.model.plan import PLAN_FORMAT_VERSION, Change, DriftItem, FieldChange, Pending, Plan
from mzplan.model.resources import Instance
from mzplan.model.state import ResourceState

FORMAT_VERSION = 1


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write the plan file: beside the path first, then in its place. Raises OSError."""
    place = Path(path)
    beside = place.with_name(f"{place.name}.{os.getpid()}.tmp")
    try:
        beside.write_bytes(encode_plan(plan))
        beside.replace(place)
    finally:
        beside.unlink(missing_ok=True)


def read_plan(path: str | Path) -> Plan:
    """Read a plan file. Raises OSError, or MzplanError MZ036 (exit 5) for what is not a whole plan file."""
    return decode_plan(Path(path).read_bytes(), str(path))


def encode_plan(plan: Plan) -> bytes:
    """The bytes of a plan file: equal plans give equal bytes."""
    content = _plan_to_json(plan)
    text = _canonical(content)
    document = {"mzplan_plan": FORMAT_VERSION, "checksum": _checksum(text), "plan": content}
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")


def decode_plan(data: bytes, place: str = "the plan file") -> Plan:
    """The inverse. Raises MzplanError MZ036 (exit 5) for what is damaged, edited, or of another version."""
    try:
        document = json.loads(data)
        version = document["mzplan_plan"]
        if version != FORMAT_VERSION:
            raise _unusable(place, f"It has format {version!r}; this mzplan reads format {FORMAT_VERSION}.")
        if document["checksum"] != _checksum(_canonical(document["plan"])):
            raise _unusable(place, "Its checksum does not fit its content: it was edited or cut.")
        return _plan_from_json(document["plan"])
    except MzplanError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _unusable(place, "It is not a plan that mzplan has saved, or not all of one.") from None


def _unusable(place: str, why: str) -> MzplanError:
    return error("MZ036", f"{place} can't be used", why, "plan again.", exit_code=ExitCode.STALE)


def _canonical(content: Any) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def _checksum(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _plan_to_json(plan: Plan) -> dict[str, Any]:
    return {
        "format_version": plan.format_version,
        "project": plan.project,
        "lineage": plan.lineage,
        "serial": plan.serial,
        "warehouse": plan.warehouse,
        "instances": {name: instance.type for name, instance in sorted(plan.instances.items())},
        "instances_changed": plan.instances_changed,
        "changes": [_change_to_json(change) for change in plan.changes],
        "downstream": [str(address) for address in plan.downstream],
        "unaffected": plan.unaffected,
        "pending": [
            {"address": str(p.address), "condition": p.condition, "reason": p.reason} for p in plan.pending
        ],
        "drift": [{"address": d.address, "kind": d.kind, "detail": d.detail} for d in plan.drift],
        "diagnostics": [{**d.to_json(), "exit_code": int(d.exit_code)} for d in plan.diagnostics],
    }


def _plan_from_json(content: Mapping[str, Any]) -> Plan:
    if content["format_version"] != PLAN_FORMAT_VERSION:
        raise ValueError(content["format_version"])
    return Plan(
        project=content["project"],
        lineage=content["lineage"],
        serial=content["serial"],
        warehouse=content["warehouse"],
        instances={name: Instance(name=name, type=type_) for name, type_ in content["instances"].items()},
        instances_changed=content["instances_changed"],
        changes=tuple(_change_from_json(change) for change in content["changes"]),
        downstream=tuple(Address.parse(text) for text in content["downstream"]),
        unaffected=content["unaffected"],
        pending=tuple(Pending(**{**p, "address": Address.parse(p["address"])}) for p in content["pending"]),
        drift=tuple(DriftItem(**item) for item in content["drift"]),
        diagnostics=tuple(Diagnostic.from_json(d) for d in content["diagnostics"]),
    )


def _change_to_json(change: Change) -> dict[str, Any]:
    return {
        "address": str(change.address),
        "action": change.action,
        "effect": change.effect,
        "fields": [
            {name: getattr(field, name) for name in ("path", "before", "after", "sensitive", "effect")}
            for field in change.fields
        ],
        "reason": change.reason,
        "triggered_by": [str(address) for address in change.triggered_by],
        "before": _record_to_json(change.before),
        "after": _record_to_json(change.after),
    }


def _change_from_json(content: Mapping[str, Any]) -> Change:
    address = Address.parse(content["address"])
    return Change(
        address=address,
        action=content["action"],
        effect=content["effect"],
        fields=tuple(FieldChange(**field) for field in content["fields"]),
        reason=content["reason"],
        triggered_by=tuple(Address.parse(text) for text in content["triggered_by"]),
        before=_record_from_json(address, content["before"]),
        after=_record_from_json(address, content["after"]),
    )


def _record_to_json(resource: ResourceState | None) -> dict[str, Any] | None:
    if resource is None:
        return None
    return {
        "id": resource.id,
        "type": resource.type,
        "body": resource.body,
        "references": {role: str(target) for role, target in sorted(resource.references.items())},
        "generation": resource.generation,
        "digest": resource.digest,
        "override": resource.override,
        "restart_token": resource.restart_token,
    }


def _record_from_json(address: Address, content: Mapping[str, Any] | None) -> ResourceState | None:
    if content is None:
        return None
    references = {role: Address.parse(target) for role, target in content["references"].items()}
    return ResourceState(
        **{**content, "references": references},
        address=address,
        dependencies=tuple(sorted(set(references.values()))),
    )
