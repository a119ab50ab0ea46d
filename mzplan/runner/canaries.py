"""Queries that go first, and those that wait for them, on one instance.

A verdict is written down before anything is done because of it, and holds for that serial: a runner that is
killed in between, and its successor, do the same. Pure but for the clock that it is handed.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from mzplan.controller.gate import Held
from mzplan.controller.reconcile import Decision, Key, Memory, key_of, runs
from mzplan.controller.types import QueryState
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.address import Address
from mzplan.model.canary import Canary, Verdict
from mzplan.model.state import State
from mzplan.schema.description import Description

_THEN = "`mzplan apply` goes on with all of them, `mzplan state rollback` goes back."


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

    def judge(self, queries: Mapping[Address, QueryState], now: float) -> dict[Address, Verdict]:
        """The verdicts that are due now. The caller writes them down, then hands them to `decided`."""
        found = {}
        for address, canary in self._canaries.items():
            state = queries.get(address)
            if address in self.verdicts or state is None or state.decision is None or state.wanted is None:
                continue
            if state.wanted.paused:
                self._since.pop(address, None)  # it has its whole time once it is resumed
                continue
            since = self._since.setdefault(address, now)
            key = key_of(state.wanted.description)
            verdict = _verdict(canary, key, state.decision, state.memory, now - since)
            if verdict is not None:
                found[address] = verdict
        return found

    def decided(self, verdicts: Mapping[Address, Verdict]) -> None:
        """These are written down."""
        self.verdicts = {**self.verdicts, **verdicts}

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

    def hold(self, wanted: Description, accepted: Description | None) -> Held | None:
        """A query that waits, and a canary that has failed, are to be as they were last accepted."""
        waits, failed = self.reason(wanted.address), self.failed(wanted.address)
        if waits is None and (failed is None or accepted is None or accepted.place != wanted.place):
            return None
        if accepted is None or accepted.id != wanted.id:
            return Held(condition="stopped")  # nothing of it has run yet: it waits with its first start
        # What failed must stop in any case, whether or not the servers of the former answer.
        return Held(description=accepted, check=waits is not None)

    def started(self, address: Address) -> None:
        if address in self._waiting and self.reason(address) is None:
            failpoint(Failpoint.CANARY_RELEASED)


def _verdict(canary: Canary, key: Key, decision: Decision, memory: Memory, waited: float) -> Verdict | None:
    shown = decision.shown
    if decision.condition == "running" and shown is not None and runs(shown, key):
        return Verdict(serial=canary.serial, passed=True)
    if memory.target == key and memory.verdict in ("rejected", "failed"):
        return Verdict(
            serial=canary.serial,
            passed=False,
            condition="rejected" if memory.verdict == "rejected" else "failed",
            reason=f"{memory.error or 'It ended.'} {_back(canary)}",
            code=memory.error_code or "",
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
