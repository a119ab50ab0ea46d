"""How often queries were started, and tried again: numbers that never go back while a runner leads."""

from __future__ import annotations

from dataclasses import replace

from mzplan.controller.reconcile import Decision, Switch, key_of
from mzplan.model.address import Address
from mzplan.model.observed import Counters


class Attempts:
    """Of the queries of one instance, by address."""

    def __init__(self) -> None:
        self._starts: dict[Address, int] = {}
        self._retries: dict[Address, int] = {}

    def carries_out(self, decision: Decision) -> None:
        """A decision is about to be carried out: one to start what has failed before is a retry. To go back
        to what ran before a change is none."""
        command, memory = decision.command, decision.memory
        if isinstance(command, Switch) and memory.failures and memory.target == key_of(command.description):
            self._retries[command.address] = self._retries.get(command.address, 0) + 1

    def started(self, address: Address) -> None:
        """A query was started."""
        self._starts[address] = self._starts.get(address, 0) + 1

    def added_to(self, counted: Counters, address: Address) -> Counters:
        """With its restarts and retries."""
        restarts = max(0, self._starts.get(address, 0) - 1)
        return replace(counted, restarts=restarts, retries=self._retries.get(address, 0))
