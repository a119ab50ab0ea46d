"""Looking every few seconds whether the servers of the queries answer: which connection is at fault, long
before a query fails of it. A connection is asked once, however many queries use it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor as Pool
from dataclasses import dataclass

from mzplan.controller.sampling import Sampler
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.schema.description import Description, InlinedConnection

log = logging.getLogger("mzplan.runner")

EVERY = 4.0  # seconds; an answer takes five at most, so that a fault is told within ten
JOBS = 2  # so that a server that is silent does not hold up the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A connection, and what stands in its way."""

    connection: Address
    problem: Diagnostic


class ConnectionWatch:
    """`fault` says which connection of a query does not answer, or refuses."""

    def __init__(
        self,
        reach: Callable[[InlinedConnection], tuple[Diagnostic, ...]],
        pool: Pool,
        clock: Callable[[], float],
    ):
        self._sampler: Sampler[Address, InlinedConnection, tuple[Diagnostic, ...]] = Sampler(
            reach, pool, clock, jobs=JOBS
        )
        self._used: dict[Address, tuple[Description, tuple[InlinedConnection, ...]]] = {}
        self._faults: dict[Address, Diagnostic] = {}

    def look(self, queries: Mapping[Address, Description]) -> None:
        """Ask the connections of these queries that are due, and take in what was found."""
        for gone in self._used.keys() - queries.keys():
            del self._used[gone]
        for address, description in queries.items():  # once for each description: a thousand take their time
            if address not in self._used or self._used[address][0] is not description:
                self._used[address] = (description, tuple(_connections(description.connections)))
        wanted = {one.address: one for _, used in self._used.values() for one in used}
        self._sampler.look(wanted, lambda _: EVERY)
        found = {a: p for a, ds in list(self._sampler.found.items()) if (p := _first_error(ds)) is not None}
        for address in found.keys() - self._faults.keys():
            log.warning(
                "%s: [%s] %s. %s",
                address,
                found[address].code,
                found[address].summary.rstrip("."),
                found[address].detail,
            )
        for address in self._faults.keys() - found.keys():
            if address in wanted:
                log.info("%s answers again", address)
        self._faults = found

    def fault(self, query: Address) -> Fault | None:
        """The innermost connection at fault: behind a tunnel that is down, nothing answers."""
        _, used = self._used.get(query, (None, ()))
        return next(
            (
                Fault(connection=one.address, problem=self._faults[one.address])
                for one in used
                if one.address in self._faults
            ),
            None,
        )


def _connections(used: Mapping[str, InlinedConnection]) -> Iterator[InlinedConnection]:
    """All that are used, at any depth: what a connection needs before itself."""
    for _, one in sorted(used.items()):
        yield from _connections(one.connections)
        yield one


def _first_error(found: tuple[Diagnostic, ...]) -> Diagnostic | None:
    return next((one for one in found if one.severity == "error"), None)
