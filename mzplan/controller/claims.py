"""The accepted descriptions of an instance, and the removal of unclaimed storage.

A description is accepted once its query has run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future

from mzplan.controller.executor import Executor
from mzplan.controller.jobs import Jobs
from mzplan.controller.runs import EventQueue
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.address import Address, Place
from mzplan.model.diagnostics import MzplanError
from mzplan.schema.description import Description
from mzplan.store.claims import recorded_instances
from mzplan.store.journal import Dropped
from mzplan.store.store import Store

log = logging.getLogger("mzplan.storage")

RETRY_DELAY = 60.0  # seconds after a failed removal
RELEASE_GRACE = 7 * 86_400.0  # seconds beyond `retain` that storage stays while its upstream can't be reached
Accepted = dict[Address, Description]


class Claims:
    """Tracks the storage that the queries of this instance claim, and removes unclaimed storage.

    A query claims the storage of its id and generation. Storage that loses its claim is written to the
    journal, kept for `retain` seconds, and then removed.
    """

    def __init__(self, store: Store, executor: Executor, instance: str, retain: float, events: EventQueue):
        self.store = store
        self.events = events
        self.executor = executor
        self.instance = instance
        self.retain = retain
        self.accepted: Accepted = store.read_accepted(instance)
        self.dropped: list[Dropped] = store.read_journal(instance)
        self.past_runs = store.read_past_runs(instance)
        self._removals: dict[Place, Future[None]] = {}
        self._releases: dict[Place, Future[None]] = {}
        self._released: set[Place] = set()
        self._release_at = 0.0
        self._retry_at = 0.0
        self._recheck_at: dict[Place, float] = {}

    def record(self, accepted: Accepted, claimed: Collection[Place]) -> None:
        """Write the accepted descriptions to the store.

        First writes storage that loses its last claim to the journal, so that a crash in between doesn't
        forget it. The record keeps a query that was renamed or moved to another instance, because its next
        runner must know that the query has run before.
        """
        accepted = {**self._still_claimed(accepted, claimed), **accepted}
        before = {d.place: a.resource for a, d in self.accepted.items()}
        after = {d.place for d in accepted.values()}
        known = {entry.place for entry in self.dropped}
        orphans = {p: a for p, a in before.items() if p not in after and p not in claimed and p not in known}
        if orphans:
            now = time.time()
            self.dropped += [Dropped.of(address, *place, now) for place, address in sorted(orphans.items())]
            self.store.write_journal(self.instance, self.dropped)
            for (_, generation), address in sorted(orphans.items()):
                self.events.add(
                    "generation", address, generation=generation, detail="no query uses it any more"
                )
            failpoint(Failpoint.STORAGE_JOURNALED)
        # When two queries swap names, the first to run under its new name overwrites the other's record. The
        # other query is then recorded only as a past run.
        self._record_past_runs(before.keys() - after - orphans.keys() - known)
        failpoint(Failpoint.RUNNER_BEFORE_ACCEPT)
        self.store.write_accepted(self.instance, accepted)
        self.accepted = accepted

    def reclaim(self, claimed: Collection[Place], reading: Collection[Place], jobs: Jobs) -> None:
        """Remove storage that has been unclaimed for `retain` seconds and isn't read any more.

        Releases objects on the upstream, such as a replication slot, at once: they use the upstream's
        resources.
        """
        if not self.dropped and not self.is_removing:
            return
        self._finish_removals()
        self._restore_claimed(claimed)
        self._release(jobs)
        now = time.time()
        due_places = []
        for entry in self.dropped:
            due = now - entry.dropped_at >= self.retain and time.monotonic() >= self._retry_at
            if entry.place not in self._released and now - entry.dropped_at < self.retain + RELEASE_GRACE:
                continue  # the storage says where the upstream objects are, so release them first
            if due and not is_read(entry.place, reading) and entry.place not in self._removals:
                due_places.append(entry.place)
        for place in self._without_remote_readers(due_places):
            self._removals[place] = jobs.submit("removal", _name(place), self.executor.reclaim, *place)

    def has_stale_record(self, claimed: Collection[Place], wanted: Collection[Address]) -> bool:
        """Whether the record has a query that is neither wanted here nor claimed any more."""
        return any(a not in wanted and d.place not in claimed for a, d in self.accepted.items())

    def has_run_here(self, place: Place) -> bool:
        """Whether a query with this storage has run on this instance and hasn't been dropped."""
        return any(d.place == place for d in self.accepted.values())

    def was_dropped(self, place: Place) -> bool:
        """Whether a query with this storage has run on this instance and was dropped."""
        return any(entry.place == place for entry in self.dropped) or place in self.past_runs

    def former_instance(self, place: Place) -> str | None:
        """Return another instance that has run a query with this storage, or None.

        The query may have been dropped there. Raises MzplanError if the store can't be read.
        """
        others = (name for name in recorded_instances(self.store) if name != self.instance)
        return next((other for other in others if self._has_run_on(other, place)), None)

    def _has_run_on(self, other: str, place: Place) -> bool:
        accepted, dropped = self.store.read_accepted(other), self.store.read_journal(other)
        recorded = {*(d.place for d in accepted.values()), *(entry.place for entry in dropped)}
        return place in recorded or place in self.store.read_past_runs(other)

    def is_being_removed(self, description: Description) -> bool:
        """Whether storage that the query uses or reads is being removed."""
        places = {description.place, *places_read({description.address: description})}
        return any(place in self._removals or place in self._releases for place in places)

    def _without_remote_readers(self, places: list[Place]) -> list[Place]:
        """Return the places that no query of another instance reads.

        A query whose change was rejected there still reads its former collections. If a place is still read,
        checks it again after RETRY_DELAY seconds.
        """
        clock = time.monotonic()
        self._recheck_at = {p: at for p, at in self._recheck_at.items() if at > clock}
        places = [place for place in places if place not in self._recheck_at]
        if not places:
            return []
        try:
            read = self._places_read_remotely()
        except MzplanError as problem:
            log.warning("can't read what other instances read, so no storage is removed: %s", problem)
            read = set(places)
        read_places = {place for place in places if is_read(place, read)}
        self._recheck_at |= dict.fromkeys(read_places, clock + RETRY_DELAY)
        return [place for place in places if place not in read_places]

    def _places_read_remotely(self) -> set[Place]:
        """Return the collections that the accepted queries of other existing instances read."""
        places: set[Place] = set()
        known = self.store.read_state().instances
        for other in recorded_instances(self.store):
            if other != self.instance and (other in known or self.store.leases.leader(other) is not None):
                places |= places_read(self.store.read_accepted(other))
        return places

    def _still_claimed(self, accepted: Mapping[Address, Description], claimed: Collection[Place]) -> Accepted:
        now = {d.place for d in accepted.values()}
        return {a: d for a, d in self.accepted.items() if d.place in claimed and d.place not in now}

    @property
    def is_removing(self) -> bool:
        """Whether a removal is in progress, or isn't recorded as done yet."""
        return bool(self._removals or self._releases)

    def _release(self, jobs: Jobs) -> None:
        for place, future in list(self._releases.items()):
            if future.done():
                del self._releases[place]
                problem = future.exception()
                if problem is None:
                    self._released.add(place)
                else:
                    log.warning("can't remove the upstream objects of %s g%d: %s", *place, problem)
                    self._release_at = time.monotonic() + RETRY_DELAY
        if time.monotonic() < self._release_at:
            return
        for entry in self.dropped:
            if entry.place not in self._released and entry.place not in self._releases:
                self._releases[entry.place] = jobs.submit(
                    "release", _name(entry.place), self.executor.release_upstream, *entry.place
                )

    def _finish_removals(self) -> None:
        done = {place: future for place, future in self._removals.items() if future.done()}
        for place, future in done.items():
            del self._removals[place]
            try:
                future.result()
            except Exception as problem:  # foreign files in the storage must not end the runner
                log.warning("can't remove storage %s g%d: %s", *place, problem)
                self._retry_at = time.monotonic() + RETRY_DELAY
                continue
            log.info("removed storage %s g%d", *place)
            for entry in self.dropped:
                if entry.place == place:
                    address, detail = Address(entry.kind, entry.name), "its storage was removed"
                    self.events.add("generation", address, generation=entry.generation, detail=detail)
            failpoint(Failpoint.STORAGE_REMOVED)
            self._reduce_journal([entry for entry in self.dropped if entry.place != place])

    def _restore_claimed(self, claimed: Collection[Place]) -> None:
        """Remove journal entries whose storage is claimed again, as after a rollback."""
        self._released -= set(claimed)
        remaining = [entry for entry in self.dropped if entry.place not in claimed]
        if len(remaining) != len(self.dropped):
            self._reduce_journal(remaining)

    def _reduce_journal(self, entries: list[Dropped]) -> None:
        """Reduce the journal to these entries, and record the other entries as past runs."""
        self._record_past_runs({entry.place for entry in self.dropped} - {entry.place for entry in entries})
        self.store.write_journal(self.instance, entries)
        self.dropped = entries

    def _record_past_runs(self, places: Collection[Place]) -> None:
        if not self.past_runs.issuperset(places):
            past_runs = self.past_runs.union(places)
            self.store.write_past_runs(self.instance, past_runs)
            self.past_runs = past_runs


def _name(place: Place) -> str:
    id_, generation = place
    return f"{id_} g{generation}"


def places_read(descriptions: Mapping[Address, Description]) -> set[Place]:
    """Return the collections that these descriptions read."""
    return {read.place for d in descriptions.values() for read in d.inputs.values()}


def is_read(place: Place, read: Collection[Place]) -> bool:
    """Whether a query reads this collection or an earlier generation of it.

    A reader of an earlier generation may still read all later generations, one after the other.
    """
    id_, generation = place
    return any(other == id_ and earlier <= generation for other, earlier in read)
