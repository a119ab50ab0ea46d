"""The plan file: a plan saved for review, and applied later exactly as it was reviewed.

It is deterministic JSON with a checksum. It holds the whole record before and after each change. As in the
state, secrets appear only as references. No other module of this package touches files.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mzplan.host.files import read_regular
from mzplan.host.guarded_folder import write_whole
from mzplan.model.address import Address
from mzplan.model.codec import decode, encode, parse_json
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.plan import PLAN_FORMAT_VERSION, Change, Plan
from mzplan.model.resources import Instance, InstanceType
from mzplan.model.state import ResourceState
from mzplan.model.stored import InstanceName
from mzplan.schema.loading import is_type

FORMAT_VERSION = 1
Fields = Mapping[str, Any]

# Fields that are only shown. They may differ when the same changes are planned again: on a later serial, on
# another machine, while queries start and stop.
_DISPLAY_FIELDS = frozenset(
    {"lineage", "serial", "variables", "targets", "replacing", "downstream", "feeds", "unaffected"}
    | {"pending", "drift", "diagnostics", "started"}
)
_WRITTEN_BY_COMMIT = ("because", "analysis")  # fields of a record that the commit computes again
# Fields that explain a change. They depend on the readable secrets and on the rows in collections.
_EXPLANATIONS = ("reason", "through", "inputs", "target", "query")


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write the plan file atomically. Raises MzplanError MZ035."""
    try:
        write_whole(path, encode_plan(plan))
    except OSError as problem:
        raise error("MZ035.cannot-write", path=path, strerror=problem.strerror or problem) from None


def read_plan(path: str | Path) -> Plan:
    """Read a plan file.

    Raises MzplanError: MZ070 (usage) if the file doesn't exist, MZ030 if it can't be read, MZ036 (exit code
    5) if it isn't a complete plan file.
    """
    try:
        data = read_regular(path)
    except FileNotFoundError:
        raise error("MZ070.no-plan", path=path, quote=shlex.quote(str(path))) from None
    except OSError as problem:
        raise error("MZ030.cannot-read", path=path, strerror=problem.strerror or problem) from None
    return decode_plan(data, str(path))


def encode_plan(plan: Plan) -> bytes:
    """Return the bytes of a plan file. Equal plans have equal bytes."""
    content = _plan_to_json(plan)
    text = _canonical(content)
    document = {"mzplan_plan": FORMAT_VERSION, "checksum": _checksum(text), "plan": content}
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")


def decode_plan(data: bytes, place: str = "the plan file") -> Plan:
    """Decode a plan file.

    Raises MzplanError MZ036 (exit code 5) if it is damaged, edited, or of another version.
    """
    try:
        document = decode(Fields, parse_json(data), "it")
        version = document.get("mzplan_plan")
        if version is None:
            raise _unusable(place, "It isn't a plan that mzplan saved.")
        if version != FORMAT_VERSION:
            shown = f"format {version}" if type(version) is int else "another format"
            raise _unusable(place, f"It has {shown}; this mzplan reads format {FORMAT_VERSION}.")
        if document.get("checksum") != _checksum(_canonical(document.get("plan"))):
            raise _unusable(place, "Its checksum doesn't match its content: it was edited or truncated.")
        return _plan_from_json(decode(Fields, document.get("plan"), "plan"))
    except ValueError as problem:
        raise _unusable(
            place, f"It isn't a plan that mzplan saved, or it is incomplete: {problem}."
        ) from None
    except RecursionError:
        raise _unusable(place, "It isn't a plan that mzplan saved, or it is incomplete.") from None


def digest_of_plan(plan: Plan) -> str:
    """Return the digest (`sha256:…`) of the plan's effects: changes, settings, and lost rows.

    It is equal wherever the same files are planned on the same records. An unrelated commit doesn't change
    it.
    """
    content = _plan_to_json(plan)
    for change in content["changes"]:
        for name in _EXPLANATIONS:
            change.pop(name, None)
    if not plan.instances_changed:
        used = {change.after.instance for change in plan.changes if change.after is not None}
        content["instances"] = {n: type_ for n, type_ in content["instances"].items() if n in used}
    return _checksum(_canonical({name: content[name] for name in content.keys() - _DISPLAY_FIELDS}))


def ensure_digest(plan: Plan, digest: str | None) -> None:
    """Raise MzplanError MZ036 (exit code 5) if the plan has another digest than `digest`."""
    if digest is None:
        return
    actual = digest_of_plan(plan)
    if actual != digest:
        raise error("MZ036.plan-not", actual=actual, digest=digest)


def ensure_environment(plan: Plan, environment: str) -> None:
    """Raise MzplanError MZ036 (exit code 5) if the plan was made for another environment."""
    if plan.environment == environment:
        return
    planned, current = (
        f"environment {name!r}" if name else "no environment" for name in (plan.environment, environment)
    )
    raise error(
        "MZ036.plan-made-another" if plan.environment else "MZ036.plan-made-another-environment",
        planned=planned,
        current=current,
        quote=shlex.quote(plan.environment),
    )


def _unusable(place: str, why: str) -> MzplanError:
    return error("MZ036.cannot-used", place=place, why=why)


def _canonical(content: Any) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def _checksum(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _plan_to_json(plan: Plan) -> dict[str, Any]:
    content = encode(plan)
    content["variables"] = dict(sorted(plan.variables.items()))
    content["instances"] = {name: instance.type for name, instance in sorted(plan.instances.items())}
    for change, fields in zip(plan.changes, content["changes"], strict=True):
        records = {name: fields.pop(name) for name in ("before", "after")}
        for record in filter(None, records.values()):
            for name in _WRITTEN_BY_COMMIT:
                record.pop(name, None)
        former = None if change.before is None else str(change.before.address)
        fields.update(former=former, **records)
    return content


def _plan_from_json(content: Fields) -> Plan:
    if content.get("format_version") != PLAN_FORMAT_VERSION:
        raise ValueError(f"its format_version isn't {PLAN_FORMAT_VERSION}")
    types = decode(Mapping[InstanceName, InstanceType], content.get("instances"), "instances")
    changes = decode(tuple[Fields, ...], content.get("changes"), "changes")
    return decode(
        Plan,
        content,
        instances={name: Instance(name=name, type=type_) for name, type_ in types.items()},
        changes=tuple(_change_from_json(change) for change in changes),
    )


def _change_from_json(content: Fields) -> Change:
    address = decode(Address, content.get("address"), "address")
    former = decode(Address | None, content.get("former"), "former") or address
    if former.kind != address.kind:
        raise ValueError(f"{address} can't have been {former}")
    before = _record_from_json(former, content.get("before"))
    after = _record_from_json(address, content.get("after"))
    change = decode(Change, content, before=before, after=after)
    if (before is None) != (change.action == "create") or (after is None) != (change.action == "delete"):
        raise ValueError(f"{address} is missing a record that its action needs")
    if after is not None and not after.id and change.action != "create":
        raise ValueError(f"{address}: id is not an id")
    return change


def _record_from_json(address: Address, content: Any) -> ResourceState | None:
    if content is None:
        return None
    known = {"id": ""} if decode(Fields, content, str(address)).get("id") == "" else {}  # not committed yet
    record = decode(ResourceState, content, str(address), address=address, **known)
    if not is_type(address.kind, record.type):
        raise ValueError(f"{address} is of a type that this mzplan does not know")
    return record
