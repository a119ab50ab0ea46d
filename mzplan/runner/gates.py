"""The gates: the reasons why a runner holds back queries of its instance.

Handover: a query that moves to another instance waits until its former runner has released it. Runners of
different instances never talk to each other; they read each other's Status in the store. A live runner has
released a query once it follows a state that gives the query to another instance, and its Status no longer
shows the query. A runner that lags behind may still start queries of newer states than its own. A runner
without a lease runs nothing.

Canaries: some queries of a change go first, and the others wait for them. The runner writes its verdict into
the Status before it acts on it, and the verdict holds for that serial. If the runner is killed, its successor
therefore acts in the same way.

Replacements: queries that read a source wait until the source's new generation has started (see
mzplan.runner.replacements).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from mzplan.controller.observations import QueryState
from mzplan.controller.reconcile import Key, is_run_of, key_of
from mzplan.controller.terms import HeldQuery, InstanceId
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.address import Address
from mzplan.model.cause import Cause
from mzplan.model.diagnostics import MzplanError
from mzplan.model.observed import Verdict
from mzplan.model.state import Canary, State
from mzplan.model.words import count
from mzplan.runner.replacements import Replacements
from mzplan.schema.description import Description
from mzplan.secrets.resolved import shortened
from mzplan.store.store import Store

_NEXT_STEPS = "`mzplan apply` continues with all of them, `mzplan state rollback` undoes the change."
log = logging.getLogger("mzplan.runner")

MAX_BEHIND = 50  # serials; if a runner is further behind, assume that it may run any query


@dataclass(frozen=True, slots=True, kw_only=True)
class _OtherRunner:
    """The queries that a live runner of another instance may still run."""

    instance: InstanceId
    observed: frozenset[Address] = frozenset()
    """Addresses that its Status shows."""
    ids: frozenset[str] = frozenset()
    """Ids of its queries in the states that it may have read since it wrote its Status."""
    unknown: bool = False
    """Whether it may run any query."""
    problem: str | None = None
    """Why its queries are unknown, if its files can't be read."""

    def may_run(self, address: Address, id_: str) -> bool:
        return self.unknown or address in self.observed or id_ in self.ids

    def reason(self) -> str:
        if self.problem is not None:
            return f"waits for instance {self.instance}, whose queries are unknown: {self.problem}"
        return f"waits for instance {self.instance}, whose runner has not released it yet"


class Handover:
    """The gate for queries that come to `instance` from another instance.

    `clock` returns monotonic seconds. Except for `hold`, methods raise MzplanError if the store fails.
    """

    def __init__(self, store: Store, instance: InstanceId, clock: Callable[[], float]):
        self._store = store
        self._instance = instance
        self._clock = clock
        self._polled_at = -math.inf
        self._state = State(project=store.project)
        self._ids_here: Mapping[Address, str] = {}
        self.wait_reasons: Mapping[Address, str] = {}
        """Which runner each query that is new here waits for, in words."""
        self._former_instances: Mapping[Address, InstanceId] = {}
        """The former instance of each query that came from another instance, until it starts."""

    def brings_queries(self, state: State) -> bool:
        """Whether the state brings queries here that another instance's runner may have run."""
        return bool(self._new_here(state)) and bool(self._others(state))

    def follow(self, state: State) -> None:
        """Follow a new state: queries that are new here wait from now on."""
        new_here = self._new_here(state) if self.brings_queries(state) else []
        former = {a: name for a, name in self._former_instances.items() if a in state.resources}
        self._former_instances = former | (self._instances_before(state, new_here) if new_here else {})
        self._state, self._ids_here = state, self._queries(state)
        waiting = {a: text for a, text in self.wait_reasons.items() if a in self._ids_here}
        self.wait_reasons = waiting | dict.fromkeys(new_here, "waits for the runners of other instances")
        self._polled_at = -math.inf

    def poll(self) -> None:
        """Update which runners the moved queries still wait for, at most once per poll interval."""
        if not self.wait_reasons or self._clock() - self._polled_at < self._store.backend.poll_interval:
            return
        self._polled_at = self._clock()
        others = [other for name in self._others(self._state) if (other := self._try_read(name)) is not None]
        waiting: dict[Address, str] = {}
        for address in self.wait_reasons:
            still = [other for other in others if other.may_run(address, self._ids_here[address])]
            if still:
                waiting[address] = still[0].reason()
        self.wait_reasons = waiting

    def moved_away(self, address: Address) -> bool:
        """Whether the state gives the query to another instance."""
        resource = self._state.resources.get(address)
        return resource is not None and resource.instance != self._instance

    def hold(self, wanted: Description, accepted: Description | None) -> HeldQuery | None:
        """Don't start a query that waits; leave running queries as they are."""
        return HeldQuery() if wanted.address in self.wait_reasons else None

    def cause(self, wanted: Description, accepted: Description | None) -> Cause | None:
        """Return the hand-over as the cause of a moved query's first start here; otherwise None."""
        former = self._former_instances.get(wanted.address)
        if former is None or (accepted is not None and accepted.id == wanted.id):
            return None
        detail = f"came from instance {former}"
        return Cause(cause="hand-over", serial=self._state.serial, detail=detail)

    def started(self, address: Address) -> None:
        self._former_instances = {a: name for a, name in self._former_instances.items() if a != address}

    def _instances_before(self, state: State, new_here: list[Address]) -> dict[Address, InstanceId]:
        """Return the former instance of each query that had another instance in the previous state."""
        before = self._state if self._state.serial else self._store.read_serial(state.serial - 1)
        instance_by_id = (
            {resource.id: resource.instance for resource in before.resources.values()}
            if before is not None
            else {}
        )
        return {
            a: name
            for a in new_here
            if (name := instance_by_id.get(state.resources[a].id, self._instance)) != self._instance
        }

    def _queries(self, state: State) -> dict[Address, str]:
        resources = state.resources.items()
        return {a: r.id for a, r in resources if a.is_query and r.instance == self._instance}

    def _new_here(self, state: State) -> list[Address]:
        return [a for a, id_ in self._queries(state).items() if self._ids_here.get(a) != id_]

    def _others(self, state: State) -> list[InstanceId]:
        return sorted({*state.instances, *self._store.leases.instances()} - {self._instance})

    def _try_read(self, name: InstanceId) -> _OtherRunner | None:
        try:
            return self._read_other(name)
        except MzplanError as problem:  # an unreadable file delays only the queries that are new here
            return _OtherRunner(instance=name, unknown=True, problem=problem.diagnostics[0].summary)

    def _read_other(self, name: InstanceId) -> _OtherRunner | None:
        if not self._store.leases.may_be_led(name):
            return None
        status, serial = self._store.read_status(name), self._state.serial
        if status is None or serial - status.serial > MAX_BEHIND:
            return _OtherRunner(instance=name, unknown=True)
        ids: set[str] = set()
        for number in range(max(1, status.serial), serial):
            earlier = self._store.read_serial(number)
            if earlier is None:
                return _OtherRunner(instance=name, unknown=True)
            ids.update(resource.id for resource in earlier.resources.values() if resource.instance == name)
        return _OtherRunner(instance=name, observed=frozenset(status.observations), ids=frozenset(ids))


class Canaries:
    """The gate for canaries and for queries that wait for canaries. `verdicts` are from the Status."""

    def __init__(self, verdicts: Mapping[Address, Verdict]):
        self.verdicts: Mapping[Address, Verdict] = dict(verdicts)
        self._canaries: dict[Address, Canary] = {}
        self._canaries_of: dict[Address, list[Canary]] = {}
        self._since: dict[Address, float] = {}

    def follow(self, state: State, here: Container[Address]) -> None:
        """Follow a new state. Consider only canaries in `here`, the queries of this instance."""
        mine = {c.address: c for c in state.canaries if c.address in here}
        self._since = {a: t for a, t in self._since.items() if self._canaries.get(a) == mine.get(a)}
        self._canaries = mine
        self.verdicts = {
            a: verdict
            for a, verdict in self.verdicts.items()
            if a in mine and mine[a].serial == verdict.serial
        }
        self._canaries_of = {}
        for canary in mine.values():
            for held in canary.holds:
                self._canaries_of.setdefault(held, []).append(canary)

    def judge(
        self,
        queries: Mapping[Address, QueryState],
        now: float,
        record: Callable[[Mapping[Address, Verdict]], None],
    ) -> bool:
        """Record the verdicts on canaries that are due. Return whether there were any.

        `record` writes all verdicts to the Status. The runner acts on a verdict from the next round on.
        """
        due = self._due_verdicts(queries, now)
        if not due:
            return False
        for address, verdict in sorted(due.items()):
            log.info("%s went first: %s", address, "passed" if verdict.passed else verdict.reason)
        failpoint(Failpoint.CANARY_JUDGED)
        verdicts = {**self.verdicts, **due}
        record(verdicts)
        self.verdicts = verdicts
        failpoint(Failpoint.CANARY_DECIDED)
        return True

    def _due_verdicts(self, queries: Mapping[Address, QueryState], now: float) -> dict[Address, Verdict]:
        verdicts = {}
        for address, canary in self._canaries.items():
            query = queries.get(address)
            if address in self.verdicts or query is None or query.decision is None or query.wanted is None:
                continue
            if query.wanted.paused:
                self._since.pop(address, None)  # after it resumes, it has its full time again
                continue
            since = self._since.setdefault(address, now)
            verdict = _verdict(canary, key_of(query.wanted.description), query, now - since)
            if verdict is not None:
                verdicts[address] = verdict
        return verdicts

    def failed_verdict(self, address: Address) -> Verdict | None:
        """Return the verdict on a canary that has failed; otherwise None."""
        verdict = self.verdicts.get(address)
        return verdict if verdict is not None and not verdict.passed else None

    def reason(self, address: Address) -> str | None:
        """Return which canary the query waits for, in words; None if it waits for none."""
        for canary in self._canaries_of.get(address, ()):
            verdict = self.verdicts.get(canary.address)
            if verdict is not None and verdict.passed:
                continue
            if verdict is None:
                return f"waits for {canary.address}, which goes first with serial {canary.serial}"
            return f"waits because {canary.address}, which went first with serial {canary.serial}, failed"
        return None

    def hold(self, wanted: Description, accepted: Description | None) -> HeldQuery | None:
        """Make a waiting query or a failed canary run the description that was last accepted."""
        waits, failed = self.reason(wanted.address), self.failed_verdict(wanted.address)
        if waits is None and (failed is None or accepted is None or accepted.place != wanted.place):
            return None
        if accepted is None or accepted.id != wanted.id:
            return HeldQuery(condition="stopped")  # it has never run: its first start waits
        # A failed canary must stop even if the servers of its former description don't answer.
        return HeldQuery(description=accepted, check=waits is not None)

    def cause(self, wanted: Description, accepted: Description | None) -> Cause | None:
        """Return the cause for the start of a canary, and for its fallback after it failed.

        Returns None for the queries that waited for it: the commit is their cause.
        """
        failed, canary = self.failed_verdict(wanted.address), self._canaries.get(wanted.address)
        if failed is not None:
            return Cause(
                cause="canary", serial=failed.serial, detail=f"back: {shortened(failed.reason, 300)}"
            )
        if canary is None or wanted.address in self.verdicts:
            return None
        detail = f"goes first, before {count(len(canary.holds), 'other query', 'other queries')}"
        return Cause(cause="canary", serial=canary.serial, detail=detail)

    def started(self, address: Address) -> None:
        if address in self._canaries_of and self.reason(address) is None:
            failpoint(Failpoint.CANARY_RELEASED)


def _verdict(canary: Canary, key: Key, query: QueryState, waited: float) -> Verdict | None:
    run, memory = query.run, query.memory
    if query.condition == "running" and run is not None and is_run_of(run, key):
        return Verdict(serial=canary.serial, passed=True)
    if memory.target == key and memory.verdict in ("rejected", "failed"):
        return Verdict(
            serial=canary.serial,
            passed=False,
            condition="rejected" if memory.verdict == "rejected" else "failed",
            reason=f"{memory.error or 'It ended.'} {_fallback(canary)}",
            code=memory.error_code or "",
            kind=memory.error_kind,
        )
    if waited <= canary.wait:
        return None
    return Verdict(
        serial=canary.serial,
        passed=False,
        reason=f"It made no progress within {canary.wait:g} s of its restart. {_fallback(canary)}",
        code="MZ140",
    )


def _fallback(canary: Canary) -> str:
    number = len(canary.holds)
    waiting = f"; {number} {'query is' if number == 1 else 'queries are'} held back" if number else ""
    return f"It went first, and runs its former description again{waiting}: {_NEXT_STEPS}"


class Gates(NamedTuple):
    """All gates, in the order in which the controller asks them. The runner and its controller share them."""

    handover: Handover
    canaries: Canaries
    replacements: Replacements

    def add_to(self, query: QueryState, address: Address) -> QueryState:
        """Return the query's state with the reason why it is held, and with its verdict if it failed."""
        held = (
            self.handover.wait_reasons.get(address)
            or self.canaries.reason(address)
            or self.replacements.reason(address)
        )
        return replace(query, hold_reason=held, canary_verdict=self.canaries.failed_verdict(address))


def gates_of(store: Store, instance: InstanceId, clock: Callable[[], float]) -> Gates:
    """Return the gates, with the verdicts from the instance's Status.

    Call this while you hold the lease. Raises MzplanError if the store fails.
    """
    before = store.read_status(instance)
    return Gates(
        Handover(store, instance, clock),
        Canaries(before.canaries if before is not None else {}),
        Replacements(store, instance, clock),
    )
