"""What is seen of the queries of an instance: all that is known of each in a round, and the Observation that
the Status has of it."""

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

# What a backlog says, and in which unit that is a lag; the first that is there counts.
_UNITS: tuple[tuple[str, LagUnit], ...] = (
    ("records", "records"),
    ("rows", "rows"),
    ("steps", "steps"),
    ("lag_bytes", "bytes"),
)
_UNTRIED = Memory()
FRESH = 30.0  # seconds; a query that has nothing to do says so every ten
QUIET = 60.0  # seconds; a healthy query that has nothing to do says so every ten


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A connection, and what stands in its way, since when (seconds since the epoch)."""

    connection: Address
    problem: Diagnostic
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryState:
    """All that is known of one query.

    Its controller says: `wanted`, as it is committed; None where it is no longer, and still there or about to
    come up. `decision`: that of the last round; None while the engine opens. `memory`: how the last attempt
    has ended. `upstream`: the identity of what it reads. `keeps`: what its collection keeps for it alone.
    `unread`: which secret of it can't be read any more. `reached`: its last step, as far as is known without
    a run; -1 for none. `counters`: since this controller leads the instance.

    The runner adds: `changed`, that its upstream has become another one while it runs. `held`: what it waits
    for. `failed`: that it went first itself, and has failed. `measured`: what was found out aside from its
    run. `fault`: of its connections. `retry_at`: when it is tried again, in seconds since the epoch.
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
        """The run that is there."""
        return self.decision.shown if self.decision is not None else None

    @property
    def running(self) -> Description | None:
        """What runs well: the committed description, or the last accepted one while the query is held."""
        shown = self.shown
        if self.condition != "running" or shown is None or self.wanted is None:
            return None
        known = (self.wanted.description, self.memory.accepted)
        return next((one for one in known if one is not None and runs(shown, key_of(one))), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceOverview:
    """`busy`: something is under way that is worth another look at once. `maintained`: the source whose
    collection storage is writing, and the sink whose target is compacted. `secrets`: digests of the values
    in use, by reference; `rotated`: the references that have other values by now. `foreign`: what runs in
    the engine and was not started here. `reports`: of every run, as the engine has them in this round.
    `cores`: how many there are, if they don't suffice."""

    queries: Mapping[Address, QueryState] = field(default_factory=dict)
    busy: bool = False
    maintained: tuple[Address, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict)
    rotated: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    reports: tuple[QueryReport, ...] = ()
    cores: int = 0


def observe(address: Address, query: QueryState) -> Observation:
    """What the Status says of a query. A field of its run (RunFacts) is taken over without a word here."""
    shown, memory, fault = query.shown, query.memory, query.fault
    wanted = query.wanted.description if query.wanted is not None else None
    failed, measured, digest = query.failed, query.measured, wanted.digest if wanted is not None else ""
    if (
        failed is not None
        and query.condition == "running"
        and shown is not None
        and shown.name.digest == digest
    ):
        failed = None  # it could not go back, and has come up after all
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
    """Return why the query is not as it should be, with the code and the kind of that problem."""
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
    """The tasks that were done when the description was accepted: each is done before a start."""
    accepted = memory.accepted.tasks if memory.accepted is not None else ()
    return tuple(TaskOutcome(serial=task.serial) for task in accepted)


def _past_step(record: StepRecord) -> PastStep:
    return (record.step, int(record.time) if record.time is not None else None, record.rows)


def _lag(
    address: Address, shown: QueryReport | None, measured: Measured | None
) -> tuple[int | None, LagUnit | None]:
    """What is not read yet: as the run has reported it, or as it was measured, whichever is newer."""
    backlog = (measured.backlog or {}) if measured is not None else {}
    at = measured.at if measured is not None else 0.0
    if shown is not None and shown.active and shown.lag is not None and (shown.heard_at or at) >= at:
        return shown.lag, "records" if address.reads_upstream else "rows"
    return next(((backlog[name], unit) for name, unit in _UNITS if name in backlog), (None, None))


def is_fresh(shown: QueryReport | None, now: float) -> bool:
    """Whether a run says itself what it has not read yet. `now` in seconds since the epoch."""
    if shown is None or not shown.active or shown.lag is None:
        return False
    return shown.heard_at is not None and now - shown.heard_at < FRESH


def wait_of(query: QueryState, now: float) -> float:
    """Return for how many seconds a running query keeps its rows waiting beyond its trigger interval."""
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
    """When the last micro-batch ended, if that is longer ago than QUIET."""
    if shown is None or not shown.active or shown.heard_at is None or now - shown.heard_at < QUIET:
        return None
    return round(shown.heard_at, 3)


def differs(old: Status, new: Status, *, rates_too: bool) -> bool:
    """Whether there is something to report: always for a condition, now and then for rates alone."""
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
