"""Which queries of a runner have read what was there, for `mzplan run --until-caught-up`.

A source has caught up when it finds nothing more to read. A query that reads collections has caught up when
it finds nothing more after the queries that write these collections have caught up.

A view joins each row with its snapshots as they are at that moment. So it first starts when their queries
have caught up, and joins no row with a table of an hour ago.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from mzplan.controller.decision import HeldQuery, key_of
from mzplan.controller.observations import Fault, QueryState
from mzplan.controller.reconcile import is_run_of
from mzplan.controller.terms import Gate
from mzplan.model.address import Address, Place
from mzplan.schema.description import Description

MOST_FAILURES = 3  # in a row; then the runner no longer waits for a query
PATIENCE = 60.0  # seconds for which a query may wait for another runner, or for a server that doesn't answer


class CaughtUp(Gate):
    """Follows the queries of a runner, and holds views until their snapshots have caught up.

    - `ends`: whether the runner ends once all queries have caught up. If not, nothing is held.
    - `clock`: returns seconds since the epoch.
    - `releases`: whether the last poll has let a view run.
    - `problems`: why queries have not caught up although the runner doesn't wait for them any longer.
    - `is_complete`: whether all queries have caught up.
    """

    def __init__(self, ends: bool, clock: Callable[[], float] = time.time):
        self.ends = ends
        self._clock = clock
        self._released: set[Address] = set()  # the views that don't wait for their snapshots any more
        self._since: dict[Address, float] = {}  # when all of a query's inputs had caught up
        self._done: dict[Address, Place] = {}
        self.problems: dict[Address, str] = {}
        self.is_complete = self.releases = False

    def hold(self, wanted: Description, accepted: Description | None) -> HeldQuery | None:
        """Hold a view until its snapshots have caught up, or can't."""
        if not self.ends or not wanted.snapshots or wanted.address in self._released:
            return None
        names = ", ".join(str(read.address) for read in wanted.snapshots.values())
        return HeldQuery(reason=f"waits until its snapshots have caught up: {names}")

    def keeps_running(self) -> bool:
        """Return whether the queries end with the runner, because their readers may need them until then."""
        return self.ends

    def poll(
        self, queries: Mapping[Address, QueryState], fault_of: Callable[[Address], Fault | None]
    ) -> bool:
        """Take the state of all queries. Return whether the runner may end, because it waits for none."""
        if not self.ends:
            return False
        wanted = {
            address: query.wanted.description
            for address, query in queries.items()
            if query.wanted is not None and not query.wanted.paused
        }
        self._done = {a: place for a, place in self._done.items() if a in wanted and wanted[a].place == place}
        open_ = [address for address in wanted if address not in self._done]
        self.problems, now = {}, self._clock()
        while open_:
            ready = [a for a in open_ if not {read.address for read in wanted[a].inputs.values()} & {*open_}]
            for address in ready:
                since = self._since.setdefault(address, now)
                new = _beside(queries[address], wanted[address])
                if new is not None:  # it comes into service once the new generation has read as much
                    if new in self.problems or (_is_manual(wanted[address]) and new in self._done):
                        self._done[address] = wanted[address].place
                        open_.remove(address)
                    continue
                problem = _problem(queries[address], fault_of(address), now - since)
                if problem is not None:
                    self.problems[address] = problem
                elif _has_caught_up(queries[address], wanted[address], since):
                    self._done[address] = wanted[address].place
                else:
                    continue
                open_.remove(address)
            if not any(address not in open_ for address in ready):
                break
        for address in open_:
            if address not in ready:
                self._since.pop(address, None)
        views = {a: {read.address for read in w.snapshots.values()} for a, w in wanted.items() if w.snapshots}
        free = {address for address, tables in views.items() if not tables & {*open_}}
        self.releases = not free <= self._released
        self._released |= free
        self.is_complete = not open_ and not self.problems
        return not open_


def _beside(query: QueryState, wanted: Description) -> Address | None:
    """Return the new generation that runs beside a query in service; None without one."""
    hold = query.decision.hold if query.decision is not None else None
    return wanted.address.beside(wanted.generation) if hold is not None and hold.beside else None


def _is_manual(wanted: Description) -> bool:
    return bool(wanted.body.get("lifecycle", {}).get("cut_over") == "manual")


def _has_caught_up(query: QueryState, wanted: Description, since: float) -> bool:
    """Return whether a query has found nothing more to read in a trigger that began after `since`."""
    run = query.run
    if query.condition != "running" or run is None or not is_run_of(run, key_of(wanted)):
        return False
    return run.found_nothing_after(since)


def _problem(query: QueryState, fault: Fault | None, waited: float) -> str | None:
    """Return why the runner doesn't wait for a query, as sentences; None if it does.

    `waited`: for how many seconds the query could have read all of its inputs.
    """
    memory = query.memory
    if query.condition in ("failed", "rejected"):
        if memory.failures < MOST_FAILURES and not math.isinf(memory.retry_at):
            return None
        return f"[{memory.error_code}] {memory.error}"
    if waited < PATIENCE:
        return None
    if fault is not None:
        return f"[{fault.problem.code}] {fault.connection}: {fault.problem.summary}. {fault.problem.detail}"
    held = query.decision.hold if query.decision is not None else None
    return f"It {held.reason}." if held is not None and held.reason else None
