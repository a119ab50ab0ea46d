"""The queries of one instance: compares desired and observed state, and takes the next steps.

Starts, stops and checks are jobs, one at a time for each address. A round never blocks on the engine or a
server. Starts that may take hours have their own threads, so that they delay nothing else.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, assert_never

from mzplan.controller.claims import Accepted, Claims, places_read
from mzplan.controller.executor import QueryName, QueryReport
from mzplan.controller.outages import OVERTAKEN, hold_in_outage, is_fenced
from mzplan.controller.reconcile import (
    BACKOFF,
    Accept,
    Command,
    Decision,
    Desired,
    Drop,
    Memory,
    Stop,
    Switch,
    after_failure,
    decide,
    key_of,
    without_failures,
)
from mzplan.controller.runs import Runs
from mzplan.controller.secrets_in_use import SecretsInUse
from mzplan.controller.terms import HeldQuery, Step
from mzplan.controller.work import Attempts, Result, Switcher
from mzplan.model.address import KINDS, Address
from mzplan.model.cause import Cause
from mzplan.model.diagnostics import sentence
from mzplan.model.event import EventKind
from mzplan.model.observed import Condition, JobKind, Status
from mzplan.model.tasks import Task, TaskProgress
from mzplan.schema.description import CollectionRead, Description

if TYPE_CHECKING:
    from mzplan.controller.core import Controller

log = logging.getLogger("mzplan.runner")


class Queries:
    """Keeps the queries of one instance running as hosted.

    A gate may hold a query. If several gates do, the first one decides what the query runs.

    - `previous`: the status of the earlier runner.
    - `takeover`: the cause when a query starts that another runner has run; None until the engine is open.
    """

    def __init__(
        self,
        controller: Controller,
        claims: Claims,
        epoch: int,
        previous: Status | None,
        takeover: Cause | None,
    ):
        self.controller, self.claims, self.takeover = controller, claims, takeover
        self.executor, self.gates, self.events = controller.executor, controller.gates, controller.events
        self.clock = controller.clock
        known = previous.secrets if previous is not None else {}
        self.secrets_in_use = SecretsInUse(controller.secrets, known, controller.jobs, controller.clock)
        self.switcher = Switcher(controller, claims, self.secrets_in_use, epoch)
        self.jobs = controller.jobs
        observations = previous.observations if previous is not None else {}
        self.previous_lags = {address: o.lag for address, o in observations.items() if o.lag}
        self.backoff = BACKOFF
        self.memories: dict[Address, Memory] = {
            a: Memory(accepted=d, started_here=a in observations and observations[a].condition == "paused")
            for a, d in claims.accepted.items()
        }
        self.in_flight: dict[Address, Future[Result]] = {}
        self._starting_ids: dict[Address, str] = {}  # the query ids of the starts under way
        self.tasks_under_way: dict[Address, TaskProgress] = {}  # the first task of each start under way
        self._addresses_by_id: defaultdict[str, set[Address]] = defaultdict(set)  # in the last round
        self.upstreams: dict[Address, Any] = {}
        self.reports: tuple[QueryReport, ...] = ()  # of the last round
        self.attempts = Attempts()
        self.runs = Runs(controller.store.project, self.events, self._last_step)
        self._accepted_changed = False
        # Queries whose start under way uses former secrets or a former description.
        self._ignored: set[Address] = set()
        self._descriptions: dict[Address, Description] = {}  # in the last round
        self._failing: set[Address] = set()  # with a "failed" event and no "healed" event since
        self.runs.update(self.executor.reports(), ())

    def collect_results(self) -> None:
        """Process the results of commands that have ended."""
        for address in [a for a, future in self.in_flight.items() if future.done()]:
            result = self.in_flight.pop(address).result()
            self._starting_ids.pop(address, None)
            self.tasks_under_way.pop(address, None)
            if result.upstream is not None:
                self.upstreams[address] = result.upstream
            outdated = address in self._ignored
            self._ignored.discard(address)
            if isinstance(result.command, Switch) and not (outdated and result.problem is not None):
                self._record_result(address, result.command, result)

    def reconcile(self, wanted: Mapping[Address, Desired]) -> dict[Address, Decision]:
        """Decide on each query and start its next step. Returns the decisions by address."""
        self._retry_changed(wanted)
        reports: dict[Address, list[QueryReport]] = {}
        self.reports = self.runs.update(self.executor.reports(), self.in_flight)
        for report in self.reports:
            reports.setdefault(report.name.address, []).append(report)
        running_ids = self.switcher.running_ids
        self._addresses_by_id = running_ids.addresses_by_id(self.reports, self._starting_ids)
        now = self.clock()
        decisions: dict[Address, Decision] = {}
        for address in sorted(
            {*wanted, *reports, *self.memories}, key=lambda a: self._start_order(a, wanted.get(a))
        ):
            memory = self.memories.get(address) or Memory()
            own_reports = reports.get(address, [])
            desired = wanted.get(address)
            decision = running_ids.stop_strangers(address, desired, own_reports, memory)
            if decision is None:
                decision = self._decide(address, desired, own_reports, memory, now)
            decision = _as_committed(decision, desired)
            if isinstance(decision.command, Switch) and (
                self._addresses_by_id[decision.command.description.id] - {address}
                or self.claims.is_being_removed(decision.command.description)
            ):
                decision = replace(decision, command=None, condition="starting")
            kind = _job_kind(decision, own_reports)
            if address in self.in_flight or (kind is not None and self.jobs.is_full(kind)):
                # The result of the command in flight isn't known yet, or its job would wait. Report the
                # decision, but neither carry it out nor remember it.
                decision = replace(decision, command=None)
                if decision.condition == "running" and desired is not None and not desired.paused:
                    # The query runs, but its start hasn't returned and hasn't recorded the secret values.
                    decision = replace(decision, condition="starting")
            else:
                self.memories[address] = decision.memory
                self._note_failure(address, memory, decision.memory)
                if address in self._failing and decision.memory.healthy_since is not None:
                    self._failing.remove(address)
                    self.events.add("healed", address)
                # If another resource had this name, remove its accepted description from the store too.
                self._accepted_changed |= memory.accepted is not None and decision.memory.accepted is None
                if decision.command is not None:
                    self.attempts.count_retry(decision)
                    self._execute(decision.command, kind)
            decisions[address] = decision
        self._write_accepted(wanted)
        return decisions

    def _start_order(self, address: Address, desired: Desired | None) -> tuple[bool, int, int, Address]:
        """Return the sort key of a query in the start order.

        Queries that already failed with this description go last, so that slow failures don't delay first
        attempts. Sources go first, because their readers may wait for a new column. Then the queries with
        the largest lag go first.
        """
        has_failed, memory = False, self.memories.get(address)
        if memory is not None and desired is not None:
            has_failed = memory.failures > 0 and memory.target == key_of(desired.description)
        return (has_failed, KINDS.index(address.kind), -self.previous_lags.get(address, 0), address)

    def _decide(
        self,
        address: Address,
        desired: Desired | None,
        reports: list[QueryReport],
        memory: Memory,
        now: float,
    ) -> Decision:
        """Decide the next step of one query, which a gate may hold."""
        if desired is None:
            return decide(address, None, reports, memory, now, self.backoff)
        held = self._held(desired.description, memory.accepted)
        query = desired
        if held is not None:
            if held.description is not None and not held.stop:
                query = replace(desired, description=held.description)
            elif not desired.paused:
                return _decide_held(address, held, reports, memory)
        takeover = self.takeover or Cause(cause="runner")
        decision = decide(address, query, reports, memory, now, self.backoff, takeover)
        if held is not None and isinstance(decision.command, Switch):
            decision = replace(decision, command=replace(decision.command, check=held.check, create=False))
        return self._with_cause(decision, desired, memory)

    def _held(self, wanted: Description, accepted: Description | None) -> HeldQuery | None:
        """Return the hold on a query; None if it may run. The first gate that holds it decides."""
        if self.controller.instances.is_store_away:
            return hold_in_outage(wanted, accepted)
        holds = (gate.hold(wanted, accepted) for gate in self.gates)
        return next((hold for hold in holds if hold is not None), None)

    def unfenced(self) -> list[QueryName]:
        """Return the queries that can't reject rows of another runner. Any thread may call it."""
        descriptions = [desired.description for desired in self.controller.wanted.values()]
        descriptions += self.claims.accepted.values()  # a query may still run its accepted description
        addresses = {query.address for query in descriptions if not is_fenced(query)}
        return [report.name for report in self.executor.reports() if report.name.address in addresses]

    def overtaken(self) -> Address | None:
        """Return a query whose target has rejected it, because it knows a higher epoch; None without one."""
        return next((r.name.address for r in self.reports if r.error_code == OVERTAKEN), None)

    def _with_cause(self, decision: Decision, desired: Desired, memory: Memory) -> Decision:
        """Give a start the cause that a gate states, unless the start is a retry."""
        switch = decision.command
        if not isinstance(switch, Switch) or switch.cause.cause == "retry":
            return decision
        causes = (gate.cause(desired.description, memory.accepted) for gate in self.gates)
        cause = next((cause for cause in causes if cause is not None), None)
        return decision if cause is None else replace(decision, command=replace(switch, cause=cause))

    def check_secrets(self) -> None:
        """Check whether secret values have changed, and retry failed queries that use a changed one.

        Running queries aren't restarted: a plan does that.
        """
        if changed := self.secrets_in_use.changed_references():
            self.retry_with_secrets(changed)

    def retry_with_secrets(self, references: Set[str]) -> None:
        """Retry failed queries at once that use one of these references, whose values have changed.

        If a start under way fails, its failure doesn't count, because it may have used the former value.
        """
        text = f"new value of {', '.join(sorted(references))}"
        self.events.add("secret", detail=text)
        retry_cause = Cause(cause="secret", detail=text)
        for address, desired in self.controller.wanted.items():
            if not self.secrets_in_use.references_of(address, desired.description).isdisjoint(references):
                self._retry(address, retry_cause)

    def _retry_changed(self, wanted: Mapping[Address, Desired]) -> None:
        """Retry failed queries at once whose description has changed, and forget their failures.

        The digest may be the same, because a changed validation setting may fix the failure.
        """
        now = {address: desired.description for address, desired in wanted.items()}
        for address, description in now.items():
            before = self._descriptions.get(address)
            if before is not None and before is not description and before != description:
                self._retry(address, None)
        self._descriptions = now

    def retry_reconnected(self, connections: Mapping[Address, Address]) -> None:
        """Retry failed queries at once, except queries that have no attempts left.

        `connections` has the connection that answers again, by query.
        """
        for address, connection in connections.items():
            memory = self.memories.get(address)
            if memory is not None and memory.verdict is not None and not math.isinf(memory.retry_at):
                self._ignore_result(address)
                retry_cause = Cause(cause="retry", detail=f"{connection} answers again")
                self.memories[address] = replace(memory, retry_at=0.0, retry_cause=retry_cause)

    def retry_failed(self) -> None:
        """Retry failed queries at once after an apply, because a user may have fixed the cause.

        A query without attempts left isn't retried: its error says that it waits for a change or a restart.
        """
        retry_cause = Cause(cause="retry", detail="an apply asks for it")
        for address, memory in list(self.memories.items()):
            if memory.verdict is not None and not math.isinf(memory.retry_at):
                self._retry(address, retry_cause)

    def _retry(self, address: Address, retry_cause: Cause | None) -> None:
        """Retry the query at once, if it has failed. `retry_cause` is the cause of the retry."""
        self._ignore_result(address)
        if (memory := self.memories.get(address)) is not None:
            self.memories[address] = without_failures(memory, retry_cause if memory.failures else None)

    def _ignore_result(self, address: Address) -> None:
        """Ignore the failure of a start that is under way."""
        if address in self.in_flight:
            self._ignored.add(address)

    def reclaim(self, wanted: Mapping[Address, Desired], decisions: Mapping[Address, Decision]) -> None:
        """Remove storage that no query claims or reads any more, once it is due."""
        descriptions = {a: d.description for a, d in wanted.items()}
        read = places_read(descriptions) | places_read(self._accepted())
        stopping = any(a not in wanted and d.run is not None for a, d in decisions.items())
        if not stopping:  # a query that is being stopped still writes to its unclaimed storage
            self.claims.reclaim(self.controller.claimed, read, self.jobs)

    def _execute(self, command: Command, kind: JobKind | None) -> None:
        match command:
            case Accept():
                self._accepted_changed = True
            case Drop():
                dropped = self.memories.pop(command.address, Memory())
                self._failing.discard(command.address)
                self._accepted_changed |= dropped.accepted is not None
            case Stop() | Switch():
                self.runs.record_command(command)
                if isinstance(command, Switch):
                    self._starting_ids[command.address] = command.description.id
                    if tasks := open_tasks_of(command.description, self.memories[command.address]):
                        self.tasks_under_way[command.address] = TaskProgress(title=str(tasks[0]))
                    self._addresses_by_id[command.description.id].add(command.address)
                self.in_flight[command.address] = self.jobs.submit(
                    kind or "start", command.address, self.switcher.run, command
                )
            case _:
                assert_never(command)

    def _accepted(self) -> Accepted:
        return {a: m.accepted for a, m in self.memories.items() if m.accepted is not None}

    def _write_accepted(self, wanted: Mapping[Address, Desired]) -> None:
        """Write the accepted descriptions once a round, if any changed.

        Also write them when nothing claims the storage of a query that has left this instance.
        """
        if self.controller.instances.is_store_away:
            return  # a later round writes them
        claimed = self.controller.claimed
        if self._accepted_changed or self.claims.has_stale_record(claimed, {*wanted, *self.memories}):
            self.claims.record(self._accepted(), claimed)
            self._accepted_changed = False

    def _last_step(self, address: Address) -> Step:
        description = self._descriptions.get(address)
        return self.controller.frontiers.last_step(description) if description is not None else -1

    def _note_failure(self, address: Address, before: Memory, after: Memory) -> None:
        """Log a failed attempt, and queue its event. Spark logs the stack trace."""
        if after.failures > before.failures and after.error:
            attempt = f" (attempt {after.failures})" if after.failures > 1 else ""
            log.error("%s: [%s] %s%s", address, after.error_code, after.error, attempt)
            kind: EventKind = "refused" if after.verdict == "rejected" else "failed"
            self.events.add(kind, address, code=after.error_code or "", detail=f"{after.error}{attempt}")
            self._failing.add(address)

    def _record_result(self, address: Address, switch: Switch, result: Result) -> None:
        memory = self.memories.get(address) or Memory()
        if result.problem is None:
            self.attempts.count_start(address, switch.cause.cause)
            self.memories[address] = replace(memory, started_here=True, retry_cause=None)
            log.info(
                "%s g%d started: %s",
                address,
                switch.description.generation,
                switch.cause.detail or "committed",
            )
            if memory.accepted is None or memory.accepted.place != switch.description.place:
                generation = switch.description.generation
                self.events.add("generation", address, generation=generation, detail="its first start here")
            return
        text, code, now = sentence(result.problem), result.problem.code, self.clock()
        if memory.target != key_of(switch.description):
            log.error("%s: can't fall back to its last accepted description: [%s] %s", address, code, text)
            fallback_at = now + self.backoff.delay(memory.failures + 1)
            self.memories[address] = replace(memory, fallback_at=fallback_at)
            return
        verdict: Condition = "failed" if result.checked or memory.is_target_accepted else "rejected"
        failed = after_failure(memory, verdict, text, code, now, self.backoff, result.problem.kind)
        self._note_failure(address, memory, failed)
        self.memories[address] = failed


def _decide_held(address: Address, held: HeldQuery, reports: list[QueryReport], memory: Memory) -> Decision:
    """Decide for a query that a gate doesn't let start: stop it if the gate says so."""
    run = next((report for report in reports if report.active), None)
    command = None
    if held.stop and reports:
        command = Stop(address=address, names=tuple(r.name for r in reports), cause=held.stop)
    if held.restart is not None:
        memory = replace(without_failures(memory), retry_cause=held.restart)
    condition = "running" if run is not None else held.condition
    return Decision(command=command, memory=memory, condition=condition, run=run, held=True)


def _job_kind(decision: Decision, reports: list[QueryReport]) -> JobKind | None:
    """Return the kind of job for the next step; None for a step that takes no time."""
    match decision.command:
        case Switch(description=description):
            takes_long = has_tasks(description, decision.memory, reports)
            takes_long |= must_migrate(description, decision.memory)
            return "task" if takes_long else "start"
        case Stop():
            return "start"
        case _:
            return None


def _as_committed(decision: Decision, desired: Desired | None) -> Decision:
    """Remove the tasks from a start, unless it starts the committed description.

    A fallback's tasks were done before its description was accepted.
    """
    command = decision.command
    if not isinstance(command, Switch) or (desired and command.description == desired.description):
        return decision
    description = replace(command.description, tasks=())
    return replace(decision, command=replace(command, description=description))


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
