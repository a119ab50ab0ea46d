"""Plans that edit the state itself: rename, forget, adopt, roll back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from mzplan.model.address import Address, natural, natural_item
from mzplan.model.diagnostics import MzplanError, refusal, usage_error
from mzplan.model.graph import DependencyGraph
from mzplan.model.plan import Change, Effect, Plan
from mzplan.model.resources import Configuration
from mzplan.model.state import Forgotten, ResourceState, State
from mzplan.plan.commit import wanted_state
from mzplan.plan.comparison import compare_resources
from mzplan.plan.manual_changes import committed_record, plan_between, plan_of
from mzplan.plan.moves import moved_references, rename_records
from mzplan.schema.description import digest_of


def plan_move(state: State, old: Address, new: Address) -> Plan:
    """Plan to rename a resource. References to it follow. Raises MzplanError (usage).

    It keeps its id, and so its checkpoint and collection. A query stops and resumes under the new name."""
    committed_record(state, old)
    if old.kind != new.kind:
        raise _usage(f"{old} can't become {new}", "A resource keeps its kind.")
    if new in state.resources:
        raise _usage(f"There is a {new} already", "Nothing was changed.")
    now, originals = rename_records(state.resources, {old: new})
    changes = []
    for address in DependencyGraph.of(now).order(originals):
        before, after = originals[address], now[address]
        is_it = address == new
        query = is_it and bool(after.digest)
        changes.append(
            Change(
                address=address,
                action="move" if is_it else "update",
                effect="restart" if query else "in-place",
                fields=tuple(moved_references(before, after)),
                reason=f"renamed from {old}" if is_it else f"{old} is renamed",
                triggered_by=() if is_it else (new,),
                before=before,
                after=after,
                cause="hand",
            )
        )
    return plan_of(state, changes, {})


def plan_forget(state: State, addresses: list[Address]) -> Plan:
    """Plan to take resources out of the state.

    Their queries stop; their storage stays and can be adopted again."""
    for address in addresses:
        committed_record(state, address)
    doomed = set(addresses)
    graph = DependencyGraph.of(state.resources)
    for address in addresses:
        users = [user for user in graph.dependents(address) if user not in doomed]
        if users:
            raise refusal(
                "MZ042",
                f"{address} is still in use",
                f"{', '.join(map(str, users[:5]))} use{'s' if len(users) == 1 else ''} it.",
                "name them too, or give them another one first.",
                address=address,
            )
    changes = [
        Change(
            address=address,
            action="delete",
            effect="none",
            reason="forgotten: its query stops, its storage stays",
            before=state.resources[address],
        )
        for address in reversed(graph.order(doomed))
    ]
    plan = plan_of(state, changes, {})
    # `prevent_destroy` guards storage, which stays.
    kept = tuple(d for d in plan.diagnostics if d.kind != "destroy-prevented")
    return dataclasses.replace(plan, diagnostics=kept)


def plan_adopt(
    configuration: Configuration, state: State, address: Address, id_: str, generation: int
) -> Plan:
    """Plan to add a declared resource to the state with an existing checkpoint (and collection).

    Uncommitted connections that it needs are added too."""
    declared = configuration.resources.get(address)
    if declared is None:
        raise _usage(f"No file declares {address}", "What is imported must be declared: it says what runs.")
    if address in state.resources:
        raise _usage(f"{address} is in the state already", "Nothing was changed.")
    taken = next((r for r in state.resources.values() if r.id == id_), None)
    if taken is not None:
        raise _refused(
            f"{id_} belongs to {taken.address}",
            "One checkpoint can't go on in two places.",
            f"take it from there first: mzplan state rm {taken.address}, or mv.",
        )
    needed = DependencyGraph.of(configuration.resources).requirements([address])
    missing = sorted((a for a in needed if a not in state.resources), key=natural)
    for other in missing:
        if other.kind != "connection":
            raise _refused(
                f"{address} reads {other}, which is not in the state",
                "The checkpoint of a sink holds its place in the collection of its source.",
                f"import or apply {other} first.",
            )
    after: dict[Address, ResourceState] = dict(state.resources)
    for other in missing:
        after[other] = wanted_state(configuration.resources[other], None)
    record = dataclasses.replace(wanted_state(declared, None), id=id_, generation=generation)
    after[address] = record
    after[address] = dataclasses.replace(record, digest=digest_of(record, after))
    reasons = {address: f"adopts {id_}, generation {generation}"}
    order = DependencyGraph.of(after).order([*missing, address])
    changes = [
        Change(address=a, action="create", effect="none", reason=reasons.get(a, "new"), after=after[a])
        for a in order
    ]
    plan = plan_of(state, changes, {})
    instances = {**state.instances, **configuration.instances}
    return dataclasses.replace(
        plan, instances=instances, warehouse=state.warehouse or configuration.warehouse
    )


def plan_rollback(state: State, then: State) -> Plan:
    """Plan to restore the resources of an earlier serial, as the next serial."""
    _check_generations(state, then)
    return plan_restore(state, then)


def plan_restore(state: State, then: State) -> Plan:
    """Plan to replace the resources by another state's. Doesn't check generations."""
    addresses = state.resources.keys() | then.resources.keys()
    differing = {a for a in addresses if state.resources.get(a) != then.resources.get(a)}
    doomed = differing - then.resources.keys()
    order = DependencyGraph.of(then.resources).order(differing - doomed)
    gone = list(reversed(DependencyGraph.of(state.resources).order(doomed)))
    back = plan_between(state, then)
    shown = {change.address: change for change in back.changes}
    changes = [
        _back(state.resources.get(a), then.resources.get(a), then.serial, shown.get(a))
        for a in (*order, *gone)
    ]
    plan = plan_of(state, changes, {})
    return dataclasses.replace(
        plan,
        instances=then.instances,
        instances_changed=dict(then.instances) != dict(state.instances),
        warehouse=then.warehouse,
        settings=back.settings,
        settings_changes=back.settings_changes,
    )


def _back(
    before: ResourceState | None, after: ResourceState | None, serial: int, shown: Change | None
) -> Change:
    """Return a restored resource's change. `shown`: the change between both states, with its causes."""
    reason = f"as in serial {serial}"
    if before is None or after is None:
        resource = after or before
        assert resource is not None
        action: Any = "delete" if after is None else "create"
        return Change(
            address=resource.address,
            action=action,
            effect="none",
            reason=reason,
            before=before,
            after=after,
            cause="hand",
        )
    effect: Effect = "restart" if before.digest != after.digest else "in-place"
    fields = compare_resources(before, after)
    return Change(
        address=after.address,
        action="update" if fields or effect == "in-place" else "restart",
        effect=effect if shown is None or after.digest else shown.effect,
        fields=shown.fields if shown is not None else fields,
        reason=reason,
        triggered_by=shown.triggered_by if shown is not None else (),
        ways=shown.ways if shown is not None else {},
        before=before,
        after=after,
        cause="hand",
    )


def _check_generations(state: State, then: State) -> None:
    """Refuse to restore a replaced generation: its storage may be gone, its targets are fenced."""
    for address, record in sorted(then.resources.items(), key=natural_item):
        now = state.resources.get(address)
        if now is not None and now.id == record.id and now.generation > record.generation:
            raise _refused(
                f"Serial {then.serial} can't come back whole",
                f"{address} was replaced since: generation {record.generation} is over, its storage may be "
                "removed, and its target is fenced from it.",
                "put the files back instead, and apply them.",
            )


def forgotten_by(plan: Plan) -> Mapping[str, Forgotten]:
    """Return the storage that a plan to forget leaves, by id."""
    return {
        change.before.id: Forgotten(change.address, change.before.generation)
        for change in plan.changes
        if change.before is not None and change.after is None and change.before.digest
    }


def _usage(summary: str, detail: str) -> MzplanError:
    return usage_error(summary, detail, "`mzplan state list` shows them.")


def _refused(summary: str, detail: str, hint: str) -> MzplanError:
    return refusal("MZ038", summary, detail, hint)
