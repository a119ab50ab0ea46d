"""Queries that move from one instance to another: the new runner waits until the former one has let go.

Two runners of different instances never talk to each other; they meet in the store. A live runner has let go
of a query when its Status does not show it and follows a state that gives it to another instance. Of one
that lags behind, the states say that it may take in next. A runner without a lease runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mzplan.controller.gate import Held
from mzplan.controller.types import InstanceId
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError
from mzplan.model.state import State
from mzplan.schema.description import Description
from mzplan.store.store import Store

BEHIND = 50  # serials; whoever is further behind is waited for, and its past not looked up


@dataclass(frozen=True, slots=True, kw_only=True)
class _Other:
    """What a live runner of another instance may still run: addresses that its Status shows, ids that a state
    gave it which it may have taken in since. `unknown`: it may run anything; `problem`: since this is so."""

    instance: InstanceId
    shown: frozenset[Address] = frozenset()
    ids: frozenset[str] = frozenset()
    unknown: bool = False
    problem: str | None = None

    def may_run(self, address: Address, id_: str) -> bool:
        return self.unknown or address in self.shown or id_ in self.ids

    def reason(self) -> str:
        if self.problem is not None:
            return f"waits for instance {self.instance}, of which is not known what it runs: {self.problem}"
        return f"waits for instance {self.instance}, whose runner has not let go of it yet"


class Handover:
    """A gate of the runner of `instance`. `clock` gives seconds, monotonic. Raises MzplanError (the store);
    `hold` does not."""

    def __init__(self, store: Store, instance: InstanceId, clock: Callable[[], float]):
        self._store = store
        self._instance = instance
        self._clock = clock
        self._looked = -math.inf
        self._state = State(project=store.project)
        self._here: Mapping[Address, str] = {}
        self.waiting: Mapping[Address, str] = {}
        """Queries that are new here, and for whom they wait, in words."""

    def comes(self, state: State) -> bool:
        """Whether a serial brings queries here that a runner of another instance may have run."""
        return bool(self._coming(state)) and bool(self._others(state))

    def take_in(self, state: State) -> None:
        """A new serial."""
        come = self._coming(state) if self.comes(state) else ()
        self._state, self._here = state, self._queries(state)
        waiting = {a: text for a, text in self.waiting.items() if a in self._here}
        self.waiting = waiting | dict.fromkeys(come, "waits for the runners of other instances")
        self._looked = -math.inf

    def look(self) -> None:
        """See for whom the queries still have to wait, as often as is good for the store."""
        if not self.waiting or self._clock() - self._looked < self._store.backend.look:
            return
        self._looked = self._clock()
        others = [one for name in self._others(self._state) if (one := self._seen(name)) is not None]
        found: dict[Address, str] = {}
        for address in self.waiting:
            still = [one for one in others if one.may_run(address, self._here[address])]
            if still:
                found[address] = still[0].reason()
        self.waiting = found

    def has_left(self, address: Address) -> bool:
        """Whether the state gives a query to another instance."""
        resource = self._state.resources.get(address)
        return resource is not None and resource.instance != self._instance

    def hold(self, wanted: Description, accepted: Description | None) -> Held | None:
        """A query that waits is not started yet; what runs stays."""
        return Held() if wanted.address in self.waiting else None

    def started(self, address: Address) -> None:
        pass

    def _queries(self, state: State) -> dict[Address, str]:
        found = state.resources.items()
        return {a: r.id for a, r in found if a.kind != "connection" and r.instance == self._instance}

    def _coming(self, state: State) -> list[Address]:
        return [a for a, id_ in self._queries(state).items() if self._here.get(a) != id_]

    def _others(self, state: State) -> list[InstanceId]:
        return sorted({*state.instances, *self._store.leases.instances()} - {self._instance})

    def _seen(self, name: InstanceId) -> _Other | None:
        try:
            return self._look_at(name)
        except MzplanError as problem:  # one file that can't be read must not hold up what has no part in it
            return _Other(instance=name, unknown=True, problem=problem.diagnostics[0].summary)

    def _look_at(self, name: InstanceId) -> _Other | None:
        if not self._store.leases.may_be_led(name):
            return None
        status, serial = self._store.read_status(name), self._state.serial
        if status is None or serial - status.serial > BEHIND:
            return _Other(instance=name, unknown=True)
        ids: set[str] = set()
        for number in range(max(1, status.serial), serial):
            earlier = self._store.read_serial(number)
            if earlier is None:
                return _Other(instance=name, unknown=True)
            ids.update(one.id for one in earlier.resources.values() if one.instance == name)
        return _Other(instance=name, shown=frozenset(status.observations), ids=frozenset(ids))
