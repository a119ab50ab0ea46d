"""Holds the readers of a replaced source until the source's new generation has started.

The new generation may be rejected, for example because the upstream no longer has the old records. The former
generation and its readers must then be intact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from mzplan.controller.decision import HeldQuery
from mzplan.controller.observations import QueryState
from mzplan.controller.terms import Gate, InstanceId
from mzplan.model.address import Address, Place
from mzplan.schema.description import CollectionRead, Description
from mzplan.store.claims import recorded_instances
from mzplan.store.store import Store


class Replacements(Gate):
    """The gate for queries that read a replaced source.

    They read the former generation of its collection until the new generation has done its first trigger.
    `clock`: returns monotonic seconds. Except for `hold`, methods raise MzplanError if the store fails.
    """

    def __init__(self, store: Store, instance: InstanceId, clock: Callable[[], float]):
        self._store, self._instance, self._clock = store, instance, clock
        self._started: set[Place] = set()
        self._released: set[Place] = set()  # those that had started when the round began
        self._polled_at = -math.inf
        self._add_accepted([*recorded_instances(store), instance])

    def begin_round(self) -> None:
        """Let the queries of the generations that have started run from now on."""
        if len(self._released) < len(self._started):
            self._released = set(self._started)

    def has_started(self, place: Place) -> bool:
        """Whether a generation is known to have done its first trigger."""
        return place in self._started

    def poll(self, queries: Mapping[Address, QueryState], also: Iterable[Address] = ()) -> bool:
        """Look for generations that have started. Return whether a waiting query may now continue.

        `also`: further queries whose generations matter.
        """
        awaited = [read for query in queries.values() if (read := self._awaited_by(query)) is not None]
        accepted = (query.memory.accepted for query in queries.values())
        self._started |= {description.place for description in accepted if description is not None}
        elsewhere = not {*also, *(read.address for read in awaited)} <= queries.keys()
        if elsewhere and self._clock() - self._polled_at >= self._store.backend.poll_interval:
            self._polled_at = self._clock()
            self._add_accepted([name for name in recorded_instances(self._store) if name != self._instance])
        return any(read.place in self._started for read in awaited)

    def _add_accepted(self, instances: Iterable[InstanceId]) -> None:
        for name in instances:
            self._started |= {description.place for description in self._store.read_accepted(name).values()}

    def hold(self, wanted: Description, accepted: Description | None) -> HeldQuery | None:
        """Make a query that has read the former generation keep its accepted description."""
        read = self._awaited(wanted, accepted)
        if read is None:
            return None
        reason = f"waits for generation {read.generation} of {read.address} to start"
        return HeldQuery(description=accepted, reason=reason)

    def _awaited_by(self, query: QueryState) -> CollectionRead | None:
        wanted = query.wanted
        return self._awaited(wanted.description, query.memory.accepted) if wanted is not None else None

    def _awaited(self, wanted: Description, accepted: Description | None) -> CollectionRead | None:
        """Return the read whose generation the query waits for; None if it waits for none."""
        if accepted is None or accepted.id != wanted.id:
            return None
        former = {read.id: read for read in accepted.reads.values()}
        for read in wanted.reads.values():
            before = former.get(read.id)
            # A rollback goes to a lower generation, and doesn't wait.
            if (
                before is not None
                and read.generation > before.generation
                and read.place not in self._released
            ):
                return read
        return None
