"""Stages: the steps of applying a plan, in order, and the result of a failure in each.

Stages are computed from the plan alone. docs/internals/protocol.md describes them from the store's side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from mzplan.model.address import Address, natural_item
from mzplan.model.plan import Action, Change, Plan
from mzplan.model.resources import is_dry
from mzplan.model.state import ResourceState
from mzplan.plan.effects.targets import target_lines
from mzplan.schema.description import collection_columns

StageName = Literal["lock", "validate", "commit", "switch", "follow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A query's run on an instance.

    `checkpoint` is its path below the warehouse; None if the query gets its id when it is committed.
    """

    instance: str
    generation: int
    checkpoint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySwitch:
    """The change of one query: the run that stops, the run that starts, and notes for people."""

    address: Address
    action: Action
    stops: Run | None
    starts: Run | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of apply.

    - `on_failure`: the result of a failure.
    - `instances` (validate): by instance, the queries that its runner validates.
    - `queries` (switch): the queries that change.
    """

    name: StageName
    summary: str
    on_failure: str
    instances: tuple[tuple[str, tuple[Address, ...]], ...] = ()
    queries: tuple[QuerySwitch, ...] = ()


def is_validated(change: Change) -> bool:
    """Whether apply validates this change before it commits.

    Apply validates a change that starts a paused query, or a query with another description than the one that
    runs.
    """
    before, after = change.before, change.after
    if change.address.is_connection or after is None or after.paused:
        return False
    starts = change.action in ("create", "replace") or change.effect not in ("none", "in-place")
    return starts or (before is not None and before.paused)


def stages_of(plan: Plan) -> tuple[Stage, ...]:
    """Return the stages of applying the plan; none for an empty plan."""
    if plan.is_empty:
        return ()
    return tuple(
        stage for stage in (_lock(), _validate(plan), _commit(plan), _switch(plan), _follow(plan)) if stage
    )


def _lock() -> Stage:
    return Stage(
        name="lock",
        summary="lock the state, and check that it hasn't changed since the plan",
        on_failure="nothing is changed: exit 6 if another command holds the lock, 5 if the plan is stale",
    )


def _validate(plan: Plan) -> Stage | None:
    instances: dict[str, list[Address]] = {}
    for change in plan.changes:
        if (
            is_validated(change)
            and change.after is not None
            and not is_dry(plan.instances, change.after.instance)
        ):
            instances.setdefault(change.after.instance, []).append(change.address)
    if not instances:
        return None
    return Stage(
        name="validate",
        summary="each instance's runner connects and checks that these queries can run",
        on_failure="nothing is committed and every query keeps running: exit 1, or 7 for another upstream. "
        "apply starts an embedded runner for this; if a cluster's runner isn't alive, it exits with 7",
        instances=tuple(
            (name, tuple(addresses)) for name, addresses in sorted(instances.items(), key=natural_item)
        ),
    )


def _commit(plan: Plan) -> Stage:
    counts = ", ".join(f"{number} to {action}" for action, number in plan.summary().items() if number)
    if plan.resuming:
        counts = f"{counts}, {len(plan.resuming)} to resume".removeprefix(", ")
    return Stage(
        name="commit",
        summary=f"commit serial {plan.serial + 1} in place of {plan.serial}"
        + (f": {counts}" if counts else ": the declared instances"),
        on_failure=f"the state is either serial {plan.serial} or serial {plan.serial + 1}, and the runners "
        "follow it",
    )


def _switch(plan: Plan) -> Stage | None:
    queries = tuple(_query_switch(plan, change) for change in plan.changes if change.address.is_query)
    if not queries:
        return None
    return Stage(
        name="switch",
        summary="the runners check each query again, then stop and start the queries in parallel",
        on_failure="exit 8. A query whose check fails is rejected and keeps running as before. If a query "
        "can't start, the previous one resumes from the same checkpoint, if there is one. The runners "
        "retry both",
        queries=queries,
    )


def _follow(plan: Plan) -> Stage | None:
    if all(change.address.is_connection for change in plan.changes):
        return None
    return Stage(
        name="follow",
        summary="wait until each query has finished a first micro-batch, at most as long as --wait",
        on_failure="exit 8. The commit stays, and the runners continue. Ctrl-C only stops waiting",
    )


def _query_switch(plan: Plan, change: Change) -> QuerySwitch:
    before, after = change.before, change.after
    touched = change.action in ("create", "replace", "delete") or change.effect not in ("none", "in-place")
    was, will_be = _runs(before), _runs(after)
    stops = before if was and (touched or not will_be) else None
    starts = after if will_be and (touched or not was) else None
    return QuerySwitch(
        address=change.address,
        action=change.action,
        stops=_run(stops) if stops else None,
        starts=_run(starts) if starts else None,
        notes=tuple(_notes(plan, change, bool(stops or starts))),
    )


def _runs(resource: ResourceState | None) -> bool:
    return resource is not None and not resource.paused


def _run(resource: ResourceState) -> Run:
    checkpoint = f"checkpoints/{resource.id}/g{resource.generation}" if resource.id else None
    return Run(instance=resource.instance, generation=resource.generation, checkpoint=checkpoint)


def _notes(plan: Plan, change: Change, switched: bool) -> list[str]:
    before, after = change.before, change.after
    notes = []
    if after is None:
        notes.append("its storage is kept for retain_dropped, then removed")
        return notes
    waits = [str(canary.address) for canary in plan.canaries if change.address in canary.holds]
    if waits:
        notes.append(f"once {', '.join(waits)} has made progress")
    elif any(canary.address == change.address for canary in plan.canaries):
        notes.append("first")
    if after.paused:
        notes.append("paused: it starts when it is resumed")
    elif not switched:
        notes.append("keeps running")
    if change.action == "replace":
        how = "begins with the rows of its collection" if change.migrates_rows else "reads from the start"
        notes.append(f"{how}; the former storage is kept for retain_dropped, then removed")
        notes += target_lines(change)
    elif before is not None and _columns(before) != _columns(after):
        notes.append("its collection is altered first")
    if before is not None and before.instance != after.instance:
        notes.append(f"moves from instance {before.instance} to {after.instance}")
    if is_dry(plan.instances, after.instance):
        notes.append(f"instance {after.instance} is dry: nothing really runs")
    return notes


def _columns(resource: ResourceState) -> Any:
    return collection_columns(resource) if resource.address.writes_collection else None
