"""The next step of one query, as a pure function.

Its arguments are the desired state, the engine's reports, and the memory of past attempts. It is
level-triggered: each round calls it with fresh facts, and it returns at most one command. Nothing here does
I/O, so every rule can be tested in microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from mzplan.controller.decision import (
    Accept,
    Command,
    Decision,
    Drop,
    Key,
    Memory,
    Stop,
    Switch,
    WantedQuery,
    key_of,
)
from mzplan.controller.executor import QueryName, QueryReport
from mzplan.model.address import Address
from mzplan.model.cause import Cause
from mzplan.model.diagnostics import ProblemKind
from mzplan.model.observed import Condition
from mzplan.model.resources import Retries
from mzplan.schema.description import Description
from mzplan.secrets.resolved import shortened

FALLBACK_BACKOFF = 10.0  # while a fallback runs, waits are this many times longer: a retry must stop it
STABLE_SECONDS = 60.0  # seconds that a query must run until its failures are forgotten

_MAX_ERROR = 300  # characters of an error in a cause
_TAKEOVER = Cause(cause="runner", detail="its runner started")
_COMPLETED = Cause(cause="completed", detail="it has read what was there")

Reports = Sequence[QueryReport]

BACKOFF = Retries()


def next_step(
    address: Address,
    wanted_query: WantedQuery | None,
    reports: Reports,
    memory: Memory,
    now: float,
    backoff: Retries = BACKOFF,
    takeover: Cause = _TAKEOVER,
    completes_after: float | None = None,
) -> Decision:
    """Return the next step for one address. `now` is in monotonic seconds.

    - `takeover`: the cause when a query starts that another runner has run.
    - `completes_after`: see `World.completes_after`.
    """
    active = [r for r in reports if r.active]
    if wanted_query is None:
        return _decide_unwanted(address, reports, memory)
    if memory.accepted is not None and memory.accepted.id != wanted_query.description.id:
        memory = Memory(started_here=True)  # the memory belongs to another resource that had this name
    target = key_of(wanted_query.description)
    if memory.target != target:
        memory = Memory(target=target, accepted=memory.accepted, started_here=memory.started_here)
    current = next((r for r in active if is_run_of(r, target)), None)
    others = tuple(r for r in reports if r is not current)
    if wanted_query.paused:
        stop = Stop(address=address, names=_names(reports), cause=wanted_query.cause)
        command = stop if reports else None
        run = active[0] if active else None
        memory = replace(without_failures(memory), started_here=True, completed=None)
        return Decision(command=command, memory=memory, condition="running" if run else "paused", run=run)
    if memory.completed is not None:
        stop = Stop(address=address, names=_names(reports), cause=_COMPLETED)
        command = stop if reports else None
        return Decision(command=command, memory=memory, condition="stopped", run=memory.completed)
    if current is not None:
        decision = _decide_running(address, wanted_query.description, current, others, memory, now)
        return _completed(decision, completes_after)
    dead = next((r for r in reports if not r.active and is_run_of(r, target)), None)
    if dead is not None:
        return _decide_ended(address, wanted_query, dead, reports, memory, now, backoff)
    return _decide_absent(address, wanted_query, reports, memory, now, backoff, takeover)


def without_failures(memory: Memory, retry_cause: Cause | None = None) -> Memory:
    """Return the memory without failures, so that the query is retried at once."""
    return replace(
        memory,
        failures=0,
        retry_at=0.0,
        last_failure=None,
        error=None,
        error_code=None,
        error_kind="",
        retry_cause=retry_cause,
    )


def after_failure(
    memory: Memory,
    last_failure: Condition,
    error: str,
    code: str,
    now: float,
    backoff: Retries = BACKOFF,
    kind: ProblemKind = "",
) -> Memory:
    """Return the memory after a failed check, start or run of the target."""
    failures = memory.failures + 1
    patience = _backoff_factor(replace(memory, last_failure=last_failure))
    if backoff.gives_up(failures):
        error = f"Given up after {failures} failures, until a change or `mzplan restart`. {error}"
    return replace(
        memory,
        last_failure=last_failure,
        error=error,
        error_code=code,
        error_kind=kind,
        failures=failures,
        retry_at=now + backoff.wait(failures) * patience,
        healthy_since=None,
        retry_cause=None,
    )


def _decide_unwanted(address: Address, reports: Reports, memory: Memory) -> Decision:
    command: Command = Stop(address=address, names=_names(reports)) if reports else Drop(address=address)
    run = reports[0] if reports else None
    return Decision(command=command, memory=memory, condition="running" if run else "stopped", run=run)


def _decide_running(
    address: Address,
    description: Description,
    current: QueryReport,
    others: tuple[QueryReport, ...],
    memory: Memory,
    now: float,
) -> Decision:
    """Decide for a wanted query that runs."""
    condition = memory.last_failure or "starting"  # a retried query counts as failed until its first trigger
    if others:
        stop = Stop(address=address, names=_names(others))
        return Decision(command=stop, memory=memory, condition=condition, run=current)
    if not current.triggered:
        return Decision(command=None, memory=memory, condition=condition, run=current)
    since = memory.healthy_since if memory.healthy_since is not None else now
    memory = replace(
        memory, healthy_since=since, last_failure=None, error=None, error_code=None, error_kind=""
    )
    if now - since >= STABLE_SECONDS:
        memory = replace(memory, failures=0)
    command = None
    if not memory.is_target_accepted:
        command = Accept(address=address, description=description)
        memory = replace(memory, accepted=description)
    return Decision(command=command, memory=memory, condition="running", run=current)


def _completed(decision: Decision, after: float | None) -> Decision:
    """Stop a running query that has read what was there, and remember that."""
    run = decision.run
    if decision.command is not None or decision.condition != "running" or run is None or after is None:
        return decision
    if not run.found_nothing_after(after):
        return decision
    ended = replace(run, active=False, input_rows_per_second=0.0, processed_rows_per_second=0.0)
    stop = Stop(address=run.name.address, names=(run.name,), cause=_COMPLETED)
    return replace(decision, command=stop, memory=replace(decision.memory, completed=ended))


def _decide_ended(
    address: Address,
    wanted_query: WantedQuery,
    dead: QueryReport,
    reports: Reports,
    memory: Memory,
    now: float,
    backoff: Retries,
) -> Decision:
    """Decide for a wanted query that ended by itself: remember the error, and forget the run.

    `_decide_absent` retries the query in a later round.
    """
    ended = Stop(address=address, names=_names([r for r in reports if not r.active]))
    if dead.error_kind == "columns-changed" and memory.healthy_since is not None:
        # A collection has got a column that the query doesn't use, and Delta ends all of its streams.
        cause = replace(
            _retry_cause(wanted_query), detail="the columns of a collection that it reads have changed"
        )
        memory = replace(without_failures(memory, cause), healthy_since=None)
        return Decision(command=ended, memory=memory, condition="starting", run=dead)
    error, code, kind = dead.error, dead.error_code or "MZ064", dead.error_kind
    if error is None:
        error, code = f"It was stopped by hand. Fix: to keep it stopped, run mzplan pause {address}.", "MZ162"
        kind = "stopped-by-hand"
    memory = after_failure(memory, "failed", error, code, now, backoff, kind)
    return Decision(command=ended, memory=memory, condition="failed", run=dead)


def _decide_absent(
    address: Address,
    wanted_query: WantedQuery,
    reports: Reports,
    memory: Memory,
    now: float,
    backoff: Retries,
    takeover: Cause,
) -> Decision:
    """Decide for a wanted query that doesn't run; an older one may run."""
    description = wanted_query.description
    running = next((r for r in reports if r.active), None)
    if running is None and reports:  # an older query has ended, in a switch or by itself
        waiting = replace(memory, fallback_at=now + backoff.delay(memory.failures + 1))
        stop = Stop(address=address, names=_names(reports))
        return Decision(command=stop, memory=waiting, condition=memory.last_failure or "starting", run=None)
    if now >= memory.retry_at:
        switch = Switch(
            address=address,
            description=description,
            stop=_names(reports),
            check=True,
            create=not memory.is_target_accepted,
            cause=_start_cause(wanted_query, memory, backoff, takeover),
        )
        return Decision(
            command=switch, memory=memory, condition=memory.last_failure or "starting", run=running
        )
    fallback = memory.accepted
    command: Switch | None = None
    if (
        running is None
        and fallback is not None
        and not memory.is_target_accepted
        and _is_fallback_safe(fallback, description, memory)
        and now >= memory.fallback_at
    ):
        cause = replace(_retry_cause(wanted_query), detail=f"fallback after {_failure(memory)}")
        command = Switch(
            address=address, description=fallback, stop=_names(reports), check=False, cause=cause
        )
    why = "without attempts left" if math.isinf(memory.retry_at) else "waiting for its next attempt"
    condition = memory.last_failure or "failed"
    return Decision(command=command, memory=memory, condition=condition, run=running, why=why)


def _is_fallback_safe(fallback: Description, wanted: Description, memory: Memory) -> bool:
    """Whether the query can fall back, because the wanted description hasn't changed its storage.

    The storage is unchanged if both descriptions have the same generation, or if a check refused the new
    generation before it started. (A source checks this again when it starts.)
    """
    if fallback.place == wanted.place:
        return True
    is_earlier = fallback.id == wanted.id and fallback.generation < wanted.generation
    refused = memory.last_failure == "rejected" or memory.error_kind == "not-migratable"
    return wanted.address.writes_collection and is_earlier and refused


def _start_cause(wanted_query: WantedQuery, memory: Memory, backoff: Retries, takeover: Cause) -> Cause:
    """Return the cause of starting the wanted query now."""
    if memory.retry_cause is not None:
        return memory.retry_cause
    if memory.failures:
        delay = backoff.delay(memory.failures) * _backoff_factor(memory)
        detail = f"attempt {memory.failures + 1}, {delay:g} s after {_failure(memory)}"
        return replace(_retry_cause(wanted_query), detail=detail)
    return takeover if memory.is_target_accepted and not memory.started_here else wanted_query.cause


def _retry_cause(wanted_query: WantedQuery) -> Cause:
    return Cause(cause="retry", serial=wanted_query.cause.serial)


def _failure(memory: Memory) -> str:
    return f"[{memory.error_code}] {shortened(memory.error or 'it ended', _MAX_ERROR)}"


def _backoff_factor(memory: Memory) -> float:
    has_fallback = memory.accepted is not None and not memory.is_target_accepted
    return FALLBACK_BACKOFF if has_fallback and memory.last_failure == "failed" else 1.0


def is_run_of(report: QueryReport, key: Key) -> bool:
    """Whether the report is of this query. Names have no id: see RunningIds.stop_strangers."""
    return (report.name.generation, report.name.digest) == key[1:]


def _names(reports: Reports) -> tuple[QueryName, ...]:
    return tuple(r.name for r in reports)
