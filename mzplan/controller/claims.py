"""What the runner keeps beside its status: the accepted descriptions, and the storage they leave behind."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Executor as Pool
from concurrent.futures import Future

from mzplan.controller.executor import Executor
from mzplan.controller.runs import Notes
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.address import COLLECTIONS, READERS, Address, Place
from mzplan.model.diagnostics import MzplanError
from mzplan.schema.description import Description
from mzplan.store.claims import recorded_instances
from mzplan.store.journal import Dropped
from mzplan.store.store import Store

log = logging.getLogger("mzplan.storage")

RETRY = 60.0  # seconds after a failed removal
PATIENCE = 7 * 86_400.0  # seconds that storage is kept for an upstream that can't be reached
Accepted = dict[Address, Description]


class Claims:
    """Which storage the queries of this instance claim; storage without a claim is journalled, kept for
    `retain` seconds, and removed."""

    def __init__(self, store: Store, executor: Executor, instance: str, retain: float, notes: Notes):
        self.store = store
        self.notes = notes
        self.executor = executor
        self.instance = instance
        self.retain = retain
        self.accepted: Accepted = store.read_accepted(instance)
        self.dropped: list[Dropped] = store.read_journal(instance)
        self.former = store.read_past_runs(instance)
        self._removing: dict[Place, Future[None]] = {}
        self._releasing: dict[Place, Future[None]] = {}
        self._released: set[Place] = set()
        self._release_at = 0.0
        self._retry_at = 0.0
        self._read_elsewhere: dict[Place, float] = {}

    def record(self, accepted: Accepted, claimed: Collection[Place]) -> None:
        """Write down what is accepted now. What vanishes with it, and no committed resource claims, is
        journalled first: a crash in between must not forget it. What has left this instance, or has another
        name now, stays written down: whoever runs it next must know that it has run before."""
        accepted = {**self._left(accepted, claimed), **accepted}
        before = {d.place: a for a, d in self.accepted.items()}
        after = {d.place for d in accepted.values()}
        known = {entry.place for entry in self.dropped}
        gone = {p: a for p, a in before.items() if p not in after and p not in claimed and p not in known}
        if gone:
            now = time.time()
            self.dropped += [Dropped.of(address, *place, now) for place, address in sorted(gone.items())]
            self.store.write_journal(self.instance, self.dropped)
            for (_, generation), address in sorted(gone.items()):
                self.notes.note(
                    "generation", address, generation=generation, detail="nothing claims it any more"
                )
            failpoint(Failpoint.STORAGE_JOURNALED)
        # Of two that change names, the first to run under the other's takes its line.
        self._note_former(before.keys() - after - gone.keys() - known)
        failpoint(Failpoint.RUNNER_BEFORE_ACCEPT)
        self.store.write_accepted(self.instance, accepted)
        self.accepted = accepted

    def reclaim(self, claimed: Collection[Place], reading: Collection[Place], pool: Pool) -> None:
        """Remove what has been unclaimed for long enough and that nobody reads any more. What it has made on
        its upstream goes at once: that costs others."""
        if not self.dropped and not self.removing:
            return
        self._harvest()
        self._unclaim(claimed)
        self._release(pool)
        now = time.time()
        wanted = []
        for entry in self.dropped:
            due = now - entry.dropped_at >= self.retain and time.monotonic() >= self._retry_at
            if entry.place not in self._released and now - entry.dropped_at < self.retain + PATIENCE:
                continue  # where that was made is noted down in the storage
            if due and not is_read(entry.place, reading) and entry.place not in self._removing:
                wanted.append(entry.place)
        for place in self._unread_elsewhere(wanted):
            self._removing[place] = pool.submit(self.executor.reclaim, *place)

    def is_left(self, claimed: Collection[Place], wanted: Collection[Address]) -> bool:
        """Whether something is still written down that neither runs here nor is claimed any more."""
        return any(a not in wanted and d.place not in claimed for a, d in self.accepted.items())

    def ran_here(self, place: Place) -> bool:
        """Whether a query with this storage has run on this instance before, and was not dropped since."""
        return any(d.place == place for d in self.accepted.values())

    def was_dropped(self, place: Place) -> bool:
        """Whether a query with this storage has run on this instance, and was dropped."""
        return any(entry.place == place for entry in self.dropped) or place in self.former

    def ran_elsewhere(self, place: Place) -> str | None:
        """On which other instance a query with this storage has run, also one that was dropped there. Raises
        MzplanError (the store)."""
        others = (name for name in recorded_instances(self.store) if name != self.instance)
        return next((other for other in others if self._ran_on(other, place)), None)

    def _ran_on(self, other: str, place: Place) -> bool:
        accepted, dropped = self.store.read_accepted(other), self.store.read_journal(other)
        noted = {*(d.place for d in accepted.values()), *(entry.place for entry in dropped)}
        return place in noted or place in self.store.read_past_runs(other)

    def is_going(self, description: Description) -> bool:
        """Whether what a query would go on from, or read, is being removed."""
        places = {description.place, *places_read({description.address: description})}
        return not places.isdisjoint({*self._removing, *self._releasing})

    def _unread_elsewhere(self, places: list[Place]) -> list[Place]:
        """The places that no query of another instance reads: a query whose change was rejected there goes on
        with what it had. A place that is read is looked at again after a while."""
        clock = time.monotonic()
        self._read_elsewhere = {p: at for p, at in self._read_elsewhere.items() if at > clock}
        places = [place for place in places if place not in self._read_elsewhere]
        if not places:
            return []
        try:
            read = self._places_read_elsewhere()
        except MzplanError as problem:
            log.warning("what other instances read is not known, so nothing is removed: %s", problem)
            read = set(places)
        still = {place for place in places if is_read(place, read)}
        self._read_elsewhere |= dict.fromkeys(still, clock + RETRY)
        return [place for place in places if place not in still]

    def _places_read_elsewhere(self) -> set[Place]:
        """What the other instances have noted down that they read; not those that are no more."""
        places: set[Place] = set()
        known = self.store.read_state().instances
        for other in recorded_instances(self.store):
            if other != self.instance and (other in known or self.store.leases.leader(other) is not None):
                places |= places_read(self.store.read_accepted(other))
        return places

    def _left(self, accepted: Mapping[Address, Description], claimed: Collection[Place]) -> Accepted:
        now = {d.place for d in accepted.values()}
        kept = self.accepted.items()
        return {a: d for a, d in kept if d.place in claimed and d.place not in now}

    @property
    def removing(self) -> bool:
        """Whether a removal is under way, or its end not yet written down."""
        return bool(self._removing or self._releasing)

    def _release(self, pool: Pool) -> None:
        for place, future in list(self._releasing.items()):
            if future.done():
                del self._releasing[place]
                problem = future.exception()
                if problem is None:
                    self._released.add(place)
                else:
                    log.warning("what %s g%d has made on its upstream: %s", *place, problem)
                    self._release_at = time.monotonic() + RETRY
        if time.monotonic() < self._release_at:
            return
        for entry in self.dropped:
            if entry.place not in self._released and entry.place not in self._releasing:
                self._releasing[entry.place] = pool.submit(self.executor.release, *entry.place)

    def _harvest(self) -> None:
        done = {place: future for place, future in self._removing.items() if future.done()}
        for place, future in done.items():
            del self._removing[place]
            try:
                future.result()
            except Exception as problem:  # what others have put there must not end the runner
                log.warning("storage %s g%d: %s", *place, problem)
                self._retry_at = time.monotonic() + RETRY
                continue
            log.info("storage %s g%d is removed", *place)
            for entry in self.dropped:
                if entry.place == place:
                    address, detail = Address(entry.kind, entry.name), "its storage is removed"
                    self.notes.note("generation", address, generation=entry.generation, detail=detail)
            failpoint(Failpoint.STORAGE_REMOVED)
            self._keep([entry for entry in self.dropped if entry.place != place])

    def _unclaim(self, claimed: Collection[Place]) -> None:
        """An entry that the state claims again (a rollback) is no garbage."""
        self._released -= set(claimed)
        kept = [entry for entry in self.dropped if entry.place not in claimed]
        if len(kept) != len(self.dropped):
            self._keep(kept)

    def _keep(self, entries: list[Dropped]) -> None:
        """Take the others out of the journal: that they have run stays written down."""
        self._note_former({entry.place for entry in self.dropped} - {entry.place for entry in entries})
        self.store.write_journal(self.instance, entries)
        self.dropped = entries

    def _note_former(self, places: Collection[Place]) -> None:
        if not self.former.issuperset(places):
            former = self.former.union(places)
            self.store.write_past_runs(self.instance, former)
            self.former = former


def places_read(descriptions: Mapping[Address, Description]) -> set[Place]:
    """The collections that these descriptions read."""
    return {read.place for d in descriptions.values() for read in d.inputs.values()}


def is_read(place: Place, read: Collection[Place]) -> bool:
    """Whether a collection is read, or an earlier generation of it: who reads that may go over to all that
    came after it, one after the other."""
    id_, generation = place
    return any(other == id_ and earlier <= generation for other, earlier in read)


def was_known(store: Store, claims: Claims | None, kind: str, id_: str) -> bool:
    """Whether the durable history has seen this id: what ran, what was dropped, what was committed. `kind`:
    "source" for a collection, "sink" for an export; a view is both."""
    kinds = COLLECTIONS if kind == "source" else READERS
    if claims is not None:
        if any(d.id == id_ and a.kind in kinds for a, d in claims.accepted.items()):
            return True
        if any(entry.id == id_ and entry.kind in kinds for entry in claims.dropped):
            return True
    states = [store.read_state()]
    serials = reversed(store.serials())
    while True:
        for state in states:
            if any(r.id == id_ and a.kind in kinds for a, r in state.resources.items()):
                return True
        earlier = next(serials, None)
        if earlier is None:
            return False
        state_before = store.read_serial(earlier)
        states = [state_before] if state_before is not None else []
