"""Plans for generations that run beside the ones in service: put them into service, or give them up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping

from mzplan.model.address import Address
from mzplan.model.diagnostics import error
from mzplan.model.graph import DependencyGraph
from mzplan.model.observed import Status
from mzplan.model.plan import Change, Plan
from mzplan.model.state import ResourceState, State, committed_record
from mzplan.plan.comparison import compare_resources
from mzplan.plan.manual_changes import plan_of
from mzplan.schema.description import digest_of


def plan_cut_over(state: State, views: Collection[Address], statuses: Mapping[str, Status]) -> Plan:
    """Plan to put the new generations of these views into service, once they have read as much.

    Raises MzplanError MZ390 for a view without such a generation.
    """
    changes = []
    for address in views:
        before = committed_record(state, address)
        _generation_in_service(before, statuses)
        after = dataclasses.replace(before, cut_over=before.generation)
        if after != before:
            changes.append(_change(before, after, f"generation {before.generation} put into service by hand"))
    return plan_of(state, changes, statuses)


def plan_abort(
    state: State,
    views: Collection[Address],
    statuses: Mapping[str, Status],
    earlier: Callable[[], Iterable[State]],
) -> Plan:
    """Plan to give up the new generations of these views, and of all that was replaced with them.

    Each gets back the description of the generation in service, so nothing restarts.

    `earlier`: returns the former states, newest first. Raises MzplanError MZ390.
    """
    restored: dict[Address, ResourceState] = {}
    for address in views:
        record = committed_record(state, address)
        former = _former_state(record, _generation_in_service(record, statuses), earlier())
        for other in _replaced_together(state, former, address):
            now = state.resources[other]
            restored[other] = dataclasses.replace(former.resources[other], given_up=now.generation)
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


def _generation_in_service(record: ResourceState, statuses: Mapping[str, Status]) -> int:
    """Return the generation in service of a view whose new generation runs beside it."""
    seen = record.observed_in(statuses)
    beside = bool(record.body.get("lifecycle", {}).get("replace") == "side-by-side")
    if seen is not None and beside and seen.held and 0 < seen.generation < record.generation:
        return seen.generation
    if not record.address.writes_collection or not record.address.reads_collections:
        why = "Only a view can have one."
    elif not beside:
        why = "It doesn't set lifecycle: {replace: side-by-side}."
    elif seen is None:
        why = "No runner has reported it yet."
    else:
        why = f"Generation {seen.generation} is in service, and is the newest one."
    raise error("MZ390.not-replaced", address=record.address, why=why)


def _former_state(record: ResourceState, generation: int, earlier: Iterable[State]) -> State:
    """Return the newest state that had a generation of a view."""
    place = (record.id, generation)
    for state in earlier:
        known = state.resources.get(record.address)
        if known is not None and known.place == place:
            return state
    raise error("MZ390.forgotten", address=record.address, generation=generation)


def _replaced_together(state: State, former: State, view: Address) -> set[Address]:
    """Return the view and the queries that were replaced with it, because they read each other."""
    graph = DependencyGraph.of(state.resources)
    found, new = {view}, [view]
    while new:
        address = new.pop()
        for other in {*graph.dependents(address), *state.resources[address].dependencies} - found:
            if _was_replaced(state, former, other):
                found.add(other)
                new.append(other)
    return found


def _was_replaced(state: State, former: State, address: Address) -> bool:
    now, before = state.resources[address], former.resources.get(address)
    same = before is not None and before.id == now.id and address.reads_collections
    return same and before is not None and before.generation < now.generation


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
