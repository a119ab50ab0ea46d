"""Which checkpoint each running query goes on from. Its name does not say: a name is that of an address, and
an address may be given to another resource (renamed, forgotten and declared again) while a query runs.

Queries never outlive this process, so what it has started is all there is to know.
"""

from __future__ import annotations

from collections.abc import Mapping

from mzplan.controller.executor import QueryName, QueryReport
from mzplan.controller.reconcile import Decision, Desired, Memory, Stop, Switch
from mzplan.model.address import Address


class RunningIds:
    """The ids that queries were started with, by query name."""

    def __init__(self) -> None:
        self._ids: dict[QueryName, str] = {}

    def starting(self, name: QueryName, id_: str) -> None:
        """A query is about to be started (from the pool: a single assignment)."""
        self._ids[name] = id_

    def strangers(
        self, address: Address, desired: Desired | None, reports: list[QueryReport], memory: Memory
    ) -> Decision | None:
        """Stop what runs at this address from the checkpoint of another resource; None when nothing does.
        What was accepted of that one stays remembered until it has stopped: its storage is still written."""
        if desired is None:
            return None
        wanted = desired.description.id
        names = tuple(r.name for r in reports if self._ids.get(r.name, wanted) != wanted)
        if not names:
            return None
        return Decision(
            command=Stop(address=address, names=names),
            memory=Memory(accepted=memory.accepted),
            condition="starting",
            shown=None,
        )

    def is_elsewhere(
        self,
        command: Switch,
        reports: Mapping[Address, list[QueryReport]],
        starting: Mapping[Address, str],
    ) -> bool:
        """Whether the checkpoint that this would start from is still in use at another address. `starting`:
        the ids of which a start is under way: it may take hours before there is a report of it."""
        id_ = command.description.id
        return any(
            query_id == id_ for address, query_id in starting.items() if address != command.address
        ) or any(
            self._ids.get(report.name) == id_
            for address, running in reports.items()
            if address != command.address
            for report in running
        )
