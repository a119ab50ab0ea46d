"""Proposals: a change that a runner is asked to validate where it will run, before anything is committed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mzplan.inline import Description
from mzplan.model import reading
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.state.formats import canonical, decode

LIFETIME = 120.0  # seconds; a proposal without an answer by then is removed


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Descriptions, as they would be committed, for one instance. `created` in seconds since the epoch."""

    id: str
    instance: str
    created: float
    descriptions: tuple[Description, ...]

    def encode(self) -> bytes:
        content = {
            "id": self.id,
            "instance": self.instance,
            "created": self.created,
            "descriptions": [d.to_json() for d in self.descriptions],
        }
        return (canonical(content) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes, place: str) -> Proposal:
        def build(content: Any) -> Proposal:
            return cls(
                id=reading.identifier(content),
                instance=reading.instance_name(content, "instance"),
                created=reading.number(content, "created"),
                descriptions=reading.items(content, "descriptions", _description),
            )

        return decode(data, place, build, "delete it: it is only a question.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the validation found; `upstreams` are the identities of what the sources would read."""

    id: str
    diagnostics: tuple[Diagnostic, ...] = ()
    upstreams: Mapping[Address, Mapping[str, Any]] = field(default_factory=dict)

    def encode(self) -> bytes:
        content = {
            "id": self.id,
            "diagnostics": [d.to_json() | {"exit_code": int(d.exit_code)} for d in self.diagnostics],
            "upstreams": {str(address): dict(found) for address, found in self.upstreams.items()},
        }
        return (json.dumps(content, sort_keys=True) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes, place: str) -> Answer:
        def build(content: Any) -> Answer:
            return cls(
                id=reading.identifier(content),
                diagnostics=reading.items(content, "diagnostics", _diagnostic),
                upstreams={
                    Address.parse(a): reading.mapping(found, a)
                    for a, found in reading.mapping(content.get("upstreams"), "upstreams").items()
                },
            )

        return decode(data, place, build, "delete it: it is only an answer.")


def _description(content: Any) -> Description:
    return Description.from_json(reading.mapping(content, "a description"))


def _diagnostic(content: Any) -> Diagnostic:
    return Diagnostic.from_json(reading.mapping(content, "a diagnostic"))
