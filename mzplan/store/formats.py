"""The file formats of the store: State, Status, leases, proposals, as deterministic, readable JSON.

A state file has one line per resource, so that a commit of it reads well in version control, and a
checksum over the rest of its bytes, so that a truncated or edited one is noticed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from graphlib import CycleError, TopologicalSorter
from typing import Any, TypeVar

from mzplan.model import reading
from mzplan.model.address import MAX_NAME, Address, is_valid_name
from mzplan.model.canary import Canary, Verdict
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.resources import INSTANCE_TYPES, Instance
from mzplan.model.state import CONDITIONS, FORMAT_VERSION, Lease, Observation, ResourceState, State, Status
from mzplan.schema.description import Description
from mzplan.schema.kinds import is_type

T = TypeVar("T")
_NO_SUM = b'"checksum": ""'
_TAKE_BACK = (
    "take the file back from version control, or the newest one under history/ beside it: "
    "mzplan state pull --serial N --out FILE, then mzplan state push FILE --force."
)


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
    if state.forgotten:
        head["forgotten"] = {
            id_: {"address": str(address), "generation": generation}
            for id_, (address, generation) in sorted(state.forgotten.items())
        }
    if state.canaries:
        head["canaries"] = [_canary_to_json(canary) for canary in state.canaries]
    lines = [f"  {json.dumps(key)}: {_one_line(value)}," for key, value in head.items()]
    resources = [
        f"    {json.dumps(str(address))}: {canonical(_resource_to_json(resource))}"
        for address, resource in sorted(state.resources.items())
    ]
    body = ",\n".join(resources)
    text = "{\n" + "\n".join(lines) + '\n  "resources": {' + (f"\n{body}\n  " if body else "") + "}\n}\n"
    data = text.encode()
    return data.replace(_NO_SUM, f'"checksum": "{_checksum(data)}"'.encode(), 1)


def decode_state(data: bytes, place: str, *, checked: bool = True) -> State:
    """The inverse. Raises MZ031 (a newer format), MZ032 (wrong checksum, unless `checked` is False), MZ030
    (anything unreadable)."""

    def build(content: Any) -> State:
        version = reading.integer(content, "format_version", least=1)
        if version > FORMAT_VERSION:
            raise _newer(
                place, f"It has format version {version}; this mzplan knows versions up to {FORMAT_VERSION}."
            )
        claimed = reading.text(content, "checksum")
        bare = data.replace(f'"checksum": "{claimed}"'.encode("utf-8", "replace"), _NO_SUM, 1)
        if checked and _checksum(bare) != claimed:
            raise error(
                "MZ032",
                f"{place} is damaged or was edited by hand",
                "Its checksum does not fit its content. Nothing was changed.",
                _TAKE_BACK,
            )
        instances = _instances_from_json(reading.mapping(content.get("instances"), "instances"))
        resources = _resources_from_json(reading.mapping(content.get("resources"), "resources"))
        _check_whole(instances, resources, place)
        return State(
            format_version=version,
            project=reading.text(content, "project"),
            lineage=reading.text(content, "lineage"),
            serial=reading.integer(content, "serial"),
            warehouse=reading.text(content, "warehouse"),
            instances=instances,
            resources=resources,
            forgotten=_forgotten_from_json(reading.mapping(content.get("forgotten", {}), "forgotten")),
            canaries=reading.items({"canaries": [], **content}, "canaries", reading.canary),
        )

    return decode(data, place, build)


def _canary_to_json(canary: Canary) -> dict[str, Any]:
    return {
        "address": str(canary.address),
        "serial": canary.serial,
        "wait": canary.wait,
        "holds": [str(address) for address in canary.holds],
    }


def _forgotten_from_json(content: Mapping[str, Any]) -> dict[str, tuple[Address, int]]:
    found = {}
    for id_, value in content.items():
        fields = reading.mapping(value, "forgotten")
        reading.identifier({"id": id_})
        address = Address.parse(reading.text(fields, "address"))
        found[id_] = (address, reading.integer(fields, "generation", least=1))
    return found


def _instances_from_json(content: Mapping[str, Any]) -> dict[str, Instance]:
    found = {}
    for name, fields in content.items():
        if not is_valid_name(name):
            raise ValueError(f"{name[:MAX_NAME]!r} is no name of an instance")
        type_ = reading.one_of(reading.mapping(fields, f"instance {name}"), "type", INSTANCE_TYPES)
        found[name] = Instance(name=name, type=type_)
    return found


def _resources_from_json(content: Mapping[str, Any]) -> dict[Address, ResourceState]:
    addresses = {text: Address.parse(text) for text in content}  # parsed once, shared by all references
    resources: dict[Address, ResourceState] = {}
    for text, fields in content.items():
        address = addresses[text]
        if type(fields) is not dict:
            raise ValueError(f"{address} is no mapping")
        named = reading.mapping(fields.get("references", {}), f"references of {address}")
        references = {}
        for role, target in named.items():
            if type(target) is not str or target not in addresses:
                raise ValueError(f"{address} refers to what is not there")
            references[role] = addresses[target]
        resources[address] = reading.record(address, fields, references)
    return resources


def _check_whole(
    instances: Mapping[str, Instance], resources: Mapping[Address, ResourceState], place: str
) -> None:
    """What holds of every state that mzplan writes, and what it would stumble over later."""
    for kind, type_ in {(address.kind, resource.type) for address, resource in resources.items()}:
        if not is_type(kind, type_):
            raise _newer(
                place,
                f"It holds a {kind} of type {type_[:MAX_NAME]!r}, which this one does not know.",
                "upgrade mzplan, or install the package that brings that type; then run the command again.",
            )
    lost = {r.instance for a, r in resources.items() if a.kind != "connection"} - instances.keys()
    if lost:
        raise ValueError(f"no instance {min(lost)} is declared, and queries are to run there")
    for address, resource in resources.items():
        source = resource.references.get("from")
        if (address.kind == "sink") != (source is not None and source.kind == "source"):
            raise ValueError(f"{address} should {'' if address.kind == 'sink' else 'not '}read a source")
    needs = {a: {*r.references.values(), *r.dependencies} for a, r in resources.items()}
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as cycle:
        round_ = " needs ".join(map(str, reversed(cycle.args[1])))
        raise ValueError(f"resources need each other in a circle: {round_}") from None


def _newer(place: str, detail: str, hint: str = "upgrade mzplan, then run the command again.") -> MzplanError:
    return error(
        "MZ031",
        f"{place} was written by a newer mzplan",
        f"{detail} Nothing was changed.",
        hint,
    )


def encode_status(status: Status) -> bytes:
    head: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "instance": status.instance,
        "epoch": status.epoch,
        "heartbeat": status.heartbeat,
        "serial": status.serial,
        "secrets": dict(status.secrets),
    }
    if status.canaries:
        head["canaries"] = {str(a): asdict(verdict) for a, verdict in sorted(status.canaries.items())}
    if status.foreign:
        head["foreign"] = list(status.foreign)
    lines = [f"  {json.dumps(key)}: {_one_line(value)}," for key, value in head.items()]
    items = [
        f"    {json.dumps(str(address))}: {canonical(_observation_to_json(o))}"
        for address, o in sorted(status.observations.items())
    ]
    body = ",\n".join(items)
    text = "{\n" + "\n".join(lines) + '\n  "observations": {' + (f"\n{body}\n  " if body else "") + "}\n}\n"
    return text.encode(errors="replace")  # an error may quote anything


def decode_status(data: bytes, place: str) -> Status:
    """The inverse. Fields that are not known are passed over: a newer runner may say more."""

    def build(content: Any) -> Status:
        secrets = reading.mapping(content.get("secrets", {}), "secrets")
        observations = reading.mapping(content.get("observations"), "observations")
        return Status(
            instance=reading.instance_name(content, "instance"),
            epoch=reading.integer(content, "epoch"),
            heartbeat=reading.number(content, "heartbeat"),
            serial=reading.integer(content, "serial", least=-1),
            secrets={name: reading.text(secrets, name) for name in secrets},
            foreign=reading.items(content, "foreign", str) if "foreign" in content else (),
            observations=dict(_observation(text, fields) for text, fields in observations.items()),
            canaries=_verdicts(reading.mapping(content.get("canaries", {}), "canaries")),
        )

    return decode(data, place, build, "delete it: the runner writes it anew.")


def _verdicts(content: Mapping[str, Any]) -> dict[Address, Verdict]:
    found = {}
    for text, value in content.items():
        fields = reading.mapping(value, text)
        found[Address.parse(text)] = Verdict(
            serial=reading.integer(fields, "serial"),
            passed=reading.flag(fields, "passed"),
            condition=reading.one_of(fields, "condition", ("rejected", "failed")),
            reason=reading.text(fields, "reason"),
            code=reading.text(fields, "code"),
        )
    return found


def _observation(text: str, content: Any) -> tuple[Address, Observation]:
    address = Address.parse(text)
    try:
        fields = reading.mapping(content, "it")
        upstream = fields.get("upstream")
        return address, Observation(
            address=address,
            generation=reading.integer(fields, "generation"),
            digest=reading.text(fields, "digest"),
            wanted_digest=reading.text(fields, "wanted_digest"),
            wanted_generation=reading.integer(fields, "wanted_generation"),
            condition=reading.one_of(fields, "condition", CONDITIONS),
            query_id=reading.text_or_none(fields, "query_id"),
            run_id=reading.text_or_none(fields, "run_id"),
            step=reading.integer(fields, "step", -1, least=-1),
            input_rows_per_second=reading.number(fields, "input_rows_per_second", 0.0),
            processed_rows_per_second=reading.number(fields, "processed_rows_per_second", 0.0),
            lag=None if fields.get("lag") is None else reading.integer(fields, "lag"),
            left_out=reading.integer(fields, "left_out", 0),
            backlog=_backlog(fields.get("backlog")),
            warning=reading.text_or_none(fields, "warning"),
            quiet_since=None if fields.get("quiet_since") is None else reading.number(fields, "quiet_since"),
            error=reading.text_or_none(fields, "error"),
            error_code=reading.text_or_none(fields, "error_code"),
            failures=reading.integer(fields, "failures", 0),
            upstream=None if upstream is None else reading.mapping(upstream, "upstream"),
            held=reading.text_or_none(fields, "held"),
        )
    except ValueError as problem:
        raise ValueError(f"{address}: {problem}") from None


def _backlog(content: Any) -> Mapping[str, int] | None:
    if content is None:
        return None
    fields = reading.mapping(content, "backlog")
    return {name: reading.integer(fields, name) for name in fields}


def encode_lease(lease: Lease) -> bytes:
    return (canonical(asdict(lease)) + "\n").encode()


def decode_lease(data: bytes, place: str) -> Lease:
    """The inverse."""

    def build(content: Any) -> Lease:
        return Lease(
            instance=reading.instance_name(content, "instance"),
            epoch=reading.integer(content, "epoch"),
            owner=reading.text(content, "owner"),
            host=reading.text(content, "host"),
            pid=reading.integer(content, "pid"),
            pid_started=reading.number(content, "pid_started"),
            pid_space=reading.text(content, "pid_space", ""),
            heartbeat=reading.number(content, "heartbeat"),
            ttl=reading.number(content, "ttl"),
            released=reading.flag(content, "released", False),
        )

    return decode(data, place, build, "delete it once no runner is alive.")


def encode_accepted(accepted: Mapping[Address, Description]) -> bytes:
    lines = [
        f"  {json.dumps(str(address))}: {canonical(d.to_json())}" for address, d in sorted(accepted.items())
    ]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def decode_accepted(data: bytes, place: str) -> dict[Address, Description]:
    """The inverse."""

    def build(content: Any) -> dict[Address, Description]:
        return {
            Address.parse(text): Description.from_json(reading.mapping(fields, text))
            for text, fields in reading.mapping(content, "it").items()
        }

    return decode(data, place, build, "delete it: the runner starts what the state says.")


def decode(data: bytes, place: str, build: Callable[[Any], T], hint: str = "") -> T:
    """Parse JSON and build a value from it; any defect is MZ030, never a traceback."""
    try:
        return build(reading.parse(data))
    except MzplanError:
        raise
    except ValueError as problem:
        what = str(problem)
    except (TypeError, KeyError, AttributeError, RecursionError):
        what = "a value in it is not what it should be"
    raise error(
        "MZ030",
        f"{place} is truncated or damaged",
        f"It can't be understood: {what[:200]}. Nothing was changed.",
        hint or _TAKE_BACK,
    )


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


def _observation_to_json(observation: Observation) -> dict[str, Any]:
    fields = {name: getattr(observation, name) for name in Observation.__slots__ if name != "address"}
    return {name: _finite(value) for name, value in fields.items() if value is not None}


def _finite(value: Any) -> Any:
    """The value; 0.0 for a rate that Spark could not tell (NaN), which is no JSON."""
    return 0.0 if isinstance(value, float) and not math.isfinite(value) else value
