"""Maintains collections, and targets that sinks write in small steps.

One collection and one target are maintained at a time, as jobs. Failures are logged and retried later.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Set
from concurrent.futures import Future
from dataclasses import dataclass

from mzplan.controller.jobs import Jobs, Recurring
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

    - `first_unread`: the first step that each of its exports still has to read, by its place.
    - `first_recent`: the first step within the policy's duration; None if the policy has no duration.
    - `after_erasure`: the first step to keep because the old files of an erasure are due; 0 without one.
    - `hold_limit`: exports hold no steps before this one, because earlier steps are older than `max_hold`.
    """

    id: GlobalId
    place: Place
    extent: Extent
    first_unread: Mapping[Place, Step]
    policy: ReadPolicy
    first_recent: Step | None
    hold_limit: Step
    after_erasure: Step = 0


def max_hold(source: Description) -> str | None:
    """Return how long a sink that doesn't read holds a collection, such as `30d`; None for ever."""
    limit = collection_kind(source.type).with_defaults(source.body).get("max_hold")
    return str(limit) if limit is not None else None


class Maintenance:
    """Surveys each collection `every` so many seconds, and maintains one collection at a time.

    `clock` returns monotonic seconds.
    """

    def __init__(self, storage: Storage, jobs: Jobs, clock: Callable[[], float], wake: Callable[[], None]):
        self._storage, self._jobs, self._wake = storage, jobs, wake
        self._surveys: Recurring[Address, tuple[Frontiers, Set[Place]], Survey | None] = Recurring(
            jobs, "survey", self._survey, clock, waits_first=True, wake=wake
        )
        self._due: dict[Address, tuple[Place, Step]] = {}
        self._work: tuple[Address, Place, Future[None]] | None = None
        self.every = SURVEY_INTERVAL

    @property
    def in_progress(self) -> Set[Address]:
        """The sources whose collections are being maintained; a collection has one writer at a time."""
        return {self._work[0]} if self._work is not None else set()

    def survey(self, collections: Mapping[Address, tuple[Frontiers, Set[Place]]]) -> list[Survey]:
        """Start the surveys that are due, of these collections and their readers. Return the ended ones."""
        self._due = {address: due for address, due in self._due.items() if address in collections}
        free = {a: c for a, c in collections.items() if a not in self.in_progress}
        surveys = self._surveys.poll(free, lambda _: self.every)
        return [survey for survey in surveys.values() if survey is not None]

    def first_recent(self, place: Place, policy: ReadPolicy) -> Step | None:
        """Return the first step within the policy's duration.

        None if the policy has no duration, or if storage doesn't answer; the next survey asks again.
        """
        if not isinstance(policy, LagDuration):
            return None
        try:
            return self._storage.first_recent(place, time.time() - policy.seconds)
        except Exception as problem:  # foreign files in the storage must not end the runner
            log.warning("collection %s g%d: %s", *place, problem)
            return None

    def expire(self, address: Address, place: Place, since: Step) -> None:
        """Let storage expire the steps of a collection below `since`, once it is its turn."""
        self._due[address] = (place, since)

    def maintain(self) -> None:
        """Log the failure of maintenance that has ended, and start the next one that is due."""
        if self._work is not None and self._work[2].done():
            (_, place, done), self._work = self._work, None
            if (problem := done.exception()) is not None:  # a later survey tries again
                log.warning("can't maintain collection %s g%d: %s", *place, problem)
        if self._work is None and self._due:
            address = next(iter(self._due))
            place, since = self._due.pop(address)
            future = self._jobs.submit("maintenance", address, self._storage.maintain, place, since)
            self._work = (address, place, future)
            future.add_done_callback(lambda _: self._wake())

    def _survey(self, subject: tuple[Frontiers, Set[Place]]) -> Survey | None:
        state, readers = subject
        place, policy, now = state.place, state.policy, time.time()
        hold = max_hold(state.wanted_query.description)
        try:
            return Survey(
                id=place[0],
                place=place,
                extent=self._storage.extent(place),
                first_unread={at: self._storage.first_unread(at, place) for at in readers},
                policy=policy,
                first_recent=self.first_recent(place, policy),
                after_erasure=self._storage.first_after_erasure(place),
                hold_limit=self._storage.first_recent(place, now - seconds(hold)) if hold is not None else 0,
            )
        except Exception as problem:  # a defect here must not end the runner
            log.warning("collection %s g%d: %s", *place, str(problem) or type(problem).__name__)
            return None


class TargetMaintenance:
    """Compacts each target `every` so many seconds with `compact` (Executor.compact).

    `clock` returns monotonic seconds.
    """

    def __init__(
        self,
        compact: Callable[[Description], str | None],
        jobs: Jobs,
        clock: Callable[[], float],
        wake: Callable[[], None],
    ):
        self._compact = compact
        self._compactions: Recurring[Address, Description, None] = Recurring(
            jobs, "compaction", self._compact_target, clock, waits_first=True, wake=wake
        )
        self.every = SURVEY_INTERVAL

    @property
    def in_progress(self) -> Set[Address]:
        """The sinks whose targets are being compacted. If one moves, its next runner waits for that."""
        return self._compactions.in_progress

    def start_due(self, sinks: Mapping[Address, Description]) -> None:
        """Start the compactions that are due. `sinks` run here."""
        wanted = {}
        for address, sink in sinks.items():
            if resource_kind("sink", sink.type).with_defaults(sink.body).get("compaction") is not None:
                wanted[address] = sink
        self._compactions.poll(wanted, lambda _: self.every)

    def _compact_target(self, sink: Description) -> None:
        try:
            done = self._compact(sink)
        except Exception as problem:
            log.warning("%s: %s", sink.address, _problem_text(problem))
            self._compactions.postpone(sink.address, self.every * (COMPACTION_BACKOFF - 1))
        else:
            if done is not None:
                log.info("%s: %s", sink.address, done)


def _problem_text(problem: BaseException) -> str:
    if not isinstance(problem, MzplanError):
        return f"{type(problem).__name__}: {problem}"
    first = problem.diagnostics[0]
    return f"[{first.code}] {sentence(first)}"
