"""Plans that edit the state itself: rename, forget, adopt, roll back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from mzplan.model.address import Address, natural, natural_item
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.graph import DependencyGraph
from mzplan.model.observed import Status
from mzplan.model.plan import Change, Effect, Plan
from mzplan.model.resources import Configuration, Resource
from mzplan.model.state import Forgotten, ResourceState, State, committed_record
from mzplan.plan.commit import wanted_state
from mzplan.plan.comparison import compare_resources
from mzplan.plan.manual_changes import plan_between, plan_of
from mzplan.plan.moves import moved_references, rename_records
from mzplan.schema.description import digest_of


def plan_move(state: State, old: Address, new: Address) -> Plan:
    """Return the plan that renames a resource, also in the references to it. Raises MzplanError (usage).

    The resource keeps its id, and so its checkpoint and collection. A query restarts under the new name."""
    committed_record(state, old)
    if old.kind != new.kind:
        raise _usage(f"{old} can't become {new}", "A resource keeps its kind.")
    if new in state.resources:
        raise _usage(f"There is a {new} already", "Nothing was changed.")
    resources, originals = rename_records(state.resources, {old: new})
    changes = []
    for address in DependencyGraph.of(resources).order(originals):
        before, after = originals[address], resources[address]
        is_renamed = address == new
        restarts = is_renamed and bool(after.digest)
        changes.append(
            Change(
                address=address,
                action="move" if is_renamed else "update",
                effect="restart" if restarts else "in-place",
                fields=tuple(moved_references(before, after)),
                reason=f"renamed from {old}" if is_renamed else f"{old} is renamed",
                triggered_by=() if is_renamed else (new,),
                before=before,
                after=after,
                cause="hand",
            )
        )
    return plan_of(state, changes)


def plan_forget(state: State, addresses: list[Address], statuses: Mapping[str, Status]) -> Plan:
    """Return the plan that takes resources out of the state.

    Their queries stop. Their storage stays, and `mzplan import` can adopt it again. Raises MzplanError MZ414
    for a query whose former generation is in service, because only the storage of the newest one stays."""
    for address in addresses:
        record = committed_record(state, address)
        seen = record.observed_in(statuses)
        if seen is not None and seen.held and seen.generation < record.generation:
            raise error(
                "MZ414.former-in-service",
                address=address,
                former=seen.generation,
                generation=record.generation,
                held=seen.held,
            )
    forgotten = set(addresses)
    graph = DependencyGraph.of(state.resources)
    for address in addresses:
        users = [user for user in graph.dependents(address) if user not in forgotten]
        if users:
            raise error(
                "MZ042.still-use",
                address=address,
                users=users[:5],
                verb_ending="s" if len(users) == 1 else "",
            )
    changes = [
        Change(
            address=address,
            action="delete",
            effect="none",
            reason="forgotten: its query stops, its storage stays",
            before=state.resources[address],
        )
        for address in reversed(graph.order(forgotten))
    ]
    plan = plan_of(state, changes)
    # `prevent_destroy` guards storage, which stays.
    diagnostics = tuple(d for d in plan.diagnostics if d.kind != "destroy-prevented")
    return dataclasses.replace(plan, diagnostics=diagnostics)


def importable(configuration: Configuration, state: State, address: Address) -> Resource:
    """Return the declaration of a resource that isn't in the state. Raises MzplanError MZ070."""
    declared = configuration.resources.get(address)
    if declared is None:
        raise _usage(
            f"No file declares {address}",
            "An imported resource must be declared, because the declaration defines its query.",
        )
    if address in state.resources:
        raise _usage(f"{address} is in the state already", "Nothing was changed.")
    return declared


def plan_adopt(
    configuration: Configuration, state: State, address: Address, id_: str, generation: int
) -> Plan:
    """Return the plan that adds a declared resource to the state, with an existing checkpoint.

    A source or view also takes over the existing collection. The plan also adds the uncommitted connections
    that the resource needs."""
    declared = importable(configuration, state, address)
    owner = next((r for r in state.resources.values() if r.id == id_), None)
    if owner is not None:
        raise _refused(
            f"{id_} belongs to {owner.address}",
            "Two resources can't continue from the same checkpoint.",
            f"free it first: mzplan state rm {owner.address}.",
        )
    requirements = DependencyGraph.of(configuration.resources).requirements([address])
    missing = sorted((a for a in requirements if a not in state.resources), key=natural)
    for other in missing:
        if other.is_query:
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
    plan = plan_of(state, changes)
    instances = {**state.instances, **configuration.instances}
    return dataclasses.replace(
        plan, instances=instances, warehouse=state.warehouse or configuration.warehouse
    )


def plan_rollback(state: State, target: State) -> Plan:
    """Return the plan that restores an earlier serial's resources, as a new serial."""
    _check_generations(state, target)
    return plan_restore(state, target)


def plan_restore(state: State, target: State) -> Plan:
    """Return the plan that replaces the resources of `state` with the resources of `target`.

    Doesn't check generations."""
    target = _keeping_numbers(state, target)
    addresses = state.resources.keys() | target.resources.keys()
    differing = {a for a in addresses if state.resources.get(a) != target.resources.get(a)}
    deleted = differing - target.resources.keys()
    order = DependencyGraph.of(target.resources).order(differing - deleted)
    deletions = list(reversed(DependencyGraph.of(state.resources).order(deleted)))
    between = plan_between(state, target)
    references = {change.address: change for change in between.changes}
    changes = [
        _restored_change(state.resources.get(a), target.resources.get(a), target.serial, references.get(a))
        for a in (*order, *deletions)
    ]
    plan = plan_of(state, changes)
    return dataclasses.replace(
        plan,
        instances=target.instances,
        instances_changed=dict(target.instances) != dict(state.instances),
        warehouse=target.warehouse,
        settings=between.settings,
        settings_changes=between.settings_changes,
    )


def _keeping_numbers(state: State, target: State) -> State:
    """Return the target with the numbers of generations that were given up since."""
    given_up = {record.id: record.given_up for record in state.resources.values()}
    resources = {
        address: dataclasses.replace(record, given_up=max(record.given_up, given_up.get(record.id, 0)))
        for address, record in target.resources.items()
    }
    return dataclasses.replace(target, resources=resources)


def _restored_change(
    before: ResourceState | None, after: ResourceState | None, serial: int, reference: Change | None
) -> Change:
    """Return a restored resource's change. `reference`: its change between the states, with the causes."""
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
        effect=effect if reference is None or after.digest else reference.effect,
        fields=reference.fields if reference is not None else fields,
        reason=reason,
        triggered_by=reference.triggered_by if reference is not None else (),
        ways=reference.ways if reference is not None else {},
        before=before,
        after=after,
        cause="hand",
    )


def _check_generations(state: State, target: State) -> None:
    """Refuse to restore a replaced generation: its storage may be gone, and its target refuses its writes."""
    for address, record in sorted(target.resources.items(), key=natural_item):
        now = state.resources.get(address)
        if now is not None and now.id == record.id and now.generation > record.generation:
            raise _refused(
                f"Serial {target.serial} can't be restored completely",
                f"{address} was replaced since: the storage of generation {record.generation} may be "
                "removed, and its target refuses it.",
                "restore the files instead, and apply them.",
            )


def forgotten_by(plan: Plan) -> Mapping[str, Forgotten]:
    """Return the storage that stays after a plan to forget resources, by id."""
    return {
        change.before.id: Forgotten(change.address, change.before.generation)
        for change in plan.changes
        if change.before is not None and change.after is None and change.before.digest
    }


def _usage(summary: str, detail: str) -> MzplanError:
    return error("MZ070.mzplan-state-list", what=summary, why=detail)


def _refused(summary: str, detail: str, hint: str) -> MzplanError:
    return error("MZ038.edit-refused", what=summary, why=detail, how=hint)
