"""Plans for generations that run beside the ones in service: put them into service, or give them up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Set

from mzplan.model.address import Address, Place
from mzplan.model.diagnostics import error
from mzplan.model.graph import DependencyGraph
from mzplan.model.observed import Status
from mzplan.model.plan import Change, Plan
from mzplan.model.state import ResourceState, State, committed_record
from mzplan.plan.comparison import compare_resources
from mzplan.plan.manual_changes import plan_of
from mzplan.schema.description import digest_of

_Records = Mapping[str, ResourceState]  # by id


def plan_cut_over(state: State, queries: Collection[Address], statuses: Mapping[str, Status]) -> Plan:
    """Plan to put the new generations of these queries into service, once they have read as much.

    Raises MzplanError MZ400 for a query without such a generation.
    """
    changes = []
    for address in queries:
        before = committed_record(state, address)
        _generation_in_service(before, statuses)
        after = dataclasses.replace(before, cut_over=before.generation)
        if after != before:
            changes.append(_change(before, after, f"generation {before.generation} put into service by hand"))
    return plan_of(state, changes, statuses)


def plan_abort(
    state: State,
    queries: Collection[Address],
    statuses: Mapping[str, Status],
    earlier: Callable[[], Iterable[State]],
) -> Plan:
    """Plan to give up the new generations of these queries, and of all that was replaced with them.

    Each gets back the description of the generation in service, so nothing restarts.

    `earlier`: returns the former states, newest first. Raises MzplanError MZ400.
    """
    restored: dict[Address, ResourceState] = {}
    for address in queries:
        record = committed_record(state, address)
        former = _former_records(record, _generation_in_service(record, statuses), earlier())
        together = _replaced_together(state, former, address)
        for other in together:
            _ensure_unchanged(state, former, other, together, statuses)
            now = state.resources[other]
            restored[other] = dataclasses.replace(
                former[now.id], address=other, override=now.override, given_up=now.generation
            )
    resources = {**state.resources, **restored}
    graph = DependencyGraph.of(resources)
    changes = []
    for address in graph.order({*restored, *graph.all_dependents(restored)}):
        before, after = state.resources[address], resources[address]
        if after.digest:
            after = dataclasses.replace(after, digest=digest_of(after, resources))
        resources[address] = after
        if after != before:
            is_given_up = after.generation < before.generation
            reason = (
                f"generation {before.generation} given up by hand" if is_given_up else "its input is given up"
            )
            changes.append(_change(before, after, reason))
    return plan_of(state, changes, statuses)


def _ensure_unchanged(
    state: State, former: _Records, address: Address, together: Set[Address], statuses: Mapping[str, Status]
) -> None:
    """Raise MzplanError MZ400 if a query can't go on with its former description."""
    now, before = state.resources[address], former[state.resources[address].id]
    seen, why = now.observed_in(statuses), ""
    if seen is None or seen.generation >= now.generation:
        why = f"its generation {now.generation} may be in service already"
    elif before.instance != now.instance:
        why = f"it moved from instance {before.instance} to {now.instance}"
    for reference in before.references.values():
        other = state.resources.get(reference)
        if other is None:
            why = f"it used {reference}, which is gone or has another name"
        elif reference not in together and reference.is_query and other.place != _place(former, other):
            why = f"{reference} was replaced since"
    if why:
        raise error("MZ400.changed-since", address=address, generation=now.generation, why=why)


def _generation_in_service(record: ResourceState, statuses: Mapping[str, Status]) -> int:
    """Return the generation in service of a query whose new generation runs beside it."""
    if former := record.former_in_service(statuses):
        return former
    seen = record.observed_in(statuses)
    if not record.address.writes_collection:
        why = "Only a source or a view can have one."
    elif not record.is_replaced_beside:
        why = "Its `lifecycle` replaces it in place."
    elif seen is None:
        why = "No runner has reported it yet."
    else:
        why = f"Generation {seen.generation} is in service, and is the newest one."
    raise error("MZ400.not-replaced", address=record.address, why=why)


def _former_records(record: ResourceState, generation: int, earlier: Iterable[State]) -> _Records:
    """Return the records of the newest state that had a generation of a query, by id."""
    for state in earlier:
        records = {known.id: known for known in state.resources.values() if known.id}
        if _place(records, record) == (record.id, generation):
            return records
    raise error("MZ400.forgotten", address=record.address, generation=generation)


def _place(records: _Records, record: ResourceState) -> Place | None:
    return records[record.id].place if record.id in records else None


def _replaced_together(state: State, former: _Records, query: Address) -> set[Address]:
    """Return the query and those that were replaced with it, because they read each other.

    Without the sources that were replaced in place.
    """
    graph = DependencyGraph.of(state.resources)
    found, new = {query}, [query]
    while new:
        address = new.pop()
        for other in {*graph.dependents(address), *state.resources[address].dependencies} - found:
            now = state.resources[other]
            may_return = other.reads_collections or now.is_replaced_beside
            before = former.get(now.id) if may_return else None
            if before is not None and before.generation < now.generation:
                found.add(other)
                new.append(other)
    return found


def _change(before: ResourceState, after: ResourceState, reason: str) -> Change:
    return Change(
        address=after.address,
        action="update",
        effect="in-place",
        fields=compare_resources(before, after),
        reason=reason,
        before=before,
        after=after,
        cause="hand",
    )
