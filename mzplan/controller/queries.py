"""The queries of one instance: compares desired and observed state, and takes the next steps.

Starts, stops and checks are jobs, one at a time for each address. A round never blocks on the engine or a
server. Starts that may take hours have their own threads, so that they delay nothing else.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from mzplan.controller.claims import Accepted, Claims, places_read
from mzplan.controller.commands import Attempts, CommandRunner
from mzplan.controller.decision import Accept, Decision, Drop, Memory, Stop, Switch, WantedQuery, key_of
from mzplan.controller.executor import QueryName, QueryReport
from mzplan.controller.outages import OVERTAKEN, is_fenced
from mzplan.controller.reconcile import BACKOFF, after_failure, without_failures
from mzplan.controller.runs import Runs
from mzplan.controller.secrets_in_use import SecretsInUse
from mzplan.controller.table import Result, Row, Use, World, decide, job_kind, open_tasks_of
from mzplan.controller.terms import Step
from mzplan.model.address import Address
from mzplan.model.cause import Cause
from mzplan.model.diagnostics import sentence
from mzplan.model.event import EventKind
from mzplan.model.observed import Condition, Status
from mzplan.model.state import runs_beside
from mzplan.model.tasks import TaskProgress
from mzplan.schema.description import Description
from mzplan.schema.triggers import is_available_now

if TYPE_CHECKING:
    from mzplan.controller.core import Controller

log = logging.getLogger("mzplan.runner")


class Queries:
    """Keeps the queries of one instance running as wanted. `rows` has all that is known of each.

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
        self.executor, self.events, self.clock = controller.executor, controller.events, controller.clock
        known = previous.secrets if previous is not None else {}
        self.secrets_in_use = SecretsInUse(controller.secrets, known, controller.jobs, controller.clock)
        self.command_runner = CommandRunner(controller, claims, self.secrets_in_use, epoch)
        self.jobs = controller.jobs
        observations = previous.observations if previous is not None else {}
        self.previous_lags = {address: o.lag for address, o in observations.items() if o.lag}
        self.backoff = BACKOFF
        self.rows: dict[Address, Row] = {}
        for address, accepted in claims.accepted.items():
            was_paused = address in observations and observations[address].condition == "paused"
            self.rows[address] = Row(
                address=address, memory=Memory(accepted=accepted, started_here=was_paused)
            )
        self._users: defaultdict[str, set[Use]] = defaultdict(set)  # see World.users
        self.reports: tuple[QueryReport, ...] = ()  # of the last round
        self.attempts = Attempts()
        self.runs = Runs(controller.store.project, self.events, self._last_step)
        self._accepted_changed = False
        self.runs.update(self.executor.reports(), ())

    @property
    def in_flight(self) -> Set[Address]:
        """The queries that are being started or stopped."""
        return {address for address, row in self.rows.items() if row.job is not None}

    def follow(self, wanted: Mapping[Address, WantedQuery]) -> None:
        """Want these queries. Retry failed ones at once whose description has changed.

        The digest may be the same, because a changed validation setting may fix the failure.
        """
        for address, wanted_query in wanted.items():
            row = self._row(address)
            if row.memory.accepted is None:
                self._keep_in_service(row, wanted_query.description, wanted)
            if row.wanted is not None and row.wanted.description != wanted_query.description:
                self._retry(row, None)
            row.wanted = wanted_query
        for address in self.rows.keys() - wanted.keys():
            self.rows[address].wanted = None

    def _keep_in_service(
        self, row: Row, description: Description, wanted: Mapping[Address, WantedQuery]
    ) -> None:
        """Keep the generation in service of a query that is renamed while a new one runs beside it."""
        if not runs_beside(description.address, description.body):
            return
        for address, other in self.rows.items():
            former = other.memory.accepted
            is_renamed = former is not None and former.id == description.id and address not in wanted
            if former is not None and is_renamed and former.generation < description.generation:
                accepted = replace(former, address=row.address)
                row.memory = replace(row.memory, accepted=accepted, started_here=other.memory.started_here)
                self._accepted_changed = True

    def collect_results(self) -> None:
        """Process the results of commands that have ended."""
        for row in self.rows.values():
            if row.job is None or not row.job.done():
                continue
            result, ignores_failure = row.job.result(), row.ignores_failure
            row.job, row.command, row.task, row.ignores_failure = None, None, None, False
            if result.upstream is not None:
                row.upstream = result.upstream
            if isinstance(result.command, Switch) and not (ignores_failure and result.problem is not None):
                self._record_result(row, result.command, result)

    def reconcile(self) -> dict[Address, Decision]:
        """Decide on each query and start its next step. Returns the decisions by address."""
        self.reports = self.runs.update(self.executor.reports(), self.in_flight)
        by_address: defaultdict[Address, list[QueryReport]] = defaultdict(list)
        self._users.clear()
        for report in self.reports:
            by_address[report.name.address].append(report)
            if (id_ := self.command_runner.started_ids.get(report.name)) is not None:
                self._users[id_].add(Use(report.name.address, report.name.generation))
        for address in {*self.rows, *by_address}:
            row = self._row(address)
            row.reports = tuple(by_address[address])
            if isinstance(row.command, Switch):
                self._add_use(row, row.command.description)
        world, decisions = self._world(), dict[Address, Decision]()
        for row in sorted(self.rows.values(), key=lambda row: row.start_order(self.previous_lags)):
            decisions[row.address] = decision = decide(row, world)
            if not decision.is_postponed:
                self._remember(row, decision)
                if decision.command is not None:
                    self.attempts.count_retry(decision)
                    self._execute(row, decision)
        self._write_accepted()
        return decisions

    def _add_use(self, row: Row, description: Description) -> None:
        self._users[description.id].add(Use(row.address, description.generation))

    def _world(self) -> World:
        return World(
            now=self.clock(),
            backoff=self.backoff,
            takeover=self.takeover or Cause(cause="runner"),
            is_store_away=self.controller.instances.is_store_away,
            gates=self.controller.gates,
            started_ids=self.command_runner.started_ids,
            users=self._users.__getitem__,
            is_being_removed=self.claims.is_being_removed,
            is_full=self.jobs.is_full,
            completes_after=self._completes_after,
        )

    def _completes_after(self, description: Description) -> float | None:
        """Return from when on a query completes that finds nothing to read; None if it runs on.

        The queries that it reads from complete first, if they have the same trigger.
        """
        if not is_available_now(description.body) or any(g.keeps_running() for g in self.controller.gates):
            return None
        moment = 0.0
        for read in description.inputs.values():
            row = self.rows.get(read.address)
            query = row.wanted if row is not None else None
            if row is None or query is None or query.paused or not is_available_now(query.description.body):
                continue
            completed = row.memory.completed
            if completed is None or row.memory.target != key_of(query.description):
                return None
            moment = max(moment, completed.last_progress_at or 0.0)
        return moment

    def _row(self, address: Address) -> Row:
        return self.rows.setdefault(address, Row(address=address))

    def _remember(self, row: Row, decision: Decision) -> None:
        before, row.memory = row.memory, decision.memory
        self._note_failure(row, before)
        if row.is_failing and row.memory.healthy_since is not None:
            row.is_failing = False
            self.events.add("healed", row.address)
        # If another resource had this name, remove its accepted description from the store too.
        self._accepted_changed |= before.accepted is not None and row.memory.accepted is None

    def unfenced(self) -> list[QueryName]:
        """Return the queries that can't reject rows of another runner. Any thread may call it."""
        descriptions = [wanted_query.description for wanted_query in self.controller.wanted.values()]
        descriptions += self.claims.accepted.values()  # a query may still run its accepted description
        addresses = {query.address for query in descriptions if not is_fenced(query)}
        return [report.name for report in self.executor.reports() if report.name.address in addresses]

    def overtaken(self) -> Address | None:
        """Return a query whose target has rejected it, because it knows a higher epoch; None without one."""
        return next((r.name.address for r in self.reports if r.error_code == OVERTAKEN), None)

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
        for address, wanted_query in self.controller.wanted.items():
            if not self.secrets_in_use.references_of(address, wanted_query.description).isdisjoint(
                references
            ):
                self._retry(self._row(address), retry_cause)

    def retry_reconnected(self, connections: Mapping[Address, Address]) -> None:
        """Retry failed queries at once, except queries that have no attempts left.

        `connections` has the connection that answers again, by query.
        """
        for address, connection in connections.items():
            row = self.rows.get(address)
            if row is not None and row.memory.is_waiting:
                row.ignores_failure = row.job is not None
                retry_cause = Cause(cause="retry", detail=f"{connection} answers again")
                row.memory = replace(row.memory, retry_at=0.0, retry_cause=retry_cause)

    def retry_failed(self) -> None:
        """Retry failed queries at once after an apply, because a user may have fixed the cause.

        A query without attempts left isn't retried: its error says that it waits for a change or a restart.
        """
        for row in self.rows.values():
            if row.memory.is_waiting:
                self._retry(row, Cause(cause="retry", detail="an apply asks for it"))

    def _retry(self, row: Row, retry_cause: Cause | None) -> None:
        """Retry the query at once, if it has failed. If a start is under way, its failure doesn't count."""
        row.ignores_failure = row.job is not None
        row.memory = without_failures(row.memory, retry_cause if row.memory.failures else None)

    def reclaim(self, decisions: Mapping[Address, Decision]) -> None:
        """Remove storage that no query claims or reads any more, once it is due."""
        wanted = self.controller.wanted
        read = places_read({a: d.description for a, d in wanted.items()}) | places_read(self._accepted())
        stopping = any(a not in wanted and d.run is not None for a, d in decisions.items())
        if not stopping:  # a query that is being stopped still writes to its unclaimed storage
            self.claims.reclaim(self.controller.claimed, read, self.jobs)

    def _execute(self, row: Row, decision: Decision) -> None:
        command = decision.command
        match command:
            case Accept():
                self._accepted_changed = True
            case Drop():
                del self.rows[row.address]
                self._accepted_changed |= row.memory.accepted is not None
            case Stop() | Switch():
                self.runs.record_command(command)
                kind = job_kind(decision, row) or "start"
                if isinstance(command, Switch):
                    tasks = open_tasks_of(command.description, row.memory)
                    row.task = TaskProgress(title=str(tasks[0])) if tasks else None
                    self._add_use(row, command.description)
                row.command = command
                row.job = self.jobs.submit(kind, row.address, self.command_runner.run, command)
            case None:
                pass
            case _:
                assert_never(command)

    def _accepted(self) -> Accepted:
        rows = self.rows.items()
        return {a: row.memory.accepted for a, row in rows if row.memory.accepted is not None}

    def _write_accepted(self) -> None:
        """Write the accepted descriptions once a round, if any changed.

        Also write them when nothing claims the storage of a query that has left this instance.
        """
        if self.controller.instances.is_store_away:
            return  # a later round writes them
        claimed = self.controller.claimed
        if self._accepted_changed or self.claims.has_stale_record(claimed, self.rows.keys()):
            self.claims.record(self._accepted(), claimed)
            self._accepted_changed = False

    def _last_step(self, address: Address) -> Step:
        row = self.rows.get(address)
        if row is None or row.wanted is None:
            return -1
        return self.controller.frontiers.last_step(row.wanted.description)

    def _note_failure(self, row: Row, before: Memory) -> None:
        """Log a failed attempt, and queue its event. Spark logs the stack trace."""
        address, after = row.address, row.memory
        if after.failures > before.failures and after.error:
            attempt = f" (attempt {after.failures})" if after.failures > 1 else ""
            log.error("%s: [%s] %s%s", address, after.error_code, after.error, attempt)
            kind: EventKind = "refused" if after.last_failure == "rejected" else "failed"
            self.events.add(kind, address, code=after.error_code or "", detail=f"{after.error}{attempt}")
            row.is_failing = True

    def _record_result(self, row: Row, switch: Switch, result: Result) -> None:
        address, memory, description = row.address, row.memory, switch.description
        if result.problem is None:
            self.attempts.count_start(address, switch.cause.cause)
            row.memory = replace(memory, started_here=True, retry_cause=None)
            why = switch.cause.detail or "committed"
            log.info("%s g%d started: %s", address, description.generation, why)
            if memory.accepted is None or memory.accepted.place != description.place:
                generation = description.generation
                self.events.add("generation", address, generation=generation, detail="its first start here")
            return
        text, code, now = sentence(result.problem), result.problem.code, self.clock()
        if memory.target != key_of(description):
            log.error("%s: can't fall back to its last accepted description: [%s] %s", address, code, text)
            row.memory = replace(memory, fallback_at=now + self.backoff.delay(memory.failures + 1))
            return
        last_failure: Condition = "failed" if result.checked or memory.is_target_accepted else "rejected"
        row.memory = after_failure(memory, last_failure, text, code, now, self.backoff, result.problem.kind)
        self._note_failure(row, memory)
