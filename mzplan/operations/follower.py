"""Follows a commit until its queries have converged.

Reads only the store; the runner does the work, wherever it runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from mzplan.model.address import Address, natural
from mzplan.model.diagnostics import MzplanError, sentence
from mzplan.model.graph import DependencyGraph
from mzplan.model.observed import Observation, Status
from mzplan.model.plan import Plan
from mzplan.model.resources import is_dry
from mzplan.model.state import ResourceState, State
from mzplan.operations.project import Outcome, OutcomeStatus, Reporter
from mzplan.store.newest_status import NewestStatus
from mzplan.store.store import Store

HEARTBEATLESS = 3.0  # after this many seconds without a leader, no runner counts as alive
PATIENCE = 6.0  # seconds to wait for the row counts of a runner, which counts rows every two seconds


class OutcomeFollower:
    """Follows the status of one instance until each of its queries is in the state's condition.

    `touched`: the queries of the plan.
    `others`: whether to also await other queries, because an earlier apply may have been killed. Their old
    failures aren't this command's outcome.
    `in_use_from`: an epoch of the runner, and the `secret_values_in_use` of its status from which it uses the
    values that this command sent.
    """

    def __init__(
        self,
        store: Store,
        state: State,
        instance: str,
        touched: set[Address],
        in_use_from: tuple[int, int] = (0, 0),
        *,
        others: bool = True,
    ):
        self.store = store
        self.in_use_from = in_use_from
        self.state = state
        self.instance = instance
        self.is_dry = is_dry(state.instances, instance)  # led only for a moment
        self.touched = touched
        self.is_lost = False  # whether no runner was alive at the end of the wait
        self.hold_reasons: dict[Address, str] = {}
        self.newest = NewestStatus(store, instance)
        self._graph = DependencyGraph.of(state.resources)
        self.wanted: dict[Address, ResourceState | None] = {
            address: resource
            for address, resource in state.resources.items()
            if address.is_query and resource.instance == instance and (others or address in touched)
        }
        for address in touched - state.resources.keys():
            self.wanted[address] = None

    def follow(
        self,
        wait: float,
        progress: Reporter,
        end_reason: Callable[[], MzplanError | None],
        began: float | None = None,
    ) -> dict[Address, Outcome]:
        """Return the outcomes, after at most `wait` seconds since `began` (monotonic; default: now).

        Untouched queries that are still converged have no outcome in the result.
        """
        began = time.monotonic() if began is None else began
        waiting: dict[Address, str] = dict.fromkeys(sorted(self.wanted, key=natural), "starting")
        outcomes: dict[Address, Outcome] = {}
        first: float | None = None
        leaderless: float | None = None
        opening = False
        while True:
            status, has_leader, unreadable = self._read()
            seconds = time.monotonic() - began
            first = seconds if first is None else first
            for address in list(waiting):
                if self._is_superseded(address, status):
                    del waiting[address]
                    continue
                outcome = self._look(address, status, seconds)
                if isinstance(outcome, Outcome):
                    del waiting[address]
                    outcomes[address] = outcome
                    if address in self.touched or outcome.status != "applied":
                        progress.outcome(outcome)
                else:
                    waiting[address] = outcome
                    if outcome == "starting" and status is not None:
                        waiting[address] = status.start_stage(address)
            opening = self._announce(status, opening, progress)
            if not waiting:
                break
            progress.waiting(self._shown_queries(waiting, status), seconds)
            if has_leader:
                leaderless = None
            elif leaderless is None:
                leaderless = seconds
            problem = unreadable if _is_overdue(leaderless, seconds) and unreadable else end_reason()
            # If no runner led during the whole wait, however short, that is the reason.
            lost = _is_overdue(leaderless, seconds) or (seconds >= wait and leaderless == first)
            if problem is not None or lost or seconds >= wait:
                outcomes |= self._give_up(waiting, problem, lost=lost, seconds=seconds, progress=progress)
                break
            time.sleep(self.store.backend.poll_interval)
        return {a: o for a, o in outcomes.items() if a in self.touched or o.status != "applied"}

    def _shown_queries(self, waiting: Mapping[Address, str], status: Status | None) -> Mapping[Address, str]:
        """Return the queries to show as waiting.

        Until a status includes this serial, only the plan's own queries are shown: whether other queries have
        converged is unknown.
        """
        if status is not None and status.serial >= self.state.serial:
            return waiting
        return {address: why for address, why in waiting.items() if address in self.touched} or waiting

    def _announce(self, status: Status | None, opening: bool, progress: Reporter) -> bool:
        """Report when Spark becomes ready. Return whether it is still opening, as far as known."""
        if status is None:
            return opening
        if status.opening_since is not None:
            return True
        if opening and status.opened_in is not None:
            progress.stage(f"Spark of instance {self.instance} was ready after {status.opened_in:.0f} s")
        return False

    def _read(self) -> tuple[Status | None, bool, MzplanError | None]:
        """Return the status, whether a runner leads, and the error if either can't be read.

        An error isn't final, because the runner may be replaced and this command has already committed. The
        status of a runner that no longer leads counts as None: its queries ended with it.
        """
        try:
            leader = self.store.leases.leader(self.instance)
            status = self.newest.read()
        except MzplanError as problem:
            return None, False, problem
        if not self.is_dry and status is not None and (leader is None or status.epoch < leader.epoch):
            status = None
        epoch, number = self.in_use_from
        if status is not None and status.epoch == epoch and status.secret_values_in_use < number:
            status = None  # an older status: a query that failed for lack of a value is retried
        return status, leader is not None, None

    def _is_superseded(self, address: Address, status: Status | None) -> bool:
        """Return whether a later serial decides the outcome of an untouched query."""
        return address not in self.touched and status is not None and status.serial > self.state.serial

    def _look(self, address: Address, status: Status | None, seconds: float) -> Outcome | str:
        """Return the outcome of a query, or the condition in which it is still awaited."""
        resource = self.wanted[address]
        if status is None or status.serial < self.state.serial:
            return "starting"
        seen = status.observations.get(address)
        if resource is None:
            if seen is None:
                return Outcome(address=address, status="applied", seconds=seconds)
            return "stopping"
        if seen is None:
            return "starting"
        if status.serial > self.state.serial and seen.wanted_digest != resource.digest:
            reason = f"serial {status.serial} has replaced this one"
            return _outcome(address, "pending", seconds, seen, reason)
        if (seen.wanted_generation, seen.wanted_digest) != (resource.generation, resource.digest):
            return seen.condition
        if seen.held and not (resource.paused and seen.condition == "paused"):
            if self._failed_canary(address, status):
                return _outcome(address, "pending", seconds, seen, seen.held, "MZ140")
            if self._waits_for_cut_over(resource, status):
                return _outcome(address, "pending", seconds, seen, seen.held, "MZ065")
            new = status.observations.get(address.beside(resource.generation))
            if new is not None and (problem := _failure(new, seconds)) is not None:
                return replace(problem, address=address)
            source = self._stopped_source(resource, status)
            if source is None:
                self.hold_reasons[address] = seen.held
                return "held"
            why = ": ".join(filter(None, (source.condition, source.error_code, source.error)))
            reason = f"{seen.held}; {source.address} is {why}"
            return _outcome(address, "pending", seconds, seen, reason, "MZ065")
        return _verdict(address, resource, seen, seconds)

    def _stopped_source(self, resource: ResourceState, status: Status) -> Observation | None:
        """Return the observation of a query that won't start by itself, and that this one waits for.

        It is the query's new generation, which runs beside it, or a query upstream. None if all will start.
        """
        new = status.observations.get(resource.address.beside(resource.generation))
        if new is not None and new.condition in ("rejected", "failed"):
            return new
        for address in (*resource.reads.values(), *resource.snapshots.values()):
            seen, read = status.observations.get(address), self.state.resources.get(address)
            if seen is None or read is None or seen.wanted_digest != read.digest:
                continue
            if seen.condition in ("rejected", "failed", "paused"):
                return seen
            if seen.held and (stopped := self._stopped_source(read, status)) is not None:
                return stopped
        return None

    def _waits_for_cut_over(self, resource: ResourceState, status: Status) -> bool:
        """Return whether a held query waits until a person puts a generation into service.

        Views that read each other take over together, so a view also waits for the views that read it.
        """
        statuses = {status.instance: status}
        found, new = {resource.address}, [resource]
        while new:
            query = new.pop()
            seen = query.observed_in(statuses)
            if seen is None or not seen.held:
                continue
            if query.waits_for_cut_over:
                return True
            near = [r for a in query.references.values() if (r := self.state.resources.get(a)) is not None]
            if query.former_in_service(statuses):
                readers = (self.state.resources[a] for a in self._graph.dependents(query.address))
                near += [reader for reader in readers if reader.former_in_service(statuses)]
            new += [other for other in near if other.address not in found]
            found |= {other.address for other in near}
        return False

    def _failed_canary(self, address: Address, status: Status) -> bool:
        """Return whether a canary that this query waits for has failed; then a person must decide."""
        verdicts = (
            (canary, status.canaries.get(canary.address))
            for canary in self.state.canaries
            if address in canary.holds
        )
        return any(v is not None and not v.passed and v.serial == c.serial for c, v in verdicts)

    def _give_up(
        self,
        waiting: Mapping[Address, str],
        problem: MzplanError | None,
        *,
        lost: bool,
        seconds: float,
        progress: Reporter,
    ) -> dict[Address, Outcome]:
        self.is_lost = lost or problem is not None
        code, reason = "MZ065", f"not finished a first trigger within {seconds:.0f} s"
        if problem is not None:
            first = problem.diagnostics[0]
            code, reason = first.code, sentence(replace(first, detail=""))
        elif lost:
            code, reason = "MZ060", f"no runner of instance {self.instance} is alive"
        outcomes = {}
        # Without a runner no query runs, touched or not.
        touched = [address for address in waiting if address in self.touched] if self.is_lost else []
        for address in touched or waiting:
            condition = waiting[address]
            notable = condition not in ("starting", "stopping", "to be started", "in the first batch")
            detail = f"{condition}: {reason}" if notable else reason
            if condition == "held" and not self.is_lost:
                detail = self.hold_reasons[address]
            outcomes[address] = Outcome(
                address=address, status="pending", seconds=seconds, reason=detail, code=code
            )
            progress.outcome(outcomes[address])
        return outcomes


def _is_overdue(since: float | None, seconds: float) -> bool:
    return since is not None and seconds - since > HEARTBEATLESS


def _verdict(address: Address, resource: ResourceState, seen: Observation, seconds: float) -> Outcome | str:
    match seen.condition:
        case "running" | "stopped" if (
            seen.runs_or_completed and not resource.paused and seen.digest == resource.digest
        ):
            return _outcome(address, "applied", seconds, seen)
        case "paused" if resource.paused:
            return _outcome(address, "applied", seconds, seen)
        case _:
            return _failure(seen, seconds) or seen.condition


def _failure(seen: Observation, seconds: float) -> Outcome | None:
    if seen.condition not in ("rejected", "failed"):
        return None
    return _outcome(seen.address, seen.condition, seconds, seen, seen.error or "", seen.error_code or "")


def _outcome(
    address: Address,
    status: OutcomeStatus,
    seconds: float,
    seen: Observation,
    reason: str = "",
    code: str = "",
) -> Outcome:
    return Outcome(
        address=address,
        status=status,
        seconds=seconds,
        reason=reason,
        code=code,
        warning=seen.warning or "",
        query_id=seen.query_id,
        run_id=seen.run_id,
        tasks_done=seen.tasks_done,
    )


def resumed_observations(
    store: Store,
    state: State,
    plan: Plan,
    outcomes: Mapping[Address, Outcome],
    before: Mapping[Address, str | None],
    until: float,
) -> dict[Address, Observation]:
    """Return the observations of queries that a changed connection restarted, by address.

    Waits briefly for row counts and for a lag of 0, because the lag is measured only now and then. Never
    waits past `until` (monotonic seconds).
    """
    if not any(change.address.is_connection for change in plan.changes):
        return {}
    wanted = {
        address: outcome.run_id
        for address, outcome in outcomes.items()
        if outcome.status == "applied" and outcome.run_id not in (None, before.get(address))
    }
    instances = sorted({state.resources[a].instance for a in wanted if a in state.resources}, key=natural)
    statuses = [NewestStatus(store, name) for name in instances]
    until = min(until, time.monotonic() + PATIENCE)
    while True:
        observed = _observed(statuses, wanted)
        complete = all(
            observation.run_rows is not None and observation.lag == 0 for observation in observed.values()
        )
        if complete or time.monotonic() >= until:
            return observed
        time.sleep(store.backend.poll_interval)


def _observed(
    statuses: Sequence[NewestStatus], wanted: Mapping[Address, str | None]
) -> dict[Address, Observation]:
    observed: dict[Address, Observation] = {}
    for newest in statuses:
        status = newest.read()
        seen = status.observations if status is not None else {}
        observed |= {
            address: observation
            for address, observation in seen.items()
            if observation.resumed is not None
            and observation.run_id is not None
            and wanted.get(address) == observation.run_id
        }
    return observed
