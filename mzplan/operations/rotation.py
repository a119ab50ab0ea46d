"""Secrets that have changed behind their references: their values here, compared with those in use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mzplan.model.address import Address, natural, natural_item
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.graph import DependencyGraph
from mzplan.model.observed import Status
from mzplan.model.state import State
from mzplan.schema.kinds import resource_kind
from mzplan.secrets.digests import VARIABLE, is_comparable, is_same_secret
from mzplan.secrets.references import Secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotations:
    """`queries`: those that run with an old value, each with the references whose value has changed.
    `unresolved`: references whose value, or the key of whose digest, is not known here."""

    queries: Mapping[Address, tuple[str, ...]] = field(default_factory=dict)
    unresolved: tuple[str, ...] = ()

    def notice(self) -> Diagnostic | None:
        """MZ078 for the unresolved references; None without any."""
        if not self.unresolved:
            return None
        more = len(self.unresolved) - 5
        listed = ", ".join(self.unresolved[:5]) + (f" and {more} more" if more > 0 else "")
        return Diagnostic(
            severity="notice",
            code="MZ078",
            summary="Secrets that can't be compared here are assumed to be unchanged",
            detail=f"{listed}: a rotation shows only where the value can be resolved with the runner's "
            "digest key "
            f"({VARIABLE}), or after the runner has seen it.",
            hint="",
        )


def find_rotations(directory: str, state: State, statuses: Mapping[str, Status]) -> Rotations:
    """Compare every secret that queries run with to its value here, where its runner has not seen another one
    already; what remote providers keep, only runners look at. Costs one slow digest for each secret,
    and nothing else where none has changed. Whoever writes a status names references in it: only those that
    stand in the committed state, in queries of its instance, are resolved."""
    secrets = Secrets(directory)
    committed = users_of_secrets(state)
    unresolved: set[str] = set()
    queries: dict[Address, set[str]] = {}
    for instance, status in statuses.items():
        changed = set()
        for reference, digest in status.secrets.items():
            users = committed.get(reference, ())
            if not any(state.resources[address].instance == instance for address in users):
                continue
            if reference in status.rotated:
                changed.add(reference)
                continue
            try:
                value = secrets.resolve(reference)
            except MzplanError:
                unresolved.add(reference)
                continue
            if not is_comparable(digest):
                unresolved.add(reference)
            if not is_same_secret(reference, value, digest):
                changed.add(reference)
        for reference, address in ((r, a) for r in changed for a in committed[r]):
            resource = state.resources[address]
            seen = status.observations.get(address)
            held = seen is not None and seen.held is not None  # it restarts when it is released
            if resource.instance == instance and not resource.paused and not held:
                queries.setdefault(address, set()).add(reference)
    return Rotations(
        queries={
            address: tuple(sorted(references, key=natural))
            for address, references in sorted(queries.items(), key=natural_item)
        },
        unresolved=tuple(sorted(unresolved)),
    )


def users_of_secrets(state: State) -> dict[str, set[Address]]:
    """By secret reference, the queries that use it, through their connections at any depth. Only
    references that stand where one may."""
    graph = DependencyGraph.of(state.resources)
    users: dict[str, set[Address]] = {}
    below = [
        (address, used)
        for address, resource in state.resources.items()
        if (used := resource_kind(address.kind, resource.type).secret_references(resource.body))
    ]
    while below:
        address, used = below.pop()
        if address.kind != "connection":
            for reference in used:
                users.setdefault(reference, set()).add(address)  # not the sinks that read its collection
            continue
        below += [(user, used) for user in graph.dependents(address)]
    return users
