"""The plan file: a plan saved for review, and applied later exactly as it was reviewed.

Deterministic JSON with a checksum. It holds each change's whole record before and after, as the state
does: references to secrets, never their values. The only module of this package that touches a file.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from mzplan.host.files import read_regular, write_whole
from mzplan.model import reading
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError, error
from mzplan.model.plan import (
    ACTIONS,
    EFFECTS,
    PLAN_FORMAT_VERSION,
    Change,
    DriftItem,
    FieldChange,
    Pending,
    Plan,
)
from mzplan.model.reading import Fields
from mzplan.model.resources import INSTANCE_TYPES, Instance
from mzplan.model.state import ResourceState
from mzplan.schema.kinds import is_type

FORMAT_VERSION = 1


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write the plan file: beside the path first, then in its place. Raises MzplanError MZ035."""
    try:
        write_whole(path, encode_plan(plan))
    except OSError as problem:
        raise error(
            "MZ035",
            f"Cannot write the plan to {path}",
            f"{problem.strerror or problem}. What was there before is intact.",
            "check the folder, its permissions and the space on its disk.",
        ) from None


def read_plan(path: str | Path) -> Plan:
    """Read a plan file. Raises MzplanError: MZ070 (usage) where there is none, MZ030 for what can't be read,
    MZ036 (exit 5) for what is not a whole plan file."""
    try:
        data = read_regular(path)
    except FileNotFoundError:
        raise error(
            "MZ070",
            f"There is no plan file {path}",
            hint=f"make it: mzplan plan --out {path}",
            exit_code=ExitCode.USAGE,
        ) from None
    except OSError as problem:
        raise _unreadable(path, problem.strerror or str(problem)) from None
    return decode_plan(data, str(path))


def _unreadable(path: str | Path, why: str) -> MzplanError:
    return error("MZ030", f"Cannot read {path}", f"{why}.", "name a file that `mzplan plan --out` wrote.")


def encode_plan(plan: Plan) -> bytes:
    """The bytes of a plan file: equal plans give equal bytes."""
    content = _plan_to_json(plan)
    text = _canonical(content)
    document = {"mzplan_plan": FORMAT_VERSION, "checksum": _checksum(text), "plan": content}
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")


def decode_plan(data: bytes, place: str = "the plan file") -> Plan:
    """The inverse. Raises MzplanError MZ036 (exit 5) for what is damaged, edited, or of another version."""
    try:
        document = reading.mapping(reading.parse(data), "it")
        version = document.get("mzplan_plan")
        if version is None:
            raise _unusable(place, "It is no plan that mzplan has saved.")
        if version != FORMAT_VERSION:
            shown = f"format {version}" if type(version) is int else "another format"
            raise _unusable(place, f"It has {shown}; this mzplan reads format {FORMAT_VERSION}.")
        if document.get("checksum") != _checksum(_canonical(document.get("plan"))):
            raise _unusable(place, "Its checksum does not fit its content: it was edited or cut.")
        return _plan_from_json(reading.mapping(document.get("plan"), "plan"))
    except ValueError as problem:
        raise _unusable(
            place, f"It is not a plan that mzplan has saved, or not all of one: {problem}."
        ) from None
    except (TypeError, KeyError, AttributeError, RecursionError):
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
        "variables": dict(sorted(plan.variables.items())),
        "instances": {name: instance.type for name, instance in sorted(plan.instances.items())},
        "instances_changed": plan.instances_changed,
        "changes": [_change_to_json(change) for change in plan.changes],
        "downstream": [str(address) for address in plan.downstream],
        "feeds": [[str(used), str(user)] for used, user in plan.feeds],
        "unaffected": plan.unaffected,
        "pending": [
            {"address": str(p.address), "condition": p.condition, "reason": p.reason} for p in plan.pending
        ],
        "drift": [{"address": d.address, "kind": d.kind, "detail": d.detail} for d in plan.drift],
        "diagnostics": [{**d.to_json(), "exit_code": int(d.exit_code)} for d in plan.diagnostics],
        **_canaries_to_json(plan),
    }


def _canaries_to_json(plan: Plan) -> dict[str, Any]:
    """What goes first and what goes on; absent where nothing does, as in plans of earlier versions."""
    found: dict[str, Any] = {}
    if plan.canaries:
        found["canaries"] = [
            {"address": str(c.address), "wait": c.wait, "holds": [str(held) for held in c.holds]}
            for c in plan.canaries
        ]
    if plan.goes_on:
        found["goes_on"] = [str(address) for address in plan.goes_on]
    return found


def _plan_from_json(content: Fields) -> Plan:
    if content.get("format_version") != PLAN_FORMAT_VERSION:
        raise ValueError("its format_version is another one")
    instances = reading.mapping(content.get("instances"), "instances")
    for name in instances:
        reading.instance_name({"an instance": name}, "an instance")
    return Plan(
        project=reading.text(content, "project"),
        lineage=reading.text(content, "lineage"),
        serial=reading.integer(content, "serial"),
        warehouse=reading.text(content, "warehouse"),
        variables=reading.mapping(content.get("variables"), "variables"),
        instances={
            name: Instance(name=name, type=reading.one_of(instances, name, INSTANCE_TYPES))
            for name in instances
        },
        instances_changed=reading.flag(content, "instances_changed"),
        changes=reading.items(content, "changes", _change_from_json),
        downstream=reading.items(content, "downstream", Address.parse),
        feeds=reading.items(content, "feeds", _feed_from_json),
        unaffected=reading.integer(content, "unaffected"),
        pending=reading.items(content, "pending", _pending_from_json),
        drift=reading.items(content, "drift", _drift_from_json),
        diagnostics=reading.items(content, "diagnostics", Diagnostic.from_json),
        canaries=reading.items({"canaries": [], **content}, "canaries", reading.canary),
        goes_on=reading.items({"goes_on": [], **content}, "goes_on", Address.parse),
    )


def _pending_from_json(content: Fields) -> Pending:
    return Pending(
        address=Address.parse(reading.text(content, "address")),
        condition=reading.text(content, "condition"),
        reason=reading.text(content, "reason"),
    )


def _feed_from_json(content: Any) -> tuple[Address, Address]:
    used, user = content
    return Address.parse(used), Address.parse(user)


def _drift_from_json(content: Fields) -> DriftItem:
    return DriftItem(**{name: reading.text(content, name) for name in ("address", "kind", "detail")})


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
        **({"through": change.ways_to_json()} if change.ways else {}),
        "former": str(change.before.address) if change.before is not None else None,
        "before": _record_to_json(change.before),
        "after": _record_to_json(change.after),
    }


def _change_from_json(content: Fields) -> Change:
    address = Address.parse(reading.text(content, "address"))
    action = reading.one_of(content, "action", ACTIONS)
    named = reading.text_or_none(content, "former")
    former = address if named is None else Address.parse(named)
    if former.kind != address.kind:
        raise ValueError(f"{address} can't have been {former}")
    before = _record_from_json(former, content.get("before"))
    after = _record_from_json(address, content.get("after"), is_new=action == "create")
    if (before is None) != (action == "create") or (after is None) != (action == "delete"):
        raise ValueError(f"{address} has not what its action needs")
    return Change(
        address=address,
        action=action,
        effect=reading.one_of(content, "effect", EFFECTS),
        fields=reading.items(content, "fields", _field_from_json),
        reason=reading.text(content, "reason"),
        triggered_by=reading.items(content, "triggered_by", Address.parse),
        ways=_ways_from_json(reading.mapping(content.get("through", {}), "through")),
        before=before,
        after=after,
    )


def _ways_from_json(content: Fields) -> dict[Address, tuple[Address, ...]]:
    return {Address.parse(cause): reading.items(content, cause, Address.parse) for cause in content}


def _field_from_json(content: Fields) -> FieldChange:
    return FieldChange(
        path=reading.text(content, "path"),
        before=content["before"],
        after=content["after"],
        sensitive=reading.flag(content, "sensitive"),
        effect=reading.one_of(content, "effect", EFFECTS),
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


def _record_from_json(address: Address, content: Any, *, is_new: bool = False) -> ResourceState | None:
    if content is None:
        return None
    fields = reading.mapping(content, str(address))
    named = reading.mapping(fields.get("references"), "references")
    references = {role: Address.parse(reading.text(named, role)) for role in named}
    found = reading.record(address, fields, references, is_new=is_new)
    if not is_type(address.kind, found.type):
        raise ValueError(f"{address} is of a type that this mzplan does not know")
    return found
