"""Replaced sources and views whose new generation runs beside the one in service.

The State wants the new generation, and says no more. Which generation serves is a fact of each round: the
former one does until the new one has read what it has read, and so have the new generations of the views that
read it. Then all of them take over at once.

The new generation of a source may read another upstream, whose positions say nothing about those of the
former one. Then it must have read up to the end of its own upstream.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mzplan.controller.executor import QueryReport
from mzplan.controller.observations import QueryState
from mzplan.model.address import Address, Place
from mzplan.model.losses import FirstCopy
from mzplan.model.state import runs_beside
from mzplan.schema.description import CollectionRead, Description


class SideBySide:
    """The replaced queries of a runner. `former`: the description in service of each, by address."""

    def __init__(self) -> None:
        self.former: dict[Address, Description] = {}
        self._new: dict[Address, Description] = {}

    def follow(self, queries: Mapping[Address, QueryState]) -> None:
        """Take the state of all queries."""
        self.former, self._new = {}, {}
        for address, query in queries.items():
            # A paused query doesn't hold back the others.
            wanted = query.wanted.description if query.wanted and not query.wanted.paused else None
            if wanted is not None and is_replaced_beside(wanted, query.memory.accepted):
                assert query.memory.accepted is not None
                self._new[address], self.former[address] = wanted, query.memory.accepted

    def together(self, wanted: Description) -> list[Description]:
        """Return the query and all others that take over with it, because they read each other."""
        found, new = {wanted.address: wanted}, [wanted]
        while new:
            query = new.pop()
            for address, other in self._new.items():
                if address not in found and (_reads(other, query) or _reads(query, other)):
                    found[address] = other
                    new.append(other)
        return list(found.values())

    def has_passed_former(
        self, query: Description, copies: Mapping[Place, FirstCopy], run: QueryReport | None
    ) -> bool:
        """Whether a new generation has read what its former one has, of each part that both read.

        `run`: the run of the new generation; None if it doesn't run.
        """
        former = self.former.get(query.address.resource)
        if former is None or former.id != query.id:
            return True
        if former.place not in copies or query.place not in copies:
            return False
        copy = copies[query.place]
        read, before = _positions(query, copy), _positions(former, copies[former.place])
        shared = read.keys() & before.keys()
        if query.reads or shared:
            return all(read[part] >= before[part] for part in shared)
        if run is None or not run.triggered:
            return False
        return not copy.is_behind if run.lag is None else run.lag == 0


def is_replaced_beside(wanted: Description, accepted: Description | None) -> bool:
    """Whether the accepted description serves while a query's new generation runs beside it."""
    return (
        accepted is not None
        and not wanted.address.is_beside
        and accepted.id == wanted.id
        and accepted.generation < wanted.generation
        and runs_beside(wanted.address, wanted.body)
    )


def collection_of(query: Description) -> CollectionRead:
    """Return the collection that a query writes, as its readers read it."""
    return CollectionRead(
        address=query.address, id=query.id, generation=query.generation, type=query.type, body=query.body
    )


def _reads(reader: Description, query: Description) -> bool:
    return query.place in {read.place for read in reader.inputs.values()}


def _positions(query: Description, copy: FirstCopy) -> Mapping[Any, int]:
    """Return how far a generation has read each part of its inputs, or of its upstream."""
    if not query.reads:
        return copy.positions
    return {read.place: step for read, step in zip(query.reads.values(), copy.read, strict=False)}
