"""Background checks of connections, upstreams and backlogs. They never stop a query."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Future
from typing import Generic, TypeVar

from mzplan.controller.jobs import Jobs
from mzplan.controller.observations import Fault
from mzplan.controller.round_robin import RoundRobin
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError, ProblemKind
from mzplan.model.observed import JobKind
from mzplan.schema.description import Description, InlinedConnection, references_of_connections

K = TypeVar("K", bound=Hashable)
D = TypeVar("D")
R = TypeVar("R")
log = logging.getLogger("mzplan.runner")

BUDGET = 0.2  # seconds during which a job may ask further questions
REST = 0.8  # seconds without a new job after a job that had to leave questions unasked
CONNECTION_INTERVAL = 2.0  # seconds; a refused check takes up to two, so a fault shows within five
UPSTREAM_INTERVAL = 60.0  # seconds between two checks of a query's upstream
SINK_CHECKS = 5  # a sink's target is part of every fifth check, because the sink notices most changes itself
MEASURE_EVERY = 10.0  # seconds between two measurements of a backlog that the run doesn't report
COPY_EVERY = 1.0  # seconds between two measurements of a first copy that a view waits for
FRESH_EVERY = 60.0  # seconds between two measurements of a backlog that the run reports
_STORAGE: frozenset[ProblemKind] = frozenset({"checkpoint-missing", "collection-missing", "steps-missing"})
# A replaced upstream or target; missing columns, offsets or steps in it; a missing checkpoint or collection.
CHANGE_KINDS = _STORAGE | {"another-upstream", "target-behind", "offsets-gone", "target-restored"}


class Sampler(Generic[K, D, R]):
    """Asks the same question about many subjects, within a bounded share of the time.

    `answers` has the newest answer by key. Jobs of a kind ask the questions, the longest waiting first.
    Each job may ask for BUDGET seconds. A question that raises an exception has no answer.
    """

    def __init__(self, ask: Callable[[D], R], jobs: Jobs, kind: JobKind, clock: Callable[[], float]):
        self._ask, self._jobs, self._kind, self._clock = ask, jobs, kind, clock
        self._lock = threading.Lock()
        self._asked: dict[K, float] = {}
        self._due: deque[tuple[K, D]] = deque()
        self._in_progress: set[K] = set()
        self._running_jobs: list[Future[None]] = []
        self._resume_at = float("-inf")
        self.answers: dict[K, R] = {}

    def poll(self, wanted: Mapping[K, D], every: Callable[[K], float]) -> None:
        """Ask about each wanted key whose last question is at least `every(key)` seconds old.

        Forgets keys that aren't wanted.
        """
        now = self._clock()
        self._running_jobs = [future for future in self._running_jobs if not future.done()]
        with self._lock:
            for unwanted in {*self._asked, *self.answers} - wanted.keys():
                self._asked.pop(unwanted, None)
                self.answers.pop(unwanted, None)
            free = self._jobs.budget(self._kind) - len(self._running_jobs)
            if free <= 0 or time.monotonic() < self._resume_at:
                return
            last = self._asked
            due = [key for key in wanted if key not in last or now - last[key] >= every(key)]
            due.sort(key=lambda key: last.get(key, float("-inf")))
            self._due = deque((key, wanted[key]) for key in due if key not in self._in_progress)
            free = min(free, len(self._due))
        self._running_jobs += [self._jobs.submit(self._kind, "", self._ask_due, now) for _ in range(free)]

    def forget(self, key: K) -> None:
        """Forget the answer for a key, even one that is still under way, so that the next poll asks again."""
        with self._lock:
            self._asked.pop(key, None)
            self.answers.pop(key, None)

    def _ask_due(self, now: float) -> None:
        until = time.monotonic() + BUDGET
        while time.monotonic() < until:
            with self._lock:
                if not self._due:
                    return
                key, subject = self._due.popleft()
                self._asked[key] = now
                self._in_progress.add(key)
            self._jobs.set_key(key)
            try:
                answer = self._ask(subject)
            except Exception as problem:  # a defect of a connector must not end the runner
                log.warning("%s: the check failed: %s", key, type(problem).__name__)
                with self._lock:
                    self.answers.pop(key, None)
            else:
                with self._lock:
                    if key in self._asked:
                        self.answers[key] = answer
            finally:
                with self._lock:
                    self._in_progress.discard(key)
        with self._lock:
            if self._due:
                self._resume_at = time.monotonic() + REST


class ConnectionWatch:
    """Checks the queries' connections every few seconds, to find faults before queries fail.

    A connection is checked once, however many queries use it.
    """

    def __init__(
        self,
        check: Callable[[InlinedConnection], tuple[Diagnostic, ...]],
        jobs: Jobs,
        clock: Callable[[], float],
    ):
        self._sampler: Sampler[Address, InlinedConnection, tuple[Diagnostic, ...]] = Sampler(
            check, jobs, "connection", clock
        )
        self._uses: dict[Address, tuple[Description, tuple[InlinedConnection, ...]]] = {}
        self._faults: dict[Address, Fault] = {}
        # By address: the connection as it was checked, and the digests of its secret values.
        self._checked: dict[Address, tuple[InlinedConnection, dict[str, str | None]]] = {}

    def poll(
        self, queries: Mapping[Address, Description], digests: Mapping[str, str]
    ) -> dict[Address, Address]:
        """Check the connections that are due, and update the faults from the results.

        Returns, by query, a connection that answers again. `digests` are of the secret values that queries
        run with, by reference. Results for other values or for a former description are discarded.
        """
        for unwanted in self._uses.keys() - queries.keys():
            del self._uses[unwanted]
        for address, description in queries.items():  # cached, because this is slow for a thousand queries
            if address not in self._uses or self._uses[address][0] is not description:
                self._uses[address] = (description, tuple(_connections(description.connections)))
        wanted = {connection.address: connection for _, used in self._uses.values() for connection in used}
        self._forget_outdated(wanted, digests)
        self._sampler.poll(wanted, lambda _: CONNECTION_INTERVAL)
        now = round(time.time(), 1)
        faults = {}
        for address, diagnostics in list(self._sampler.answers.items()):
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
            for a, (_, used) in self._uses.items()
            for connection in used
            if connection.address in healed
        }

    def _forget_outdated(
        self, wanted: Mapping[Address, InlinedConnection], digests: Mapping[str, str]
    ) -> None:
        for unwanted in self._checked.keys() - wanted.keys():
            del self._checked[unwanted]
        for address, connection in wanted.items():
            before = self._checked.get(address)
            is_known = before is not None and before[0] is connection
            references = before[1] if before and is_known else references_of_connections([connection])
            now = (connection, {reference: digests.get(reference) for reference in references})
            if before is not None and before != now:
                self._sampler.forget(address)
            self._checked[address] = now

    def fault(self, query: Address) -> Fault | None:
        """Return the innermost fault of a query's connections: a broken tunnel hides its servers."""
        _, used = self._uses.get(query, (None, ()))
        return next(
            (self._faults[connection.address] for connection in used if connection.address in self._faults),
            None,
        )


def _connections(used: Mapping[str, InlinedConnection]) -> Iterator[InlinedConnection]:
    """Yield the connections at any depth, each after the connections that it needs."""
    for _, connection in sorted(used.items()):
        yield from _connections(connection.connections)
        yield connection


class UpstreamWatch:
    """Finds running queries that could no longer resume. `problems` has the problem of each.

    It checks the upstream of a source, the target of a sink, and the checkpoint and collection of each query.
    A running query doesn't notice a topic that is deleted and created again, a replaced cluster, or a removed
    folder. One query is checked at a time, each about once a minute.
    """

    def __init__(
        self,
        inspect: Callable[[Description, bool], tuple[Diagnostic, ...]],
        jobs: Jobs,
        clock: Callable[[], float],
        every: float = UPSTREAM_INTERVAL,
    ):
        self._inspect = inspect
        self.schedule: RoundRobin[Address, tuple[Diagnostic, ...]] = RoundRobin(
            jobs, "upstream", clock, every
        )
        self._checks: dict[Address, int] = {}
        self.problems: dict[Address, Diagnostic] = {}

    def poll(self, running: Mapping[Address, Description]) -> None:
        """Process the last result, and check the query whose last check is the oldest."""
        for unwanted in self._checks.keys() - running.keys():
            del self._checks[unwanted]
            self.problems.pop(unwanted, None)
        for address in running.keys() - self._checks.keys():
            self._checks[address] = 0
            self.problems.pop(address, None)
        if (ended := self.schedule.take_result()) is not None:
            self._record_result(*ended)
        if (due := self.schedule.due(running)) is not None:
            self._checks[due] += 1
            self.schedule.start(due, due, self._inspect, running[due], self._includes_endpoint(due))

    def _includes_endpoint(self, address: Address) -> bool:
        return address.writes_collection or self._checks[address] % SINK_CHECKS == 0

    def _record_result(self, address: Address, check: Future[tuple[Diagnostic, ...]]) -> None:
        try:
            diagnostics = check.result()
        except MzplanError as problem:
            diagnostics = problem.diagnostics
        except Exception as problem:  # a defect of a connector must not end the runner
            log.warning("%s: the check failed: %s", address, type(problem).__name__)
            return
        if address not in self._checks:
            return
        # If the query sets on_upstream_change, the check only warns of the effect of a restart.
        changes = (d for d in diagnostics if d.kind in CHANGE_KINDS and d.severity != "warning")
        change = next(changes, None)
        if change is not None and address not in self.problems:
            log.warning("%s: [%s] %s %s", address, change.code, change.summary, change.detail)
        if change is not None:
            self.problems[address] = change
        elif not any(d.severity == "error" for d in diagnostics):
            before = self.problems.get(address)
            if self._includes_endpoint(address) or (before is not None and before.kind in _STORAGE):
                self.problems.pop(address, None)
