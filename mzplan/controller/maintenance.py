"""Maintains collections, and targets that sinks write in small steps.

One collection and one target are maintained at a time, as jobs. Failures are logged and retried later.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from mzplan.controller.jobs import Jobs
from mzplan.controller.round_robin import RoundRobin
from mzplan.controller.storage import Extent, Storage
from mzplan.controller.terms import Frontiers, GlobalId, LagDuration, ReadPolicy, Step
from mzplan.model.address import Address, Place
from mzplan.model.diagnostics import MzplanError, sentence
from mzplan.model.times import seconds
from mzplan.schema.description import Description
from mzplan.schema.kinds import resource_kind
from mzplan.schema.source_columns import collection_kind

log = logging.getLogger("mzplan.storage")

SURVEY_INTERVAL = 60.0  # seconds
COMPACTION_BACKOFF = 10.0  # after a failure, the interval is this many times longer: the target may be large


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A survey of a collection.

    - `first_unread`: the first step that each of its exports still has to read, by its id and place.
    - `first_recent`: the first step within the policy's duration; None if the policy has no duration.
    - `hold_limit`: exports hold no steps before this one, because earlier steps are older than `max_hold`.
    """

    id: GlobalId
    place: Place
    extent: Extent
    first_unread: Mapping[tuple[GlobalId, Place], Step]
    policy: ReadPolicy
    first_recent: Step | None
    hold_limit: Step


def max_hold(source: Description) -> str | None:
    """Return how long a sink that doesn't read holds a collection, such as `30d`; None for ever."""
    limit = collection_kind(source.type).with_defaults(source.body).get("max_hold")
    return str(limit) if limit is not None else None


class Maintenance:
    """Surveys each collection every `schedule.every` seconds. `clock` returns monotonic seconds."""

    def __init__(
        self,
        storage: Storage,
        jobs: Jobs,
        clock: Callable[[], float],
        wake: Callable[[], None],
    ):
        self.wake = wake
        self.storage = storage
        self.jobs = jobs
        self.schedule: RoundRobin[Place, Survey] = RoundRobin(jobs, "survey", clock, SURVEY_INTERVAL, wake)
        self._work: tuple[Address, Place, Future[None]] | None = None

    @property
    def in_progress(self) -> Address | None:
        """The source whose collection is being maintained; a collection has one writer at a time."""
        return self._work[0] if self._work is not None else None

    def take_survey(self) -> Survey | None:
        """Return the last survey once; None if it failed or there is none."""
        if (ended := self.schedule.take_result()) is None:
            return None
        place, survey = ended
        try:
            return survey.result()
        except OSError as problem:
            log.warning("collection %s g%d: %s", *place, problem)
        except Exception as problem:  # a defect here must not end the runner
            log.warning("collection %s g%d: %s: %s", *place, type(problem).__name__, problem)
        return None

    def start_due(
        self,
        collections: Mapping[GlobalId, Frontiers],
        readers: Callable[[GlobalId], Mapping[GlobalId, Place]],
    ) -> None:
        """Survey the collection whose last survey is the oldest, if it is due.

        `readers` returns the places of a collection's exports.
        """
        if self._work is not None:
            return
        places = {state.place: id_ for id_, state in collections.items()}
        if (due := self.schedule.due(places)) is not None:
            id_ = places[due]
            address = collections[id_].desired.description.address
            self.schedule.start(due, address, self._survey, id_, collections[id_], readers(id_))

    def first_recent(self, place: Place, policy: ReadPolicy) -> Step | None:
        """Return the first step within the policy's duration.

        None if the policy has no duration, or if storage doesn't answer; the next survey asks again.
        """
        if not isinstance(policy, LagDuration):
            return None
        try:
            return self.storage.first_recent(place, time.time() - policy.seconds)
        except Exception as problem:  # foreign files in the storage must not end the runner
            log.warning("collection %s g%d: %s", *place, problem)
            return None

    def maintain(self, address: Address, place: Place, since: Step) -> None:
        """Let storage expire the steps of a collection below `since`.

        Does nothing while another collection is maintained; a later survey asks again.
        """
        if self._work is None:
            future = self.jobs.submit("maintenance", address, self.storage.maintain, place, since)
            self._work = (address, place, future)
            future.add_done_callback(lambda _: self.wake())

    def log_result(self) -> None:
        """If maintenance has ended with a failure, log it. A later survey retries the maintenance."""
        if self._work is None or not self._work[2].done():
            return
        _, place, done = self._work
        self._work = None
        problem = done.exception()
        if problem is not None:
            log.warning("can't maintain collection %s g%d: %s", *place, problem)

    def _survey(self, id_: GlobalId, state: Frontiers, readers: Mapping[GlobalId, Place]) -> Survey:
        place, policy, now = state.place, state.policy, time.time()
        hold = max_hold(state.desired.description)
        return Survey(
            id=id_,
            place=place,
            extent=self.storage.extent(place),
            first_unread={(i, at): self.storage.first_unread(at, place) for i, at in readers.items()},
            policy=policy,
            first_recent=self.first_recent(place, policy),
            hold_limit=self.storage.first_recent(place, now - seconds(hold)) if hold is not None else 0,
        )


class TargetMaintenance:
    """Compacts each target every `schedule.every` seconds with `compact` (Executor.compact).

    `clock` returns monotonic seconds.
    """

    def __init__(
        self,
        compact: Callable[[Description], str | None],
        jobs: Jobs,
        clock: Callable[[], float],
        wake: Callable[[], None],
    ):
        self.compact = compact
        self.schedule: RoundRobin[Address, str | None] = RoundRobin(
            jobs, "compaction", clock, SURVEY_INTERVAL, wake
        )

    @property
    def in_progress(self) -> Address | None:
        """The sink whose target is being compacted. If it moves, its next runner waits for the compaction."""
        return self.schedule.in_progress

    def start_due(self, sinks: Mapping[Address, Description]) -> None:
        """Log the result of the last compaction, and start the next one that is due. `sinks` run here."""
        self._log_result()
        wanted = {}
        for address, sink in sinks.items():
            if resource_kind("sink", sink.type).with_defaults(sink.body).get("compaction") is not None:
                wanted[address] = sink
        if (due := self.schedule.due(wanted)) is not None:
            self.schedule.start(due, due, self.compact, wanted[due])

    def _log_result(self) -> None:
        if (ended := self.schedule.take_result()) is None:
            return
        address, done = ended
        problem = done.exception()
        if problem is not None:
            log.warning("%s: %s", address, _problem_text(problem))
            self.schedule.postpone(address, COMPACTION_BACKOFF)
        elif done.result() is not None:
            log.info("%s: %s", address, done.result())


def _problem_text(problem: BaseException) -> str:
    if not isinstance(problem, MzplanError):
        return f"{type(problem).__name__}: {problem}"
    first = problem.diagnostics[0]
    return f"[{first.code}] {sentence(first)}"
