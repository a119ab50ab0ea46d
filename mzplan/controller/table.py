"""The row of a query, what surrounds it, and the decision on its next step.

A row has all that a controller knows of the query at one address. `decide` is pure: it reads a row and the
`World`, and returns at most one command, or the reason why there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mzplan.controller.decision import Command, Decision, HeldQuery, Memory, Stop, Switch, WantedQuery, key_of
from mzplan.controller.executor import QueryName, QueryReport
from mzplan.controller.outages import hold_in_outage
from mzplan.controller.reconcile import next_step, without_failures
from mzplan.controller.terms import Gate
from mzplan.model.address import KINDS, Address
from mzplan.model.cause import Cause
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.observed import JobKind
from mzplan.model.resources import Retries
from mzplan.model.tasks import Task, TaskProgress
from mzplan.schema.description import CollectionRead, Description

NO_ATTEMPTS = Memory()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a command.

    - `problem`: None after success.
    - `checked`: False if the check failed, so that nothing was stopped.
    - `upstream`: the identity of the upstream, if a check found it.
    """

    command: Command
    problem: Diagnostic | None = None
    checked: bool = True
    upstream: Any = None


@dataclass(slots=True, kw_only=True)
class Row:
    """What is known of the query at an address.

    - `wanted`: the committed query; None if it isn't committed here.
    - `memory`: its past attempts, with the description that ran last (`accepted`).
    - `reports`: what the engine reports of its runs.
    - `job`: the command under way, and `command`: what it does. `task`: the work that its start does first.
    - `ignores_failure`: the job uses former secrets or a former description, so its failure doesn't count.
    - `upstream`: the identity of its upstream, as the last check found it.
    - `is_failing`: whether its last event was a failure.
    """

    address: Address
    wanted: WantedQuery | None = None
    memory: Memory = NO_ATTEMPTS
    reports: tuple[QueryReport, ...] = ()
    job: Future[Result] | None = None
    command: Stop | Switch | None = None
    task: TaskProgress | None = None
    ignores_failure: bool = False
    upstream: Any = None
    is_failing: bool = False

    def start_order(self, previous_lags: Mapping[Address, int]) -> tuple[bool, int, int, Address]:
        """Return the sort key of the query in the start order.

        Queries that already failed with this description go last, so that slow failures don't delay first
        attempts. Sources go first, because their readers may wait for a new column. Then the queries with
        the largest lag go first.
        """
        memory, wanted = self.memory, self.wanted
        has_failed = (
            memory.failures > 0 and wanted is not None and memory.target == key_of(wanted.description)
        )
        kind = KINDS.index(self.address.kind)
        return (has_failed, kind, -previous_lags.get(self.address, 0), self.address)


class Use(NamedTuple):
    """The use of a generation of a query by the query at an address, which runs, starts or stops."""

    address: Address
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What surrounds the queries in one round.

    - `now`: monotonic seconds. `takeover`: the cause when a query starts that another runner has run.
    - `gates`: the first one that holds a query decides what it runs.
    - `started_ids`: the ids that queries were started with, by name. A name doesn't identify a checkpoint: it
      has the address, which may pass to another resource while the query runs. Queries never outlive this
      process, so it knows the ids of all running queries.
    - `users`: returns the uses of the generations of a query, by its id.
    - `is_being_removed`: whether storage that a description uses or reads is being removed.
    - `is_full`: whether a new job of a kind would wait for a thread.
    - `completes_after`: a query with `trigger: available-now` completes once a trigger that began after this
      moment (seconds since the epoch) finds nothing to read; None if the query runs on.
    """

    now: float
    backoff: Retries
    takeover: Cause
    is_store_away: bool
    gates: Sequence[Gate]
    started_ids: Mapping[QueryName, str]
    users: Callable[[str], Set[Use]]
    is_being_removed: Callable[[Description], bool]
    is_full: Callable[[JobKind], bool]
    completes_after: Callable[[Description], float | None]

    def hold(self, wanted: Description, accepted: Description | None) -> HeldQuery | None:
        """Return the hold on a query; None if it may run. The first gate that holds it decides."""
        if self.is_store_away:
            return hold_in_outage(wanted, accepted)
        holds = (gate.hold(wanted, accepted) for gate in self.gates)
        return next((hold for hold in holds if hold is not None), None)


def decide(row: Row, world: World) -> Decision:
    """Return the next step of a query, or the reason why it has none."""
    decision = _stop_strangers(row, world) or _decide_wanted(row, world)
    decision = as_committed(decision, row.wanted)
    if (why := _why_blocked(decision, row, world)) is not None:
        decision = replace(decision, command=None, condition="starting", why=why)
    if (why := _why_postponed(decision, row, world)) is None:
        return decision
    decision = replace(decision, command=None, is_postponed=True, why=why or decision.why)
    is_wanted = row.wanted is not None and not row.wanted.paused
    if decision.condition == "running" and is_wanted:
        # The query runs, but its start hasn't returned and hasn't recorded the secret values.
        return replace(decision, condition="starting")
    return decision


def _why_blocked(decision: Decision, row: Row, world: World) -> str | None:
    """Return why the storage of a query can't be used yet; None if it can."""
    if not isinstance(decision.command, Switch):
        return None
    description = decision.command.description
    if others := _excluding(row, description, world.users(description.id)):
        return f"waiting for {min(others)} to stop, which uses the same checkpoint"
    if world.is_being_removed(description):
        return "waiting for the removal of former storage"
    return None


def _excluding(row: Row, description: Description, uses: Set[Use]) -> set[Address]:
    """Return the addresses whose use of a query must end before a generation of it starts.

    Generations of one query may share objects on its upstream, or its target. So they run at once only beside
    the one in service.
    """
    is_former = row.wanted is not None and description.generation < row.wanted.description.generation
    is_beside = row.address.is_beside or is_former
    return {
        use.address
        for use in uses
        if use.address != row.address
        and (
            use.generation == description.generation
            or not (is_beside and use.address.resource == row.address.resource)
        )
    }


def _why_postponed(decision: Decision, row: Row, world: World) -> str | None:
    """Return why no job may start now; None if it may, and "" if the query's own job is under way."""
    if row.job is not None:
        return ""
    kind = job_kind(decision, row)
    if kind is None or not world.is_full(kind):
        return None
    work = "one-off tasks" if kind == "task" else "starts and stops"
    return f"waiting for a thread: as many {work} as allowed are under way"


def _stop_strangers(row: Row, world: World) -> Decision | None:
    """Decide to stop queries at an address that run from another resource's checkpoint.

    Returns None if there are no such queries. The accepted description stays in memory until they have
    stopped, because they still write its storage.
    """
    if row.wanted is None:
        return None
    wanted = row.wanted.description.id
    names = tuple(r.name for r in row.reports if world.started_ids.get(r.name, wanted) != wanted)
    if not names:
        return None
    stop, memory = Stop(address=row.address, names=names), Memory(accepted=row.memory.accepted)
    why = "waiting for the former query of this name to stop"
    return Decision(command=stop, memory=memory, condition="starting", run=None, why=why)


def _decide_wanted(row: Row, world: World) -> Decision:
    """Decide the next step of a query, which an outage or a gate may hold."""
    wanted, memory = row.wanted, row.memory
    if wanted is None:
        return next_step(row.address, None, row.reports, memory, world.now, world.backoff)
    held, query = world.hold(wanted.description, memory.accepted), wanted
    if held is not None:
        if not held.starts_nothing:
            assert held.description is not None
            query = replace(wanted, description=held.description)
        elif not wanted.paused:
            return _decide_held(row, held, world)
    after = world.completes_after(query.description)
    decision = next_step(
        row.address, query, row.reports, memory, world.now, world.backoff, world.takeover, after
    )
    decision = replace(decision, hold=held)
    switch = decision.command
    if not isinstance(switch, Switch):
        return decision
    if held is not None:
        switch = replace(switch, check=held.check, create=False)
    if switch.cause.cause != "retry":  # a gate states the cause of a start, but not of a retry
        causes = (gate.cause(wanted.description, memory.accepted) for gate in world.gates)
        switch = replace(switch, cause=next((cause for cause in causes if cause is not None), switch.cause))
    return replace(decision, command=switch)


def _decide_held(row: Row, held: HeldQuery, world: World) -> Decision:
    """Decide for a query that a gate doesn't let start: stop it if the gate says so."""
    run, memory = next((report for report in row.reports if report.active), None), row.memory
    command = None
    if held.stop and row.reports:
        command = Stop(address=row.address, names=tuple(r.name for r in row.reports), cause=held.stop)
    if held.restart is not None:
        memory = replace(without_failures(memory), retry_cause=held.restart)
    condition = "running" if run is not None else held.condition
    why = held.reason if world.is_store_away else None  # the Status has the reason of a gate as `held`
    return Decision(command=command, memory=memory, condition=condition, run=run, hold=held, why=why)


def as_committed(decision: Decision, wanted_query: WantedQuery | None) -> Decision:
    """Remove the tasks from a start, unless it starts the committed description.

    A fallback's tasks were done before its description was accepted.
    """
    command = decision.command
    if not isinstance(command, Switch) or (wanted_query and command.description == wanted_query.description):
        return decision
    description = replace(command.description, tasks=())
    return replace(decision, command=replace(command, description=description))


def job_kind(decision: Decision, row: Row) -> JobKind | None:
    """Return the kind of job for the next step; None for a step that takes no time."""
    match decision.command:
        case Switch(description=description):
            takes_long = has_tasks(description, decision.memory, row.reports)
            takes_long |= must_migrate(description, decision.memory)
            return "task" if takes_long else "start"
        case Stop():
            return "start"
        case _:
            return None


def must_migrate(description: Description, memory: Memory) -> bool:
    """Whether a start may first have to migrate or read rows of a former generation."""
    accepted = memory.accepted
    known = {read.place for read in _collections_of(accepted)} if accepted is not None else set()
    return any(
        read.predecessor is not None and read.place not in known for read in _collections_of(description)
    )


def _collections_of(description: Description) -> tuple[Description | CollectionRead, ...]:
    """Return the collections that a query reads, and the query itself for its own collection."""
    return (*description.reads.values(), description)


def has_tasks(description: Description, memory: Memory, reports: Sequence[QueryReport]) -> bool:
    """Whether a start may have to do tasks first. True if unknown.

    The tasks of an accepted description are done.
    """
    same = [report for report in reports if report.name.generation == description.generation]
    done = {outcome.serial for report in same for outcome in report.tasks_done}
    return any(task.serial not in done for task in open_tasks_of(description, memory))


def open_tasks_of(description: Description, memory: Memory) -> tuple[Task, ...]:
    """Return the tasks that the accepted description didn't have."""
    accepted = memory.accepted
    known = accepted.tasks if accepted is not None and accepted.place == description.place else ()
    return tuple(task for task in description.tasks if task not in known)
