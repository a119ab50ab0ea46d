"""What holds queries back on an instance that is led from here.

The hand-over: queries that move from one instance to another wait until the former runner has let go. Two
runners of different instances never talk to each other; they meet in the store. A live runner has let go of
a query when its Status does not show it and follows a state that gives it to another instance. Of one that
lags behind, the states say that it may take in next. A runner without a lease runs nothing.

Canaries: queries that go first, and those that wait for them. A verdict is written down before anything is
done because of it, and holds for that serial: a runner that is killed in between, and its successor, do the
same.

The third gate is of sources that begin again (see mzplan.runner.replacements).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from mzplan.controller.observations import QueryState
from mzplan.controller.reconcile import Key, key_of, runs
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

_THEN = "`mzplan apply` goes on with all of them, `mzplan state rollback` goes back."
log = logging.getLogger("mzplan.runner")

BEHIND = 50  # serials; whoever is further behind is waited for, and its past not looked up


@dataclass(frozen=True, slots=True, kw_only=True)
class _Other:
    """What a live runner of another instance may still run: addresses that its Status shows, ids that a state
    gave it which it may have taken in since. `unknown`: it may run anything; `problem`: since this is so."""

    instance: InstanceId
    shown: frozenset[Address] = frozenset()
    ids: frozenset[str] = frozenset()
    unknown: bool = False
    problem: str | None = None

    def may_run(self, address: Address, id_: str) -> bool:
        return self.unknown or address in self.shown or id_ in self.ids

    def reason(self) -> str:
        if self.problem is not None:
            return f"waits for instance {self.instance}, of which is not known what it runs: {self.problem}"
        return f"waits for instance {self.instance}, whose runner has not let go of it yet"


class Handover:
    """A gate of the runner of `instance`. `clock` gives seconds, monotonic. Raises MzplanError (the store);
    `hold` does not."""

    def __init__(self, store: Store, instance: InstanceId, clock: Callable[[], float]):
        self._store = store
        self._instance = instance
        self._clock = clock
        self._looked = -math.inf
        self._state = State(project=store.project)
        self._here: Mapping[Address, str] = {}
        self.waiting: Mapping[Address, str] = {}
        """Queries that are new here, and for whom they wait, in words."""
        self._came: Mapping[Address, InstanceId] = {}
        """The queries that another instance had before, until they are started."""

    def comes(self, state: State) -> bool:
        """Whether a serial brings queries here that a runner of another instance may have run."""
        return bool(self._coming(state)) and bool(self._others(state))

    def take_in(self, state: State) -> None:
        """A new serial."""
        come = self._coming(state) if self.comes(state) else []
        came = {a: name for a, name in self._came.items() if a in state.resources}
        self._came = came | (self._from(state, come) if come else {})
        self._state, self._here = state, self._queries(state)
        waiting = {a: text for a, text in self.waiting.items() if a in self._here}
        self.waiting = waiting | dict.fromkeys(come, "waits for the runners of other instances")
        self._looked = -math.inf

    def look(self) -> None:
        """See for whom the queries still have to wait, as often as is good for the store."""
        if not self.waiting or self._clock() - self._looked < self._store.backend.poll_interval:
            return
        self._looked = self._clock()
        others = [other for name in self._others(self._state) if (other := self._seen(name)) is not None]
        waiting: dict[Address, str] = {}
        for address in self.waiting:
            still = [other for other in others if other.may_run(address, self._here[address])]
            if still:
                waiting[address] = still[0].reason()
        self.waiting = waiting

    def has_left(self, address: Address) -> bool:
        """Whether the state gives a query to another instance."""
        resource = self._state.resources.get(address)
        return resource is not None and resource.instance != self._instance

    def hold(self, wanted: Description, accepted: Description | None) -> HeldQuery | None:
        """A query that waits is not started yet; what runs stays."""
        return HeldQuery() if wanted.address in self.waiting else None

    def cause(self, wanted: Description, accepted: Description | None) -> Cause | None:
        """A query that has not run here before came from elsewhere."""
        former = self._came.get(wanted.address)
        if former is None or (accepted is not None and accepted.id == wanted.id):
            return None
        detail = f"came from instance {former}"
        return Cause(cause="hand-over", serial=self._state.serial, detail=detail)

    def started(self, address: Address) -> None:
        self._came = {a: name for a, name in self._came.items() if a != address}

    def _from(self, state: State, come: list[Address]) -> dict[Address, InstanceId]:
        """Which instance each of these had in the serial before."""
        before = self._state if self._state.serial else self._store.read_serial(state.serial - 1)
        had = (
            {resource.id: resource.instance for resource in before.resources.values()}
            if before is not None
            else {}
        )
        return {
            a: name
            for a in come
            if (name := had.get(state.resources[a].id, self._instance)) != self._instance
        }

    def _queries(self, state: State) -> dict[Address, str]:
        resources = state.resources.items()
        return {a: r.id for a, r in resources if a.kind != "connection" and r.instance == self._instance}

    def _coming(self, state: State) -> list[Address]:
        return [a for a, id_ in self._queries(state).items() if self._here.get(a) != id_]

    def _others(self, state: State) -> list[InstanceId]:
        return sorted({*state.instances, *self._store.leases.instances()} - {self._instance})

    def _seen(self, name: InstanceId) -> _Other | None:
        try:
            return self._look_at(name)
        except MzplanError as problem:  # one file that can't be read must not hold up what has no part in it
            return _Other(instance=name, unknown=True, problem=problem.diagnostics[0].summary)

    def _look_at(self, name: InstanceId) -> _Other | None:
        if not self._store.leases.may_be_led(name):
            return None
        status, serial = self._store.read_status(name), self._state.serial
        if status is None or serial - status.serial > BEHIND:
            return _Other(instance=name, unknown=True)
        ids: set[str] = set()
        for number in range(max(1, status.serial), serial):
            earlier = self._store.read_serial(number)
            if earlier is None:
                return _Other(instance=name, unknown=True)
            ids.update(resource.id for resource in earlier.resources.values() if resource.instance == name)
        return _Other(instance=name, shown=frozenset(status.observations), ids=frozenset(ids))


class Canaries:
    """A gate. `verdicts` are those that are written down: only they count."""

    def __init__(self, verdicts: Mapping[Address, Verdict]):
        self.verdicts: Mapping[Address, Verdict] = dict(verdicts)
        self._canaries: dict[Address, Canary] = {}
        self._waiting: dict[Address, list[Canary]] = {}
        self._since: dict[Address, float] = {}

    def take_in(self, state: State, here: Container[Address]) -> None:
        """A new serial. Those of other instances are left to their runners; `here` are this one's."""
        mine = {c.address: c for c in state.canaries if c.address in here}
        self._since = {a: t for a, t in self._since.items() if self._canaries.get(a) == mine.get(a)}
        self._canaries = mine
        self.verdicts = {
            a: verdict
            for a, verdict in self.verdicts.items()
            if a in mine and mine[a].serial == verdict.serial
        }
        self._waiting = {}
        for canary in mine.values():
            for held in canary.holds:
                self._waiting.setdefault(held, []).append(canary)

    def judge(
        self,
        queries: Mapping[Address, QueryState],
        now: float,
        write_down: Callable[[Mapping[Address, Verdict]], None],
    ) -> bool:
        """Decide of the queries that went first, where that is due: written down now, acted on from the next
        round on. Whether it was."""
        due = self._due(queries, now)
        if not due:
            return False
        for address, verdict in sorted(due.items()):
            log.info("%s went first: %s", address, "passed" if verdict.passed else verdict.reason)
        failpoint(Failpoint.CANARY_JUDGED)
        verdicts = {**self.verdicts, **due}
        write_down(verdicts)
        self.verdicts = verdicts
        failpoint(Failpoint.CANARY_DECIDED)
        return True

    def _due(self, queries: Mapping[Address, QueryState], now: float) -> dict[Address, Verdict]:
        verdicts = {}
        for address, canary in self._canaries.items():
            query = queries.get(address)
            if address in self.verdicts or query is None or query.decision is None or query.wanted is None:
                continue
            if query.wanted.paused:
                self._since.pop(address, None)  # it has its whole time once it is resumed
                continue
            since = self._since.setdefault(address, now)
            verdict = _verdict(canary, key_of(query.wanted.description), query, now - since)
            if verdict is not None:
                verdicts[address] = verdict
        return verdicts

    def failed(self, address: Address) -> Verdict | None:
        """The verdict of a canary that has failed."""
        verdict = self.verdicts.get(address)
        return verdict if verdict is not None and not verdict.passed else None

    def reason(self, address: Address) -> str | None:
        """For which canary a query waits, in words; None when it waits for none."""
        for canary in self._waiting.get(address, ()):
            verdict = self.verdicts.get(canary.address)
            if verdict is not None and verdict.passed:
                continue
            if verdict is None:
                return f"waits for {canary.address}, which goes first with serial {canary.serial}"
            return (
                f"held back since {canary.address}, which went first with serial {canary.serial}, has failed"
            )
        return None

    def hold(self, wanted: Description, accepted: Description | None) -> HeldQuery | None:
        """A query that waits, and a canary that has failed, are to be as they were last accepted."""
        waits, failed = self.reason(wanted.address), self.failed(wanted.address)
        if waits is None and (failed is None or accepted is None or accepted.place != wanted.place):
            return None
        if accepted is None or accepted.id != wanted.id:
            return HeldQuery(condition="stopped")  # nothing of it has run yet: it waits with its first start
        # What failed must stop in any case, whether or not the servers of the former answer.
        return HeldQuery(description=accepted, check=waits is not None)

    def cause(self, wanted: Description, accepted: Description | None) -> Cause | None:
        """Of a canary that goes first, or back; of what has waited for it, its commit says why."""
        failed, canary = self.failed(wanted.address), self._canaries.get(wanted.address)
        if failed is not None:
            return Cause(
                cause="canary", serial=failed.serial, detail=f"back: {shortened(failed.reason, 300)}"
            )
        if canary is None or wanted.address in self.verdicts:
            return None
        detail = f"goes first, before {count(len(canary.holds), 'other query', 'other queries')}"
        return Cause(cause="canary", serial=canary.serial, detail=detail)

    def started(self, address: Address) -> None:
        if address in self._waiting and self.reason(address) is None:
            failpoint(Failpoint.CANARY_RELEASED)


def _verdict(canary: Canary, key: Key, query: QueryState, waited: float) -> Verdict | None:
    shown, memory = query.shown, query.memory
    if query.condition == "running" and shown is not None and runs(shown, key):
        return Verdict(serial=canary.serial, passed=True)
    if memory.target == key and memory.verdict in ("rejected", "failed"):
        return Verdict(
            serial=canary.serial,
            passed=False,
            condition="rejected" if memory.verdict == "rejected" else "failed",
            reason=f"{memory.error or 'It ended.'} {_back(canary)}",
            code=memory.error_code or "",
            kind=memory.error_kind,
        )
    if waited <= canary.wait:
        return None
    return Verdict(
        serial=canary.serial,
        passed=False,
        reason=f"It has made no progress within {canary.wait:g} s after its restart. {_back(canary)}",
        code="MZ140",
    )


def _back(canary: Canary) -> str:
    number = len(canary.holds)
    waiting = f"; {number} {'query is' if number == 1 else 'queries are'} held back" if number else ""
    return f"It went first, and is back on what it ran before{waiting}: {_THEN}"


class Gates(NamedTuple):
    """In the order in which the controller asks them. The runner and its controller share them."""

    handover: Handover
    canaries: Canaries
    replacements: Replacements

    def added_to(self, query: QueryState, address: Address) -> QueryState:
        """What is known of a query, with what it waits for, and that it has failed as a canary."""
        held = (
            self.handover.waiting.get(address)
            or self.canaries.reason(address)
            or self.replacements.reason(address)
        )
        return replace(query, held=held, failed=self.canaries.failed(address))


def gates_of(store: Store, instance: InstanceId, clock: Callable[[], float]) -> Gates:
    """With the verdicts that are written down. To be read under the lease. Raises MzplanError."""
    before = store.read_status(instance)
    return Gates(
        Handover(store, instance, clock),
        Canaries(before.canaries if before is not None else {}),
        Replacements(store, instance, clock),
    )
