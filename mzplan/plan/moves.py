"""Moves: resources that are renamed and keep their id, checkpoint and collection.

A rename changes the references to the resource. In a running query, it changes only the query's name.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping

from mzplan.model.address import KINDS, Address, natural
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.plan import Change, Effect, FieldChange, heaviest
from mzplan.model.resources import Resource
from mzplan.model.state import ResourceState, needed_by
from mzplan.schema.kinds import resource_kind
from mzplan.schema.sql.view_query import referring_to

_IRRELEVANT = ("lifecycle", "description", "labels", "paused")
Records = Mapping[Address, ResourceState]


def find_moves(
    wanted: Mapping[Address, Resource], committed: Records, created: Iterable[Address]
) -> tuple[dict[Address, Address], tuple[Diagnostic, ...]]:
    """Return the new address of each renamed resource by its old one, and ambiguous renames.

    A new resource is a renamed one if its `moved_from` names a committed address that is no longer declared.
    It is an error if two resources name the same address.
    """
    moves: dict[Address, Address] = {}
    problems = []
    for address in sorted(created, key=natural):
        old = earlier_address(wanted[address])
        if old is None or old not in committed or old in wanted:
            continue
        if old in moves:
            problems.append(_ambiguous(old, moves[old], address))
        else:
            moves[old] = address
    return moves, tuple(problems)


def undeclared_moves(wanted: Mapping[Address, Resource], committed: Records) -> dict[Address, Address]:
    """Return the old address of each new query that looks like a query to delete, by its new one.

    Both have the same type and the same body (apart from properties that don't affect a query), and no other
    resource looks like them.
    """
    moves: dict[Address, Address] = {}
    for kind in KINDS:
        names = {old.name: new.name for new, old in moves.items()}
        old_ones = _by_looks((r.declared for a, r in committed.items() if a not in wanted), kind, names)
        new_ones = _by_looks((r for a, r in wanted.items() if a not in committed), kind, {})
        for looks, (new, *others) in sorted(new_ones.items(), key=lambda pair: natural(pair[1][0])):
            old = old_ones.get(looks, [])
            if len(old) == 1 and not others:
                moves[new] = old[0]
    return {new: old for new, old in moves.items() if new.is_query}


def _by_looks(
    resources: Iterable[Resource], kind: str, renamed: Mapping[str, str]
) -> dict[str, list[Address]]:
    """Return the addresses of a kind's resources, grouped by type and body.

    `renamed` maps old names of referenced connections and sources to the new ones.
    """
    addresses: dict[str, list[Address]] = {}
    for resource in resources:
        if resource.address.kind == kind:
            body = {key: value for key, value in resource.body.items() if key not in _IRRELEVANT}
            kind_ = resource_kind(resource.address.kind, resource.type)
            names = {role: renamed.get(name, name) for role, _, name in kind_.references_in(body)}
            body = {**body, **referring_to(kind_, body, names)} if names else body
            looks = json.dumps([resource.type, body], sort_keys=True, default=str)
            addresses.setdefault(looks, []).append(resource.address)
    return addresses


def check_undeclared(moves: Mapping[Address, Address]) -> Iterator[Diagnostic]:
    """Yield MZ289 for each new query that may be a renamed one."""
    for new, old in moves.items():
        yield Diagnostic.of("MZ289.looks-like", address=new, old=old, name=old.name)


def earlier_address(resource: Resource) -> Address | None:
    """Return the resource's earlier address, from its `moved_from`; None without one."""
    name = resource.body.get("lifecycle", {}).get("moved_from")
    return Address(resource.address.kind, str(name)) if name is not None else None


def rename_records(
    records: Records, moves: Mapping[Address, Address]
) -> tuple[dict[Address, ResourceState], Records]:
    """Return all records under their new names, and the originals of changed records.

    The originals, by new address, are the committed forms of records that moved or refer to a moved record.
    """
    new_records: dict[Address, ResourceState] = {}
    originals: dict[Address, ResourceState] = {}
    for record in records.values():
        renamed = _renamed(record, moves)
        new_records[renamed.address] = renamed
        if renamed is not record:
            originals[renamed.address] = record
    return new_records, originals


def moved_references(before: ResourceState, after: ResourceState) -> Iterator[FieldChange]:
    """Yield the references of a record that change because their target is renamed."""
    for role, target in sorted(after.references.items()):
        old = before.references.get(role, target)
        if old != target:
            yield FieldChange(
                path=role, before=old.name, after=target.name, sensitive=False, effect="in-place"
            )


def as_move(change: Change, original: ResourceState) -> Change:
    """Return the change of a record that is renamed, or refers to a renamed one."""
    if original.address == change.address:
        return dataclasses.replace(change, before=original)
    # The name of a running query contains its address. So the query restarts under the new name.
    effect: Effect = heaviest([change.effect, "restart"]) if original.digest else change.effect
    return dataclasses.replace(
        change,
        action="replace" if change.action == "replace" else "move",
        effect=effect,
        reason=f"renamed from {original.address}",
        before=original,
    )


def _renamed(record: ResourceState, moves: Mapping[Address, Address]) -> ResourceState:
    address = moves.get(record.address, record.address)
    references = {role: moves.get(target, target) for role, target in record.references.items()}
    if address == record.address and references == record.references:
        return record
    names = {
        role: target.name for role, target in references.items() if role.partition("[")[0] in record.body
    }
    return dataclasses.replace(
        record,
        address=address,
        body=referring_to(resource_kind(record.address.kind, record.type), record.body, names),
        references=references,
        dependencies=needed_by(references),
    )


def _ambiguous(old: Address, one: Address, other: Address) -> Diagnostic:
    return Diagnostic.of("MZ003.both-moved", address=other, one=one, name=old.name)
