"""Holds queries that come from another instance until the former runner has released them.

Runners of different instances never talk to each other; they read each other's Status in the store. A live
runner has released a query once it follows a state that gives the query to another instance, and its Status
no longer shows the query. A runner that lags behind may still start queries of newer states than its own.

A runner whose lease has lapsed may still run its queries without the store. The new runner then records its
epoch in the warehouse, where the former runner reads it and stops. A runner that has released its lease runs
nothing, and neither does a dead process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mzplan.controller.decision import HeldQuery
from mzplan.controller.terms import Gate, InstanceId
from mzplan.model.address import Address
from mzplan.model.cause import Cause
from mzplan.model.diagnostics import MzplanError
from mzplan.model.state import State
from mzplan.schema.description import Description
from mzplan.store.leases import LEASE_TTL, has_ended
from mzplan.store.store import Store

MAX_BEHIND = 50  # serials; if a runner is further behind, assume that it may run any query


@dataclass(frozen=True, slots=True, kw_only=True)
class _OtherRunner:
    """The queries that a live runner of another instance may still run."""

    instance: InstanceId
    observed: frozenset[Address] = frozenset()
    """Addresses that its Status shows."""
    ids: frozenset[str] = frozenset()
    """Ids of its queries in the states that it may have read since it wrote its Status."""
    unknown: bool = False
    """Whether it may run any query."""
    problem: str | None = None
    """Why its queries are unknown, if its files can't be read."""

    def may_run(self, address: Address, id_: str) -> bool:
        return self.unknown or address in self.observed or id_ in self.ids

    def reason(self) -> str:
        if self.problem is not None:
            return f"waits for instance {self.instance}, whose queries are unknown: {self.problem}"
        return f"waits for instance {self.instance}, whose runner has not released it yet"


class Handover(Gate):
    """The gate for queries that come to `instance` from another instance.

    `clock` returns monotonic seconds. Except for `hold`, methods raise MzplanError if the store fails.
    """

    def __init__(self, store: Store, instance: InstanceId, clock: Callable[[], float]):
        self._store = store
        self._instance = instance
        self._clock = clock
        self._polled_at = -math.inf
        self._state = State(project=store.project)
        self._ids_here: Mapping[Address, str] = {}
        self.wait_reasons: Mapping[Address, str] = {}
        """Which runner each query that is new here waits for, in words."""
        self.fence: Callable[[InstanceId], None] = lambda instance: None
        """Leadership.fence"""
        self._fenced_at: dict[tuple[InstanceId, int], float] = {}  # by the epoch of its lease
        self._former_instances: Mapping[Address, InstanceId] = {}
        """The former instance of each query that came from another instance, until it starts."""

    def brings_queries(self, state: State) -> bool:
        """Whether the state brings queries here that another instance's runner may have run."""
        return bool(self._new_here(state)) and bool(self._others(state))

    def follow(self, state: State) -> None:
        """Follow a new state: queries that are new here wait from now on."""
        new_here = self._new_here(state) if self.brings_queries(state) else []
        former = {a: name for a, name in self._former_instances.items() if a in state.resources}
        self._former_instances = former | (self._instances_before(state, new_here) if new_here else {})
        self._state, self._ids_here = state, self._queries(state)
        waiting = {a: text for a, text in self.wait_reasons.items() if a in self._ids_here}
        self.wait_reasons = waiting | dict.fromkeys(new_here, "waits for the runners of other instances")
        self._polled_at = -math.inf

    def poll(self) -> None:
        """Update which runners the moved queries still wait for, at most once per poll interval."""
        if not self.wait_reasons or self._clock() - self._polled_at < self._store.backend.poll_interval:
            return
        self._polled_at = self._clock()
        others = [other for name in self._others(self._state) if (other := self._try_read(name)) is not None]
        waiting: dict[Address, str] = {}
        for address in self.wait_reasons:
            still = [other for other in others if other.may_run(address, self._ids_here[address])]
            if still:
                waiting[address] = still[0].reason()
        self.wait_reasons = waiting

    def moved_away(self, address: Address) -> bool:
        """Whether the state gives the query to another instance."""
        resource = self._state.resources.get(address)
        return resource is not None and resource.instance != self._instance

    def hold(self, wanted: Description, accepted: Description | None) -> HeldQuery | None:
        """Don't start a query that waits; leave running queries as they are."""
        reason = self.wait_reasons.get(wanted.address)
        return HeldQuery(reason=reason) if reason is not None else None

    def cause(self, wanted: Description, accepted: Description | None) -> Cause | None:
        """Return the hand-over as the cause of a moved query's first start here; otherwise None."""
        former = self._former_instances.get(wanted.address)
        if former is None or (accepted is not None and accepted.id == wanted.id):
            return None
        detail = f"came from instance {former}"
        return Cause(cause="hand-over", serial=self._state.serial, detail=detail)

    def started(self, address: Address) -> None:
        self._former_instances = {a: name for a, name in self._former_instances.items() if a != address}

    def _instances_before(self, state: State, new_here: list[Address]) -> dict[Address, InstanceId]:
        """Return the former instance of each query that had another instance in the previous state."""
        before = self._state if self._state.serial else self._store.read_serial(state.serial - 1)
        instance_by_id = (
            {resource.id: resource.instance for resource in before.resources.values()}
            if before is not None
            else {}
        )
        return {
            a: name
            for a in new_here
            if (name := instance_by_id.get(state.resources[a].id, self._instance)) != self._instance
        }

    def _queries(self, state: State) -> dict[Address, str]:
        resources = state.resources.items()
        return {a: r.id for a, r in resources if a.is_query and r.instance == self._instance}

    def _new_here(self, state: State) -> list[Address]:
        return [a for a, id_ in self._queries(state).items() if self._ids_here.get(a) != id_]

    def _others(self, state: State) -> list[InstanceId]:
        return sorted({*state.instances, *self._store.leases.instances()} - {self._instance})

    def _try_read(self, name: InstanceId) -> _OtherRunner | None:
        try:
            return self._read_other(name)
        except MzplanError as problem:  # an unreadable file delays only the queries that are new here
            return _OtherRunner(instance=name, unknown=True, problem=problem.diagnostics[0].summary)
        except OSError as problem:
            return _OtherRunner(instance=name, unknown=True, problem=str(problem))

    def _read_other(self, name: InstanceId) -> _OtherRunner | None:
        if not self._store.leases.may_be_led(name):
            is_stopping = self._fence(name)
            return _OtherRunner(instance=name, unknown=True) if is_stopping else None
        status, serial = self._store.read_status(name), self._state.serial
        if status is None or serial - status.serial > MAX_BEHIND:
            return _OtherRunner(instance=name, unknown=True)
        ids: set[str] = set()
        for number in range(max(1, status.serial), serial):
            earlier = self._store.read_serial(number)
            if earlier is None:
                return _OtherRunner(instance=name, unknown=True)
            ids.update(resource.id for resource in earlier.resources.values() if resource.instance == name)
        return _OtherRunner(
            instance=name,
            observed=frozenset(address.resource for address in status.observations),
            ids=frozenset(ids),
        )

    def _fence(self, name: InstanceId) -> bool:
        """Make a runner without the store stop. Return whether it may still be stopping."""
        lease = self._store.leases.read(name)
        if lease is None or has_ended(lease):
            return False
        key = (name, lease.epoch)
        if key not in self._fenced_at:
            self.fence(name)
            self._fenced_at[key] = self._clock()
        return self._clock() - self._fenced_at[key] < LEASE_TTL
