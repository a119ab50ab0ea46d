"""One short function per verb: the only place where configuration, plan, state and runners meet.

Nothing here decides what should be (the planner does) or touches Spark (the runners do). The running side
is reached only through the store, and through the `Runners` that the command line hands in.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from mzplan.failpoints import Failpoint, failpoint
from mzplan.following import Follower, Outcome
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError, error
from mzplan.model.plan import Change, DriftItem, Plan
from mzplan.model.resources import Configuration, Instance, ProjectSettings
from mzplan.model.state import (
    DroppedStorage,
    InstanceStatus,
    ProjectStatus,
    QueryStatus,
    State,
    Status,
)
from mzplan.render.text import count
from mzplan.state.store import Store, open_store

if TYPE_CHECKING:
    from mzplan.validation import Reach

LOCK_WAIT = 2.0  # seconds that a command waits for another one's lock


class Runners(Protocol):
    """How a command reaches the runners of this machine, without importing the running side."""

    def ensure(self, instance: Instance) -> None:
        """Start the embedded runner of an instance unless one leads. Nothing for other types."""

    def wake(self, instance: Instance, environment: Mapping[str, str]) -> None:
        """Tell a local runner to look now, and hand it values of `${env:…}` references."""

    def settle(self, instance: Instance) -> None:
        """A dry instance takes in the commit. Nothing for other types."""

    def ended(self, instance: Instance) -> MzplanError | None:
        """Why the embedded runner has ended, when it has; None while one leads, and for other types."""


class Reporter(Protocol):
    """Where progress goes."""

    def working(self, text: str) -> AbstractContextManager[None]:
        """What is being done meanwhile: said when it takes longer than a second."""

    def stage(self, text: str) -> None:
        """What is being done now, always said."""

    def detail(self, text: str) -> None:
        """What only somebody who looks for a cause wants to know."""

    def committing(self, serial: int) -> None:
        """A serial is about to be written; until `committed` it is open whether it was."""

    def committed(self, serial: int) -> None:
        """It is written."""

    def outcome(self, outcome: Outcome) -> None:
        """A query has converged, was rejected, or failed."""

    def waiting(self, waiting: Mapping[Address, str], seconds: float) -> None:
        """What is still awaited, in which condition, after so many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A project's folder, with what the command line said about variables."""

    settings: ProjectSettings
    variables: Mapping[str, str] = field(default_factory=dict)
    variable_files: Sequence[str] = ()

    @property
    def store(self) -> Store:
        return open_store(self.settings)

    def configuration(self) -> Configuration:
        from mzplan.config import load_configuration

        return load_configuration(self.settings.directory, self.variables, self.variable_files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What an apply did: the plan it carried out, and how each query ended."""

    plan: Plan
    serial: int
    outcomes: Mapping[Address, Outcome] = field(default_factory=dict)
    before: Mapping[Address, str | None] = field(default_factory=dict)  # run ids
    notes: tuple[Diagnostic, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        good = all(outcome.status == "applied" for outcome in self.outcomes.values())
        return ExitCode.OK if good else ExitCode.NOT_CONVERGED


def open_project(
    directory: str, variables: Mapping[str, str] | None = None, variable_files: Sequence[str] = ()
) -> Project:
    """Read mzplan.yaml of a folder (only that). Raises MzplanError."""
    from mzplan.config import load_project

    return Project(settings=load_project(directory), variables=variables or {}, variable_files=variable_files)


def validate(project: Project, reporter: Reporter) -> Configuration:
    """The static checks alone. Raises MzplanError with every problem."""
    with reporter.working("reading the files"):
        configuration = project.configuration()
    reporter.detail(f"read {count(len(configuration.resources), 'resource')} from the files")
    return configuration


def validate_live(
    project: Project, runners: Runners, reporter: Reporter
) -> tuple[Configuration, tuple[Reach, ...], tuple[Diagnostic, ...]]:
    """The static checks, and every connection reached through what uses it. Changes nothing.

    Returns what was reached, and what was found that is no error; raises MzplanError with every problem.
    """
    from mzplan.plan import apply_changes, build_plan
    from mzplan.validation import reach, reached

    configuration = validate(project, reporter)
    state = read_state(project.store, reporter)
    wanted = apply_changes(state, build_plan(configuration, state))
    queries = [r for r in wanted.resources.values() if r.address in configuration.resources and r.digest]
    found = reach(project, runners, reporter, wanted, queries, from_here=True)
    if any(d.severity == "error" for d in found):
        raise MzplanError(found)
    return configuration, reached(wanted, queries), tuple(found)


def make_plan(
    project: Project,
    runners: Runners,
    reporter: Reporter,
    *,
    targets: Sequence[Address] = (),
    replacing: Sequence[Address] = (),
    live: bool = False,
) -> Plan:
    """What apply would do now. Changes nothing. With `live`, its queries are validated as apply would do it
    (from here, where no runner is alive), and what is found is among the plan's diagnostics."""
    from mzplan.plan import apply_changes
    from mzplan.validation import queries_to_validate, reach

    state = read_state(project.store, reporter)
    plan = _planned(project, reporter, state, targets, replacing)
    if not live or any(d.severity == "error" for d in plan.diagnostics):
        return plan
    new = apply_changes(state, plan)
    found = reach(project, runners, reporter, new, queries_to_validate(plan, new), from_here=True)
    return replace(plan, diagnostics=(*plan.diagnostics, *found))


def read_state(store: Store, reporter: Reporter) -> State:
    """The committed state."""
    with reporter.working("reading the state"):
        state = store.read_state()
    reporter.detail(
        f"read the state: serial {state.serial}, lineage {state.lineage or '(none)'}, "
        f"{count(len(state.resources), 'resource')}"
    )
    return state


def _planned(
    project: Project,
    reporter: Reporter,
    state: State,
    targets: Sequence[Address],
    replacing: Sequence[Address],
) -> Plan:
    from mzplan.plan import build_plan

    configuration = validate(project, reporter)
    with reporter.working("planning"):
        plan = build_plan(
            configuration, state, project.store.read_statuses(), targets=targets, replace=replacing
        )
    reporter.detail(f"planned: {count(len(plan.changes), 'change')}")
    return plan


def apply_configuration(
    project: Project,
    runners: Runners,
    reporter: Reporter,
    *,
    approve: Callable[[Plan], None],
    targets: Sequence[Address] = (),
    replacing: Sequence[Address] = (),
    allow_replace: bool = False,
    live: bool | None = None,
    wait: float,
) -> Applied:
    """Plan, have it approved, validate it where it will run, commit, and follow until it has converged."""

    def planned(state: State) -> Plan:
        return _planned(project, reporter, state, targets, replacing)

    return _carry_out(
        project,
        runners,
        reporter,
        "apply",
        planned,
        approve,
        allow_replace=allow_replace,
        live=live,
        wait=wait,
    )


def apply_saved(
    project: Project,
    runners: Runners,
    reporter: Reporter,
    plan: Plan,
    *,
    approve: Callable[[Plan], None],
    allow_replace: bool = False,
    live: bool | None = None,
    wait: float,
) -> Applied:
    """Carry out a plan that was saved earlier, exactly as it was reviewed: the files are not read again.
    Raises MZ036 (exit 5) when the state has moved on since, saying what has changed of it."""
    from mzplan.plan import ensure_fresh, ensure_whole

    def planned(state: State) -> Plan:
        then = None
        if plan.lineage == state.lineage and plan.serial != state.serial:
            with suppress(MzplanError):  # only to say more
                then = project.store.read_serial(plan.serial)
        ensure_fresh(plan, replace(state, project=project.settings.project), then)
        ensure_whole(plan, state)
        return plan

    return _carry_out(
        project,
        runners,
        reporter,
        "apply",
        planned,
        approve,
        allow_replace=allow_replace,
        live=live,
        wait=wait,
    )


def operate(
    project: Project,
    runners: Runners,
    reporter: Reporter,
    command: str,
    planned: Callable[[State], Plan],
    *,
    approve: Callable[[Plan], None],
    wait: float,
) -> Applied:
    """Carry out a plan that comes from the state alone: pause, resume, restart, destroy."""
    return _carry_out(
        project, runners, reporter, command, planned, approve, allow_replace=True, live=None, wait=wait
    )


def _carry_out(
    project: Project,
    runners: Runners,
    reporter: Reporter,
    command: str,
    planned: Callable[[State], Plan],
    approve: Callable[[Plan], None],
    *,
    allow_replace: bool,
    live: bool | None,
    wait: float,
) -> Applied:
    store = project.store
    with ExitStack() as held:
        with reporter.working("waiting for the lock of the state"):
            held.enter_context(store.lock(command, LOCK_WAIT))
        failpoint(Failpoint.APPLY_LOCKED)
        state = read_state(store, reporter)
        plan = planned(state)
        refuse(plan, allow_replace)
        statuses = store.read_statuses()
        if not plan.is_empty:
            approve(plan)
            state = _commit(project, runners, reporter, plan, state, live)
    return _follow(project, runners, reporter, plan, state, statuses, wait)


def refuse(plan: Plan, allow_replace: bool) -> None:
    """Raise what stands against the plan: errors that planning found, replacements nobody allowed."""
    errors = [d for d in plan.diagnostics if d.severity == "error"]
    if errors:
        raise MzplanError(errors)
    if allow_replace:
        return
    replaced = [change for change in plan.changes if change.action == "replace"]
    if replaced:
        raise MzplanError(
            Diagnostic(
                code="MZ040",
                summary=f"{change.address} would be replaced",
                detail=f"{change.reason}. A replacement begins a new generation with a new checkpoint: "
                "everything is read again.",
                hint="run apply with --allow-replace if that is what you want.",
                address=change.address,
                exit_code=ExitCode.REFUSED,
            )
            for change in replaced
        )


def _commit(
    project: Project, runners: Runners, reporter: Reporter, plan: Plan, state: State, live: bool | None
) -> State:
    """Validate live, then commit, then wake. The caller holds the lock."""
    from mzplan.plan import apply_changes
    from mzplan.validation import queries_to_validate, reach

    store = project.store
    new = apply_changes(state, plan)
    changed = [c for c in plan.changes if c.address.kind != "connection"]
    instances = {i.name: i for i in _touched(new, state, changed)}
    environment = _environment(new)
    needed = _instances_used(new)
    for instance in instances.values():
        if instance.name in needed:  # no Spark is started only to see that there is nothing to stop
            runners.ensure(instance)
        runners.wake(instance, environment)
    if live is not False:
        queries = queries_to_validate(plan, new)
        found = reach(project, runners, reporter, new, queries, environment, from_here=live is True)
        if any(d.severity == "error" for d in found):
            raise MzplanError(found)
    failpoint(Failpoint.APPLY_VALIDATED)
    reporter.committing(new.serial)
    store.commit(new, state)
    failpoint(Failpoint.APPLY_COMMITTED)
    reporter.committed(new.serial)
    for instance in instances.values():
        runners.wake(instance, environment)
    failpoint(Failpoint.APPLY_WOKEN)
    return new


def _follow(
    project: Project,
    runners: Runners,
    reporter: Reporter,
    plan: Plan,
    state: State,
    statuses: Mapping[str, Status],
    wait: float,
) -> Applied:
    """Wait for what the plan touched, and for whatever else has not converged yet."""
    before = {a: o.run_id for s in statuses.values() for a, o in s.observations.items()}
    touched = {c.address for c in plan.changes if c.address.kind != "connection"}
    needed = _instances_used(state)
    left = {c.before.instance for c in plan.changes if c.before is not None and c.address in touched}
    outcomes: dict[Address, Outcome] = {}
    for name in sorted(needed | left):
        instance = state.instances.get(name) or Instance(name=name, type="embedded")
        if name in needed:
            runners.ensure(instance)
        elif instance.type != "dry" and project.store.leader(name) is None:
            continue  # nothing runs there, and nothing is to
        runners.settle(instance)
        follower = Follower(project.store, state, name, touched)
        outcomes |= follower.follow(wait, reporter, lambda i=instance: runners.ended(i))  # type: ignore[misc]
    return Applied(plan=plan, serial=state.serial, outcomes=outcomes, before=before)


def _instances_used(state: State) -> set[str]:
    return {r.instance for r in state.resources.values() if r.address.kind != "connection"}


def _touched(new: State, old: State, changes: Sequence[Change]) -> Iterator[Instance]:
    names: set[str] = set()
    for change in changes:
        names |= {r.instance for r in (change.before, change.after) if r is not None}
    for name in sorted(names):
        declared = new.instances.get(name) or old.instances.get(name)
        if declared is not None:
            yield declared


def _environment(state: State) -> dict[str, str]:
    """The values that this process has of the environment variables the state refers to."""
    import os

    from mzplan.secrets import REFERENCE, references_in

    names = {
        match["name"]
        for resource in state.resources.values()
        if resource.address.kind == "connection"
        for reference in references_in(resource.body)
        if (match := REFERENCE.fullmatch(reference)) and match["provider"] == "env"
    }
    return {name: os.environ[name] for name in sorted(names) if name in os.environ}


# --- status


def read_project_status(project: Project) -> ProjectStatus:
    """State, leases and statuses, put together. Reads only the store."""
    store = project.store
    state = store.read_state()
    statuses = store.read_statuses()
    instances = {**project.settings.instances, **state.instances}
    alive: dict[str, bool] = {}
    shown = []
    for name in sorted(instances):
        lease = store.read_lease(name)
        is_dry = instances[name].type == "dry"
        alive[name] = is_dry or store.leader(name) is not None
        status = statuses.get(name)
        shown.append(
            InstanceStatus(
                name=name,
                epoch=lease.epoch if lease else 0,
                alive=alive[name],
                heartbeat=lease.heartbeat if lease else None,
                serial=status.serial if status else 0,
            )
        )
    queries = []
    for address, resource in sorted(state.resources.items()):
        if address.kind == "connection":
            continue
        status = statuses.get(resource.instance)
        observation = status.observations.get(address) if status else None
        if observation is not None and not alive.get(resource.instance, False):
            observation = replace(observation, condition="stopped", input_rows_per_second=0.0)
        queries.append(QueryStatus(resource=resource, observation=observation))
    dropped = tuple(
        DroppedStorage(
            address=f"{entry.kind}.{entry.name}",
            id=entry.id,
            generation=entry.generation,
            dropped_at=entry.dropped_at,
        )
        for name in sorted(instances)
        for entry in store.read_journal(name)
    )
    return ProjectStatus(serial=state.serial, instances=tuple(shown), queries=tuple(queries), dropped=dropped)


def find_drift(project: Project) -> tuple[DriftItem, ...]:
    """State against reality, as far as the status tells."""
    from mzplan.plan.drift import drift_between

    store = project.store
    state = store.read_state()
    alive = {name: store.leader(name) is not None for name in state.instances}
    return drift_between(state, store.read_statuses(), alive)


@contextmanager
def locked(project: Project, command: str) -> Iterator[State]:
    """Hold the lock; gives the state."""
    store = project.store
    with store.lock(command, LOCK_WAIT):
        yield store.read_state()


def down_hint(instance: str) -> str:
    """What to do when no runner of an instance is alive."""
    return (
        f"start one: `mzplan up` (embedded) or `mzplan run --instance {instance}` on {socket.gethostname()}"
    )


def unknown_address(address: Address, state: State) -> MzplanError:
    """MZ070: no such resource."""
    from mzplan.plan.difference import did_you_mean

    return error(
        "MZ070",
        f"There is no {address} in the state",
        f"The state has {count(len(state.resources), 'resource')}.",
        did_you_mean(address, state.resources) or "`mzplan status` lists the queries, `mzplan show` all.",
        exit_code=ExitCode.USAGE,
    )
