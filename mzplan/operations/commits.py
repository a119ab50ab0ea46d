"""The history of the state: the record of each commit, its outcome, and its changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from mzplan.host.checkout import FOLDER
from mzplan.host.git import author, find_revision
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.history import CommitOutcome, CommitRecord, CommitStatus, HistoryEntry, QueryOutcome
from mzplan.model.observed import Status
from mzplan.model.plan import Plan
from mzplan.model.resources import ProjectSettings
from mzplan.model.state import ResourceState, State
from mzplan.model.words import one_line
from mzplan.operations.project import Outcome, Project, Reporter
from mzplan.plan.file import digest_of_plan
from mzplan.plan.manual_changes import plan_between
from mzplan.secrets.resolved import scrub
from mzplan.store.formats import FORGO_HINT
from mzplan.store.store import Store


def entry_of(store: Store, serial: int) -> HistoryEntry:
    """Return the history entry of a serial. Raises MZ038 (exit 7) if there is none."""
    state = committed_state(store, serial)
    if state.commit is None:
        raise error("MZ030.serial-damaged", serial=serial, forgo_hint=FORGO_HINT)
    return HistoryEntry(
        serial=serial,
        current=store.read_state().serial == serial,
        commit=state.commit,
        outcome=store.read_outcome(state.lineage, serial),
    )


def with_present(store: Store, entries: Sequence[HistoryEntry]) -> list[HistoryEntry]:
    """Return the entries with the queries that haven't converged by now, for outcomes that had some."""
    if not any(entry.outcome is not None and entry.outcome.open for entry in entries):
        return list(entries)
    state, statuses = store.read_state(), store.read_statuses()
    open_now = {a for a, resource in state.resources.items() if not _has_converged(resource, statuses)}
    return [
        replace(entry, still_open=tuple(a for a in entry.outcome.open if a in open_now))
        if entry.outcome is not None and entry.outcome.open
        else entry
        for entry in entries
    ]


def _has_converged(resource: ResourceState, statuses: Mapping[str, Status]) -> bool:
    status = statuses.get(resource.instance)
    seen = status.observations.get(resource.address) if status is not None else None
    if seen is None or seen.held or seen.wanted_digest != resource.digest:
        return False
    return seen.condition == "paused" if resource.paused else seen.runs_or_completed


def changes_of(store: Store, serial: int) -> Plan:
    """Return the changes of a serial, as a plan to show. Raises MZ038."""
    earlier = [number for number in store.serials() if number < serial]
    after = committed_state(store, serial)
    before = store.read_serial(earlier[-1]) if earlier else None
    return plan_between(before or State(project=after.project, lineage=after.lineage), after)


def changes_between(store: Store, first: int, second: int) -> Plan:
    """Return the changes from one serial to another, as a plan to show. Raises MZ038."""
    return plan_between(committed_state(store, first), committed_state(store, second))


def committed_state(store: Store, serial: int) -> State:
    """Return the state of a serial, current or earlier. Raises MZ038 (exit 7) if there is none."""
    current = store.read_state()
    state = current if current.serial == serial and current.lineage else store.read_serial(serial)
    if state is None:
        raise no_serial(store, serial, current.serial)
    return state


def no_serial(store: Store, serial: int, current: int = 0) -> MzplanError:
    """Return MZ038 (exit 7) for an unknown serial. `current`: the newest serial, if known."""
    serials = [number for number in (*store.serials(), current) if number > 0]
    return error(
        "MZ038.no-serial",
        serial=serial,
        describe=store.backend.describe(),
        serials=f"{serials[0]} to {serials[-1]}." if serials else "none.",
    )


_WEIGHT: tuple[CommitStatus, ...] = ("applied", "pending", "rejected", "failed")


def record_of(project: Project, command: str, plan: Plan | None, message: str | None) -> CommitRecord:
    """Return the record for the commit of a plan.

    `message`: None for the subject of the git commit. It becomes `HEAD+ (…)` if files differ from that
    commit, because then the subject isn't the reason for them.
    """
    git = find_revision(project.settings.directory, _own_paths(project.settings))
    who = author()
    if message is None:
        subject = git.subject if git is not None else ""
        message = f"HEAD+ ({subject})" if git is not None and git.clean is False else subject
    return CommitRecord(
        time=_now(),
        command=command,
        user=who.user,
        host=who.host,
        actor=who.actor,
        ci=who.ci,
        message=one_line(scrub(message)),
        git=git,
        digest=digest_of_plan(plan) if plan is not None else "",
        summary={action: n for action, n in plan.summary().items() if n} if plan is not None else {},
    )


def record_outcome(
    store: Store, reporter: Reporter, state: State, outcomes: Mapping[Address, Outcome] | None
) -> None:
    """Record the outcome of a commit, once.

    `outcomes`: None if the command waits for no query. A failure to write is reported but isn't an error.
    """
    outcome_by_address = outcomes or {}
    open_queries = {a: _still_open(o) for a, o in outcome_by_address.items() if o.status != "applied"}
    outcome = CommitOutcome(
        lineage=state.lineage,
        serial=state.serial,
        time=_now(),
        status="committed" if outcomes is None else _worst(o.status for o in outcome_by_address.values()),
        seconds=round(max((o.seconds for o in outcome_by_address.values()), default=0.0), 3),
        converged=len(outcome_by_address) - len(open_queries),
        open=open_queries,
        tasks={
            address: task
            for address, one in outcome_by_address.items()
            for task in one.tasks_done
            if task.serial == state.serial
        },
    )
    try:
        store.write_outcome(outcome)
    except MzplanError as problem:
        reporter.stage(f"notice: The outcome of serial {state.serial} is not recorded: {problem}")


def _still_open(outcome: Outcome) -> QueryOutcome:
    assert outcome.status != "applied"
    reason = one_line(scrub(outcome.reason.partition("\n")[0]))
    return QueryOutcome(status=outcome.status, reason=reason, code=outcome.code)


def _worst(statuses: Iterable[CommitStatus]) -> CommitStatus:
    return max(statuses, key=_WEIGHT.index, default="applied")


def _own_paths(settings: ProjectSettings) -> list[str]:
    """Return the paths that mzplan itself writes. Changes there don't make the git tree unclean."""
    directory = Path(settings.directory).resolve()
    names = [FOLDER]
    if settings.state.get("backend") not in ("postgres", "object-store"):
        names.append(str(settings.state.get("path", "state")))
    if "://" not in settings.warehouse:
        names.append(settings.warehouse)
    return [str((directory / name).resolve()) for name in names]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
