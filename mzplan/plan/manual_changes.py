"""Plans that need no configuration: for manual operations, and between two committed states.

Plans of manual operations (pause, resume, restart, destroy) are shown and committed like any other plan. The
state records `pause`, `resume` and `restart` (as an override or a token) until they are undone. A plan
between two committed states is only shown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from mzplan.model.address import Address, natural
from mzplan.model.diagnostics import Diagnostic, error
from mzplan.model.graph import DependencyGraph
from mzplan.model.observed import Status
from mzplan.model.plan import Change, FieldChange, Plan
from mzplan.model.resources import Configuration, RunnerSettings
from mzplan.model.state import ResourceState, State, committed_record
from mzplan.plan.dependencies import task_reason
from mzplan.plan.drift import find_pending
from mzplan.plan.guards import check_changes
from mzplan.plan.planner import build_plan
from mzplan.schema.description import digest_of

_NO_STATUS: Mapping[str, Status] = {}


def plan_pause(state: State, addresses: Iterable[Address]) -> Plan:
    """Plan to stop these queries and keep their checkpoints. Paused queries don't change."""
    return _plan_paused(state, addresses, True)


def plan_resume(state: State, addresses: Iterable[Address]) -> Plan:
    """Plan to resume these queries from their checkpoints, even if the configuration pauses them."""
    return _plan_paused(state, addresses, False)


def plan_restart(state: State, addresses: Iterable[Address]) -> Plan:
    """Plan to stop these queries and start them again from their checkpoints."""
    changes = []
    diagnostics = []
    for before in _queries(state, addresses):
        after = dataclasses.replace(before, restart_token=before.restart_token + 1)
        after = dataclasses.replace(after, digest=digest_of(after, state.resources))
        changes.append(
            Change(
                address=before.address,
                action="restart",
                effect="restart",
                reason="restarted by hand",
                before=before,
                after=after,
                cause="hand",
            )
        )
        if before.paused:
            diagnostics.append(Diagnostic.of("MZ045.paused-stays", address=before.address))
    return plan_of(state, changes, diagnostics=diagnostics, restarting=True)


OVERRIDES: Mapping[str, Callable[[State, Iterable[Address]], Plan]] = {
    "pause": plan_pause,
    "resume": plan_resume,
    "restart": plan_restart,
}


def plan_destroy(state: State, targets: Collection[Address] = ()) -> Plan:
    """Plan to delete everything, or the targets and their dependents; dependents first."""
    for address in targets:
        committed_record(state, address)
    graph = DependencyGraph.of(state.resources)
    deleted = {*targets, *graph.all_dependents(targets)} if targets else set(state.resources)
    named = set(targets) or deleted
    changes = [
        Change(
            address=address,
            action="delete",
            effect="none",
            reason="destroyed by hand" if address in named else "depends on a destroyed resource",
            before=state.resources[address],
        )
        for address in reversed(graph.order(deleted))
    ]
    return plan_of(state, changes)


def _plan_paused(state: State, addresses: Iterable[Address], paused: bool) -> Plan:
    changes = []
    for before in _queries(state, addresses):
        if before.paused == paused:
            continue
        # Set an override only if it differs from the configuration, so that undoing it leaves none.
        declared = dataclasses.replace(before, override=None)
        override = dataclasses.replace(before, override="paused" if paused else "resumed")
        after = declared if declared.paused == paused else override
        changes.append(_paused(None, before, after))
    return plan_of(state, changes)


def plan_of(
    state: State,
    changes: Sequence[Change],
    statuses: Mapping[str, Status] = _NO_STATUS,
    diagnostics: Iterable[Diagnostic] = (),
    *,
    restarting: bool = False,
) -> Plan:
    """Return a plan of changes that come from the state alone, with its diagnostics.

    `restarting`: the changes only restart queries, so the plan lists the queries downstream.
    """
    downstream: tuple[Address, ...] = ()
    if restarting:
        restarted = {change.address for change in changes}
        reached = DependencyGraph.of(state.resources).all_dependents(restarted)
        downstream = tuple(sorted(reached - restarted, key=natural))
    return Plan(
        project=state.project,
        lineage=state.lineage,
        serial=state.serial,
        warehouse=state.warehouse,
        instances=state.instances,
        changes=tuple(changes),
        downstream=downstream,
        unaffected=len(state.resources) - sum(c.before is not None for c in changes) - len(downstream),
        pending=find_pending(state, statuses),
        # This plan sets the override itself, so it needs no notice about an override.
        diagnostics=(*diagnostics, *(d for d in check_changes(changes) if d.severity == "error")),
    )


def _queries(state: State, addresses: Iterable[Address]) -> list[ResourceState]:
    """Return the committed queries at these addresses, each once, in dependency order."""
    records = [_query(state, address) for address in dict.fromkeys(addresses)]
    order = DependencyGraph.of(state.resources).order(resource.address for resource in records)
    return [state.resources[address] for address in order]


def _query(state: State, address: Address) -> ResourceState:
    resource = committed_record(state, address)
    if resource.digest:
        return resource
    users = DependencyGraph.of(state.resources).dependents(address)
    raise error(
        "MZ070.runs-nothing" if users else "MZ070.runs-nothing-only-sources", address=address, users=users[:5]
    )


def configuration_of(state: State) -> Configuration:
    """Return the configuration that the files would have had to give this committed state."""
    return Configuration(
        project=state.project,
        warehouse=state.warehouse,
        instances=state.instances,
        resources={address: record.declared for address, record in state.resources.items()},
        settings=state.settings or RunnerSettings(),
    )


def plan_between(before: State, after: State) -> Plan:
    """Return the changes between two states, as they would be planned today.

    The plan is only for display: it has no diagnostics and nothing pending.
    """
    former = {record.id: address for address, record in before.resources.items()}
    moves = {
        old: address
        for address, record in after.resources.items()
        if (old := former.get(record.id, address)) != address and old not in after.resources
    }
    configuration = configuration_of(after)
    if after.settings is None and before.settings is not None:
        configuration = dataclasses.replace(configuration, settings=before.settings)
    plan = build_plan(configuration, before, moves=moves)
    # Changes that no difference between the bodies explains were made by hand. A query has a new checkpoint
    # if it was replaced, or deleted and created again.
    pairs = list(_pairs(before, after, moves))
    planned = {change.address: change for change in plan.changes}
    new_checkpoints = {new.address for old, new in pairs if new.address.is_query and old.place != new.place}
    unexplained = {a for a in new_checkpoints if a not in planned or planned[a].action != "replace"}
    replaced = {a for a in unexplained if unexplained.isdisjoint(after.resources[a].dependencies)}
    restarted = {
        old.address
        for old, new in pairs
        if (old.restart_token, old.tasks) != (new.restart_token, new.tasks) and new.address not in planned
    }
    if replaced or restarted:
        plan = build_plan(
            configuration, before, moves=moves, replace=replaced, rotated=dict.fromkeys(restarted, ())
        )
    records = {new.address: (old, new) for old, new in pairs}
    changes = {
        change.address: _with_manual_reason(change, *records[change.address], after.serial)
        if change.address in records
        else change
        for change in plan.changes
    }
    for earlier, later in pairs:
        if earlier.paused != later.paused and earlier.override != later.override:
            changes[later.address] = _paused(changes.get(later.address), earlier, later)
    return dataclasses.replace(
        plan,
        changes=tuple(changes.values()),
        unaffected=len(after.resources) - sum(a in after.resources for a in {*changes, *plan.downstream}),
        canaries=tuple(canary for canary in after.canaries if canary.serial == after.serial),
        resuming=(),
        diagnostics=(),
    )


def _pairs(
    before: State, after: State, moves: dict[Address, Address]
) -> Iterator[tuple[ResourceState, ResourceState]]:
    """Yield each resource in both states, even if its name differs."""
    for old, record in before.resources.items():
        new = after.resources.get(moves.get(old, old))
        if new is not None:
            yield record, new


def _with_manual_reason(change: Change, before: ResourceState, after: ResourceState, serial: int) -> Change:
    """Return a change with its real reason, if no difference of the bodies explains it.

    A new secret value or version of a function (as the record says), or a manual command, caused it.
    """
    if change.fields or change.triggered_by:
        return change
    because = after.because
    if because is not None and because.cause in ("secret", "upgrade") and because.serial == serial:
        return dataclasses.replace(change, reason=because.detail, cause=because.cause)
    if before.tasks != after.tasks:
        return dataclasses.replace(change, reason=task_reason(before, after), cause="hand")
    if before.restart_token != after.restart_token:
        return dataclasses.replace(change, reason="restarted by hand", cause="hand")
    return dataclasses.replace(change, cause=None)


def _paused(change: Change | None, before: ResourceState, after: ResourceState) -> Change:
    field = FieldChange(
        path="paused", before=before.paused, after=after.paused, sensitive=False, effect="in-place"
    )
    if change is not None:
        return dataclasses.replace(change, fields=(*change.fields, field), before=before, after=after)
    return Change(
        address=after.address,
        action="update",
        effect="in-place",
        fields=(field,),
        reason="paused by hand" if after.paused else "resumed by hand",
        before=before,
        after=after,
        cause="hand",
    )
