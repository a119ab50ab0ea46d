"""Keeping targets in shape that sinks feed in small steps, where their declarations ask for it: one at a
time, off the controller's thread. What goes wrong is logged, and tried again later; the query goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor as Pool
from concurrent.futures import Future

from mzplan.controller.maintenance import EVERY
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError, sentence
from mzplan.schema.description import Description
from mzplan.schema.kinds import resource_kind

log = logging.getLogger("mzplan.storage")

PATIENCE = 10.0  # times longer until a target is looked at again, after a failure: it may be a large one


def is_compacted(sink: Description) -> bool:
    """Whether a sink's declaration asks for it."""
    return resource_kind("sink", sink.type).with_defaults(sink.body).get("compaction") is not None


class TargetMaintenance:
    """Looks at each target every `every` seconds. `compact`: see Executor; `clock` gives seconds,
    monotonic."""

    def __init__(
        self,
        compact: Callable[[Description], str | None],
        pool: Pool,
        clock: Callable[[], float],
        wake: Callable[[], None],
        every: float = EVERY,
    ):
        self.compact = compact
        self.pool = pool
        self.clock = clock
        self.wake = wake
        self.every = every
        self._due: dict[Address, float] = {}
        self._work: tuple[Address, Future[str | None]] | None = None

    @property
    def at_work_on(self) -> Address | None:
        """The sink whose target is written: whoever runs it next waits for that."""
        return self._work[0] if self._work is not None else None

    def look(self, sinks: Mapping[Address, Description]) -> None:
        """Take in how the last one has ended, and begin with the one that is due, of these sinks that run."""
        self._harvest()
        now = self.clock()
        wanted = {address: sink for address, sink in sinks.items() if is_compacted(sink)}
        for gone in self._due.keys() - wanted.keys():
            del self._due[gone]
        for address in wanted.keys() - self._due.keys():
            self._due[address] = now + self.every  # it has just been started: let it
        if self._work is not None or not self._due:
            return
        address = min(self._due, key=self._due.__getitem__)
        if now >= self._due[address]:
            self._due[address] = now + self.every
            future = self.pool.submit(self.compact, wanted[address])
            future.add_done_callback(lambda _: self.wake())
            self._work = (address, future)

    def _harvest(self) -> None:
        if self._work is None or not self._work[1].done():
            return
        address, done = self._work
        self._work = None
        problem = done.exception()
        if problem is not None:
            log.warning("%s: %s", address, _described(problem))
            if address in self._due:
                self._due[address] = self.clock() + self.every * PATIENCE
        elif done.result() is not None:
            log.info("%s: %s", address, done.result())


def _described(problem: BaseException) -> str:
    if not isinstance(problem, MzplanError):
        return f"{type(problem).__name__}: {problem}"
    first = problem.diagnostics[0]
    return f"[{first.code}] {sentence(first)}"
