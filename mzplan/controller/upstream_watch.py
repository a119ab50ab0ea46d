"""Looking now and then whether running queries still have what they go on from: sources the upstream that
their checkpoints are of, sinks the target that holds their steps, all their checkpoint and collection.

A topic that is deleted and created again, a cluster that is put in the place of another, or a folder that
somebody has removed is not noticed by a query that runs. One query at a time is looked at, each about once a
minute, and nothing is done but reported.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor as Pool
from concurrent.futures import Future

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.schema.description import Description

log = logging.getLogger("mzplan.runner")

EVERY = 60.0  # seconds from one look at a query to the next
SINKS = 5  # looks at a sink until its target is asked, too: it notices most by itself
# Another upstream or target; offsets that it no longer holds, or steps; a checkpoint and a collection that
# are gone.
CHANGED = frozenset({"MZ043", "MZ067", "MZ069", "MZ160", "MZ161"})
_STORAGE = frozenset({"MZ160", "MZ161"})


class UpstreamWatch:
    """`changed` says which queries have lost what they go on from, and how."""

    def __init__(
        self,
        look_at: Callable[[Description, bool], tuple[Diagnostic, ...]],
        pool: Pool,
        clock: Callable[[], float],
        every: float = EVERY,
    ):
        self._look_at, self._pool = look_at, pool
        self._clock, self._every = clock, every
        self._looked: dict[Address, float] = {}
        self._looks: dict[Address, int] = {}
        self._under_way: tuple[Address, Future[tuple[Diagnostic, ...]], bool] | None = None
        self.changed: dict[Address, Diagnostic] = {}

    def look(self, running: Mapping[Address, Description]) -> None:
        """Take in what was found, and look at the query that was looked at longest ago."""
        now = self._clock()
        for gone in self._looked.keys() - running.keys():
            del self._looked[gone], self._looks[gone]
            self.changed.pop(gone, None)
        for address in running.keys() - self._looked.keys():
            self._looked[address], self._looks[address] = now, 0  # its start has just looked
            self.changed.pop(address, None)
        if self._under_way is not None:
            if not self._under_way[1].done():
                return
            self._take_in(*self._under_way)
            self._under_way = None
        if not self._looked:
            return
        due = min(self._looked, key=self._looked.__getitem__)
        if now - self._looked[due] >= self._every:
            self._looked[due] = now
            self._looks[due] += 1
            whole = due.kind == "source" or self._looks[due] % SINKS == 0
            self._under_way = (due, self._pool.submit(self._look_at, running[due], whole), whole)

    def _take_in(self, address: Address, check: Future[tuple[Diagnostic, ...]], whole: bool) -> None:
        try:
            diagnostics = check.result()
        except MzplanError as problem:
            diagnostics = problem.diagnostics
        except Exception as problem:  # a defect of a connector must not end the runner
            log.warning("%s: it could not be looked at: %s", address, type(problem).__name__)
            return
        if address not in self._looked:
            return
        # With on_upstream_change it is a notice: what a restart will do.
        found = next((d for d in diagnostics if d.code in CHANGED), None)
        if found is not None and address not in self.changed:
            log.warning("%s: [%s] %s %s", address, found.code, found.summary, found.detail)
        if found is not None:
            self.changed[address] = found
        elif not any(d.severity == "error" for d in diagnostics):
            before = self.changed.get(address)
            if whole or (before is not None and before.code in _STORAGE):
                self.changed.pop(address, None)
