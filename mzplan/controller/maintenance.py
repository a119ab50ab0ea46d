"""Maintenance of collections, and of targets that sinks feed in small steps: one at a time of each, off the
controller's thread. What goes wrong is logged, and tried again later."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor as Pool
from concurrent.futures import Future
from dataclasses import dataclass

from mzplan.controller.storage import Extent, Storage
from mzplan.controller.terms import CollectionState, GlobalId, LagDuration, ReadPolicy, Step
from mzplan.controller.turns import Turns
from mzplan.model.address import Address, Place
from mzplan.model.diagnostics import MzplanError, sentence
from mzplan.model.times import seconds
from mzplan.schema.description import Description
from mzplan.schema.kinds import resource_kind
from mzplan.schema.source_columns import collection_kind

log = logging.getLogger("mzplan.storage")

EVERY = 60.0  # seconds
PATIENCE = 10.0  # times longer until a target is looked at again, after a failure: it may be a large one


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """What was found of a collection: how far it reaches, and from where each of its exports has to read."""

    id: GlobalId
    place: Place
    extent: Extent
    needed: Mapping[GlobalId, Step]
    policy: ReadPolicy
    young: Step | None  # the first step within the policy's duration, of a policy that has one
    limit: Step  # no export holds the collection before this step: that is too long ago


def max_hold(source: Description) -> str | None:
    """For how long a sink that does not read on holds the collection of a source: `30d`; None for ever."""
    limit = collection_kind(source.type).with_defaults(source.body).get("max_hold")
    return str(limit) if limit is not None else None


class Maintenance:
    """Looks at each collection every `every` seconds. `clock` gives seconds, monotonic."""

    def __init__(
        self,
        storage: Storage,
        pool: Pool,
        clock: Callable[[], float],
        wake: Callable[[], None],
        every: float = EVERY,
    ):
        self.wake = wake
        self.storage = storage
        self.pool = pool
        self.turns: Turns[Place, Surveyed] = Turns(pool, clock, every, wake)
        self._work: tuple[Address, Place, Future[None]] | None = None

    @property
    def at_work_on(self) -> Address | None:
        """The source whose collection storage is writing: one writer at a time may."""
        return self._work[0] if self._work is not None else None

    def surveyed(self) -> Surveyed | None:
        """What the last survey has found, once."""
        if (ended := self.turns.ended()) is None:
            return None
        place, survey = ended
        try:
            return survey.result()
        except OSError as problem:
            log.warning("collection %s g%d: %s", *place, problem)
        except Exception as problem:  # a defect here must not end the runner
            log.warning("collection %s g%d: %s: %s", *place, type(problem).__name__, problem)
        return None

    def look(
        self,
        collections: Mapping[GlobalId, CollectionState],
        readers: Callable[[GlobalId], Mapping[GlobalId, Place]],
    ) -> None:
        """Survey the collection that was looked at longest ago, if it is due. `readers` gives the places of a
        collection's exports."""
        if self._work is not None:
            return
        places = {state.place: id_ for id_, state in collections.items()}
        if (due := self.turns.due(places)) is not None:
            id_ = places[due]
            self.turns.start(due, self._look, id_, collections[id_], readers(id_))

    def young(self, place: Place, policy: ReadPolicy) -> Step | None:
        """The first step within a policy's duration, as storage has it now; None where it has none, or
        storage does not answer: the next survey asks again."""
        if not isinstance(policy, LagDuration):
            return None
        try:
            return self.storage.first_young(place, time.time() - policy.seconds)
        except Exception as problem:  # what others have put there must not end the runner
            log.warning("collection %s g%d: %s", *place, problem)
            return None

    def maintain(self, address: Address, place: Place, since: Step) -> None:
        """Let storage give up what only earlier steps need, of the collection of a source. One at a time; a
        later look asks again."""
        if self._work is None:
            future = self.pool.submit(self.storage.maintain, place, since)
            self._work = (address, place, future)
            future.add_done_callback(lambda _: self.wake())

    def harvest(self) -> None:
        """Take in how maintenance has ended: what went wrong is logged, and tried again later."""
        if self._work is None or not self._work[2].done():
            return
        _, place, done = self._work
        self._work = None
        problem = done.exception()
        if problem is not None:
            log.warning("collection %s g%d is not maintained: %s", *place, problem)

    def _look(self, id_: GlobalId, state: CollectionState, readers: Mapping[GlobalId, Place]) -> Surveyed:
        place, policy, now = state.place, state.policy, time.time()
        hold = max_hold(state.description.query)
        return Surveyed(
            id=id_,
            place=place,
            extent=self.storage.extent(place),
            needed={export: self.storage.needed(reader, place) for export, reader in readers.items()},
            policy=policy,
            young=self.young(place, policy),
            limit=self.storage.first_young(place, now - seconds(hold)) if hold is not None else 0,
        )


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
        self.turns: Turns[Address, str | None] = Turns(pool, clock, every, wake)

    @property
    def at_work_on(self) -> Address | None:
        """The sink whose target is written: whoever runs it next waits for that."""
        return self.turns.at_work_on

    def look(self, sinks: Mapping[Address, Description]) -> None:
        """Take in how the last one has ended, and begin with the one that is due, of these sinks that run."""
        self._harvest()
        wanted = {}
        for address, sink in sinks.items():
            if resource_kind("sink", sink.type).with_defaults(sink.body).get("compaction") is not None:
                wanted[address] = sink
        if (due := self.turns.due(wanted)) is not None:
            self.turns.start(due, self.compact, wanted[due])

    def _harvest(self) -> None:
        if (ended := self.turns.ended()) is None:
            return
        address, done = ended
        problem = done.exception()
        if problem is not None:
            log.warning("%s: %s", address, _described(problem))
            self.turns.postpone(address, PATIENCE)
        elif done.result() is not None:
            log.info("%s: %s", address, done.result())


def _described(problem: BaseException) -> str:
    if not isinstance(problem, MzplanError):
        return f"{type(problem).__name__}: {problem}"
    first = problem.diagnostics[0]
    return f"[{first.code}] {sentence(first)}"
