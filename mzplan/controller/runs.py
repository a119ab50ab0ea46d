"""Detects which query runs started and ended, and why.

Adds the cause of its run to each query's report. Queues events about runs for the event log.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from mzplan.controller.decision import Stop, Switch
from mzplan.controller.executor import QueryName, QueryReport
from mzplan.controller.terms import Step
from mzplan.model.address import Address
from mzplan.model.cause import Cause
from mzplan.model.event import Event, EventKind
from mzplan.model.observed import Lease, Status, Versions
from mzplan.model.times import instant_text

MAX_WAITING = 20_000  # queued events; beyond that, the oldest are dropped


class EventQueue:
    """A queue of events for the event log; any thread may add one. `clock`: seconds since the epoch."""

    def __init__(self, clock: Callable[[], float] = time.time):
        self._clock = clock
        self._queue: deque[Event] = deque(maxlen=MAX_WAITING)

    def add(self, kind: EventKind, address: Address | None = None, **more: Any) -> None:
        """Queue an event with the current time. `more`: further fields of the Event."""
        self._queue.append(Event(at=self.now(), kind=kind, address=address, **more))

    def now(self) -> str:
        """Return the current time in the format of events."""
        return instant_text(round(self._clock() * 1000))

    def take(self) -> list[Event]:
        """Return and remove the queued events."""
        events = []
        while self._queue:
            events.append(self._queue.popleft())
        return events


class Runs:
    """The runs of one instance's queries. `last_step`: returns a query's last known step, or -1."""

    def __init__(self, project: str, events: EventQueue, last_step: Callable[[Address], Step]):
        self._project = project
        self._events = events
        self._last_step = last_step
        self._causes: dict[QueryName, Cause] = {}  # of starts that are under way
        self._cause_by_run: dict[str, Cause] = {}
        self._stops: dict[Address, Cause | None] = {}
        self._reports_by_run: dict[str, QueryReport] = {}

    def record_command(self, command: Stop | Switch) -> None:
        """Record the cause of a command that is about to be carried out."""
        self._stops[command.address] = command.cause
        if isinstance(command, Switch):
            name = QueryName.of(self._project, command.description)
            self._causes[name] = replace(command.cause, at=self._events.now())

    def update(self, reports: Sequence[QueryReport], busy: Collection[Address]) -> tuple[QueryReport, ...]:
        """Add the cause of its run to each report of a round. Queue events for started and ended runs."""
        now = {report.run_id: report for report in reports}
        ended, started = self._reports_by_run.keys() - now.keys(), now.keys() - self._reports_by_run.keys()
        for run_id in ended:
            self._note_stopped(self._reports_by_run[run_id])
            self._cause_by_run.pop(run_id, None)
        for run_id in started:
            cause = self._causes.get(now[run_id].name)
            if cause is not None:  # otherwise this controller didn't start it
                self._cause_by_run[run_id] = cause
                self._note("started", now[run_id], cause)
        if started:
            self._causes = {name: c for name, c in self._causes.items() if name.address in busy}
        self._reports_by_run = now
        causes = self._cause_by_run
        return tuple(
            replace(r, started_because=causes[r.run_id]) if r.run_id in causes else r for r in reports
        )

    def _note_stopped(self, run: QueryReport) -> None:
        if run.error is None:  # Queries queues the event of a failed run
            self._note("stopped", run, self._stops.get(run.name.address))

    def _note(self, kind: EventKind, run: QueryReport, cause: Cause | None) -> None:
        address = run.name.address
        step = run.step if run.step >= 0 else self._last_step(address)
        self._events.add(
            kind,
            address,
            run_id=run.run_id,
            generation=run.name.generation,
            step=step if step >= 0 else None,
            cause=cause,
        )


def takeover(former: Lease | None, previous: Status | None, epoch: int, versions: Versions | None) -> Cause:
    """Return the cause for a new runner to start queries that have run before.

    `former`: the former runner's lease. `previous`: the Status that the former runner left.
    """
    before = previous.versions if previous is not None else None
    if before is not None and versions is not None and before != versions:
        return Cause(cause="upgrade", detail=f"its runner was upgraded: {_differences(before, versions)}")
    return Cause(cause="runner", detail=f"its runner started (epoch {epoch}){_former_end(former, previous)}")


def _former_end(former: Lease | None, previous: Status | None) -> str:
    if former is None:
        return ""
    who = f"; the previous runner (epoch {former.epoch}, process {former.pid} on {former.host})"
    if previous is not None and previous.epoch == former.epoch and previous.ended:
        return f"{who} stopped itself: {previous.ended.rstrip('.')}"
    if former.released:
        return f"{who} was stopped"
    return f"{who} didn't release its lease: it was killed, or it stopped because the store was away"


def _differences(before: Versions, now: Versions) -> str:
    pairs = [
        (title, getattr(before, name), getattr(now, name))
        for name, title in (("mzplan", "mzplan"), ("spark", "Spark"), ("delta", "Delta"), ("kafka", "Kafka"))
    ]
    return ", ".join(f"{title} {old} → {new}" for title, old, new in pairs if old != new)
