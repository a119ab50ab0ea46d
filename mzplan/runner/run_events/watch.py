"""Finds the start, progress and end of runs in the engine's reports, and queues events for them.

A thread of its own sends the events from the queue, so no round waits for the server.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from mzplan.controller.executor import QueryReport
from mzplan.controller.observations import InstanceOverview
from mzplan.host.extras import missing_extras_reported
from mzplan.model.address import Address
from mzplan.model.cause import Cause
from mzplan.model.history import GitRevision
from mzplan.schema.description import Description
from mzplan.secrets.resolved import shortened

log = logging.getLogger("mzplan.runner")

MAX_QUEUED = 1000  # events in the queue; beyond that, the oldest are dropped
FIRST_WAIT, LAST_WAIT = 1.0, 60.0  # seconds between attempts to send: the first and the longest backoff
_MAX_ERROR = 300  # characters of an error that are logged
Kind = Literal["START", "RUNNING", "COMPLETE", "FAIL", "ABORT"]
_MAX_DESCRIPTIONS = 4  # per address: a run may start after the next description is committed


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """The start, progress or end of one run."""

    kind: Kind
    at: float
    """Seconds since the epoch."""
    run_id: str
    """Spark's id of the run."""
    description: Description
    rows: int | None = None
    """The rows that the run has written so far, if known."""
    violations: Mapping[str, int] = field(default_factory=dict)
    """How many rows have violated each expectation since the run's last event, by name."""
    error: str | None = None
    """Why the run failed."""
    cause: Cause | None = None
    """Why the run was started."""
    revision: GitRevision | None = None
    """The git commit of the newest serial."""


@dataclass(slots=True)
class _Run:
    description: Description
    reported_at: float
    cause: Cause | None = None
    rows: int | None = None
    violations: Mapping[str, int] = field(default_factory=dict)  # of all steps
    reported_violations: Mapping[str, int] = field(default_factory=dict)  # with the last event
    is_over: bool = False

    def new_violations(self) -> dict[str, int]:
        """Return the violations since the last event, by expectation."""
        before = self.reported_violations
        return {name: rows - before.get(name, 0) for name, rows in self.violations.items()}


class RunWatch:
    """Queues an event when a run starts or ends, and every `interval` seconds while it continues.

    Use it from one thread. `clock` returns seconds since the epoch.
    """

    def __init__(
        self, put: Callable[[RunEvent], None], interval: float, clock: Callable[[], float] = time.time
    ):
        self.revision: GitRevision | None = None
        self._put = put
        self._interval = interval
        self._clock = clock
        self._runs: dict[str, _Run] = {}
        self._descriptions: dict[Address, dict[tuple[int, str], Description]] = {}

    def observe(self, overview: InstanceOverview) -> None:
        """Queue the events of a round. Call after each round.

        A run that is no longer in the reports was stopped, so its end is COMPLETE. A run that ended by itself
        is still in the reports.
        """
        self._store_descriptions(overview)
        reports = {report.run_id: report for report in overview.reports if report.run_id}
        for run_id in [run_id for run_id in self._runs if run_id not in reports]:
            self._end(run_id, "COMPLETE")
            del self._runs[run_id]
        for run_id, report in reports.items():
            if run_id in self._runs or self._begin(report):
                self._update(run_id, report)

    def close(self, kind: Kind) -> None:
        """Queue an event of this kind for each run that hasn't ended, because every query was stopped.

        `kind`: COMPLETE if the runner stops; ABORT if another runner leads.
        """
        for run_id in self._runs:
            self._end(run_id, kind)
        self._runs.clear()

    def _begin(self, report: QueryReport) -> bool:
        run_id, name = report.run_id, report.name
        description = self._descriptions.get(name.address, {}).get((name.generation, name.digest))
        if description is None:  # no known description has this run's digest
            return False
        run = _Run(description, self._clock(), report.started_because)
        run.violations = run.reported_violations = _rows_of(report)
        self._runs[run_id] = run
        self._event("START", run_id)
        return True

    def _update(self, run_id: str, report: QueryReport) -> None:
        run = self._runs[run_id]
        run.rows = report.run_rows if report.run_rows is not None else run.rows
        run.violations = _rows_of(report)
        if not report.active:
            self._end(run_id, "COMPLETE" if report.error is None else "FAIL", report.error)
        elif self._clock() - run.reported_at >= self._interval:
            run.reported_at = self._clock()
            self._event("RUNNING", run_id)

    def _end(self, run_id: str, kind: Kind, error: str | None = None) -> None:
        run = self._runs[run_id]
        if not run.is_over:
            run.is_over = True
            self._event(kind, run_id, error)

    def _event(self, kind: Kind, run_id: str, error: str | None = None) -> None:
        run = self._runs[run_id]
        self._put(
            RunEvent(
                kind=kind,
                at=self._clock(),
                run_id=run_id,
                description=run.description,
                rows=run.rows,
                violations=run.new_violations(),
                error=error,
                cause=run.cause,
                revision=self.revision,
            )
        )
        run.reported_violations = run.violations

    def _store_descriptions(self, overview: InstanceOverview) -> None:
        """Remember the descriptions that runs may have been started with."""
        for address in self._descriptions.keys() - overview.queries.keys():
            del self._descriptions[address]
        for address, state in overview.queries.items():
            known = self._descriptions.setdefault(address, {})
            for description in (state.memory.accepted, state.wanted.description if state.wanted else None):
                if (
                    description is not None
                    and known.get(key := (description.generation, description.digest)) is not description
                ):
                    known.pop(key, None)
                    known[key] = description
                    if len(known) > _MAX_DESCRIPTIONS:
                        del known[next(iter(known))]


def _rows_of(report: QueryReport) -> dict[str, int]:
    return {name: counted.rows for name, counted in report.violations.items()}


class RefusedEventError(Exception):
    """The server will never accept this event, so a retry can't help."""


class EventSender:
    """Sends events one after the other, on its own thread, until it is closed.

    `send`: raises RefusedEventError to drop the event, and any other exception to retry it.
    `server`: the server's name in messages.
    """

    def __init__(self, send: Callable[[RunEvent], None], server: str, max_queued: int = MAX_QUEUED):
        self.dropped = 0
        self._send = send
        self._server = server
        self._max_queued = max_queued
        self._queue: deque[RunEvent] = deque()
        self._change = threading.Condition()
        self._closing = False
        self._problem = ""
        self._thread = threading.Thread(target=self._run, name="run events", daemon=True)
        self._thread.start()

    def put(self, event: RunEvent) -> None:
        """Queue an event, without waiting. Any thread may call this."""
        with self._change:
            if len(self._queue) >= self._max_queued:
                self._queue.popleft()
                self._drop(f"the queue has {self._max_queued} events, so the oldest is dropped")
            self._queue.append(event)
            self._change.notify()

    def close(self, seconds: float) -> None:
        """Send queued events for at most the given seconds. The remaining events are lost."""
        with self._change:
            self._closing = True
            self._change.notify()
        self._thread.join(seconds)

    def _run(self) -> None:
        while (event := self._next()) is not None:
            wait = FIRST_WAIT
            while not self._deliver(event):
                with self._change:
                    if self._closing or self._change.wait_for(lambda: self._closing, wait):
                        return  # stopping a runner must not wait for a server that is down
                wait = min(2 * wait, LAST_WAIT)

    def _next(self) -> RunEvent | None:
        with self._change:
            self._change.wait_for(lambda: bool(self._queue) or self._closing)
            return self._queue.popleft() if self._queue else None

    def _deliver(self, event: RunEvent) -> bool:
        """Send the event. Return False if it must be sent again."""
        try:
            with missing_extras_reported():
                self._send(event)
        except RefusedEventError as problem:
            with self._change:
                self._drop(shortened(str(problem), _MAX_ERROR))
        except Exception as problem:  # no failure here may affect a query
            self._log_problem(shortened(str(problem) or type(problem).__name__, _MAX_ERROR))
            return False
        else:
            self._log_problem("")
        return True

    def _drop(self, reason: str) -> None:
        """Count a dropped event; log only the first. `_log_problem` logs the number later."""
        self.dropped += 1
        if self.dropped == 1:
            log.warning("[MZ178] a run event for %s is dropped: %s. More may follow", self._server, reason)

    def _log_problem(self, problem: str) -> None:
        """Log a problem when it begins, when it changes, and when it is over."""
        if problem and problem != self._problem:
            log.warning(
                "[MZ178] run events can't be sent to %s: %s. Up to %d wait; queries continue",
                self._server,
                problem,
                self._max_queued,
            )
        elif self._problem and not problem:
            log.info("run events are sent to %s again; %d were dropped", self._server, self.dropped)
        self._problem = problem
