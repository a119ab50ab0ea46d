"""The file formats of the store: State, Status, leases, … as deterministic JSON.

The types define the content (see mzplan.model.codec); this module defines the layout. A state file has one
line per resource, so its diffs read well in version control. A checksum over its other bytes detects
truncation and edits.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from typing import Any, TypeVar

from mzplan.model.address import MAX_NAME, Address
from mzplan.model.cause import Cause
from mzplan.model.codec import decode, encode, parse_json
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.history import CommitOutcome, CommitRecord
from mzplan.model.observed import Lease, Recent, Status
from mzplan.model.resources import Instance
from mzplan.model.state import FORMAT_VERSION, ResourceState, State
from mzplan.model.stored import Positive
from mzplan.schema.description import Description
from mzplan.schema.loading import is_type
from mzplan.secrets.resolved import scrub

T = TypeVar("T")
_EMPTY_CHECKSUM = b'"checksum": ""'
_RESOURCES = b'\n  "resources": {'  # written last by `_lines`
# Don't suggest to copy an earlier serial's file over the state, because it isn't the current state.
_RESTORE_HINT = (
    "take the latest FILE from version control or a backup, or run mzplan state pull --serial N --out "
    "FILE with the last N below history/; then mzplan state push FILE --force."
)
# For a damaged earlier serial. A push would commit a new serial, and leave the damaged file as it is.
FORGO_HINT = "put it back from a backup, or delete it: then only this serial is missing from the history."
_SERIAL = re.compile(rb'^  "serial": (\d+),$', re.MULTILINE)  # as written by `_lines`
# Fields of an Observation that may quote servers and libraries.
_SERVER_TEXTS = ("error", "warning", "held", "fault", "fault_fix")


def canonical(value: Any) -> str:
    """Return JSON in one line with sorted keys, so that equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def load(build: Callable[[Any], T], data: bytes, place: str, hint: str = "") -> T:
    """Parse a JSON text, pass it to `build`, and return the result. Raises MZ030 if the text is damaged."""
    try:
        return build(parse_json(data))
    except ValueError as problem:
        reason = str(problem)
    except RecursionError:
        reason = "it is nested too deeply"
    raise error("MZ030.truncated-damaged", place=place, reason=reason[:200], how=hint)


def load_as(type_: type[T], data: bytes, place: str, hint: str) -> T:
    """Decode a JSON text as a type. Raises MzplanError MZ030 for invalid text."""
    return load(lambda document: decode(type_, document), data, place, hint)


def encode_state(state: State) -> bytes:
    """Return the bytes of `mzplan.state.json`."""
    content = {"format_version": state.format_version, "checksum": "", **encode(state)}
    content["resources"] = {
        text: _without_defaults(text, fields) for text, fields in content["resources"].items()
    }
    data = _lines(content, "resources").encode()
    return data.replace(_EMPTY_CHECKSUM, f'"checksum": "{_checksum(data)}"'.encode(), 1)


def _without_defaults(address: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Remove a resource's fields that hold default values."""
    for name in ("references", "override", "restart_token"):
        if not fields[name]:
            del fields[name]
    if address.startswith("connection."):
        del fields["generation"], fields["digest"]
    return fields


def decode_state(data: bytes, place: str, *, checked: bool = True, hint: str = _RESTORE_HINT) -> State:
    """Decode the output of encode_state; `hint` is the errors' fix.

    Raises MZ031 for a newer format, and MZ030 for a wrong checksum (if `checked`) or unreadable content.
    """

    def build(content: Any) -> State:
        head = decode(_Head, content)
        if head.format_version > FORMAT_VERSION:
            version = f"It has format version {head.format_version}"
            raise _newer_format(place, f"{version}; this mzplan knows versions up to {FORMAT_VERSION}.")
        bare = data.replace(f'"checksum": "{head.checksum}"'.encode("utf-8", "replace"), _EMPTY_CHECKSUM, 1)
        if checked and _checksum(bare) != head.checksum:
            raise error("MZ030.damaged-edited", place=place, how=hint)
        for address, fields in decode(Mapping[str, Any], content.get("resources"), "resources").items():
            if type(fields) is dict and type(fields.get("references", {})) is not dict:
                raise ValueError(f"references of {address} is not a mapping")
        state = decode(State, content)
        _check_consistency(state.instances, state.resources, place)
        return state

    return load(build, data, place, hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """The part of a state that is checked first."""

    format_version: Positive
    checksum: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateHead:
    """The part of a state file before its resources."""

    lineage: str
    serial: int
    commit: CommitRecord


def decode_head(data: bytes, place: str, hint: str = _RESTORE_HINT) -> StateHead:
    """Decode a state file's head, and skip its resources, because there may be 100,000. Raises MZ030."""
    head, resources, _ = data.partition(_RESOURCES)
    return load_as(StateHead, head.rstrip(b",") + b"}" if resources else data, place, hint)


def encode_outcome(outcome: CommitOutcome) -> bytes:
    return (canonical(encode(outcome)) + "\n").encode(errors="replace")


def decode_outcome(data: bytes, place: str) -> CommitOutcome:
    return load_as(CommitOutcome, data, place, "delete it: then the outcome of that serial is unknown.")


def _check_consistency(
    instances: Mapping[str, Instance], resources: Mapping[Address, ResourceState], place: str
) -> None:
    """Raise an error if the state breaks a rule that holds for every state that mzplan writes."""
    for kind, type_ in {(address.kind, resource.type) for address, resource in resources.items()}:
        if not is_type(kind, type_):
            raise _newer_format(
                place,
                f"It holds a {kind} of type {type_[:MAX_NAME]!r}, which this one does not know.",
                "upgrade mzplan, or install the package that provides this type; then run the command again.",
            )
    undeclared = {r.instance for a, r in resources.items() if a.is_query} - instances.keys()
    if undeclared:
        raise ValueError(f"queries run on instance {min(undeclared)}, which isn't declared")
    dependencies = {address: resource.dependencies for address, resource in resources.items()}
    if missing := set(chain.from_iterable(dependencies.values())) - resources.keys():
        raise ValueError(
            f"{next(a for a in dependencies if missing & set(dependencies[a]))} refers to a resource that "
            "isn't there"
        )
    try:
        TopologicalSorter(dependencies).prepare()
    except CycleError as cycle:
        path = " refers to ".join(map(str, reversed(cycle.args[1])))
        raise ValueError(f"resources refer to each other in a cycle: {path}") from None
    for address, resource in resources.items():
        if address.reads_collections != bool(resource.reads):
            raise ValueError(
                f"{address} should {'' if address.reads_collections else 'not '}read a collection"
            )


def _newer_format(
    place: str, detail: str, hint: str = "upgrade mzplan, then run the command again."
) -> MzplanError:
    return error("MZ031.written-newer", place=place, why=detail, how=hint)


def encode_status(status: Status) -> bytes:
    content = {"format_version": FORMAT_VERSION, **encode(_scrubbed(status))}
    content["observations"] = {
        address: {name: _finite(value) for name, value in fields.items() if value is not None}
        for address, fields in content["observations"].items()
    }
    return _lines(content, "observations").encode(errors="replace")  # an error may quote any text


def _scrubbed(status: Status) -> Status:
    """Remove secrets from the messages of servers and libraries."""
    observations = {}
    for address, observation in status.observations.items():
        texts: dict[str, Any] = {
            name: scrub(text) for name in _SERVER_TEXTS if (text := getattr(observation, name))
        }
        cause = observation.started_because
        scrubbed = scrubbed_cause(cause) if cause is not None else None
        observations[address] = replace(observation, started_because=scrubbed, **texts)
    canaries = {
        address: replace(canary, reason=scrub(canary.reason)) for address, canary in status.canaries.items()
    }
    return replace(status, observations=observations, canaries=canaries)


def scrubbed_cause(cause: Cause) -> Cause:
    return replace(cause, detail=scrub(cause.detail))


def _finite(value: Any) -> Any:
    """Return the value, or 0.0 for NaN, Spark's value for an unknown rate. NaN isn't valid JSON."""
    return 0.0 if isinstance(value, float) and not math.isfinite(value) else value


def decode_status(data: bytes, place: str) -> Status:
    return load_as(Status, data, place, "delete it: the runner writes it again.")


def serial_in_status(data: bytes) -> int:
    """Return the newest serial that the status's runner has read; 0 if the status is unreadable.

    Doesn't decode the queries, because there may be 100,000.
    """
    match = _SERIAL.search(data[:1000])
    return int(match[1]) if match is not None else 0


def encode_lease(lease: Lease) -> bytes:
    return (canonical(encode(lease)) + "\n").encode()


def decode_lease(data: bytes, place: str) -> Lease:
    return load_as(Lease, data, place, "delete it once no runner is alive.")


def encode_accepted(accepted: Mapping[Address, Description]) -> bytes:
    return _entry_lines({address: encode(description) for address, description in accepted.items()})


def decode_accepted(data: bytes, place: str) -> dict[Address, Description]:
    hint = "delete it: the runner starts what is committed."
    return load(
        lambda document: dict(decode(Mapping[Address, Description], document, "it")), data, place, hint
    )


def encode_recent(recent: Recent) -> bytes:
    return _entry_lines(
        {a: [tuple(map(_finite, sample)) for sample in samples] for a, samples in recent.items()}
    )


def decode_recent(data: bytes, place: str) -> Recent:
    hint = "delete it: the runner writes it again."
    return load(lambda document: dict(decode(Recent, document, "it")), data, place, hint)


def _entry_lines(entries: Mapping[Address, Any]) -> bytes:
    """Return a JSON object with a line per entry, in the order of the addresses."""
    lines = [
        f"  {json.dumps(str(address))}: {canonical(value)}" for address, value in sorted(entries.items())
    ]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _lines(content: Mapping[str, Any], last: str) -> str:
    """Return a JSON object with a line per property, and a line per entry of the property `last`."""
    head = [f"  {json.dumps(name)}: {_one_line(value)},\n" for name, value in content.items() if name != last]
    entries = [f"    {json.dumps(name)}: {canonical(value)}" for name, value in content[last].items()]
    body = "\n" + ",\n".join(entries) + "\n  " if entries else ""
    return "{\n" + "".join(head) + f"  {json.dumps(last)}: {{{body}}}\n}}\n"


def _one_line(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _checksum(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
