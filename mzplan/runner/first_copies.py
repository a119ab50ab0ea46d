"""Holds views until the collections that they read as tables, or by key, have their first copy.

A view joins each row with a table as it is at that moment. If it ran while a source still copies the rows
that were there, it would join rows with nothing, for good. So a view first starts when each of these
collections has its first copy. It waits again when one of them has a new generation.

The facts are in the warehouse: what the source's checkpoint has read, and where its upstream ended when it
first started. A restart of the runner loses none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping

from mzplan.controller.observations import QueryState
from mzplan.controller.terms import Gate, HeldQuery
from mzplan.model.address import Address, Place
from mzplan.model.cause import Cause
from mzplan.model.losses import FirstCopy
from mzplan.model.state import State
from mzplan.schema.description import CollectionRead, Description, describe
from mzplan.schema.source_columns import keys_of


class FirstCopies(Gate):
    """The gate for views that need a first copy.

    `has_started`: whether the query of a collection has ever finished a trigger. `waiting`: for each held
    view, the collection that it waits for.
    """

    def __init__(self, has_started: Callable[[Place], bool]):
        self._has_started = has_started
        self._state = State(project="")
        self._descriptions: dict[Place, Description] = {}  # of the collections that anybody has asked about
        self._copies: Mapping[Place, FirstCopy] = {}
        self._complete: set[Place] = set()
        self._view_ends: dict[Place, tuple[int, ...]] = {}  # of a view's inputs, once they were complete
        self._is_needed = False  # in this round
        self.waiting: dict[Address, CollectionRead] = {}

    def follow(self, state: State) -> None:
        """Follow a new state."""
        self._state, self._descriptions = state, {}
        self.waiting = {a: read for a, read in self.waiting.items() if a in state.resources}

    def hold(self, wanted: Description, accepted: Description | None) -> HeldQuery | None:
        """Hold a view until each first copy that it needs is complete.

        A view that has read the former generation of the collection continues with it, until the new
        generation begins. Then it stops, because nobody updates the former generation any more.
        """
        self.waiting.pop(wanted.address, None)
        before = accepted if accepted is not None and accepted.id == wanted.id else None
        former = {read.id: read.place for read in before.inputs.values()} if before is not None else {}
        for read in _tables_of(wanted):
            if former.get(read.id) == read.place:
                continue
            self._is_needed = True
            if read.place in self._complete:
                continue
            self.waiting[wanted.address] = read
            copy = self._copies.get(read.place)
            continues = before is not None and before.place == wanted.place and read.id in former
            if continues and (copy is None or copy.begun):
                return HeldQuery(stop=_stop_cause(read.address) if copy else None)
            return HeldQuery(description=before)
        return None

    def to_measure(self) -> dict[Place, Description]:
        """Return the queries whose first copies are needed and not known to be complete."""
        asked: dict[Place, Description] = {}
        for read in self.waiting.values():
            asked |= {query.place: query for query in self._incomplete(read)}
        return asked

    def poll(self, copies: Mapping[Place, FirstCopy], queries: Mapping[Address, QueryState]) -> bool:
        """Take the newest measurements. Return whether a view may now start."""
        self._copies = copies
        before, needed = len(self._complete), self.to_measure()
        for place, query in needed.items():
            copy = copies.get(place)
            if self._has_caught_up(query, queries) or (copy is not None and self._is_complete(query, copy)):
                self._complete.add(place)
        released = len(self._complete) > before
        if not self._is_needed:  # a later view looks again
            self._complete.clear()
            self._view_ends.clear()
        self._is_needed = False
        return released

    def reason(self, address: Address) -> str | None:
        """Return which first copy the view waits for, and how far it is; None if it waits for none."""
        read = self.waiting.get(address)
        if read is None:
            return None
        query = next(self._incomplete(read), None)
        through = "" if query is None or query.place == read.place else f", which needs {query.address} first"
        copy = self._copies.get(query.place if query is not None else read.place)
        return f"waits for the first copy of {read.address}{through}{f': {copy.progress()}' if copy else ''}"

    def _is_complete(self, query: Description, copy: FirstCopy) -> bool:
        if not query.reads:
            is_empty = copy.begun and not copy.has_steps and self._has_started(query.place)
            return is_empty or copy.is_complete()
        if not copy.begun or not self._has_started(query.place):
            return False
        return copy.is_complete(self._view_ends.setdefault(query.place, copy.ends))

    def _has_caught_up(self, query: Description, queries: Mapping[Address, QueryState]) -> bool:
        """Whether a source that runs here has read all that its upstream has."""
        run = queries[query.address].run if query.address in queries and not query.reads else None
        return run is not None and run.name.generation == query.generation and run.triggered and run.lag == 0

    def _incomplete(self, read: CollectionRead, seen: Container[Place] = ()) -> Iterator[Description]:
        """Yield the queries to measure: the innermost ones whose first copies aren't complete."""
        query = self._description(read)
        if query is None or query.place in self._complete or query.place in seen:
            return
        inner = [below for r in query.inputs.values() for below in self._incomplete(r, {query.place})]
        yield from inner or [query]

    def _description(self, read: CollectionRead) -> Description | None:
        if read.place not in self._descriptions:
            resource = self._state.resources.get(read.address)
            if resource is None or resource.place != read.place:
                return None
            self._descriptions[read.place] = describe(resource, self._state.resources)
        return self._descriptions[read.place]


def _tables_of(query: Description) -> Iterator[CollectionRead]:
    """Yield the collections that a view reads as tables, and those whose changes it follows by key."""
    if query.address.writes_collection:
        yield from query.snapshots.values()
        yield from (read for read in query.reads.values() if keys_of(read.type, read.body))


def _stop_cause(collection: Address) -> Cause:
    return Cause(cause="change", detail=f"it waits for the first copy of {collection}")
