"""Canaries: which of a plan's queries restart first, and which queries wait for them.

For each connection of each instance, one query restarts first. The runner restarts and holds the queries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from mzplan.model.address import Address, natural
from mzplan.model.graph import DependencyGraph, HasReferences
from mzplan.model.observed import CanaryVerdict, Status
from mzplan.model.plan import Change, Plan
from mzplan.model.state import Canary, ResourceState, State

Group = tuple[str, Address | None]  # an instance and a connection used there (None: no connection)


def choose_canaries(plan: Plan, state: State, wait: float) -> tuple[Canary, ...]:
    """Return the plan's canaries, each with the queries it holds. Their serial is 0.

    `wait` is how many seconds a canary has to make progress. Only a query that restarts can be a canary,
    because it can be rolled back. A replaced query waits with the others. If a query's source restarts with
    other columns, the query restarts together with it. A query that is new, renamed or moved to another
    instance has no previous run to keep. So it starts at once, unless it reads a source that is held.
    """
    choice = _Choice()
    # Queries that can be canaries come first; each part stays in dependency order.
    for query in sorted(_waiting_queries(plan, state), key=lambda query: query.start != "restart"):
        choice.add(query)
    return choice.canaries(wait)


def with_canaries(plan: Plan, state: State, wait: float | None) -> Plan:
    """Return the plan with its canaries. If `wait` is None, it has none."""
    return plan if wait is None else dataclasses.replace(plan, canaries=choose_canaries(plan, state, wait))


@dataclass(frozen=True, slots=True)
class _Query:
    """A query in the plan.

    - `record`: its planned record.
    - `follows`: the sources in the plan that it must restart together with.
    """

    record: ResourceState
    follows: tuple[Address, ...]
    start: Literal["create", "restart", "replace"]


class _Choice:
    """The canaries chosen so far. Add queries in dependency order.

    - `canary_by_group`: the canary of each group.
    - `canaries_by_query`: for each other query, the canaries that it waits for.
    """

    def __init__(self) -> None:
        self.canary_by_group: dict[Group, Address] = {}
        self.chosen: list[Address] = []
        self.canaries_by_query: dict[Address, set[Address]] = {}

    def add(self, query: _Query) -> None:
        address = query.record.address
        held_sources = [source for source in query.follows if source in self.canaries_by_query]
        awaited = {canary for source in held_sources for canary in self.canaries_by_query[source]}
        if query.start != "create":
            groups = list(_groups(query.record))
            follows_source = bool(query.follows) and not held_sources
            free_groups = [group for group in groups if group not in self.canary_by_group]
            if query.start == "restart" and not held_sources and (free_groups or follows_source):
                self.chosen.append(address)
                self.canary_by_group |= dict.fromkeys(free_groups, address)
                return
            if not follows_source:
                awaited |= {self.canary_by_group[group] for group in groups if group in self.canary_by_group}
        if awaited:
            self.canaries_by_query[address] = awaited

    def canaries(self, wait: float) -> tuple[Canary, ...]:
        return tuple(
            Canary(
                address=address,
                wait=wait,
                holds=tuple(
                    sorted(
                        (held for held, awaited in self.canaries_by_query.items() if address in awaited),
                        key=natural,
                    )
                ),
            )
            for address in self.chosen
        )


def _waiting_queries(plan: Plan, state: State) -> Iterator[_Query]:
    """Yield each query that the plan creates, restarts or replaces and that can wait for a canary.

    Queries with changes come first, in the order of the plan. Then come the queries that resume, in
    dependency order.
    """
    changed: set[Address] = set()
    for change in plan.changes:
        after = change.after
        if after is None or not after.digest or after.paused or not _can_wait(change):
            continue
        changed.add(change.address)
        if change.before is None:
            yield _Query(after, tuple(after.references.values()), "create")
        else:
            follows = tuple(a for a in change.triggered_by if a.writes_collection)
            yield _Query(after, follows, "replace" if change.effect == "replace" else "restart")
    resuming = {a for a in plan.resuming if a in state.resources and a not in changed}
    for address in DependencyGraph.of(state.resources).order(resuming):
        record = state.resources[address]
        yield _Query(record, tuple(a for a in record.references.values() if a in resuming), "restart")


def _can_wait(change: Change) -> bool:
    before, after = change.before, change.after
    if before is None:
        return True
    if before.paused or after is None or change.action == "move" or before.instance != after.instance:
        return False
    return change.effect in ("restart", "replace")


def _groups(resource: ResourceState) -> Iterator[Group]:
    connections = sorted({a for a in resource.references.values() if a.is_connection}, key=natural)
    for connection in connections or (None,):
        yield (resource.instance, connection)


def queries_to_resume(
    wanted: Mapping[Address, HasReferences],
    state: State,
    statuses: Mapping[str, Status],
    targets: Collection[Address],
) -> tuple[Address, ...]:
    """Return the failed canaries and the queries that they hold. The next apply releases them.

    Queries that are no longer declared are left out. With `targets`, only the targets and their dependents
    are released.
    """
    queries: set[Address] = set()
    for canary in state.canaries:
        verdict = verdict_of(canary, state, statuses)
        if verdict is not None and not verdict.passed:
            queries |= {canary.address, *canary.holds}
    queries &= state.resources.keys() & wanted.keys()
    if queries and targets:
        queries &= {*targets, *DependencyGraph.of_both(wanted, state.resources).all_dependents(targets)}
    return tuple(sorted(queries, key=natural))


def verdict_of(canary: Canary, state: State, statuses: Mapping[str, Status]) -> CanaryVerdict | None:
    """Return the runner's verdict on a committed canary, or None if there is none yet."""
    resource = state.resources.get(canary.address)
    status = statuses.get(resource.instance) if resource is not None else None
    verdict = status.canaries.get(canary.address) if status is not None else None
    return verdict if verdict is not None and verdict.serial == canary.serial else None


def canaries_after(
    state: State, plan: Plan, resources: Mapping[Address, ResourceState]
) -> tuple[Canary, ...]:
    """Return the canaries of the state after a plan.

    A query that the plan restarts waits only for the plan's own canaries. A canary that the plan restarts,
    and that other queries still wait for, is a canary again. A query that the plan doesn't touch stays held.
    """
    serial = state.serial + 1
    names = {
        c.before.address: c.address for c in plan.changes if c.before is not None and c.after is not None
    }
    released = {*plan.resuming, *(c.address for c in plan.changes if _restarts(c))}
    canaries = []
    for canary in state.canaries:
        address = names.get(canary.address, canary.address)
        held_addresses = (names.get(held, held) for held in canary.holds)
        holds = tuple(held for held in held_addresses if held in resources and held not in released)
        if address not in resources or (address in released and not holds):
            continue
        new_serial = serial if address in released else canary.serial
        canaries.append(dataclasses.replace(canary, address=address, holds=holds, serial=new_serial))
    return tuple(_merged([*canaries, *(dataclasses.replace(c, serial=serial) for c in plan.canaries)]))


def _restarts(change: Change) -> bool:
    before, after = change.before, change.after
    return before is None or after is None or before.digest != after.digest


def _merged(canaries: Iterable[Canary]) -> list[Canary]:
    merged: dict[Address, Canary] = {}
    for canary in canaries:
        earlier = merged.get(canary.address)
        holds = (
            canary.holds if earlier is None else tuple(sorted({*earlier.holds, *canary.holds}, key=natural))
        )
        merged[canary.address] = dataclasses.replace(canary, holds=holds)
    return [merged[address] for address in sorted(merged, key=natural)]


def without_passed(state: State, statuses: Mapping[str, Status]) -> State:
    """Return the state without the canaries that have passed."""
    remaining = tuple(c for c in state.canaries if not ((v := verdict_of(c, state, statuses)) and v.passed))
    return state if len(remaining) == len(state.canaries) else dataclasses.replace(state, canaries=remaining)
