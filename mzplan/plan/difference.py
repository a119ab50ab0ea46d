"""Which resources differ between Configuration and State, and which of them the targets select."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mzplan.model.address import Address, natural
from mzplan.model.diagnostics import ExitCode, error
from mzplan.model.graph import DependencyGraph
from mzplan.model.resources import Resource
from mzplan.model.state import ResourceState
from mzplan.model.suggestions import did_you_mean
from mzplan.plan.comparison import same_body

Wanted = Mapping[Address, Resource]
Committed = Mapping[Address, ResourceState]


@dataclass(frozen=True, slots=True)
class Difference:
    """The addresses to create, to update (their own body or type differs) and to delete."""

    created: frozenset[Address] = frozenset()
    updated: frozenset[Address] = frozenset()
    deleted: frozenset[Address] = frozenset()

    @property
    def all(self) -> frozenset[Address]:
        return self.created | self.updated | self.deleted

    def only(self, selected: set[Address]) -> Difference:
        return Difference(self.created & selected, self.updated & selected, self.deleted & selected)


def find_difference(wanted: Wanted, committed: Committed) -> Difference:
    """The one pass over all resources that a plan costs; everything after it costs what differs."""
    created: list[Address] = []
    updated: list[Address] = []
    for address, resource in wanted.items():
        before = committed.get(address)
        if before is None:
            created.append(address)
        elif before.type != resource.type or not same_body(before.body, resource.body):
            updated.append(address)
    # Mostly nothing is deleted, and then the counts show it.
    deleted: list[Address] = []
    if len(wanted) - len(created) != len(committed):
        deleted = [address for address in committed if address not in wanted]
    return Difference(frozenset(created), frozenset(updated), frozenset(deleted))


def select(
    difference: Difference, targets: Iterable[Address], wanted: Wanted, committed: Committed
) -> Difference:
    """The part of the difference that the targets select.

    That is the targets and all of their dependents; the changed resources that the targets depend on, or that
    a changed dependent refers to; and whatever is committed and depends on those. So what is applied reaches
    nothing that is left out, and nothing that is left out refers to a resource that is not there.
    """
    changed = difference.created | difference.updated
    targets = set(targets)
    selected = targets | DependencyGraph.of_both(wanted, committed).reach(targets)
    reached = DependencyGraph.of(committed).reach
    needed = DependencyGraph.of(wanted).requirements(targets) | _referred(selected & changed, wanted)
    while added := (needed & changed) - selected:
        selected |= added | reached(added)
        needed = _referred(selected & changed, wanted)
    return difference.only(selected)


def _referred(addresses: Iterable[Address], resources: Wanted) -> set[Address]:
    return {target for address in addresses for target in resources[address].references.values()}


def check_known(addresses: Iterable[Address], known: Iterable[Address], option: str, why: str) -> None:
    """Raises MzplanError MZ070 (usage), with `why`, for an unknown address that `option` names."""
    for address in sorted(set(addresses).difference(known), key=natural):
        raise error(
            "MZ070",
            f"{option}: there is no {address}",
            why,
            did_you_mean(str(address), sorted(map(str, known))) or "correct the name, or declare it.",
            address=address,
            exit_code=ExitCode.USAGE,
        )
