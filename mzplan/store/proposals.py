"""Proposals: changes that a runner validates where they will run, before they are committed."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mzplan.model.address import Address
from mzplan.model.codec import encode
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.stored import Id, InstanceName
from mzplan.schema.description import Description
from mzplan.secrets.resolved import scrub_diagnostic
from mzplan.store.backends.backend import Backend
from mzplan.store.formats import canonical, load_as

LIFETIME = 120.0  # seconds, as measured by each runner, after which it removes a proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Descriptions for one instance, as a commit would contain them. A runner only validates them."""

    id: Id
    instance: InstanceName
    descriptions: tuple[Description, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of a validation. `upstreams`: the identities of the sources' upstreams."""

    id: Id
    diagnostics: tuple[Diagnostic, ...] = ()
    upstreams: Mapping[Address, Mapping[str, Any]] = field(default_factory=dict)


class Proposals:
    """The proposals of a project and the runners' answers. Safe for several processes."""

    def __init__(self, backend: Backend):
        self._backend = backend
        self._first_seen: dict[str, float] = {}  # monotonic seconds

    def make(self, instance: str, descriptions: tuple[Description, ...], id_: str = "") -> Proposal:
        """Write a proposal. `id_`: from new_proposal_id, if the caller needed it beforehand."""
        proposal = Proposal(
            id=id_ or new_proposal_id(),
            instance=instance,
            descriptions=descriptions,
        )
        data = (canonical(encode(proposal)) + "\n").encode()
        self._backend.write(f"proposals/{proposal.id}.json", data, durable=False)
        return proposal

    def open(self, instance: str) -> list[Proposal]:
        """Return the instance's proposals without an answer.

        Also removes proposals of every instance that can't be decoded, or that this process has seen for
        LIFETIME by its own clock. A proposal whose read fails stays for a later call.
        """
        keys = set(self._backend.list("proposals/"))
        proposals = []
        for key in sorted(keys):
            if key.endswith(".answer.json"):
                if key.replace(".answer.json", ".json") not in keys:  # the answer came too late
                    self._backend.delete(key)
                continue
            if time.monotonic() - self._first_seen.setdefault(key, time.monotonic()) > LIFETIME:
                self.withdraw(key.removeprefix("proposals/").removesuffix(".json"))
                continue
            if key.replace(".json", ".answer.json") in keys:
                continue
            proposal = self._read(key)
            if proposal is not None and proposal.instance == instance:
                proposals.append(proposal)
        self._first_seen = {key: first_seen for key, first_seen in self._first_seen.items() if key in keys}
        return proposals

    def _read(self, key: str) -> Proposal | None:
        """Return the proposal, or None if it can't be read now. Removes one that can't be decoded."""
        try:
            blob = self._backend.read(key)
        except MzplanError:
            return None
        if blob is None:
            return None
        try:
            return load_as(Proposal, blob.data, key, "delete it: it is only a request to validate.")
        except MzplanError:
            self._backend.delete(key)
            return None

    def answer(self, answer: Answer) -> None:
        """Write an answer, without secrets in its diagnostics."""
        answer = replace(answer, diagnostics=tuple(map(scrub_diagnostic, answer.diagnostics)))
        data = (json.dumps(encode(answer), sort_keys=True) + "\n").encode()
        self._backend.write(f"proposals/{answer.id}.answer.json", data, durable=False)

    def read_answer(self, proposal: Proposal) -> Answer | None:
        key = f"proposals/{proposal.id}.answer.json"
        blob = self._backend.read(key)
        hint = "delete it: it is only the answer to a request to validate."
        return load_as(Answer, blob.data, key, hint) if blob else None

    def withdraw(self, id_: str) -> None:
        self._backend.delete(f"proposals/{id_}.json")
        self._backend.delete(f"proposals/{id_}.answer.json")


def new_proposal_id() -> str:
    return secrets.token_hex(8)
