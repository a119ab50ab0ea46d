"""The state of an instance's queries after a round, and their Observations for the Status."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mzplan.controller.decision import Decision, Memory, WantedQuery, key_of
from mzplan.controller.executor import Measurement, QueryReport
from mzplan.controller.reconcile import is_run_of
from mzplan.controller.terms import Step
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, ProblemKind
from mzplan.model.observed import (
    CanaryVerdict,
    Condition,
    Counters,
    LagUnit,
    Observation,
    PastStep,
    RunFacts,
    Status,
    facts_of,
)
from mzplan.model.tasks import TaskOutcome, TaskProgress
from mzplan.model.times import seconds
from mzplan.schema.description import Description
from mzplan.schema.triggers import interval_of
from mzplan.warehouse.step_record import StepRecord

# The keys of a backlog and their units as a lag; the first key that the backlog has counts.
_UNITS: tuple[tuple[str, LagUnit], ...] = (
    ("records", "records"),
    ("rows", "rows"),
    ("steps", "steps"),
    ("lag_bytes", "bytes"),
)
_NO_ATTEMPTS = Memory()
FRESH = 30.0  # seconds for which a reported lag counts as recent; an idle query reports every ten
QUIET = 60.0  # seconds without a report after which a query is quiet; an idle query reports every ten


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A connection with its problem. `since` is in seconds since the epoch."""

    connection: Address
    problem: Diagnostic
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryState:
    """The state of one query.

    The controller sets:

    - `wanted`: the committed query; None if the query is no longer committed, but still runs or starts.
    - `decision`: the decision of the last round; None while the engine opens.
    - `memory`: the memory of its last attempts.
    - `upstream`: the identity of its upstream.
    - `retained_steps`: describes the steps that the collections it reads keep only for it.
    - `secret_problem`: describes a secret of the query that can no longer be read.
    - `last_step`: its last known step if it has no run; -1 for none.
    - `counters`: counted since this controller leads the instance.
    - `task`: the work that the start under way does first.
    - `stall`: why its run makes no progress although the engine answers.

    The runner adds:

    - `upstream_problem`: the problem of an upstream or target that changed while the query runs.
    - `hold_reason`: describes what the query waits for, as the gates now say.
    - `canary_verdict`: the verdict of a canary that failed.
    - `measurement`: measurements that don't depend on its run.
    - `fault`: the fault of one of its connections.
    - `retry_at`: the time of the next attempt, in seconds since the epoch.
    """

    wanted: WantedQuery | None = None
    decision: Decision | None = None
    memory: Memory = _NO_ATTEMPTS
    upstream: Any = None
    retained_steps: str | None = None
    secret_problem: str | None = None
    last_step: Step = -1
    counters: Counters | None = None
    task: TaskProgress | None = None
    stall: str | None = None
    upstream_problem: Diagnostic | None = None
    hold_reason: str | None = None
    canary_verdict: CanaryVerdict | None = None
    measurement: Measurement | None = None
    fault: Fault | None = None
    retry_at: float | None = None

    @property
    def condition(self) -> Condition:
        """The condition of the query as of the last round."""
        return self.decision.condition if self.decision is not None else "starting"

    @property
    def run(self) -> QueryReport | None:
        """The current run."""
        return self.decision.run if self.decision is not None else None

    @property
    def completed(self) -> bool:
        """Whether the query is stopped because it has read what was there (`trigger: available-now`)."""
        return self.condition == "stopped" and self.run is not None and self.run is self.memory.completed

    @property
    def running_query(self) -> Description | None:
        """The running description: the committed or the last accepted one.

        A held query runs the accepted description. None if the query isn't running, or runs another
        description.
        """
        run = self.run
        if self.condition != "running" or run is None or self.wanted is None:
            return None
        known = (self.wanted.description, self.memory.accepted)
        return next((d for d in known if d is not None and is_run_of(run, key_of(d))), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceOverview:
    """The state of an instance.

    - `busy`: whether work is under way, so that the controller should look again soon.
    - `maintained`: the source whose collection is being maintained, and the sink whose target is compacted.
    - `secrets`: digests of the values in use, by reference.
    - `rotated`: the references whose values have changed since queries started with them.
    - `foreign`: the queries in the engine that this runner didn't start.
    - `reports`: the engine's reports of every run in this round.
    - `cores`: the number of cores if there are too few; else 0.
    """

    queries: Mapping[Address, QueryState] = field(default_factory=dict)
    busy: bool = False
    maintained: tuple[Address, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict)
    rotated: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    reports: tuple[QueryReport, ...] = ()
    cores: int = 0


def observe(address: Address, query: QueryState) -> Observation:
    """Return the Observation of a query for the Status. The facts of its run (RunFacts) are copied."""
    run, memory, fault = query.run, query.memory, query.fault
    wanted = query.wanted.description if query.wanted is not None else None
    verdict, measurement = query.canary_verdict, query.measurement
    digest = wanted.digest if wanted is not None else ""
    if verdict and query.condition == "running" and run is not None and run.name.digest == digest:
        verdict = None  # the query couldn't fall back, and runs as committed after all
    # An upstream that doesn't answer may hold any number of records by now.
    unknown = fault is not None and not address.reads_collections
    lag, unit = (None, None) if unknown else _lag(address, run, measurement)
    recent = run.recent if run is not None and run.recent else measurement.recent if measurement else ()
    last = recent[0] if recent else None
    error, code, kind = _error(query, verdict)
    wanted_generation = wanted.generation if wanted is not None else 0
    hold = query.decision.hold if query.decision is not None else None
    in_service = (
        hold.description.generation if hold and hold.beside and hold.description else wanted_generation
    )
    return Observation(
        address=address,
        generation=run.name.generation if run else in_service,
        digest=run.name.digest if run else "",
        wanted_digest=digest,
        wanted_generation=wanted_generation,
        condition=query.condition if verdict is None else verdict.condition,
        query_id=run.query_id if run else None,
        run_id=run.run_id if run else None,
        lag=lag,
        lag_unit=unit,
        backlog=measurement.backlog if measurement else None,
        warning=query.stall or (run.warning if run else None) or query.retained_steps or query.secret_problem,
        quiet_since=_quiet_since(run, time.time()),
        error=error,
        error_code=code,
        error_kind=kind,
        failures=memory.failures,
        upstream=query.upstream,
        held=query.hold_reason,
        waits=query.decision.why if query.decision is not None else None,
        completed=query.completed,
        total_rows=last.total if last else None,
        last_rows=last.rows if last else None,
        last_batch_at=last.time if last else None,
        last_steps=tuple(map(_past_step, recent)),
        since=measurement.since if measurement else None,
        retry_at=query.retry_at,
        at_fault=fault.connection if fault else None,
        fault=_sentences(fault.problem) if fault else None,
        fault_fix=fault.problem.hint if fault and fault.problem.kind != "unreachable" else None,
        fault_since=fault.since if fault else None,
        counters=query.counters,
        task=query.task,
        loss=measurement.loss if measurement else None,
        foreign_change=measurement.foreign_change if measurement else None,
        **facts_of(run or RunFacts(step=query.last_step, tasks_done=_tasks_done(memory))),
    )


def _error(query: QueryState, verdict: CanaryVerdict | None) -> tuple[str | None, str | None, ProblemKind]:
    """Return the problem of the query, with its code and kind."""
    run, problem = query.run, query.upstream_problem
    text = f"{problem.summary}. {problem.detail}" if problem is not None else None
    nothing: tuple[None, None, ProblemKind] = (None, None, "")
    causes = (
        (verdict.reason, verdict.code, verdict.kind) if verdict is not None else nothing,
        (query.memory.error, query.memory.error_code, query.memory.error_kind),
        (run.error, run.error_code, run.error_kind) if run is not None else nothing,
        (text, problem.code, problem.kind) if problem is not None else nothing,
    )
    return next(((text, code or None, kind) for text, code, kind in causes if text), nothing)


def _tasks_done(memory: Memory) -> tuple[TaskOutcome, ...]:
    """Return the tasks of the accepted description, which were done before it started."""
    accepted = memory.accepted.tasks if memory.accepted is not None else ()
    return tuple(TaskOutcome(serial=task.serial) for task in accepted)


def _past_step(record: StepRecord) -> PastStep:
    return (record.step, int(record.time) if record.time is not None else None, record.rows)


def _lag(
    address: Address, run: QueryReport | None, measurement: Measurement | None
) -> tuple[int | None, LagUnit | None]:
    """Return the lag as the run reported it or as it was measured, whichever is newer."""
    backlog = (measurement.backlog or {}) if measurement is not None else {}
    at = measurement.at if measurement is not None else 0.0
    if run is not None and run.active and run.lag is not None and (run.last_progress_at or at) >= at:
        return run.lag, "records" if address.reads_upstream else "rows"
    return next(((backlog[name], unit) for name, unit in _UNITS if name in backlog), (None, None))


def is_fresh(run: QueryReport | None, now: float) -> bool:
    """Whether the run itself reports a recent lag. `now` is in seconds since the epoch."""
    if run is None or not run.active or run.lag is None:
        return False
    return run.last_progress_at is not None and now - run.last_progress_at < FRESH


def row_delay(query: QueryState, now: float) -> float:
    """Return how many seconds a running query makes its rows wait beyond its trigger interval."""
    run, wanted = query.run, query.wanted
    if query.condition != "running" or run is None or run.last_progress_at is None or wanted is None:
        return 0.0
    description = wanted.description
    interval = seconds(interval_of(description.address.kind, description.type, description.body))
    return max(0.0, run.longest(now - run.last_progress_at) - interval)


def _sentences(problem: Diagnostic) -> str:
    return " ".join(f"{part.rstrip('.')}." for part in (problem.summary, problem.detail) if part)


def _quiet_since(run: QueryReport | None, now: float) -> float | None:
    """Return when the query last reported, if that is longer ago than QUIET seconds."""
    if run is None or not run.active or run.last_progress_at is None or now - run.last_progress_at < QUIET:
        return None
    return round(run.last_progress_at, 3)


def differs(old: Status, new: Status, *, with_rates: bool) -> bool:
    """Whether the new status must be written. Changed rates or jobs alone count only if `with_rates`."""
    if old.serial != new.serial or old.observations.keys() != new.observations.keys():
        return True
    if _instance_facts(old) != _instance_facts(new):
        return True
    if with_rates:
        return (old.observations, old.slowest, old.jobs) != (new.observations, new.slowest, new.jobs)
    return any(
        _query_facts(observation) != _query_facts(old.observations[address])
        for address, observation in new.observations.items()
    )


def _instance_facts(status: Status) -> tuple[Any, ...]:
    opening = (status.opening_since, status.opened_in, status.versions, status.replaced, status.cores)
    return (
        status.secrets,
        status.rotated,
        status.canaries,
        status.foreign,
        status.secret_values_in_use,
        opening,
    )


def _query_facts(o: Observation) -> tuple[Any, ...]:
    of_run = (o.digest, o.wanted_digest, o.wanted_generation, o.condition, o.run_id)
    task = o.task.title if o.task is not None else None
    return (*of_run, o.completed, o.warning, o.error, o.held, o.waits, o.at_fault, o.foreign_change, task)
