"""The next step of one query, as a pure function.

Its arguments are the desired state, the engine's reports, and the memory of past attempts. It is
level-triggered: each round calls it with fresh facts, and it returns at most one command. Nothing here does
I/O, so every rule can be tested in microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mzplan.controller.executor import QueryName, QueryReport
from mzplan.model.address import Address
from mzplan.model.cause import Cause
from mzplan.model.diagnostics import ProblemKind
from mzplan.model.observed import Condition
from mzplan.model.resources import Retries
from mzplan.schema.description import Description
from mzplan.secrets.resolved import shortened

PATIENCE = 10.0  # times the usual wait, while a fallback runs that a retry would have to stop
STABLE = 60.0  # seconds that a query must run until its failures are forgotten

_MAX_ERROR = 300  # characters of an error in a cause
CHANGED = Cause(cause="change")
_TAKEN_OVER = Cause(cause="runner", detail="its runner began")

Key = tuple[str, int, str]  # id, generation, digest


DEFAULT_PACE = Retries()


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """A committed query of this instance. `because` is the commit's cause for its start or stop."""

    description: Description
    paused: bool
    because: Cause = CHANGED


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The past attempts for an address.

    It only paces retries and remembers errors, so that losing it in a restart of the runner only changes
    when retries happen.

    - `accepted`: the last description that ran; also kept in the store.
    - `begun`: whether this runner has started the query or found it paused, so that the next start has a
      committed cause.
    - `called`: the cause of an immediate retry, if a failure was forgiven.
    """

    target: Key | None = None
    accepted: Description | None = None
    failures: int = 0
    retry_at: float = 0.0
    fallback_at: float = 0.0
    verdict: Condition | None = None  # rejected or failed: how the last attempt at the target ended
    error: str | None = None
    error_code: str | None = None
    error_kind: ProblemKind = ""
    healthy_since: float | None = None
    begun: bool = False
    called: Cause | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Stop these queries and forget them. `cause`: None if they have ended or aren't wanted."""

    address: Address
    names: tuple[QueryName, ...]
    cause: Cause | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """Check a description if `check`, stop the queries in `stop`, then start the description.

    `makes`: whether to create missing parts of its target. Only a committed description that hasn't run yet
    does: parts that disappear later were removed by somebody else.
    """

    address: Address
    description: Description
    stop: tuple[QueryName, ...]
    check: bool
    makes: bool = True
    cause: Cause = field(default=CHANGED, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accept:
    """Record the description as one that has run, which the query can fall back to."""

    address: Address
    description: Description


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Forget the accepted description of an address that is neither wanted nor running."""

    address: Address


Command = Stop | Switch | Accept | Drop


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The next command (or None), the new memory, and the condition and run to report."""

    command: Command | None
    memory: Memory
    condition: Condition
    shown: QueryReport | None


def key_of(description: Description) -> Key:
    """Return the key of a description.

    It has the id, which the digest leaves out: an address may pass to another resource, for which past
    attempts mean nothing.
    """
    return (description.id, description.generation, description.digest)


def decide(
    address: Address,
    desired: Desired | None,
    reports: list[QueryReport],
    memory: Memory,
    now: float,
    pace: Retries = DEFAULT_PACE,
    taken_over: Cause = _TAKEN_OVER,
) -> Decision:
    """Decide the next step for one address. `now` is in monotonic seconds.

    `taken_over` is the cause of starts of queries that another runner has run.
    """
    active = [r for r in reports if r.active]
    if desired is None:
        return _unwanted(address, reports, memory)
    if memory.accepted is not None and memory.accepted.id != desired.description.id:
        memory = Memory(begun=True)  # the former memory is of another resource that had this name
    target = key_of(desired.description)
    if memory.target != target:
        memory = Memory(target=target, accepted=memory.accepted, begun=memory.begun)
    current = next((r for r in active if runs(r, target)), None)
    others = tuple(r for r in reports if r is not current)
    if desired.paused:
        stop = Stop(address=address, names=_names(reports), cause=desired.because)
        command = stop if reports else None
        shown, kept = active[0] if active else None, replace(forgiven(memory), begun=True)
        return Decision(command=command, memory=kept, condition="running" if shown else "paused", shown=shown)
    if current is not None:
        return _current(address, desired.description, current, others, memory, now)
    dead = next((r for r in reports if not r.active and runs(r, target)), None)
    if dead is not None:
        return _ended(address, dead, reports, memory, now, pace)
    return _absent(address, desired, reports, memory, now, pace, taken_over)


def forgiven(memory: Memory, called: Cause | None = None) -> Memory:
    """Return the memory without failures, so that the query is retried at once. `called` is the cause."""
    return replace(
        memory,
        failures=0,
        retry_at=0.0,
        verdict=None,
        error=None,
        error_code=None,
        error_kind="",
        called=called,
    )


def rejected(
    memory: Memory, error: str, code: str, now: float, pace: Retries = DEFAULT_PACE, kind: ProblemKind = ""
) -> Memory:
    """Return the memory after a failed check, which stopped nothing."""
    was_accepted = memory.accepted is not None and key_of(memory.accepted) == memory.target
    return _failed(memory, "failed" if was_accepted else "rejected", error, code, now, pace, kind)


def start_failed(
    memory: Memory, error: str, code: str, now: float, pace: Retries = DEFAULT_PACE, kind: ProblemKind = ""
) -> Memory:
    """Return the memory after a failed start."""
    return _failed(memory, "failed", error, code, now, pace, kind)


def _unwanted(address: Address, reports: list[QueryReport], memory: Memory) -> Decision:
    command: Command = Stop(address=address, names=_names(reports)) if reports else Drop(address=address)
    shown = reports[0] if reports else None
    return Decision(command=command, memory=memory, condition="running" if shown else "stopped", shown=shown)


def _current(
    address: Address,
    description: Description,
    current: QueryReport,
    others: tuple[QueryReport, ...],
    memory: Memory,
    now: float,
) -> Decision:
    """Decide for a wanted query that runs."""
    accepted = memory.accepted is not None and key_of(memory.accepted) == memory.target
    begins = memory.verdict or "starting"  # a retried query counts as failed until its first trigger
    if others:
        stop = Stop(address=address, names=_names(others))
        return Decision(command=stop, memory=memory, condition=begins, shown=current)
    if not current.triggered:
        return Decision(command=None, memory=memory, condition=begins, shown=current)
    since = memory.healthy_since if memory.healthy_since is not None else now
    memory = replace(memory, healthy_since=since, verdict=None, error=None, error_code=None, error_kind="")
    if now - since >= STABLE:
        memory = replace(memory, failures=0)
    command = None if accepted else Accept(address=address, description=description)
    if command is not None:
        memory = replace(memory, accepted=description)
    return Decision(command=command, memory=memory, condition="running", shown=current)


def _ended(
    address: Address, dead: QueryReport, reports: list[QueryReport], memory: Memory, now: float, pace: Retries
) -> Decision:
    """Decide for a wanted query that ended by itself: remember the error and forget its handle.

    `_absent` retries it in a later round.
    """
    error, code, kind = dead.error, dead.error_code or "MZ064", dead.error_kind
    if error is None:
        error, code = f"It was stopped by hand. Fix: to keep it so, mzplan pause {address}.", "MZ162"
        kind = "stopped-by-hand"
    memory = _failed(memory, "failed", error, code, now, pace, kind)
    ended = tuple(r for r in reports if not r.active)
    return Decision(
        command=Stop(address=address, names=_names(ended)), memory=memory, condition="failed", shown=dead
    )


def _absent(
    address: Address,
    desired: Desired,
    reports: list[QueryReport],
    memory: Memory,
    now: float,
    pace: Retries,
    taken_over: Cause,
) -> Decision:
    """Decide for a wanted query that doesn't run; an older one may run."""
    description = desired.description
    running = next((r for r in reports if r.active), None)
    if running is None and reports:  # an older query has ended, in a switch or by itself
        waits = replace(memory, fallback_at=now + pace.delay(memory.failures + 1))
        stop = Stop(address=address, names=_names(reports))
        return Decision(command=stop, memory=waits, condition=memory.verdict or "starting", shown=None)
    if now >= memory.retry_at:
        has_run = memory.accepted is not None and key_of(memory.accepted) == memory.target
        switch = Switch(
            address=address,
            description=description,
            stop=_names(reports),
            check=True,
            makes=not has_run,
            cause=_cause(desired, memory, pace, taken_over),
        )
        return Decision(command=switch, memory=memory, condition=memory.verdict or "starting", shown=running)
    fallback = memory.accepted
    can_fall_back = (
        running is None
        and fallback is not None
        and key_of(fallback) != memory.target
        and _may_go_back(fallback, description, memory)
        and now >= memory.fallback_at
    )
    back: Switch | None = None
    if can_fall_back and fallback is not None:
        why = replace(_retry(desired), detail=f"back to what it ran before, after {_failure(memory)}")
        back = Switch(address=address, description=fallback, stop=_names(reports), check=False, cause=why)
    return Decision(command=back, memory=memory, condition=memory.verdict or "failed", shown=running)


def _may_go_back(fallback: Description, wanted: Description, memory: Memory) -> bool:
    """Whether the query can fall back: the wanted description left its storage unchanged.

    It did so if it has the same generation, or if a check refused its new generation before that started. (A
    source checks this again when it starts.)
    """
    if fallback.place == wanted.place:
        return True
    is_earlier = fallback.id == wanted.id and fallback.generation < wanted.generation
    refused = memory.verdict == "rejected" or memory.error_kind == "not-migratable"
    return wanted.address.writes_collection and is_earlier and refused


def _cause(desired: Desired, memory: Memory, pace: Retries, taken_over: Cause) -> Cause:
    """Return the cause of starting the wanted query now."""
    if memory.called is not None:
        return memory.called
    if memory.failures:
        waited = pace.delay(memory.failures) * _patience(memory)
        detail = f"attempt {memory.failures + 1}, {waited:g} s after {_failure(memory)}"
        return replace(_retry(desired), detail=detail)
    ran = memory.accepted is not None and key_of(memory.accepted) == memory.target
    return taken_over if ran and not memory.begun else desired.because


def _retry(desired: Desired) -> Cause:
    return Cause(cause="retry", serial=desired.because.serial)


def _failure(memory: Memory) -> str:
    return f"[{memory.error_code}] {shortened(memory.error or 'it ended', _MAX_ERROR)}"


def _failed(
    memory: Memory, verdict: Condition, error: str, code: str, now: float, pace: Retries, kind: ProblemKind
) -> Memory:
    failures = memory.failures + 1
    patience = _patience(replace(memory, verdict=verdict))
    if pace.gives_up(failures):
        until = "until it is changed or `mzplan restart` asks for it"
        error = f"Given up after {failures} failures, {until}. {error}"
    return replace(
        memory,
        verdict=verdict,
        error=error,
        error_code=code,
        error_kind=kind,
        failures=failures,
        retry_at=now + pace.wait(failures) * patience,
        healthy_since=None,
        called=None,
    )


def _patience(memory: Memory) -> float:
    falls_back = memory.verdict == "failed" and memory.accepted and key_of(memory.accepted) != memory.target
    return PATIENCE if falls_back else 1.0


def runs(report: QueryReport, key: Key) -> bool:
    """Whether the report is of this query. Names have no id: see RunningIds.strangers."""
    return (report.name.generation, report.name.digest) == key[1:]


def _names(reports: list[QueryReport] | tuple[QueryReport, ...]) -> tuple[QueryName, ...]:
    return tuple(r.name for r in reports)
