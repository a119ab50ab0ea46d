"""The difference between Configuration and State, and the part of it that targets select.

A release of mzplan may introduce a default for new resources (`x-assumed`). The state records its value. A
resource that was committed earlier keeps the old default until its file sets the property. So a new default
alone restarts nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mzplan.model.address import Address, natural
from mzplan.model.diagnostics import Diagnostic, error, usage_error
from mzplan.model.graph import DependencyGraph
from mzplan.model.resources import PropertyEdit, Resource, edited, inlined_view
from mzplan.model.state import ResourceState
from mzplan.model.words import did_you_mean
from mzplan.plan.comparison import same_body
from mzplan.plan.moves import earlier_address
from mzplan.schema.kinds import resource_kind

Wanted = Mapping[Address, Resource]
Committed = Mapping[Address, ResourceState]
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """The addresses to create, to update (body or type differs) and to delete."""

    created: frozenset[Address] = frozenset()
    updated: frozenset[Address] = frozenset()
    deleted: frozenset[Address] = frozenset()

    @property
    def addresses(self) -> frozenset[Address]:
        return self.created | self.updated | self.deleted

    def only(self, selected: set[Address]) -> Difference:
        return Difference(self.created & selected, self.updated & selected, self.deleted & selected)


def find_difference(wanted: Wanted, committed: Committed) -> Difference:
    """Return the difference. Only this step of a plan goes through all resources."""
    created: list[Address] = []
    updated: list[Address] = []
    for address, resource in wanted.items():
        before = committed.get(address)
        if before is None:
            created.append(address)
        elif before.type != resource.type or not same_body(before.body, resource.body):
            updated.append(address)
    # Usually nothing is deleted, and comparing the counts is enough to know.
    deleted: list[Address] = []
    if len(wanted) - len(created) != len(committed):
        deleted = [address for address in committed if address not in wanted]
    return Difference(frozenset(created), frozenset(updated), frozenset(deleted))


def select(
    difference: Difference, targets: Iterable[Address], wanted: Wanted, committed: Committed
) -> Difference:
    """Return the part of the difference that the targets select.

    It contains the targets and all their dependents; the changed resources that the targets need, or that a
    selected dependent refers to; and all committed resources that depend on these. So applying it affects no
    resource outside of it, and no selected resource refers to a missing one.
    """
    changed = difference.created | difference.updated
    targets = set(targets)
    selected = targets | DependencyGraph.of_both(wanted, committed).all_dependents(targets)
    reached = DependencyGraph.of(committed).all_dependents
    needed = DependencyGraph.of(wanted).requirements(targets) | _referenced(selected & changed, wanted)
    while added := (needed & changed) - selected:
        selected |= added | reached(added)
        needed = _referenced(selected & changed, wanted)
    return difference.only(selected)


def _referenced(addresses: Iterable[Address], resources: Wanted) -> set[Address]:
    return {target for address in addresses for target in resources[address].references.values()}


def check_known(
    addresses: Iterable[Address], known: Collection[Address], option: str, why: str, wanted: Wanted
) -> None:
    """Raise MzplanError MZ070 (usage), with `why`, for an unknown address that `option` names."""
    for address in sorted(set(addresses).difference(known), key=natural):
        if (inlined := inlined_view(address, wanted)) is not None:
            raise usage_error(f"{option}: {address} has no query", *inlined, address=address)
        raise error(
            "MZ070.no-address",
            address=address,
            option=option,
            why=why,
            did_you_mean=did_you_mean(str(address), sorted(map(str, known))),
        )


def without_new_defaults(resource: Resource, before: ResourceState | None) -> Resource:
    """Return the resource without the assumed values that its committed record doesn't have."""
    missing = _missing_defaults(resource, before)
    if not missing:
        return resource
    body = edited(resource.body, [PropertyEdit(path=path, remove=True) for path in missing])
    return replace(resource, body=body)


def all_without_new_defaults(wanted: Wanted, committed: Committed) -> Wanted:
    """Apply `without_new_defaults` to all resources of a configuration."""
    changed = {
        a: without_new_defaults(r, _committed_record(r, committed)) for a, r in wanted.items() if r.assumed
    }
    return {**wanted, **changed} if changed else wanted


def check_assumed(wanted: Wanted, committed: Committed) -> Iterator[Diagnostic]:
    """Yield MZ116 for each resource that keeps old defaults."""
    for address, resource in wanted.items():
        if not resource.assumed:
            continue
        missing = _missing_defaults(resource, _committed_record(resource, committed))
        if not missing:
            continue
        kind = resource_kind(address.kind, resource.type)
        schemas = {path: kind.property_schema(path) for path in missing}
        new_defaults = {path: schema["x-assumed"]["value"] for path, schema in schemas.items()}
        old_defaults = {path: schema["default"] for path, schema in schemas.items()}
        yield Diagnostic.of(
            "MZ116.keeps-defaults",
            address=address,
            items=" ".join((_default_difference(path, schema) for path, schema in schemas.items())),
            as_yaml=_as_yaml(new_defaults),
            old_as_yaml=_as_yaml(old_defaults),
        )


def _default_difference(path: Path, schema: Mapping[str, Any]) -> str:
    rule = schema["x-assumed"]
    return f"{'.'.join(path)} is {schema['default']}: {rule['gives-up']}. New resources get {rule['value']}."


def _missing_defaults(resource: Resource, before: ResourceState | None) -> list[Path]:
    if not resource.assumed or before is None or before.type != resource.type:
        return []
    missing = resource_kind(resource.address.kind, before.type).assumed_values(before.body)
    return [path for path in resource.assumed if path in missing]


def _committed_record(resource: Resource, committed: Committed) -> ResourceState | None:
    earlier = earlier_address(resource)
    record = committed.get(resource.address)
    return record if record is not None or earlier is None else committed.get(earlier)


def _as_yaml(values: Mapping[Path, Any]) -> str:
    """Format values as YAML: `tls: {mode: prefer}, cleartext_login: allow`."""
    words = []
    for path, value in values.items():
        text = str(value)
        for key in reversed(path[1:]):
            text = f"{{{key}: {text}}}"
        words.append(f"{path[0]}: {text}")
    return ", ".join(words)
