"""Queries that go first, and those that wait for them, on one instance.

A verdict is written down before anything is done because of it, and holds for that serial: a runner that is
killed in between, and its successor, do the same. Pure but for the clock that it is handed.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

from mzplan.controller.executor import QueryReport
from mzplan.controller.reconcile import (
    DEFAULT_PACE,
    Decision,
    Desired,
    Key,
    Memory,
    Pace,
    Switch,
    decide,
    key_of,
    runs,
)
from mzplan.model.address import Address
from mzplan.model.canary import Canary, Verdict
from mzplan.model.state import State
from mzplan.schema.description import Description

_THEN = "`mzplan apply` goes on with all of them, `mzplan state rollback` goes back."


class Canaries:
    """`verdicts` are those that are written down: only they count."""

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
        decisions: Mapping[Address, Decision],
        memories: Mapping[Address, Memory],
        desired: Mapping[Address, Desired],
        now: float,
    ) -> dict[Address, Verdict]:
        """The verdicts that are due now. The caller writes them down, then hands them to `decided`."""
        found = {}
        for address, canary in self._canaries.items():
            if address in self.verdicts or address not in decisions:
                continue
            if desired[address].paused:
                self._since.pop(address, None)  # it has its whole time once it is resumed
                continue
            since = self._since.setdefault(address, now)
            key = key_of(desired[address].description)
            verdict = _verdict(
                canary, key, decisions[address], memories.get(address) or Memory(), now - since
            )
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

    def holds(self, address: Address) -> str | None:
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

    def has_released(self, address: Address) -> bool:
        """Whether a query had to wait, and has to no more."""
        return address in self._waiting and self.holds(address) is None

    def decide(
        self,
        address: Address,
        desired: Desired | None,
        reports: list[QueryReport],
        memory: Memory,
        now: float,
        pace: Pace = DEFAULT_PACE,
    ) -> Decision:
        """As reconcile.decide; a query that is held, and a canary that has failed, are wanted as they were
        last accepted."""
        waits, failed = self.holds(address), self.failed(address)
        if desired is None or (waits is None and failed is None):
            return decide(address, desired, reports, memory, now, pace)
        accepted = memory.accepted
        if waits is None and not _can_go_back(accepted, desired.description):
            return decide(address, desired, reports, memory, now, pace)
        if accepted is None or accepted.id != desired.description.id:
            # Nothing of it has run yet: it waits with its first start.
            shown = next((report for report in reports if report.active), None)
            return Decision(
                command=None, memory=memory, condition="running" if shown else "stopped", shown=shown
            )
        decision = decide(address, replace(desired, description=accepted), reports, memory, now, pace)
        if waits is None and isinstance(decision.command, Switch):
            # What failed must stop in any case, whether or not the servers of the former answer.
            return replace(decision, command=replace(decision.command, check=False))
        return decision


def _can_go_back(accepted: Description | None, wanted: Description) -> bool:
    return accepted is not None and accepted.place == wanted.place


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
