"""Sinks of a source that begins again wait until it has begun: it may be rejected, as for what it could not
read again, and what it takes the place of must then be whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from mzplan.controller.observations import QueryState
from mzplan.controller.terms import Gate, HeldQuery, InstanceId
from mzplan.model.address import Address, Place
from mzplan.schema.description import CollectionRead, Description
from mzplan.store.claims import recorded_instances
from mzplan.store.store import Store


class Replacements(Gate):
    """A gate. Queries keep reading the former generation of a collection until the new one has done its first
    trigger. `waiting`: these queries, and the generation that each waits for. `clock`: seconds, monotonic.
    Raises MzplanError (the store); `hold` does not."""

    def __init__(self, store: Store, instance: InstanceId, clock: Callable[[], float]):
        self._store, self._instance, self._clock = store, instance, clock
        self._begun: set[Place] = set()
        self._looked = -math.inf
        self.waiting: dict[Address, CollectionRead] = {}
        self._read([*recorded_instances(store), instance])

    def look(self, queries: Mapping[Address, QueryState]) -> bool:
        """Take in what has begun since: whether that lets a sink go on."""
        wanted = {read.place for read in self.waiting.values()}
        accepted = (query.memory.accepted for query in queries.values())
        self._begun |= {description.place for description in accepted if description is not None}
        elsewhere = any(read.address not in queries for read in self.waiting.values())
        if elsewhere and self._clock() - self._looked >= self._store.backend.poll_interval:
            self._looked = self._clock()
            self._read([name for name in recorded_instances(self._store) if name != self._instance])
        return not wanted.isdisjoint(self._begun)

    def _read(self, instances: Iterable[InstanceId]) -> None:
        for name in instances:
            self._begun |= {description.place for description in self._store.read_accepted(name).values()}

    def hold(self, wanted: Description, accepted: Description | None) -> HeldQuery | None:
        """Hold a query that has read the former generation of a collection: it runs as before."""
        self.waiting.pop(wanted.address, None)
        same = accepted is not None and accepted.id == wanted.id
        former = {read.id: read for read in accepted.reads.values()} if same and accepted is not None else {}
        for read in wanted.reads.values():
            before = former.get(read.id)
            # A lower generation comes from a rollback.
            if before is None or read.generation <= before.generation or read.place in self._begun:
                continue
            self.waiting[wanted.address] = read
            return HeldQuery(description=accepted)
        return None

    def reason(self, address: Address) -> str | None:
        """What a query waits for, in words; None when it waits for nothing."""
        read = self.waiting.get(address)
        return f"waits for generation {read.generation} of {read.address} to begin" if read else None

    def started(self, address: Address) -> None:
        """Nothing changes: what waits is decided by what has run."""
