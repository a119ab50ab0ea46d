"""What is looked at aside from the rounds, and only reported: whether servers answer, whether running queries
still have what they go on from, and what waits for each query."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Executor as Pool
from concurrent.futures import Future
from typing import Generic, TypeVar

from mzplan.controller.observations import Fault
from mzplan.controller.turns import Turns
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError, ProblemKind
from mzplan.schema.description import Description, InlinedConnection, references_of_connections

K = TypeVar("K", bound=Hashable)
D = TypeVar("D")
R = TypeVar("R")
log = logging.getLogger("mzplan.runner")

BUDGET = 0.2  # seconds of asking that one look may begin, in each of its jobs
REST = 0.8  # seconds without any, after a job that had to leave some: looks may follow each other at once
REACHED_EVERY = 2.0  # seconds; where nothing listens it is known in two, so a fault is reported within five
REACHING = 2  # jobs, so that a server that is silent does not hold up the others
UPSTREAM_EVERY = 60.0  # seconds from one look at a query's upstream to the next
SINKS = 5  # looks at a sink until its target is asked, too: it notices most by itself
MEASURED_EVERY = 10.0  # seconds between two looks at what waits for a query, if its run does not say it
FRESH_EVERY = 60.0  # and if it does
_STORAGE: frozenset[ProblemKind] = frozenset({"checkpoint-missing", "collection-missing", "steps-missing"})
# Another upstream or target; columns, offsets or steps that it no longer has; a checkpoint and a collection
# that are gone.
CHANGED = _STORAGE | {"another-upstream", "target-behind", "offsets-gone", "target-restored"}


class Sampler(Generic[K, D, R]):
    """Asks many things the same question, now and then, for no more than a bounded part of the time. `found`
    has the newest answer of each. Asks on the pool, those first that were asked longest ago; a
    thousand things are asked as often as the budget allows. An answer that raises is none."""

    def __init__(self, ask: Callable[[D], R], pool: Pool, clock: Callable[[], float], *, jobs: int = 1):
        self._ask, self._pool, self._clock, self._jobs = ask, pool, clock, jobs
        self._lock = threading.Lock()
        self._asked: dict[K, float] = {}
        self._due: deque[tuple[K, D]] = deque()
        self._at_work: set[K] = set()
        self._working: list[Future[None]] = []
        self._rests_until = float("-inf")
        self.found: dict[K, R] = {}

    def look(self, wanted: Mapping[K, D], every: Callable[[K], float]) -> None:
        """Have each wanted key asked whose last question is at least `every(key)` seconds ago, and forget
        keys that are not wanted."""
        now = self._clock()
        self._working = [future for future in self._working if not future.done()]
        with self._lock:
            for gone in [key for known in (self._asked, self.found) for key in known if key not in wanted]:
                self._asked.pop(gone, None)
                self.found.pop(gone, None)
            free = self._jobs - len(self._working)
            if free <= 0 or time.monotonic() < self._rests_until:
                return
            last = self._asked
            due = [key for key in wanted if key not in last or now - last[key] >= every(key)]
            due.sort(key=lambda key: last.get(key, float("-inf")))
            self._due = deque((key, wanted[key]) for key in due if key not in self._at_work)
            free = min(free, len(self._due))
        self._working += [self._pool.submit(self._work, now) for _ in range(free)]

    def forget(self, key: K) -> None:
        """Have it asked at once; what was answered, or is about to be, is out of date."""
        with self._lock:
            self._asked.pop(key, None)
            self.found.pop(key, None)

    def _work(self, now: float) -> None:
        until = time.monotonic() + BUDGET
        while time.monotonic() < until:
            with self._lock:
                if not self._due:
                    return
                key, subject = self._due.popleft()
                self._asked[key] = now
                self._at_work.add(key)
            try:
                answer = self._ask(subject)
            except Exception as problem:  # a defect of a connector must not end the runner
                log.warning("%s: it could not be looked at: %s", key, type(problem).__name__)
                with self._lock:
                    self.found.pop(key, None)
            else:
                with self._lock:
                    if key in self._asked:
                        self.found[key] = answer
            finally:
                with self._lock:
                    self._at_work.discard(key)
        with self._lock:
            if self._due:
                self._rests_until = time.monotonic() + REST


class ConnectionWatch:
    """Looks every few seconds whether the servers of the queries answer: which connection is at fault, long
    before a query fails of it. A connection is asked once, however many queries use it."""

    def __init__(
        self,
        reach: Callable[[InlinedConnection], tuple[Diagnostic, ...]],
        pool: Pool,
        clock: Callable[[], float],
    ):
        self._sampler: Sampler[Address, InlinedConnection, tuple[Diagnostic, ...]] = Sampler(
            reach, pool, clock, jobs=REACHING
        )
        self._used: dict[Address, tuple[Description, tuple[InlinedConnection, ...]]] = {}
        self._faults: dict[Address, Fault] = {}
        # What was asked: as it is described, and the digests of the values of its references.
        self._asked: dict[Address, tuple[InlinedConnection, dict[str, str | None]]] = {}

    def look(
        self, queries: Mapping[Address, Description], digests: Mapping[str, str]
    ) -> dict[Address, Address]:
        """Ask the connections of these queries that are due, and take in what was found. Returns the queries
        of which one answers again, each with that one. `digests`: of the secrets' values that queries run
        with, by reference; what was found with other values, or as it was described before, is no fault of
        these."""
        for gone in self._used.keys() - queries.keys():
            del self._used[gone]
        for address, description in queries.items():  # once for each description: a thousand take their time
            if address not in self._used or self._used[address][0] is not description:
                self._used[address] = (description, tuple(_connections(description.connections)))
        wanted = {connection.address: connection for _, used in self._used.values() for connection in used}
        self._forget_what_was_otherwise(wanted, digests)
        self._sampler.look(wanted, lambda _: REACHED_EVERY)
        now = round(time.time(), 1)
        faults = {}
        for address, diagnostics in list(self._sampler.found.items()):
            if (problem := next((d for d in diagnostics if d.severity == "error"), None)) is not None:
                before = self._faults.get(address)
                since = before.since if before is not None else now
                faults[address] = Fault(connection=address, problem=problem, since=since)
        for address in faults.keys() - self._faults.keys():
            problem = faults[address].problem
            log.warning("%s: [%s] %s. %s", address, problem.code, problem.summary.rstrip("."), problem.detail)
        healed = {address for address in self._faults.keys() - faults.keys() if address in wanted}
        for address in healed:
            log.info("%s answers again", address)
        self._faults = faults
        if not healed:
            return {}
        return {
            a: connection.address
            for a, (_, used) in self._used.items()
            for connection in used
            if connection.address in healed
        }

    def _forget_what_was_otherwise(
        self, wanted: Mapping[Address, InlinedConnection], digests: Mapping[str, str]
    ) -> None:
        for gone in self._asked.keys() - wanted.keys():
            del self._asked[gone]
        for address, connection in wanted.items():
            before = self._asked.get(address)
            is_known = before is not None and before[0] is connection
            references = before[1] if before and is_known else references_of_connections([connection])
            now = (connection, {reference: digests.get(reference) for reference in references})
            if before is not None and before != now:
                self._sampler.forget(address)
            self._asked[address] = now

    def fault(self, query: Address) -> Fault | None:
        """The innermost connection at fault: behind a tunnel that is down, nothing answers."""
        _, used = self._used.get(query, (None, ()))
        return next(
            (self._faults[connection.address] for connection in used if connection.address in self._faults),
            None,
        )


def _connections(used: Mapping[str, InlinedConnection]) -> Iterator[InlinedConnection]:
    """All that are used, at any depth: what a connection needs before itself."""
    for _, connection in sorted(used.items()):
        yield from _connections(connection.connections)
        yield connection


class UpstreamWatch:
    """`changed` says which running queries have lost what they go on from, and how: sources the upstream that
    their checkpoints are of, sinks the target that holds their steps, all their checkpoint and collection.

    A topic that is deleted and created again, a cluster that is put in the place of another, or a folder that
    somebody has removed is not noticed by a query that runs. One query at a time is looked at, each about
    once a minute."""

    def __init__(
        self,
        look_at: Callable[[Description, bool], tuple[Diagnostic, ...]],
        pool: Pool,
        clock: Callable[[], float],
        every: float = UPSTREAM_EVERY,
    ):
        self._look_at = look_at
        self.turns: Turns[Address, tuple[Diagnostic, ...]] = Turns(pool, clock, every)
        self._looks: dict[Address, int] = {}
        self.changed: dict[Address, Diagnostic] = {}

    def look(self, running: Mapping[Address, Description]) -> None:
        """Take in what was found, and look at the query that was looked at longest ago."""
        for gone in self._looks.keys() - running.keys():
            del self._looks[gone]
            self.changed.pop(gone, None)
        for address in running.keys() - self._looks.keys():
            self._looks[address] = 0
            self.changed.pop(address, None)
        if (ended := self.turns.ended()) is not None:
            self._take_in(*ended)
        if (due := self.turns.due(running)) is not None:
            self._looks[due] += 1
            self.turns.start(due, self._look_at, running[due], self._is_whole(due))

    def _is_whole(self, address: Address) -> bool:
        return address.writes_collection or self._looks[address] % SINKS == 0

    def _take_in(self, address: Address, check: Future[tuple[Diagnostic, ...]]) -> None:
        try:
            diagnostics = check.result()
        except MzplanError as problem:
            diagnostics = problem.diagnostics
        except Exception as problem:  # a defect of a connector must not end the runner
            log.warning("%s: it could not be looked at: %s", address, type(problem).__name__)
            return
        if address not in self._looks:
            return
        # With on_upstream_change it is a notice: what a restart will do.
        changes = (d for d in diagnostics if d.kind in CHANGED and d.severity != "warning")
        change = next(changes, None)
        if change is not None and address not in self.changed:
            log.warning("%s: [%s] %s %s", address, change.code, change.summary, change.detail)
        if change is not None:
            self.changed[address] = change
        elif not any(d.severity == "error" for d in diagnostics):
            before = self.changed.get(address)
            if self._is_whole(address) or (before is not None and before.kind in _STORAGE):
                self.changed.pop(address, None)
