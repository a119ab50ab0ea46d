"""Writes the Status of a runner's instance when it changes, and samples of the last hour."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from mzplan.controller.core import Controller
from mzplan.controller.executor import Measurement
from mzplan.controller.jobs import Recurring
from mzplan.controller.observations import InstanceOverview, QueryState, differs, is_fresh, observe, row_delay
from mzplan.controller.watches import (
    COPY_EVERY,
    FRESH_EVERY,
    MEASURE_EVERY,
    ConnectionWatch,
    UpstreamWatch,
)
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.address import Address, Place
from mzplan.model.diagnostics import MzplanError
from mzplan.model.losses import FirstCopy
from mzplan.model.observed import (
    SAMPLE_INTERVAL,
    CanaryVerdict,
    Lease,
    Observation,
    Recent,
    Status,
    with_samples,
)
from mzplan.runner.gates import Gates
from mzplan.schema.description import Description

log = logging.getLogger("mzplan.runner")

T = TypeVar("T")
STATUS_INTERVAL = 2.0  # seconds between reports in which only rates, lag and jobs have changed
JOB_AGE = 2.0  # seconds after which the Status shows a background job


class ProblemLog:
    """Logs a problem when it begins or changes, instead of in each round."""

    def __init__(self) -> None:
        self._problems: dict[str, str | None] = {}

    def note(self, subject: str, how: str, problem: str | None) -> None:
        """Log the problem if it is new. None means that the problem is over."""
        if problem not in (None, self._problems.get(subject)):
            log.warning("%s %s: %s", subject, how, problem)
        self._problems[subject] = problem

    def attempt(self, subject: str, action: Callable[[], T], default: T) -> T:
        """Return the result of `action`. If it fails, log the problem and return `default`."""
        try:
            answer, problem = action(), None
        except MzplanError as failed:
            answer, problem = default, str(failed)
        except Exception as defect:
            answer, problem = default, f"{type(defect).__name__}: {defect}"
        self.note(subject, "can't be read for now", problem)
        return answer


class Watches:
    """Watches the upstreams, connections, backlogs and first copies of a controller's queries."""

    def __init__(self, controller: Controller):
        jobs, clock = controller.jobs, controller.clock
        self._executor = controller.executor
        self._retry_reconnected = controller.retry_reconnected
        self.upstreams = UpstreamWatch(controller.inspect, jobs, clock)
        self.connections = ConnectionWatch(controller.check_connection, jobs, clock)
        self.backlogs: Recurring[Address, Description, Measurement] = Recurring(
            jobs, "lag", controller.measure, clock
        )
        self.copies: Recurring[Place, Description, FirstCopy] = Recurring(
            jobs, "copy", controller.executor.first_copy, clock
        )
        self._run_ids: dict[Address, str] = {}

    def poll(self, overview: InstanceOverview, copied: Mapping[Place, Description]) -> None:
        """Collect finished checks, and start those that are due. `copied`: the first copies to measure."""
        queries = overview.queries
        wanted = {a: (query, query.wanted) for a, query in queries.items() if query.wanted is not None}
        self.upstreams.poll({a: d for a, query in queries.items() if (d := query.running_query) is not None})
        if not self._executor.is_open():
            return  # don't slow down Spark's start
        now = time.time()
        fresh = {a for a, (query, _) in wanted.items() if is_fresh(query.run, now)}
        used = {a: want.description for a, (_, want) in wanted.items() if not want.paused}
        self.copies.poll(copied, lambda place: COPY_EVERY)
        self._retry_reconnected(self.connections.poll(used, overview.secrets))
        self._forget_outdated(overview)
        self.backlogs.poll(
            {a: want.description for a, (_, want) in wanted.items()},
            lambda address: FRESH_EVERY if address in fresh else MEASURE_EVERY,
        )

    def _forget_outdated(self, overview: InstanceOverview) -> None:
        """Forget backlogs that were measured before a new run: they may have grown during an outage."""
        runs = {a: query.run.run_id for a, query in overview.queries.items() if query.run is not None}
        for address in runs.keys() & self._run_ids.keys():
            if runs[address] != self._run_ids[address]:
                self.backlogs.forget(address)
        self._run_ids = runs

    def add_to(self, query: QueryState, address: Address) -> QueryState:
        """Return the query's state with the results of the three watches."""
        return replace(
            query,
            upstream_problem=self.upstreams.problems.get(address),
            measurement=self.backlogs.results.get(address),
            fault=self.connections.fault(address),
        )


class StatusWriter:
    """Builds a Status from the overview of each round, and writes it."""

    def __init__(
        self,
        controller: Controller,
        lease: Lease,
        gates: Gates,
        watches: Watches,
        problems: ProblemLog,
        warehouse_place: str = "",
    ):
        self._warehouse_place = warehouse_place
        self._store, self._executor, self._clock = controller.store, controller.executor, controller.clock
        self._jobs = controller.jobs
        self._instance, self._epoch = lease.instance, lease.epoch
        self._gates = gates
        self._watches = watches
        self._problems = problems
        self.observed: Status | None = None  # the newest, written or not
        self.observed_at = self._clock()
        self._started_at = time.time()  # since the epoch; the engine starts to open at this time
        self._opened_in: float | None = None
        self._written: Status | None = None
        self._written_at = float("-inf")
        self._counted_runs: frozenset[str] = frozenset()  # runs whose row count was written
        self._retry_times: dict[Address, tuple[float, float]] = {}  # by the clock, and since the epoch
        self._is_ended = False
        self._recorded_at = self._clock()
        self._samples: Recent | None = None

    def report(
        self,
        overview: InstanceOverview,
        serial: int,
        secret_values_in_use: int,
        decided: Mapping[Address, CanaryVerdict] | None = None,
        *,
        is_store_away: bool = False,
    ) -> None:
        """Write the Status if it has changed, unless the store is away.

        `decided`: verdicts to write before the runner acts on them.
        """
        status = self._status(overview, serial, secret_values_in_use)
        if decided is not None:
            status = replace(status, canaries=decided)
        now = self._clock()
        self.observed, self.observed_at = status, now
        if is_store_away:
            return
        due = now - self._written_at >= STATUS_INTERVAL
        observations = status.observations.values()
        # Commands wait for the first row count of a run. Later counts are reported with the rates.
        running = [o for o in observations if o.condition == "running"]
        counted = frozenset(o.run_id for o in running if o.run_id and o.run_rows is not None)
        first = not counted <= self._counted_runs
        if self._written is not None and not first and not differs(self._written, status, with_rates=due):
            return
        failpoint(Failpoint.RUNNER_BEFORE_STATUS)
        self._store.write_status(replace(status, heartbeat=time.time()), durable=decided is not None)
        self._written, self._written_at = status, now
        self._counted_runs = counted | (self._counted_runs & {o.run_id for o in observations if o.run_id})

    def write_end(self, reason: str) -> None:
        """Write why the runner exits into its last Status. Do nothing on a second call."""
        if self._is_ended:
            return
        self._is_ended = True
        last = self._written or self._store.read_status(self._instance)
        last = last or Status(instance=self._instance, epoch=self._epoch, heartbeat=0.0, serial=-1)
        status = replace(last, epoch=self._epoch, heartbeat=time.time(), ended=reason)
        self._problems.attempt("the last status", lambda: self._store.write_status(status), None)

    def write_caught_up(self) -> None:
        """Write that this runner ends because its queries have caught up."""
        if self.observed is not None:
            now = time.time()
            status = replace(self.observed, heartbeat=now, caught_up_at=now)
            self._written = status
            self._problems.attempt("the last status", lambda: self._store.write_status(status), None)

    def record(self) -> None:
        """Write a sample of each query every SAMPLE_INTERVAL seconds. The samples are only for people."""
        now = self._clock()
        if self.observed is None or now - self._recorded_at < SAMPLE_INTERVAL:
            return
        self._recorded_at = now
        if self._samples is None:
            none: Recent = {}
            self._samples = self._problems.attempt(
                "earlier samples", lambda: self._store.read_recent(self._instance), none
            )
        self._samples = recent = with_samples(self._samples, self.observed.observations, time.time())
        self._problems.attempt(
            "the samples of the last hour", lambda: self._store.write_recent(self._instance, recent), None
        )

    def _status(self, overview: InstanceOverview, serial: int, secret_values_in_use: int) -> Status:
        observations = {a: self._observation(a, query) for a, query in overview.queries.items()}
        for written in overview.maintained:
            if written not in observations and self._gates.handover.moved_away(written):
                # The query has ended here, but its collection or target is still being maintained. Its next
                # runner waits for the end of that work.
                observations[written] = self._observation(written, QueryState())
        opens = any(query.decision is None for query in overview.queries.values())
        last = self._written.serial if self._written is not None else 0
        return Status(
            instance=self._instance,
            epoch=self._epoch,
            heartbeat=0.0,
            serial=min(serial, last) if opens else serial,
            observations=observations,
            secrets=overview.secrets,
            rotated=overview.rotated,
            canaries=self._gates.canaries.verdicts,
            foreign=overview.foreign,
            secret_values_in_use=secret_values_in_use,
            opening_since=None if self._executor.is_open() else self._started_at,
            opened_in=self._opening_seconds(),
            versions=self._executor.versions(),
            replaced=self._executor.replacement() or "",
            cores=overview.cores,
            slowest=_slowest(overview),
            jobs=self._jobs.reports(JOB_AGE),
            warehouse=self._warehouse_place,
        )

    def _opening_seconds(self) -> float | None:
        """Return how many seconds the engine took to open; None if this runner didn't report its start."""
        before = self._written
        if self._opened_in is None and before is not None and before.opening_since is not None:
            seconds = max(0.1, round(time.time() - self._started_at, 1))  # a Status doesn't store 0
            self._opened_in = seconds if self._executor.is_open() else None
        return self._opened_in

    def _observation(self, address: Address, query: QueryState) -> Observation:
        known = replace(
            query,
            hold_reason=self._gates.hold_reason(query),
            canary_verdict=self._gates.canaries.failed_verdict(address),
            retry_at=self._retry_at(address, query),
        )
        return observe(address, self._watches.add_to(known, address))

    def _retry_at(self, address: Address, query: QueryState) -> float | None:
        """Return when a failed query is retried, in seconds since the epoch; None without a planned retry.

        The value stays the same while the query waits.
        """
        due = query.memory.retry_at
        runs = query.decision is not None and query.condition == "running"
        if query.memory.last_failure is None or math.isinf(due) or runs:
            self._retry_times.pop(address, None)
            return None
        if self._retry_times.get(address, (None,))[0] != due:
            self._retry_times[address] = (due, round(time.time() + due - self._clock(), 1))
        return self._retry_times[address][1]


def _slowest(overview: InstanceOverview) -> float | None:
    """Return the seconds for which the slowest query keeps its rows waiting; None if cores suffice."""
    if not overview.cores:
        return None
    now = time.time()
    return float(round(max((row_delay(query, now) for query in overview.queries.values()), default=0.0)))
