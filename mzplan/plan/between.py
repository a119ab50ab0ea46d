"""What one committed state has that another has not: as a plan, so that it is shown as one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from mzplan.model.address import Address
from mzplan.model.plan import Change, FieldChange, Plan
from mzplan.model.resources import Configuration, RunnerSettings
from mzplan.model.state import ResourceState, State
from mzplan.plan.planner import build_plan
from mzplan.plan.reasons import backfill_reason


def plan_between(before: State, after: State) -> Plan:
    """The changes that have made one state of the other, as they would be planned today. It is there to be
    shown, and not to be applied: it has no diagnostics, and nothing pending."""
    former = {record.id: address for address, record in before.resources.items()}
    moves = {
        old: address
        for address, record in after.resources.items()
        if (old := former.get(record.id, address)) != address and old not in after.resources
    }
    configuration = Configuration(
        project=after.project,
        warehouse=after.warehouse,
        instances=after.instances,
        resources={address: record.declared for address, record in after.resources.items()},
        settings=after.settings or before.settings or RunnerSettings(),
    )
    plan = build_plan(configuration, before, moves=moves)
    # What no difference of the bodies explains was wanted by hand.
    pairs = list(_pairs(before, after, moves))
    shown = {change.address: change for change in plan.changes}
    anew = {new.address for old, new in pairs if _begins_anew(old, new)}
    unexplained = {a for a in anew if a not in shown or shown[a].action != "replace"}
    replaced = {a for a in unexplained if unexplained.isdisjoint(after.resources[a].dependencies)}
    restarted = {
        old.address
        for old, new in pairs
        if (old.restart_token, old.backfills) != (new.restart_token, new.backfills)
        and new.address not in shown
    }
    if replaced or restarted:
        plan = build_plan(
            configuration, before, moves=moves, replace=replaced, rotated=dict.fromkeys(restarted, ())
        )
    committed = {new.address: (old, new) for old, new in pairs}
    changes = {c.address: _by_hand(c, *committed.get(c.address, (None, None))) for c in plan.changes}
    for earlier, later in pairs:
        if earlier.paused != later.paused and earlier.override != later.override:
            changes[later.address] = _paused(changes.get(later.address), earlier, later)
    return dataclasses.replace(
        plan,
        changes=tuple(changes.values()),
        unaffected=len(after.resources) - sum(a in after.resources for a in {*changes, *plan.downstream}),
        canaries=tuple(canary for canary in after.canaries if canary.serial == after.serial),
        goes_on=(),
        diagnostics=(),
    )


def _pairs(
    before: State, after: State, moves: dict[Address, Address]
) -> Iterator[tuple[ResourceState, ResourceState]]:
    """Each resource that both have, under whatever name."""
    for old, record in before.resources.items():
        new = after.resources.get(moves.get(old, old))
        if new is not None:
            yield record, new


def _begins_anew(before: ResourceState, after: ResourceState) -> bool:
    """Whether it has another checkpoint: a replacement, or one that was deleted and created again."""
    return after.address.kind != "connection" and before.place != after.place


def _by_hand(change: Change, before: ResourceState | None, after: ResourceState | None) -> Change:
    if before is None or after is None or change.fields or change.triggered_by:
        return change
    if before.backfills != after.backfills:
        return dataclasses.replace(change, reason=backfill_reason(before, after))
    if before.restart_token != after.restart_token:
        return dataclasses.replace(change, reason="restarted by hand")
    return change


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
    )
