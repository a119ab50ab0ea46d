"""The runner's loop: take in what is committed, observe what runs, do the next step for each query, report.

Starts, stops and checks run on a pool, one at a time for each address; the loop itself never blocks on
Spark or a server.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor as Pool
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, assert_never

from mzplan.controller.executor import CheckResult, Executor, QueryName, QueryReport
from mzplan.failpoints import Failpoint, failpoint
from mzplan.inline import Description, describe, references_of
from mzplan.model.address import Address
from mzplan.model.canary import Verdict
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.state import Lease, Observation, State, Status
from mzplan.runner.answering import Answering
from mzplan.runner.canaries import Canaries
from mzplan.runner.identity import RunningIds
from mzplan.runner.observing import differs, observe
from mzplan.runner.reconcile import (
    Accept,
    Command,
    Decision,
    Desired,
    Drop,
    Memory,
    Stop,
    Switch,
    fallback_failed,
    key_of,
    rejected,
    start_failed,
)
from mzplan.runner.secrets_used import SecretsUsed
from mzplan.runner.storage import Claims, Place, places_read
from mzplan.runner.upstream_watch import UpstreamWatch
from mzplan.secrets import Secrets
from mzplan.state.store import Store

log = logging.getLogger("mzplan.runner")

BUSY_TICK = 0.05  # seconds between looks while something is under way
STATUS_EVERY = 2.0  # seconds between reports of rates and lag alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a command ended: `problem` is None when it did what it should. `checked` tells a failed check,
    which has stopped nothing, from a failed start."""

    command: Command
    problem: Diagnostic | None = None
    checked: bool = True
    upstream: Any = None


class Runner:
    """Leads one instance while its lease holds."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        secrets: Secrets,
        lease: Lease,
        pool: Pool,
        clock: Callable[[], float] = time.monotonic,
        retain_dropped: float = 86_400.0,
    ):
        self.store = store
        self.executor = executor
        self.secrets = secrets
        self.project = store.project
        self.instance = lease.instance
        self.epoch = lease.epoch
        self.pool = pool
        self.clock = clock
        self.wake = threading.Event()
        self.answering = Answering(store, executor, secrets, self.instance, pool, self.wake)
        self.claims = Claims(store, executor, self.instance, retain_dropped)
        self.memories: dict[Address, Memory] = {}
        self.desired: dict[Address, Desired] = {}
        self.serial = -1
        self.under_way: dict[Address, Future[Done]] = {}
        self.upstreams: dict[Address, Any] = {}
        self.running_ids = RunningIds()
        self.watch = UpstreamWatch(executor, secrets, pool, clock)
        self._references: dict[Address, set[str]] = {}
        self._seen_state: str | None = None
        self._unread: str | None = None
        self._accepted_changed = False
        self._written: Status | None = None
        self._written_at = float("-inf")
        self._claimed: set[Place] = set()
        before = store.read_status(self.instance)
        self.secrets_used = SecretsUsed(before.secrets if before is not None else {})
        self.canaries = Canaries(before.canaries if before is not None else {})
        for address, description in self.claims.accepted.items():
            self.memories[address] = Memory(accepted=description)

    # --- one round

    def tick(self) -> bool:
        """One look at everything. True while something is under way (look again soon)."""
        self._harvest()
        self._follow()
        answering = self.answering.look()
        if not self.executor.is_open():
            self._report({})
            return answering
        decisions = self._reconcile()
        judged = self._judge(decisions)
        self._look_upstream(decisions)
        self._report(decisions)
        self._reclaim(decisions)
        starting = any(d.condition == "starting" for d in decisions.values())
        return starting or judged or bool(self.under_way) or self.claims.removing or answering

    def run(self, stopping: threading.Event) -> None:
        """Rounds until told to stop. A store that can't be reached is ridden out: the lease decides."""
        told = ""
        while not stopping.is_set():
            busy = False
            try:
                busy = self.tick()
                told = ""
            except MzplanError as problem:
                if str(problem) != told:  # not each round, while a store is down
                    log.warning("%s", problem)
                told = str(problem)
            self.wake.wait(BUSY_TICK if busy else self.store.backend.idle)
            self.wake.clear()

    # --- what is wanted

    def _follow(self) -> None:
        """Take in what is committed. Where it can't be read (a store that is not reached, a state that was
        edited by hand), go on with what was taken in last: queries are to be healed all the same."""
        try:
            self._take_in()
            problem = None
        except MzplanError as found:
            if self.serial < 0:
                raise
            problem = str(found)
        if problem not in (None, self._unread):
            log.warning("the state can't be read; going on with serial %d: %s", self.serial, problem)
        self._unread = problem

    def _take_in(self) -> None:
        version = self.store.state_version()
        if version == self._seen_state and self.serial >= 0:
            return
        state = self.store.read_state()
        self._seen_state = version
        if state.serial == self.serial:
            return
        self.desired = self._wanted(state)
        self.canaries.take_in(state, self.desired)
        self._references = {a: references_of(d.description) for a, d in self.desired.items() if not d.paused}
        self._claimed = {(r.id, r.generation) for r in state.resources.values()}
        self._claimed |= {(id_, generation) for id_, (_, generation) in state.forgotten.items()}
        self.serial = state.serial
        log.info("serial %d: %d queries", self.serial, len(self.desired))

    def _wanted(self, state: State) -> dict[Address, Desired]:
        return {
            address: Desired(description=describe(resource, state.resources), paused=resource.paused)
            for address, resource in state.resources.items()
            if address.kind != "connection" and resource.instance == self.instance
        }

    # --- what is there, and what to do

    def _reconcile(self) -> dict[Address, Decision]:
        reports: dict[Address, list[QueryReport]] = {}
        for report in self.executor.reports():
            reports.setdefault(report.name.address, []).append(report)
        now = self.clock()
        decisions: dict[Address, Decision] = {}
        # Sources first: a sink may wait for its source to come up with a new column.
        known = {*self.desired, *reports, *self.memories}
        for address in sorted(known, key=lambda one: (one.kind != "source", one)):
            memory = self.memories.get(address) or Memory()
            there = reports.get(address, [])
            desired = self.desired.get(address)
            decision = self.running_ids.strangers(address, desired, there, memory)
            if decision is None:
                decision = self.canaries.decide(address, desired, there, memory, now)
            if isinstance(decision.command, Switch) and self.running_ids.is_elsewhere(
                decision.command, reports
            ):
                decision = replace(decision, command=None, condition="starting")
            if address in self.under_way:
                # What the command in flight will find is not known yet: report, but don't act or remember.
                decision = replace(decision, command=None)
                if decision.condition == "running" and desired is not None and not desired.paused:
                    # It runs, but its start has not returned: what it was started with is not noted yet.
                    decision = replace(decision, condition="starting")
            else:
                self.memories[address] = decision.memory
                if decision.command is not None:
                    self._carry_out(decision.command)
            decisions[address] = decision
        self._write_accepted()
        return decisions

    def _judge(self, decisions: dict[Address, Decision]) -> bool:
        """Decide of the queries that went first: written down now, acted on from the next round on."""
        found = self.canaries.judge(decisions, self.memories, self.desired, self.clock())
        if not found:
            return False
        for address, verdict in sorted(found.items()):
            log.info("%s went first: %s", address, "passed" if verdict.passed else verdict.reason)
        failpoint(Failpoint.CANARY_JUDGED)
        self._report(decisions, {**self.canaries.verdicts, **found})
        self.canaries.decided(found)
        failpoint(Failpoint.CANARY_DECIDED)
        return True

    def _carry_out(self, command: Command) -> None:
        match command:
            case Accept():
                self._accepted_changed = True
            case Drop():
                dropped = self.memories.pop(command.address, Memory())
                self._accepted_changed |= dropped.accepted is not None
            case Stop() | Switch():
                self.under_way[command.address] = self.pool.submit(self._work, command)
            case _:
                assert_never(command)

    def _write_accepted(self) -> None:
        """Once a round, however many queries were accepted in it."""
        if not self._accepted_changed:
            return
        accepted = {a: m.accepted for a, m in self.memories.items() if m.accepted is not None}
        self.claims.record(accepted, self._claimed)
        self._accepted_changed = False

    def _reclaim(self, decisions: dict[Address, Decision]) -> None:
        running = {(d.description.id, d.description.generation) for d in self.desired.values()}
        wanted = {a: d.description for a, d in self.desired.items()}
        read = places_read(wanted) | places_read(self.claims.accepted)
        stopping = any(a not in self.desired and d.shown is not None for a, d in decisions.items())
        if not stopping:  # a query that is being stopped still writes to what it has lost
            self.claims.reclaim(self._claimed | running, read, self.pool)

    # --- on the pool

    def _work(self, command: Stop | Switch) -> Done:
        try:
            match command:
                case Stop(names=names):
                    for name in names:
                        self.executor.stop(name)
                    return Done(command=command)
                case Switch():
                    return self._switch(command)
        except MzplanError as problem:
            return Done(command=command, problem=problem.diagnostics[0])
        except Exception as problem:
            # The loop must outlive a defect in one connector; the log has the whole of it.
            log.exception("%s: unexpected", command.address)
            text = f"{type(problem).__name__}: {problem}"
            return Done(command=command, problem=Diagnostic(code="MZ064", summary=text[:500]))
        finally:
            self.wake.set()

    def _switch(self, command: Switch) -> Done:
        gone = self._gone(command.description)
        if gone:
            return Done(command=command, problem=gone[0], checked=False)
        result = CheckResult()
        if command.check:
            result = self.executor.check(command.description, self.secrets)
            errors = [d for d in result.diagnostics if d.severity == "error"]
            if errors:
                return Done(command=command, problem=errors[0], checked=False, upstream=result.upstream)
        failpoint(Failpoint.RUNNER_CHECKED)
        for name in command.stop:
            self.executor.stop(name)
        failpoint(Failpoint.RUNNER_STOPPED_OLD)
        self.running_ids.starting(QueryName.of(self.project, command.description), command.description.id)
        values = self.secrets_used.read(command.description, self.secrets)
        self.executor.start(command.description, self.secrets, self.epoch)
        self.secrets_used.started(command.address, values)
        failpoint(Failpoint.RUNNER_STARTED_NEW)
        if self.canaries.has_released(command.address):
            failpoint(Failpoint.CANARY_RELEASED)
        return Done(command=command, upstream=result.upstream)

    def _gone(self, description: Description) -> tuple[Diagnostic, ...]:
        """What is missing of a query that has run before: it would begin again, and rows come twice."""
        accepted = self.claims.accepted.get(description.address)
        if accepted is None or (accepted.id, accepted.generation) != (description.id, description.generation):
            return ()
        return self.executor.missing(description)

    def _harvest(self) -> None:
        for address in [a for a, future in self.under_way.items() if future.done()]:
            done = self.under_way.pop(address).result()
            if done.upstream is not None:
                self.upstreams[address] = done.upstream
            if isinstance(done.command, Switch):
                self._remember(address, done.command, done)

    def _remember(self, address: Address, switch: Switch, done: Done) -> None:
        memory = self.memories.get(address) or Memory()
        what = "started" if done.problem is None else f"[{done.problem.code}] {done.problem.summary}"
        log.info("%s g%d %s", address, switch.description.generation, what)
        if done.problem is None:
            return
        text = _sentence(done.problem)
        if memory.target != key_of(switch.description):
            self.memories[address] = fallback_failed(memory, self.clock())
        elif done.checked:
            self.memories[address] = start_failed(memory, text, done.problem.code, self.clock())
        else:
            self.memories[address] = rejected(memory, text, done.problem.code, self.clock())

    def _look_upstream(self, decisions: dict[Address, Decision]) -> None:
        self.watch.look(
            {
                address: self.desired[address].description
                for address, decision in decisions.items()
                if decision.condition == "running" and address in self.desired
            }
        )

    # --- status

    def _report(
        self, decisions: dict[Address, Decision], decided: Mapping[Address, Verdict] | None = None
    ) -> None:
        """Write the Status where it tells something new. `decided`: verdicts that are to be acted on next."""
        observations = {
            address: self._observe(address, wanted, decisions.get(address))
            for address, wanted in self.desired.items()
        }
        for address, decision in decisions.items():  # no longer wanted, and still there
            if address not in observations and decision.shown is not None:
                observations[address] = self._observe(address, None, decision)
        status = Status(
            instance=self.instance,
            epoch=self.epoch,
            heartbeat=0.0,
            serial=self.serial if decisions or not self.desired else min(self.serial, self._last_serial()),
            observations=observations,
            secrets=self.secrets_used.digests(self._references),
            canaries=self.canaries.verdicts if decided is None else decided,
            foreign=tuple(self.executor.foreign()),
        )
        now = self.clock()
        due = now - self._written_at >= STATUS_EVERY
        if self._written is not None and not differs(self._written, status, rates_too=due):
            return
        failpoint(Failpoint.RUNNER_BEFORE_STATUS)
        self.store.write_status(replace(status, heartbeat=time.time()), durable=decided is not None)
        self._written, self._written_at = status, now

    def _last_serial(self) -> int:
        return self._written.serial if self._written is not None else 0

    def _observe(self, address: Address, wanted: Desired | None, decision: Decision | None) -> Observation:
        return observe(
            address,
            wanted,
            decision.condition if decision is not None else "starting",
            decision.shown if decision is not None else None,
            self.memories.get(address) or Memory(),
            self.upstreams.get(address),
            self.watch.changed.get(address),
            self.canaries.holds(address),
            self.canaries.failed(address),
        )


def _sentence(problem: Diagnostic) -> str:
    parts = [problem.summary, problem.detail, f"Fix: {problem.hint}" if problem.hint else ""]
    return " ".join(part.rstrip(".") + "." for part in parts if part)
