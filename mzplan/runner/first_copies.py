"""Holds queries until the collections that they need as a whole have their first copy.

- A view joins each row with a table as it is at that moment. If it ran while a source still copies the rows
  that were there, it would join rows with nothing, for good. So a view first starts when each collection
  that it reads as a table, or by key, has its first copy. It waits again when one has a new generation.
- A sink with `on_replace: difference` compares its target with all rows of its collection's new generation.
  Until they are there, its former generation runs.
- A query that is replaced side by side serves its former generation until the new one has read as much
  (mzplan.runner.side_by_side).

The facts are in the warehouse: what the source's checkpoint has read, and where its upstream ended when it
first started. A restart of the runner loses none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping

from mzplan.controller.decision import HeldQuery
from mzplan.controller.executor import QueryReport
from mzplan.controller.observations import QueryState
from mzplan.controller.terms import Gate
from mzplan.model.address import Address, Place
from mzplan.model.cause import Cause
from mzplan.model.losses import FirstCopy
from mzplan.model.state import State
from mzplan.runner.side_by_side import SideBySide, collection_of, is_replaced_beside
from mzplan.schema.description import CollectionRead, Description, describe
from mzplan.schema.source_columns import keys_of
from mzplan.schema.target_writes import writes_difference


class FirstCopies(Gate):
    """The gate for queries that need a first copy.

    `has_started`: whether the query of a collection has ever finished a trigger.
    """

    def __init__(self, has_started: Callable[[Place], bool]):
        self._has_started = has_started
        self._state = State(project="")
        self._descriptions: dict[Place, Description] = {}  # of the collections that anybody has asked about
        self._copies: Mapping[Place, FirstCopy] = {}
        self._complete: set[Place] = set()
        self._released: set[Place] = set()  # those that were complete when the round began
        self._view_ends: dict[Place, tuple[int, ...]] = {}  # of a view's inputs, once they were complete
        self._beside = SideBySide()

    def begin_round(self) -> None:
        """Let the queries of the copies that are complete run from now on."""
        if self._released != self._complete:
            self._released = set(self._complete)

    def follow(self, state: State) -> None:
        """Follow a new state."""
        self._state, self._descriptions = state, {}

    def hold(self, wanted: Description, accepted: Description | None) -> HeldQuery | None:
        """Hold a query until each first copy that it needs is complete.

        A view that has read the former generation of the collection continues with it, until the new
        generation begins. Then it stops, because nobody updates the former generation any more. A sink that
        is replaced runs its former generation meanwhile.
        """
        read = self._awaited(wanted, accepted)
        if read is None:
            return None
        if is_replaced_beside(wanted, accepted):
            return HeldQuery(description=accepted, beside=True, reason=self._beside_reason(wanted, read))
        before = accepted if accepted is not None and accepted.id == wanted.id else None
        copy, reason = self._copies.get(read.place), self._reason(read)
        if writes_difference(wanted) and wanted.place not in self._copies:
            return HeldQuery(reason=reason)  # its new generation may have begun before the runner started
        continues = before is not None and before.place == wanted.place and read.id in _places_read(before)
        if continues and (copy is None or copy.begun):
            return HeldQuery(stop=_stop_cause(read.address) if copy else None, reason=reason)
        return HeldQuery(description=before, reason=reason)

    def waiting(self, queries: Mapping[Address, QueryState]) -> Mapping[Address, CollectionRead]:
        """Return the collection that each held query waits for."""
        described = ((a, query.wanted.description, query) for a, query in queries.items() if query.wanted)
        awaited = ((a, self._awaited(wanted, query.memory.accepted)) for a, wanted, query in described)
        return {address: read for address, read in awaited if read is not None}

    def to_measure(
        self, waiting: Mapping[Address, CollectionRead], queries: Mapping[Address, QueryState]
    ) -> dict[Place, Description]:
        """Return the queries whose first copies are needed, and that aren't known to be complete.

        Also the sinks that wait: a generation that has begun to write doesn't wait any more.
        """
        self._beside.follow(queries)
        needed = {query.place: query for read in waiting.values() for query in self._incomplete(read)}
        needed |= {former.place: former for former in self._beside.former.values()}
        wanted = (query.wanted.description for address in waiting if (query := queries[address]).wanted)
        return needed | {query.place: query for query in wanted if writes_difference(query)}

    def poll(self, copies: Mapping[Place, FirstCopy], queries: Mapping[Address, QueryState]) -> bool:
        """Take the newest measurements. Return whether a query may now start."""
        self._copies = copies
        before = len(self._complete)
        for place, query in self.to_measure(self.waiting(queries), queries).items():
            copy, run = copies.get(place), _run_of(query, queries)
            is_read = _has_caught_up(query, run) or (copy is not None and self._is_complete(query, copy))
            if is_read and self._beside.has_passed_former(query, copies, run):
                self._complete.add(place)
        released = len(self._complete) > before
        wanted = ((query.wanted.description, query) for query in queries.values() if query.wanted)
        if not any(self._new_tables(description, query.memory.accepted) for description, query in wanted):
            self._complete.clear()  # a later query looks again
            self._view_ends.clear()
        return released

    def _awaited(self, wanted: Description, accepted: Description | None) -> CollectionRead | None:
        """Return the first collection that the query needs and whose first copy isn't complete."""
        new = self._new_tables(wanted, accepted)
        if is_replaced_beside(wanted, accepted):
            return next((read for read in new if not self._may_serve(read)), None)
        if wanted.place in self._released:
            return None
        return next((read for read in new if read.place not in self._released), None)

    def _may_serve(self, read: CollectionRead) -> bool:
        """Whether a generation that runs beside the one in service may come into service."""
        resource = self._state.resources.get(read.address)
        return read.place in self._released and not (resource and resource.waits_for_cut_over)

    def _new_tables(self, wanted: Description, accepted: Description | None) -> list[CollectionRead]:
        """Return the collections that the query needs and its accepted description hasn't read."""
        if is_replaced_beside(wanted, accepted):
            return [collection_of(query) for query in self._beside.together(wanted)]
        return _new_tables(wanted, accepted)

    def _reason(self, read: CollectionRead) -> str:
        """Describe which first copy a query waits for, and how far it is."""
        query = next(self._incomplete(read), None)
        through = "" if query is None or query.place == read.place else f", which needs {query.address} first"
        copy = self._copies.get(query.place if query is not None else read.place)
        return f"waits for the first copy of {read.address}{through}{f': {copy.progress()}' if copy else ''}"

    def _beside_reason(self, wanted: Description, read: CollectionRead) -> str:
        """Describe how far the new generation is that runs beside the one in service."""
        if read.place != wanted.place:
            return f"waits to be replaced together with {read.address}"
        if read.place in self._released:
            return f"generation {wanted.generation} waits for `mzplan cut-over {wanted.address}`"
        copy = self._copies.get(read.place)
        return f"generation {wanted.generation} runs beside it{f': {copy.progress()}' if copy else ''}"

    def _is_complete(self, query: Description, copy: FirstCopy) -> bool:
        """Whether a first copy is complete. A sink has no copy: it must have begun to write."""
        if query.address.writes_target:
            return copy.begun
        if not query.reads:
            is_empty = copy.begun and not copy.has_steps and self._has_started(query.place)
            return is_empty or copy.is_complete()
        if not copy.begun or not self._has_started(query.place):
            return False
        return copy.is_complete(self._view_ends.setdefault(query.place, copy.ends))

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


def _run_of(query: Description, queries: Mapping[Address, QueryState]) -> QueryReport | None:
    """Return the run of a generation, in service or beside; None if it doesn't run here."""
    addresses = (query.address, query.address.beside(query.generation))
    runs = (queries[address].run for address in addresses if address in queries)
    return next((run for run in runs if run is not None and run.name.generation == query.generation), None)


def _has_caught_up(query: Description, run: QueryReport | None) -> bool:
    """Whether a source that runs here has read all that its upstream has."""
    return not query.reads and run is not None and run.triggered and run.lag == 0


def _tables_of(query: Description) -> Iterator[CollectionRead]:
    """Yield the collections that a query needs as a whole.

    A view needs those that it reads as tables, and those whose changes it follows by key.
    """
    if writes_difference(query):
        yield from query.reads.values()
    if query.address.writes_collection:
        yield from query.snapshots.values()
        yield from (read for read in query.reads.values() if keys_of(read.type, read.body))


def _new_tables(wanted: Description, accepted: Description | None) -> list[CollectionRead]:
    """Return the collections that the query needs and its accepted description hasn't read."""
    former = _places_read(accepted) if accepted is not None and accepted.id == wanted.id else {}
    if writes_difference(wanted) and accepted is not None and accepted.place == wanted.place:
        return []  # its first step is done
    return [read for read in _tables_of(wanted) if former.get(read.id) != read.place]


def _places_read(description: Description) -> dict[str, Place]:
    return {read.id: read.place for read in description.inputs.values()}


def _stop_cause(collection: Address) -> Cause:
    return Cause(cause="change", detail=f"it waits for the first copy of {collection}")
