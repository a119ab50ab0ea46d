"""Finds rotated secrets: compares values resolved here with the values that queries use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mzplan.model.address import Address, natural, natural_item
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.graph import DependencyGraph
from mzplan.model.observed import Status
from mzplan.model.state import State
from mzplan.model.words import first_names
from mzplan.schema.kinds import resource_kind
from mzplan.secrets.digests import VARIABLE, is_comparable, is_same_secret
from mzplan.secrets.references import Secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotations:
    """The result of comparing secrets.

    `queries`: queries that run with an old value, each with the references whose values changed.
    `unresolved`: references whose value, or whose digest's key, is unknown here.
    """

    queries: Mapping[Address, tuple[str, ...]] = field(default_factory=dict)
    unresolved: tuple[str, ...] = ()

    def notice(self) -> Diagnostic | None:
        """Return MZ078 for the unresolved references; None if there are none."""
        if not self.unresolved:
            return None
        return Diagnostic(
            severity="notice",
            code="MZ078",
            summary="Secrets that can't be compared here are assumed to be unchanged",
            detail=f"{first_names(self.unresolved, 5)}. mzplan notices a new value here only if it can read "
            f"the value and has the runner's digest key ({VARIABLE}). Otherwise, the runner notices it.",
        )


def find_rotations(directory: str, state: State, statuses: Mapping[str, Status]) -> Rotations:
    """Compare the secrets that queries use with their values here.

    A secret also counts as changed if its runner has already seen a new value. Only runners ask remote
    providers. Computes one slow digest for each secret that a query of the state uses.
    """
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
    """Return the queries that use each secret reference, through connections at any depth.

    Includes only references in places where a reference may stand.
    """
    graph = DependencyGraph.of(state.resources)
    users: dict[str, set[Address]] = {}
    below = [
        (address, used)
        for address, resource in state.resources.items()
        if (used := resource_kind(address.kind, resource.type).secret_references(resource.body))
    ]
    while below:
        address, used = below.pop()
        if address.is_query:
            for reference in used:
                users.setdefault(reference, set()).add(address)  # excludes the sinks that read its collection
            continue
        below += [(user, used) for user in graph.dependents(address)]
    return users
