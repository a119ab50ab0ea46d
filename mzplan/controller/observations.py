"""The states of an instance's queries in a round, and their Observations for the Status."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mzplan.controller.executor import Measured, QueryReport
from mzplan.controller.reconcile import Decision, Desired, Memory, key_of, runs
from mzplan.controller.terms import Step
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, ProblemKind
from mzplan.model.observed import (
    Condition,
    Counters,
    LagUnit,
    Observation,
    PastStep,
    RunFacts,
    Status,
    Verdict,
    facts_of,
)
from mzplan.model.tasks import TaskOutcome
from mzplan.model.times import seconds
from mzplan.schema.description import Description
from mzplan.schema.kinds import resource_kind
from mzplan.warehouse.step_record import StepRecord

# The keys of a backlog and their units as a lag; the first key that the backlog has counts.
_UNITS: tuple[tuple[str, LagUnit], ...] = (
    ("records", "records"),
    ("rows", "rows"),
    ("steps", "steps"),
    ("lag_bytes", "bytes"),
)
_UNTRIED = Memory()
FRESH = 30.0  # seconds; an idle query reports every ten
QUIET = 60.0  # seconds; a healthy idle query reports every ten


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

    - `wanted`: the committed query; None if it isn't committed any more, but still runs or starts.
    - `decision`: the decision of the last round; None while the engine opens.
    - `memory`: the memory of its last attempts.
    - `upstream`: the identity of its upstream.
    - `keeps`: describes the steps that its collections keep for it alone.
    - `unread`: describes a secret of the query that can't be read any more.
    - `reached`: its last known step if it has no run; -1 for none.
    - `counters`: counted since this controller leads the instance.

    The runner adds:

    - `changed`: the problem of an upstream or target that changed while the query runs.
    - `held`: describes what the query waits for.
    - `failed`: the verdict of a canary that failed.
    - `measured`: measurements that don't depend on its run.
    - `fault`: the fault of one of its connections.
    - `retry_at`: the time of the next attempt, in seconds since the epoch.
    """

    wanted: Desired | None = None
    decision: Decision | None = None
    memory: Memory = _UNTRIED
    upstream: Any = None
    keeps: str | None = None
    unread: str | None = None
    reached: Step = -1
    counters: Counters | None = None
    changed: Diagnostic | None = None
    held: str | None = None
    failed: Verdict | None = None
    measured: Measured | None = None
    fault: Fault | None = None
    retry_at: float | None = None

    @property
    def condition(self) -> Condition:
        """The condition of the query as of the last round."""
        return self.decision.condition if self.decision is not None else "starting"

    @property
    def shown(self) -> QueryReport | None:
        """The current run."""
        return self.decision.shown if self.decision is not None else None

    @property
    def running(self) -> Description | None:
        """The running description: the committed or the last accepted one.

        A held query runs the accepted description. None if the query isn't running, or runs another one.
        """
        shown = self.shown
        if self.condition != "running" or shown is None or self.wanted is None:
            return None
        known = (self.wanted.description, self.memory.accepted)
        return next((one for one in known if one is not None and runs(shown, key_of(one))), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceOverview:
    """The state of an instance.

    - `busy`: whether work is under way, so that the controller should look again soon.
    - `maintained`: the source whose collection is being maintained, and the sink whose target is compacted.
    - `secrets`: digests of the values in use, by reference.
    - `rotated`: the references whose values have changed since.
    - `foreign`: the queries in the engine that this runner didn't start.
    - `reports`: the engine's reports of every run in this round.
    - `cores`: the number of cores if they don't suffice, else 0.
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
    shown, memory, fault = query.shown, query.memory, query.fault
    wanted = query.wanted.description if query.wanted is not None else None
    failed, measured, digest = query.failed, query.measured, wanted.digest if wanted is not None else ""
    if (
        failed is not None
        and query.condition == "running"
        and shown is not None
        and shown.name.digest == digest
    ):
        failed = None  # the query couldn't fall back, and runs as committed after all
    # An upstream that doesn't answer may hold any number of records by now.
    unknown = fault is not None and not address.reads_collections
    lag, unit = (None, None) if unknown else _lag(address, shown, measured)
    recent = shown.recent if shown is not None and shown.recent else measured.recent if measured else ()
    last = recent[0] if recent else None
    error, code, kind = _error(query, failed)
    wanted_generation = wanted.generation if wanted is not None else 0
    return Observation(
        address=address,
        generation=shown.name.generation if shown else wanted_generation,
        digest=shown.name.digest if shown else "",
        wanted_digest=digest,
        wanted_generation=wanted_generation,
        condition=query.condition if failed is None else failed.condition,
        query_id=shown.query_id if shown else None,
        run_id=shown.run_id if shown else None,
        lag=lag,
        lag_unit=unit,
        backlog=measured.backlog if measured else None,
        warning=(shown.warning if shown else None) or query.keeps or query.unread,
        quiet_since=_quiet_since(shown, time.time()),
        error=error,
        error_code=code,
        error_kind=kind,
        failures=memory.failures,
        upstream=query.upstream,
        held=query.held,
        total_rows=last.total if last else None,
        last_rows=last.rows if last else None,
        last_batch_at=last.time if last else None,
        last_steps=tuple(map(_past_step, recent)),
        since=measured.since if measured else None,
        retry_at=query.retry_at,
        at_fault=fault.connection if fault else None,
        fault=_in_words(fault.problem) if fault else None,
        fault_fix=fault.problem.hint if fault and fault.problem.kind != "unreachable" else None,
        fault_since=fault.since if fault else None,
        counters=query.counters,
        loss=measured.loss if measured else None,
        **facts_of(shown or RunFacts(step=query.reached, tasks_done=_tasks_done(memory))),
    )


def _error(query: QueryState, failed: Verdict | None) -> tuple[str | None, str | None, ProblemKind]:
    """Return the problem of the query, with its code and kind."""
    shown, changed = query.shown, query.changed
    problem = f"{changed.summary}. {changed.detail}" if changed is not None else None
    nothing: tuple[None, None, ProblemKind] = (None, None, "")
    causes = (
        (failed.reason, failed.code, failed.kind) if failed is not None else nothing,
        (query.memory.error, query.memory.error_code, query.memory.error_kind),
        (shown.error, shown.error_code, shown.error_kind) if shown is not None else nothing,
        (problem, changed.code, changed.kind) if changed is not None else nothing,
    )
    return next(((text, code or None, kind) for text, code, kind in causes if text), nothing)


def _tasks_done(memory: Memory) -> tuple[TaskOutcome, ...]:
    """Return the tasks of the accepted description, which were done before it started."""
    accepted = memory.accepted.tasks if memory.accepted is not None else ()
    return tuple(TaskOutcome(serial=task.serial) for task in accepted)


def _past_step(record: StepRecord) -> PastStep:
    return (record.step, int(record.time) if record.time is not None else None, record.rows)


def _lag(
    address: Address, shown: QueryReport | None, measured: Measured | None
) -> tuple[int | None, LagUnit | None]:
    """Return the lag as the run reported it or as it was measured, whichever is newer."""
    backlog = (measured.backlog or {}) if measured is not None else {}
    at = measured.at if measured is not None else 0.0
    if shown is not None and shown.active and shown.lag is not None and (shown.heard_at or at) >= at:
        return shown.lag, "records" if address.reads_upstream else "rows"
    return next(((backlog[name], unit) for name, unit in _UNITS if name in backlog), (None, None))


def is_fresh(shown: QueryReport | None, now: float) -> bool:
    """Whether the run itself reports a recent lag. `now` is in seconds since the epoch."""
    if shown is None or not shown.active or shown.lag is None:
        return False
    return shown.heard_at is not None and now - shown.heard_at < FRESH


def wait_of(query: QueryState, now: float) -> float:
    """Return how many seconds a running query makes its rows wait beyond its trigger interval."""
    shown, wanted = query.shown, query.wanted
    if query.condition != "running" or shown is None or shown.heard_at is None or wanted is None:
        return 0.0
    description = wanted.description
    kind = resource_kind(description.address.kind, description.type)
    trigger = kind.with_defaults(description.body).get("trigger", {})
    return max(0.0, shown.longest(now - shown.heard_at) - seconds(str(trigger.get("interval", ""))))


def _in_words(problem: Diagnostic) -> str:
    return " ".join(f"{part.rstrip('.')}." for part in (problem.summary, problem.detail) if part)


def _quiet_since(shown: QueryReport | None, now: float) -> float | None:
    """Return when the query last reported, if that is longer ago than QUIET seconds."""
    if shown is None or not shown.active or shown.heard_at is None or now - shown.heard_at < QUIET:
        return None
    return round(shown.heard_at, 3)


def differs(old: Status, new: Status, *, rates_too: bool) -> bool:
    """Whether the new status must be written; changes of rates alone count only if `rates_too`."""
    if old.serial != new.serial or old.observations.keys() != new.observations.keys():
        return True
    if _beside(old) != _beside(new):
        return True
    if rates_too:
        return (old.observations, old.slowest) != (new.observations, new.slowest)
    return any(
        _essential(observation) != _essential(old.observations[address])
        for address, observation in new.observations.items()
    )


def _beside(status: Status) -> tuple[Any, ...]:
    opening = (status.opening_since, status.opened_in, status.versions, status.replaced, status.cores)
    return (
        status.secrets,
        status.rotated,
        status.canaries,
        status.foreign,
        status.secret_values_in_use,
        opening,
    )


def _essential(o: Observation) -> tuple[Any, ...]:
    of_run = (o.digest, o.wanted_digest, o.wanted_generation, o.condition, o.run_id)
    return (*of_run, o.warning, o.error, o.held, o.at_fault)
