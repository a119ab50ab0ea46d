"""The gates: the reasons why a runner holds back queries of its instance.

- A query that moves to another instance waits for its former runner (mzplan.runner.handover).
- Some queries of a change, its canaries, go first, and the other queries wait for them. The runner writes its
  verdict into the Status before it acts on it, and the verdict holds for that serial. If the runner is
  killed, its successor therefore acts in the same way.
- Readers of a replaced source wait for its new generation, and new generations wait for erasures of the
  source that they read (mzplan.runner.replacements).
- Views wait for the first copy of the collections that they read as tables, and sinks that write a
  difference for that of their collection's new generation (mzplan.runner.first_copies).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping
from typing import NamedTuple

from mzplan.controller.decision import HeldQuery, Key, key_of
from mzplan.controller.observations import QueryState
from mzplan.controller.reconcile import is_run_of
from mzplan.controller.terms import Gate, InstanceId
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.address import Address
from mzplan.model.cause import Cause
from mzplan.model.observed import CanaryVerdict
from mzplan.model.state import Canary, State
from mzplan.model.words import count
from mzplan.runner.caught_up import CaughtUp
from mzplan.runner.first_copies import FirstCopies
from mzplan.runner.handover import Handover
from mzplan.runner.replacements import Replacements
from mzplan.schema.description import Description
from mzplan.secrets.resolved import shortened
from mzplan.store.store import Store

_NEXT_STEPS = "`mzplan apply` continues with all of them, `mzplan state rollback` undoes the change."
log = logging.getLogger("mzplan.runner")


class Canaries(Gate):
    """The gate for canaries and for queries that wait for canaries. `verdicts` are from the Status."""

    def __init__(self, verdicts: Mapping[Address, CanaryVerdict]):
        self.verdicts: Mapping[Address, CanaryVerdict] = dict(verdicts)
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
        record: Callable[[Mapping[Address, CanaryVerdict]], None],
        waiting: Container[Address] = (),
    ) -> bool:
        """Record the verdicts on canaries that are due. Return whether there were any.

        `record` writes all verdicts to the Status. The runner acts on a verdict from the next round on.
        `waiting`: queries that another gate holds, so that a canary's time hasn't begun.
        """
        due = self._due_verdicts(queries, now, waiting)
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

    def _due_verdicts(
        self, queries: Mapping[Address, QueryState], now: float, waiting: Container[Address]
    ) -> dict[Address, CanaryVerdict]:
        verdicts = {}
        for address, canary in self._canaries.items():
            query = queries.get(address)
            if address in self.verdicts or query is None or query.decision is None or query.wanted is None:
                continue
            if query.wanted.paused or address in waiting:
                self._since.pop(address, None)  # after that, it has its full time again
                continue
            since = self._since.setdefault(address, now)
            verdict = _verdict(canary, key_of(query.wanted.description), query, now - since)
            if verdict is not None:
                verdicts[address] = verdict
        return verdicts

    def failed_verdict(self, address: Address) -> CanaryVerdict | None:
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
            return HeldQuery(condition="stopped", reason=waits or "")  # it has never run
        # A failed canary must stop even if the servers of its former description don't answer.
        return HeldQuery(description=accepted, check=waits is not None, reason=waits or "")

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


def _verdict(canary: Canary, key: Key, query: QueryState, waited: float) -> CanaryVerdict | None:
    run, memory = query.run, query.memory
    if (query.condition == "running" or query.completed) and run is not None and is_run_of(run, key):
        return CanaryVerdict(serial=canary.serial, passed=True)
    if memory.target == key and memory.last_failure in ("rejected", "failed"):
        return CanaryVerdict(
            serial=canary.serial,
            passed=False,
            condition="rejected" if memory.last_failure == "rejected" else "failed",
            reason=f"{memory.error or 'It ended.'} {_fallback(canary)}",
            code=memory.error_code or "",
            kind=memory.error_kind,
        )
    if waited <= canary.wait:
        return None
    return CanaryVerdict(
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
    caught_up: CaughtUp
    first_copies: FirstCopies

    def hold_reason(self, query: QueryState) -> str | None:
        """Return why a gate holds the query; None if it doesn't, and for a canary that has failed."""
        if query.wanted is None:
            return None
        wanted, accepted = query.wanted.description, query.memory.accepted
        holds = (gate.hold(wanted, accepted) for gate in self)
        held = next((hold for hold in holds if hold is not None), None)
        return held.reason or None if held is not None else None


def gates_of(
    store: Store, instance: InstanceId, clock: Callable[[], float], *, until_caught_up: bool = False
) -> Gates:
    """Return the gates, with the verdicts from the instance's Status.

    Call this while you hold the lease. Raises MzplanError if the store fails.
    """
    before = store.read_status(instance)
    replacements = Replacements(store, instance, clock)
    return Gates(
        Handover(store, instance, clock),
        Canaries(before.canaries if before is not None else {}),
        replacements,
        CaughtUp(ends=until_caught_up),
        FirstCopies(replacements.has_started),
    )
