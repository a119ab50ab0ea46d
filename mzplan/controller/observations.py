"""From decisions to observations: what the Status says of each query, and when it is worth writing."""

from __future__ import annotations

import time
from typing import Any

from mzplan.controller.connection_watch import Fault
from mzplan.controller.executor import Measured, QueryReport
from mzplan.controller.reconcile import Desired, Memory
from mzplan.controller.types import Step
from mzplan.model.address import Address
from mzplan.model.canary import Verdict
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.state import Condition, Counters, LagUnit, Observation, PastStep, Status
from mzplan.warehouse.step_record import StepRecord

# What a backlog says, and in which unit that is a lag; the first that is there counts.
_UNITS: tuple[tuple[str, LagUnit], ...] = (
    ("records", "records"),
    ("rows", "rows"),
    ("steps", "steps"),
    ("lag_bytes", "bytes"),
)
_UNREACHED = ("MZ050", "MZ121", "MZ125")  # nothing has answered there: it may have moved
FRESH = 30.0  # seconds; a query that has nothing to do says so every ten
QUIET = 60.0  # seconds; a healthy query that has nothing to do says so every ten


def observe(
    address: Address,
    wanted: Desired | None,
    condition: Condition,
    shown: QueryReport | None,
    memory: Memory,
    upstream: Any,
    changed: Diagnostic | None = None,
    held: str | None = None,
    failed: Verdict | None = None,
    keeps: str | None = None,
    unread: str | None = None,
    reached: Step = -1,
    measured: Measured | None = None,
    fault: Fault | None = None,
    retry_at: float | None = None,
    counters: Counters | None = None,
) -> Observation:
    """One query: the run that is there (`shown`), what is wanted, and how the last attempt ended. `changed`:
    that its upstream has become another one while it runs. `held`: for which canary it waits. `failed`: that
    it went first itself, and has failed. `keeps`: what is kept only for it. `unread`: which secret of it
    can't be read any more. `reached`: its last step, as far as is known without a run. `measured`: what was
    found out aside from its run. `fault`: of its connections. `retry_at`: when it is tried again, in seconds
    since the epoch. `counters`: since its runner leads."""
    problem = f"{changed.summary}. {changed.detail}" if changed is not None else None
    generation, digest = (wanted.description.generation, wanted.description.digest) if wanted else (0, "")
    if failed is not None and condition == "running" and shown is not None and shown.name.digest == digest:
        failed = None  # it could not go back, and has come up after all
    lag, unit = _lag(address, shown, measured)
    recent = shown.recent if shown is not None and shown.recent else measured.recent if measured else ()
    last = recent[0] if recent else None
    return Observation(
        address=address,
        generation=shown.name.generation if shown else generation,
        digest=shown.name.digest if shown else "",
        wanted_digest=digest,
        wanted_generation=generation,
        condition=condition if failed is None else failed.condition,
        query_id=shown.query_id if shown else None,
        run_id=shown.run_id if shown else None,
        step=shown.step if shown else reached,
        input_rows_per_second=shown.input_rows_per_second if shown else 0.0,
        processed_rows_per_second=shown.processed_rows_per_second if shown else 0.0,
        lag=lag,
        lag_unit=unit,
        left_out=shown.left_out if shown else 0,
        backlog=measured.backlog if measured else None,
        warning=(shown.warning if shown else None) or keeps or unread,
        quiet_since=_quiet_since(shown, time.time()),
        error=(failed.reason if failed else None)
        or memory.error
        or (shown.error if shown else None)
        or problem,
        error_code=(failed.code if failed else None)
        or memory.error_code
        or (shown.error_code if shown else None)
        or (changed.code if changed is not None else None),
        failures=memory.failures,
        upstream=upstream,
        held=held,
        total_rows=last.total if last else None,
        last_rows=last.rows if last else None,
        last_batch_at=last.time if last else None,
        last_steps=tuple(map(_past_step, recent)),
        resumed=shown.resumed if shown else None,
        run_rows=shown.run_rows if shown else None,
        retry_at=retry_at,
        at_fault=fault.connection if fault else None,
        fault=_told(fault.problem) if fault else None,
        fault_fix=fault.problem.hint if fault and fault.problem.code not in _UNREACHED else None,
        written_with=shown.written_with if shown else None,
        batch_seconds=shown.batch_seconds if shown else None,
        latency_seconds=round(shown.latency, 3) if shown and shown.latency is not None else None,
        counters=counters,
        backfilled=shown.backfilled if shown else _backfilled(memory),
    )


def _backfilled(memory: Memory) -> int:
    """What has run had done its backfills before."""
    accepted = memory.accepted.backfills if memory.accepted is not None else ()
    return max((one.serial for one in accepted), default=0)


def _past_step(record: StepRecord) -> PastStep:
    return (record.step, int(record.time) if record.time is not None else None, record.rows)


def _lag(
    address: Address, shown: QueryReport | None, measured: Measured | None
) -> tuple[int | None, LagUnit | None]:
    """What is not read yet: as the run has reported it, or as it was measured, whichever is newer."""
    backlog = (measured.backlog or {}) if measured is not None else {}
    at = measured.at if measured is not None else 0.0
    if shown is not None and shown.active and shown.lag is not None and (shown.heard_at or at) >= at:
        return shown.lag, "records" if address.kind == "source" else "rows"
    return next(((backlog[name], unit) for name, unit in _UNITS if name in backlog), (None, None))


def is_fresh(shown: QueryReport | None, now: float) -> bool:
    """Whether a run says itself what it has not read yet. `now` in seconds since the epoch."""
    if shown is None or not shown.active or shown.lag is None:
        return False
    return shown.heard_at is not None and now - shown.heard_at < FRESH


def _told(problem: Diagnostic) -> str:
    return " ".join(f"{part.rstrip('.')}." for part in (problem.summary, problem.detail) if part)


def _quiet_since(shown: QueryReport | None, now: float) -> float | None:
    """When the last micro-batch ended, where that is longer ago than is worth no word."""
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
        return old.observations != new.observations
    return any(
        _essential(observation) != _essential(old.observations[address])
        for address, observation in new.observations.items()
    )


def _beside(status: Status) -> tuple[Any, ...]:
    opening = (status.opening_since, status.opened_in, status.versions)
    return (status.secrets, status.rotated, status.canaries, status.foreign, status.handed, opening)


def _essential(o: Observation) -> tuple[Any, ...]:
    return (
        o.digest,
        o.wanted_digest,
        o.condition,
        o.run_id,
        o.warning,
        o.error,
        o.wanted_generation,
        o.held,
        o.at_fault,
    )
