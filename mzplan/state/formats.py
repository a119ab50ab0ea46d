"""The file formats of the store: State, Status, leases, proposals, as deterministic, readable JSON.

A state file has one line per resource, so that a commit of it reads well in version control, and a
checksum over the rest of its bytes, so that a truncated or edited one is noticed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from mzplan.inline import Description
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.resources import Instance
from mzplan.model.state import FORMAT_VERSION, Lease, Observation, ResourceState, State, Status

T = TypeVar("T")
_NO_SUM = b'"checksum": ""'


def canonical(value: Any) -> str:
    """One line of JSON, keys sorted: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def encode_state(state: State) -> bytes:
    """The bytes of `mzplan.state.json`."""
    head = {
        "format_version": state.format_version,
        "checksum": "",
        "project": state.project,
        "lineage": state.lineage,
        "serial": state.serial,
        "warehouse": state.warehouse,
        "instances": {name: {"type": instance.type} for name, instance in sorted(state.instances.items())},
    }
    lines = [f"  {json.dumps(key)}: {_one_line(value)}," for key, value in head.items()]
    resources = [
        f"    {json.dumps(str(address))}: {canonical(_resource_to_json(resource))}"
        for address, resource in sorted(state.resources.items())
    ]
    body = ",\n".join(resources)
    text = "{\n" + "\n".join(lines) + '\n  "resources": {' + (f"\n{body}\n  " if body else "") + "}\n}\n"
    data = text.encode()
    return data.replace(_NO_SUM, f'"checksum": "{_checksum(data)}"'.encode(), 1)


def decode_state(data: bytes, place: str) -> State:
    """The inverse. Raises MZ031 (a newer format), MZ032 (wrong checksum), MZ030 (anything unreadable)."""

    def build(content: Any) -> State:
        version = content["format_version"]
        if not isinstance(version, int) or isinstance(version, bool):
            raise TypeError("format_version is not a number")
        if version > FORMAT_VERSION:
            raise error(
                "MZ031",
                f"{place} was written by a newer mzplan",
                f"It has format version {version}; this mzplan knows versions up to {FORMAT_VERSION}. "
                "Nothing was changed.",
                "upgrade mzplan, then run the command again.",
            )
        claimed = str(content["checksum"])
        bare = data.replace(f'"checksum": "{claimed}"'.encode(), _NO_SUM, 1)
        if _checksum(bare) != claimed:
            raise error(
                "MZ032",
                f"{place} is damaged or was edited by hand",
                "Its checksum does not fit its content. Nothing was changed.",
                "take the file back from version control, or the newest one under history/ beside it.",
            )
        return State(
            format_version=version,
            project=str(content["project"]),
            lineage=str(content["lineage"]),
            serial=int(content["serial"]),
            warehouse=str(content["warehouse"]),
            instances={
                name: Instance(name=name, type=instance["type"])
                for name, instance in content["instances"].items()
            },
            resources=_resources_from_json(content["resources"]),
        )

    return decode(data, place, build)


def encode_status(status: Status) -> bytes:
    head = {
        "format_version": FORMAT_VERSION,
        "instance": status.instance,
        "epoch": status.epoch,
        "heartbeat": status.heartbeat,
        "serial": status.serial,
        "secrets": dict(status.secrets),
    }
    lines = [f"  {json.dumps(key)}: {_one_line(value)}," for key, value in head.items()]
    items = [
        f"    {json.dumps(str(address))}: {canonical(_observation_to_json(o))}"
        for address, o in sorted(status.observations.items())
    ]
    body = ",\n".join(items)
    text = "{\n" + "\n".join(lines) + '\n  "observations": {' + (f"\n{body}\n  " if body else "") + "}\n}\n"
    return text.encode()


def decode_status(data: bytes, place: str) -> Status:
    def build(content: Any) -> Status:
        return Status(
            instance=str(content["instance"]),
            epoch=int(content["epoch"]),
            heartbeat=float(content["heartbeat"]),
            serial=int(content["serial"]),
            secrets=dict(content.get("secrets", {})),
            observations={
                (address := Address.parse(text)): Observation(**{**fields, "address": address})
                for text, fields in content["observations"].items()
            },
        )

    return decode(data, place, build, "delete it: the runner writes it anew.")


def encode_lease(lease: Lease) -> bytes:
    return (canonical(asdict(lease)) + "\n").encode()


def decode_lease(data: bytes, place: str) -> Lease:
    return decode(data, place, lambda content: Lease(**content), "delete it once no runner is alive.")


def encode_accepted(accepted: Mapping[Address, Description]) -> bytes:
    lines = [
        f"  {json.dumps(str(address))}: {canonical(d.to_json())}" for address, d in sorted(accepted.items())
    ]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def decode_accepted(data: bytes, place: str) -> dict[Address, Description]:
    return decode(
        data,
        place,
        lambda content: {Address.parse(a): Description.from_json(d) for a, d in content.items()},
        "delete it: the runner starts what the state says.",
    )


def decode(data: bytes, place: str, build: Callable[[Any], T], hint: str = "") -> T:
    """Parse JSON and build a value from it; any defect is MZ030, never a traceback."""
    try:
        return build(json.loads(data))
    except MzplanError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
        what = f"it lacks {problem}" if isinstance(problem, KeyError) else str(problem)
        raise error(
            "MZ030",
            f"{place} is truncated or damaged",
            f"It can't be understood: {what[:200]}. Nothing was changed.",
            hint or "take the file back from version control, or the newest one under history/ beside it.",
        ) from None


def _one_line(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _checksum(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _resource_to_json(resource: ResourceState) -> dict[str, Any]:
    found: dict[str, Any] = {"id": resource.id, "type": resource.type, "body": resource.body}
    if resource.references:
        found["references"] = {role: str(target) for role, target in sorted(resource.references.items())}
    if resource.address.kind != "connection":
        found["generation"] = resource.generation
        found["digest"] = resource.digest
    if resource.override is not None:
        found["override"] = resource.override
    if resource.restart_token:
        found["restart_token"] = resource.restart_token
    return found


def _resources_from_json(content: dict[str, Any]) -> dict[Address, ResourceState]:
    addresses = {text: Address.parse(text) for text in content}  # parsed once, shared by all references
    resources: dict[Address, ResourceState] = {}
    for text, fields in content.items():
        references = {role: addresses[target] for role, target in fields.get("references", {}).items()}
        address = addresses[text]
        override = fields.get("override")
        if override not in (None, "paused", "resumed"):
            raise ValueError(f"{text} has an unknown override {override!r}")
        resources[address] = ResourceState(
            address=address,
            id=str(fields["id"]),
            type=str(fields["type"]),
            body=dict(fields["body"]),
            dependencies=tuple(sorted(set(references.values()))),
            references=references,
            generation=int(fields.get("generation", 1)),
            digest=str(fields.get("digest", "")),
            override=override,
            restart_token=int(fields.get("restart_token", 0)),
        )
    return resources


def _observation_to_json(observation: Observation) -> dict[str, Any]:
    fields = {name: getattr(observation, name) for name in Observation.__slots__ if name != "address"}
    return {name: value for name, value in fields.items() if value is not None}
