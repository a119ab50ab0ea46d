"""Holds the readers of a replaced source until the source's new generation has started.

The new generation may be rejected, for example because the upstream no longer has the old records. The former
generation and its readers must then be intact.
"""

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
    """The gate for queries that read a replaced source.

    They read the former generation of its collection until the new generation has done its first trigger.
    `awaited_reads`: for each of these queries, the read whose generation it waits for. `clock`: returns
    monotonic seconds. Except for `hold`, methods raise MzplanError if the store fails.
    """

    def __init__(self, store: Store, instance: InstanceId, clock: Callable[[], float]):
        self._store, self._instance, self._clock = store, instance, clock
        self._started: set[Place] = set()
        self._polled_at = -math.inf
        self.awaited_reads: dict[Address, CollectionRead] = {}
        self._add_accepted([*recorded_instances(store), instance])

    def has_started(self, place: Place) -> bool:
        """Whether a generation is known to have done its first trigger."""
        return place in self._started

    def poll(self, queries: Mapping[Address, QueryState], also: Iterable[Address] = ()) -> bool:
        """Look for generations that have started. Return whether a waiting query may now continue.

        `also`: further queries whose generations matter.
        """
        wanted = {read.place for read in self.awaited_reads.values()}
        accepted = (query.memory.accepted for query in queries.values())
        self._started |= {description.place for description in accepted if description is not None}
        needed = {*also, *(read.address for read in self.awaited_reads.values())}
        elsewhere = not needed <= queries.keys()
        if elsewhere and self._clock() - self._polled_at >= self._store.backend.poll_interval:
            self._polled_at = self._clock()
            self._add_accepted([name for name in recorded_instances(self._store) if name != self._instance])
        return not wanted.isdisjoint(self._started)

    def _add_accepted(self, instances: Iterable[InstanceId]) -> None:
        for name in instances:
            self._started |= {description.place for description in self._store.read_accepted(name).values()}

    def hold(self, wanted: Description, accepted: Description | None) -> HeldQuery | None:
        """Make a query that has read the former generation keep its accepted description."""
        self.awaited_reads.pop(wanted.address, None)
        same = accepted is not None and accepted.id == wanted.id
        former = {read.id: read for read in accepted.reads.values()} if same and accepted is not None else {}
        for read in wanted.reads.values():
            before = former.get(read.id)
            # A rollback goes to a lower generation, and doesn't wait.
            if before is None or read.generation <= before.generation or read.place in self._started:
                continue
            self.awaited_reads[wanted.address] = read
            return HeldQuery(description=accepted)
        return None

    def reason(self, address: Address) -> str | None:
        """Return which generation the query waits for, in words; None if it waits for none."""
        read = self.awaited_reads.get(address)
        return f"waits for generation {read.generation} of {read.address} to start" if read else None
