"""Background checks of connections, upstreams and backlogs. They never stop a query."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping

from mzplan.controller.jobs import Jobs, Recurring
from mzplan.controller.observations import Fault
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError, ProblemKind
from mzplan.schema.description import Description, InlinedConnection, references_of_connections

log = logging.getLogger("mzplan.runner")

CONNECTION_INTERVAL = 2.0  # seconds; a refused check takes up to two, so a fault shows within five
UPSTREAM_INTERVAL = 60.0  # seconds between two checks of a query's upstream
SINK_CHECKS = 5  # a sink's target is part of every fifth check, because the sink notices most changes itself
MEASURE_EVERY = 10.0  # seconds between two measurements of a backlog that the run doesn't report
COPY_EVERY = 1.0  # seconds between two measurements of a first copy that a view waits for
FRESH_EVERY = 60.0  # seconds between two measurements of a backlog that the run reports
_STORAGE: frozenset[ProblemKind] = frozenset({"checkpoint-missing", "collection-missing", "steps-missing"})
# A replaced upstream or target; missing columns, offsets or steps in it; a missing checkpoint or collection.
CHANGE_KINDS = _STORAGE | {"another-upstream", "target-behind", "offsets-gone", "target-restored"}


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
        self._checks: Recurring[Address, InlinedConnection, tuple[Diagnostic, ...]] = Recurring(
            jobs, "connection", check, clock
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
        self._checks.poll(wanted, lambda _: CONNECTION_INTERVAL)
        now = round(time.time(), 1)
        faults = {}
        for address, diagnostics in list(self._checks.results.items()):
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
                self._checks.forget(address)
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
    folder. Each query is checked about once a minute.
    """

    def __init__(
        self,
        inspect: Callable[[Description, bool], tuple[Diagnostic, ...]],
        jobs: Jobs,
        clock: Callable[[], float],
    ):
        self._inspect = inspect
        self._checks: Recurring[Address, tuple[Description, bool], tuple[Diagnostic, ...]] = Recurring(
            jobs, "upstream", self._check, clock, waits_first=True
        )
        self._checked: dict[Address, int] = {}  # how often each query was checked
        self.every = UPSTREAM_INTERVAL
        self.problems: dict[Address, Diagnostic] = {}

    def poll(self, running: Mapping[Address, Description]) -> None:
        """Process the results of checks that have ended, and start those that are due."""
        for unwanted in self._checked.keys() - running.keys():
            del self._checked[unwanted]
            self.problems.pop(unwanted, None)
        for address in running.keys() - self._checked.keys():
            self._checked[address] = 0
            self.problems.pop(address, None)
        wanted = {a: (description, self._includes_endpoint(a)) for a, description in running.items()}
        for address, diagnostics in self._checks.poll(wanted, lambda _: self.every).items():
            if address in running:
                self._record_result(address, diagnostics)

    def _includes_endpoint(self, address: Address) -> bool:
        return address.writes_collection or (self._checked[address] + 1) % SINK_CHECKS == 0

    def _check(self, subject: tuple[Description, bool]) -> tuple[Diagnostic, ...]:
        try:
            return self._inspect(*subject)
        except MzplanError as problem:
            return problem.diagnostics

    def _record_result(self, address: Address, diagnostics: tuple[Diagnostic, ...]) -> None:
        included_endpoint = self._includes_endpoint(address)
        self._checked[address] += 1
        # If the query sets on_upstream_change, the check only warns of the effect of a restart.
        changes = (d for d in diagnostics if d.kind in CHANGE_KINDS and d.severity != "warning")
        change = next(changes, None)
        if change is not None and address not in self.problems:
            log.warning("%s: [%s] %s %s", address, change.code, change.summary, change.detail)
        if change is not None:
            self.problems[address] = change
        elif not any(d.severity == "error" for d in diagnostics):
            before = self.problems.get(address)
            if included_endpoint or (before is not None and before.kind in _STORAGE):
                self.problems.pop(address, None)
