"""The new generations that begin with an erasure, because their queries would still count the erased rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from mzplan.features.erase.reach import Reach, reach_of
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.graph import DependencyGraph
from mzplan.model.observed import Status
from mzplan.model.plan import Change
from mzplan.model.state import ResourceState, State
from mzplan.model.words import listed
from mzplan.plan import build_plan
from mzplan.plan.effects.targets import effect_on_target
from mzplan.plan.guards import check_changes
from mzplan.plan.manual_changes import configuration_of
from mzplan.schema.relations.parse import recomputes


def reach_with_replacements(
    state: State, source: ResourceState, where: str, statuses: Mapping[str, Status]
) -> tuple[Reach, tuple[Change, ...], tuple[Diagnostic, ...]]:
    """Return the reach of an erasure, and the replacements that are part of it, in dependency order, with
    their warnings and notices.

    A query isn't replaced if that would write rows again to a target, change rows that have nothing to do
    with the erasure, or isn't allowed.
    """
    blocked: dict[Address, str] = {}
    while True:
        reach = reach_of(state, source, where, blocked)
        changes, diagnostics = _replacements(state, reach.replaced, statuses)
        found = _blocked(state, reach.replaced, changes)
        if not found:
            return reach, changes, diagnostics
        blocked |= found


def _replacements(
    state: State, queries: Sequence[Address], statuses: Mapping[str, Status]
) -> tuple[tuple[Change, ...], tuple[Diagnostic, ...]]:
    """Return the changes that replace these committed queries and, where that needs it, their readers."""
    if not queries:
        return (), ()
    touched = {*queries, *DependencyGraph.of(state.resources).all_dependents(queries)}
    plan = build_plan(configuration_of(state), state, statuses, replace=queries)
    reason = "it would still count the erased rows"
    changes = tuple(
        replace(change, reason=reason, cause="hand") if change.address in queries else change
        for change in plan.changes
        if change.address in touched
    )
    replaced = {change.address for change in changes}
    found = (d for d in plan.diagnostics if d.severity != "error" and d.address in replaced)
    return changes, tuple(found)


def _blocked(state: State, queries: Collection[Address], changes: Sequence[Change]) -> dict[Address, str]:
    """Return the queries whose replacement is impossible, and why, as a sentence."""
    problems = dict(_problems(changes))
    graph = DependencyGraph.of(state.resources)
    blocked = {}
    for query in queries if problems else ():
        reached = {query, *graph.all_dependents([query])}
        why = next((why for address, why in problems.items() if address in reached), None)
        if why is not None:
            blocked[query] = why
    return blocked


def _problems(changes: Sequence[Change]) -> Iterator[tuple[Address, str]]:
    """Yield each change that isn't made with an erasure, and why."""
    for found in check_changes(changes):
        if found.severity == "error" and found.address is not None:
            yield found.address, f"{found.summary}."
    for change in changes:
        query = change.after if change.action == "replace" else None
        if query is None:
            continue
        if query.snapshots and not recomputes(query.body):
            tables = listed(sorted(map(str, query.snapshots.values())))
            yield (
                change.address,
                f"Replacing {change.address} would join all its rows with {tables} as of now.",
            )
        elif change.address.writes_target and effect_on_target(query) == "appends":
            yield change.address, f"Replacing {change.address} would write its rows again."
