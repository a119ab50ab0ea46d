"""Moves: resources that got another name and keep what they are, checkpoint and collection included.

A rename changes the names by which others refer to it, and nothing of what runs but the query's own name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, ExitCode
from mzplan.model.plan import FieldChange
from mzplan.model.resources import Resource
from mzplan.model.state import ResourceState

Records = Mapping[Address, ResourceState]


def find_moves(
    wanted: Mapping[Address, Resource], committed: Records, created: Iterable[Address]
) -> tuple[dict[Address, Address], tuple[Diagnostic, ...]]:
    """The former address → the new one, of the resources to create that say `moved_from` and whose former
    name is committed and no longer declared. And what is wrong with them."""
    moves: dict[Address, Address] = {}
    told = []
    for address in sorted(created):
        name = wanted[address].body.get("lifecycle", {}).get("moved_from")
        former = Address(address.kind, str(name))
        if name is None or former not in committed or former in wanted:
            continue
        if former in moves:
            told.append(_twice(former, moves[former], address))
        else:
            moves[former] = address
    return moves, tuple(told)


def moved(records: Records, moves: Mapping[Address, Address]) -> tuple[dict[Address, ResourceState], Records]:
    """The records under their new names, and what they were before: those moved, and those that refer to
    them, by their address now."""
    now: dict[Address, ResourceState] = {}
    originals: dict[Address, ResourceState] = {}
    for record in records.values():
        renamed = _renamed(record, moves)
        now[renamed.address] = renamed
        if renamed is not record:
            originals[renamed.address] = record
    return now, originals


def moved_references(before: ResourceState, after: ResourceState) -> Iterator[FieldChange]:
    """The references of a record that name something by its new name."""
    for role, target in sorted(after.references.items()):
        former = before.references.get(role, target)
        if former != target:
            yield FieldChange(
                path=role, before=former.name, after=target.name, sensitive=False, effect="in-place"
            )


def _renamed(record: ResourceState, moves: Mapping[Address, Address]) -> ResourceState:
    address = moves.get(record.address, record.address)
    references = {role: moves.get(target, target) for role, target in record.references.items()}
    if address == record.address and references == record.references:
        return record
    names = {role: target.name for role, target in references.items() if role in record.body}
    return dataclasses.replace(
        record,
        address=address,
        body={**record.body, **names},
        references=references,
        dependencies=tuple(sorted(set(references.values()))),
    )


def _twice(former: Address, one: Address, other: Address) -> Diagnostic:
    return Diagnostic(
        code="MZ037",
        summary=f"{one} and {other} both say that they were {former.name}",
        detail="One checkpoint can't go on in two places.",
        hint="remove moved_from from one of them: it begins from the start.",
        address=other,
        exit_code=ExitCode.REFUSED,
    )
