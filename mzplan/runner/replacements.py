"""Holds the readers of a replaced source or view until the new generation has started.

The new generation may be rejected, for example because the upstream no longer has the old records. The former
generation and its readers must then be intact. A generation that runs beside the one in service only counts
for the other generations that do: its other readers wait until it is in service.

A new generation also waits until the erasures of the sources that it reads are done. Otherwise, it would
begin with a version of the collection that still has the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from mzplan.controller.decision import HeldQuery
from mzplan.controller.observations import QueryState
from mzplan.controller.terms import Gate, InstanceId
from mzplan.model.address import Address, Place
from mzplan.model.state import State, runs_beside
from mzplan.model.tasks import ERASURE
from mzplan.runner.side_by_side import is_replaced_beside
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
        self._beside: set[Place] = set()  # those that have started, beside the one in service
        self._started: set[Place] = set()  # those that have started in service
        self._released: set[Place] = set()  # those that had started in service when the round began
        self._erasures: dict[Place, set[int]] = {}  # by source: the serials of the committed erasures
        self._erased: dict[Place, set[int]] = {}  # by source: the serials of tasks that are done
        self._polled_at = -math.inf
        self._add_accepted([*recorded_instances(store), instance])

    def follow(self, state: State) -> None:
        """Follow a new state."""
        self._erasures = {
            record.place: serials
            for record in state.resources.values()
            if (serials := {task.serial for task in record.own_tasks if task.kind == ERASURE})
        }

    def begin_round(self) -> None:
        """Let the queries of the generations that have started run from now on."""
        if len(self._released) < len(self._started):
            self._released = set(self._started)

    def has_started(self, place: Place) -> bool:
        """Whether a generation is known to have done its first trigger, in service or beside."""
        return place in self._started or place in self._beside

    def poll(self, queries: Mapping[Address, QueryState], also: Iterable[Address] = ()) -> bool:
        """Look for generations that have started. Return whether a waiting query may now continue.

        `also`: further queries whose generations matter.
        """
        awaited = [read for query in queries.values() if (read := self._awaited_by(query)) is not None]
        erasing = [read for query in queries.values() if (read := self._erasing_for(query)) is not None]
        self._add(d for query in queries.values() if (d := query.memory.accepted) is not None)
        elsewhere = not {*also, *(read.address for read in (*awaited, *erasing))} <= queries.keys()
        if elsewhere and self._clock() - self._polled_at >= self._store.backend.poll_interval:
            self._polled_at = self._clock()
            self._add_accepted([name for name in recorded_instances(self._store) if name != self._instance])
        erased = any(not self._is_erasing(read) for read in erasing)
        return erased or any(read.place in self._started for read in awaited)

    def _add_accepted(self, instances: Iterable[InstanceId]) -> None:
        for name in instances:
            self._add(self._store.read_accepted(name).values())

    def _add(self, accepted: Iterable[Description]) -> None:
        for description in accepted:
            (self._beside if description.address.is_beside else self._started).add(description.place)
            if description.tasks:  # they are done before the query starts
                serials = {task.serial for task in description.tasks}
                self._erased.setdefault(description.place, set()).update(serials)

    def hold(self, wanted: Description, accepted: Description | None) -> HeldQuery | None:
        """Make a query that has read the former generation keep its accepted description.

        A generation that runs beside the one in service waits until all that it reads has started. A view
        with such a generation doesn't wait here: mzplan.runner.first_copies holds it.
        """
        source = self._erasing(wanted, accepted)
        if source is not None:
            former = accepted if accepted is not None and accepted.id == wanted.id else None
            return HeldQuery(description=former, reason=f"waits for the erasure of {source.address}")
        read = self._awaited(wanted, accepted)
        if read is None:
            return None
        reason = f"waits for generation {read.generation} of {read.address} to start"
        return HeldQuery(description=accepted, reason=reason)

    def held(self, queries: Mapping[Address, QueryState]) -> set[Address]:
        """Return the queries that wait for a new generation, or for an erasure."""
        return {
            address
            for address, query in queries.items()
            if (self._awaited_by(query) or self._erasing_for(query)) is not None
        }

    def _erasing_for(self, query: QueryState) -> CollectionRead | None:
        wanted = query.wanted
        return self._erasing(wanted.description, query.memory.accepted) if wanted is not None else None

    def _erasing(self, wanted: Description, accepted: Description | None) -> CollectionRead | None:
        """Return the source whose erasure a new generation waits for; None if it waits for none.

        The first generation of a query waits, too.
        """
        if accepted is not None and accepted.id == wanted.id and accepted.generation >= wanted.generation:
            return None
        return next((read for read in wanted.inputs.values() if self._is_erasing(read)), None)

    def _is_erasing(self, source: CollectionRead) -> bool:
        return not self._erasures.get(source.place, set()) <= self._erased.get(source.place, set())

    def _awaited_by(self, query: QueryState) -> CollectionRead | None:
        wanted = query.wanted
        return self._awaited(wanted.description, query.memory.accepted) if wanted is not None else None

    def _awaited(self, wanted: Description, accepted: Description | None) -> CollectionRead | None:
        """Return the read whose generation the query waits for; None if it waits for none."""
        if wanted.address.is_beside:
            return next((read for read in wanted.inputs.values() if not self.has_started(read.place)), None)
        if accepted is None or accepted.id != wanted.id or is_replaced_beside(wanted, accepted):
            return None
        former = {read.id: read for read in accepted.inputs.values()}
        tables = (read for read in wanted.snapshots.values() if runs_beside(read.address, read.body))
        for read in (*wanted.reads.values(), *tables):
            before = former.get(read.id)
            # A rollback goes to a lower generation, and doesn't wait.
            if (
                before is not None
                and read.generation > before.generation
                and read.place not in self._released
            ):
                return read
        return None
