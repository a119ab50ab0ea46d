"""What a commit records of itself, and how it has ended: made here, kept by the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from mzplan.host.author import author
from mzplan.host.git import find_revision
from mzplan.host.local_folder import FOLDER
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError
from mzplan.model.history import CommitOutcome, CommitRecord, CommitStatus, QueryOutcome
from mzplan.model.plan import Plan
from mzplan.model.printable import one_line
from mzplan.model.resources import ProjectSettings
from mzplan.model.state import State
from mzplan.operations.follower import Outcome
from mzplan.operations.project import Project, Reporter
from mzplan.secrets.resolved import scrub
from mzplan.store.store import Store

_WEIGHT: tuple[CommitStatus, ...] = ("applied", "pending", "rejected", "failed")


def record_of(project: Project, command: str, plan: Plan | None, message: str | None) -> CommitRecord:
    """What the commit of a plan records. `message`: None for the subject of the git commit, as `HEAD+ (…)`
    where the files were not as that has them: then it does not say why."""
    from mzplan.plan.file import digest_of_plan

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
    """Record how a commit has ended, once. `outcomes`: None where the command waits for nobody. That it can't
    be written is reported, and fails nothing: the commit is what it is."""
    found = outcomes or {}
    left = {a: _still_open(o) for a, o in found.items() if o.status != "applied"}
    outcome = CommitOutcome(
        lineage=state.lineage,
        serial=state.serial,
        time=_now(),
        status="committed" if outcomes is None else _worst(o.status for o in found.values()),
        seconds=round(max((o.seconds for o in found.values()), default=0.0), 3),
        converged=len(found) - len(left),
        open=left,
    )
    try:
        store.write_outcome(outcome)
    except MzplanError as problem:
        reporter.stage(f"notice: how serial {state.serial} ended is not recorded: {problem}")


def _still_open(outcome: Outcome) -> QueryOutcome:
    assert outcome.status != "applied"
    reason = one_line(scrub(outcome.reason.partition("\n")[0]))
    return QueryOutcome(status=outcome.status, reason=reason, code=outcome.code)


def _worst(statuses: Iterable[CommitStatus]) -> CommitStatus:
    return max(statuses, key=_WEIGHT.index, default="applied")


def _own_paths(settings: ProjectSettings) -> list[str]:
    """What mzplan itself writes below the project, whose changes make no tree unclean."""
    directory = Path(settings.directory).resolve()
    names = [FOLDER]
    if settings.state.get("backend") not in ("postgres", "object-store"):
        names.append(str(settings.state.get("path", "state")))
    if "://" not in settings.warehouse:
        names.append(settings.warehouse)
    return [str((directory / name).resolve()) for name in names]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
