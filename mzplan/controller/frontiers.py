"""Which steps of the collections can be read, and which expire."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from mzplan.controller.decision import WantedQuery
from mzplan.controller.maintenance import Maintenance, Survey, max_hold
from mzplan.controller.terms import Frontiers, GlobalId, InstanceId, ReadPolicy, Step
from mzplan.model.address import Place
from mzplan.schema.description import Description


class FrontierTable:
    """The frontiers of an instance's queries, and of the other queries that read their collections, by id.

    `instance`: the attached instance, whose storage this process may expire; "" before it is attached.
    """

    def __init__(self, maintenance: Maintenance):
        self.maintenance = maintenance
        self.instance: InstanceId = ""
        self.by_id: dict[GlobalId, Frontiers] = {}
        self._former: Collection[Description] = ()

    def follow(self, queries: Iterable[WantedQuery]) -> None:
        """Follow these queries. A new reader holds its collections from their sinces on."""
        before, self.by_id = self.by_id, {}
        for query in queries:
            id_ = query.description.id
            known = before.get(id_)
            if known is None or known.place != query.description.place:
                # A new generation is another collection, which starts without steps.
                new = Frontiers(wanted_query=query)
                new.policy = known.policy if known is not None else new.policy
                known = new
            known.wanted_query = query
            self.by_id[id_] = known
        for id_, collection in self.by_id.items():
            for former in before.keys() & collection.holds.keys():
                reader = self.by_id.get(former)
                if reader is not before[former] or id_ not in reader.wanted_query.from_ids:
                    collection.release(former)
        for id_, reader in self.by_id.items():
            held, reader.read_holds = reader.read_holds, {}
            for collection in self._collections_read_by(reader):
                from_id = collection.wanted_query.description.id
                is_held = from_id in held and before.get(from_id) is collection
                reader.read_holds[from_id] = held[from_id] if is_held else collection.hold(id_, 0)

    def of(self, query: Description) -> Frontiers | None:
        """Return the frontiers of a query of this generation."""
        known = self.by_id.get(query.id)
        return known if known is not None and known.place == query.place else None

    def last_step(self, query: Description) -> Step:
        """Return the last known step of a query, or -1."""
        known = self.of(query)
        return known.upper - 1 if known is not None else -1

    def set_policies(self, policies: Iterable[tuple[GlobalId, ReadPolicy]]) -> None:
        """Assign read policies to collections. Sinces follow at once, but never move back."""
        changed = [(self.by_id[id_], policy) for id_, policy in policies]
        for collection, policy in changed:
            collection.policy = policy
            # Don't ask storage about a collection without known steps: it has nothing to expire yet, and a
            # runner that starts has hundreds of collections.
            recent = self.maintenance.first_recent(collection.place, policy) if collection.upper else None
            collection.advance(recent)
        for collection, _ in changed:
            self._downgrade(collection)

    def advance(self, uppers: Iterable[tuple[GlobalId, Step]]) -> None:
        """Advance the uppers that are ahead of the known ones."""
        for id_, upper in uppers:
            known = self.by_id.get(id_)
            if known is not None and upper > known.upper:
                known.upper = upper
                known.advance()
                self._downgrade(known)

    def move_holds(self, updates: Mapping[GlobalId, Mapping[str, Step | None]]) -> None:
        """Move read capabilities of collections, by holder: forward to a step, or (None) release them."""
        for id_, holders in updates.items():
            collection = self.by_id.get(id_)
            if collection is None:
                continue
            for holder, step in holders.items():
                if step is None:
                    collection.release(holder)
                    continue
                held = collection.hold(holder, step)
                if holder in self.by_id:
                    self.by_id[holder].read_holds[id_] = held
            self._downgrade(collection)

    def maintain(self, former: Collection[Description] = ()) -> None:
        """Survey the collections of this instance, and maintain them, as is due.

        `former`: what held queries run meanwhile. A former generation also holds the steps that it reads.
        """
        self._former = former
        fed = {c.address: (c, self._readers(id_)) for id_, c in self.by_id.items() if self._is_fed(c)}
        for survey in self.maintenance.survey(fed):
            self._apply_survey(survey)
        self.maintenance.maintain()

    def describe_holds(self, reader: GlobalId) -> str | None:
        """Describe the steps that collections keep for a query, beyond their policy; None if none."""
        known = self.by_id.get(reader)
        read = self._collections_read_by(known) if known is not None else ()
        return " ".join(filter(None, (_held_steps(reader, collection) for collection in read))) or None

    def _apply_survey(self, survey: Survey) -> None:
        collection = self.by_id.get(survey.id)
        if collection is None or collection.place != survey.place:
            return
        collection.since = max(collection.since, survey.extent.since)
        collection.upper = max(collection.upper, survey.extent.upper)
        if collection.policy == survey.policy:
            collection.advance(survey.first_recent, least=survey.after_erasure)
        readers = self._readers(survey.id)  # a new generation has read nothing of what its former has
        measured = readers & survey.first_unread.keys()
        unmeasured = {id_ for id_, _ in readers - measured}
        unread: dict[GlobalId, Step] = {}
        for id_, generation in measured:
            if id_ not in unmeasured:
                step = survey.first_unread[id_, generation]
                unread[id_] = min(step, unread.get(id_, step))
        self.move_holds({survey.id: {id_: max(step, survey.hold_limit) for id_, step in unread.items()}})
        self.maintenance.expire(collection.address, survey.place, collection.since)

    def _readers(self, id_: GlobalId) -> set[Place]:
        """Return the checkpoint places of a collection's readers."""
        collection = self.by_id[id_].place
        new = {reader.place for reader in self.by_id.values() if id_ in reader.wanted_query.from_ids}
        former = (d for d in self._former if collection in {read.place for read in d.reads.values()})
        return new | {reader.place for reader in former if reader.id in self.by_id}

    def _collections_read_by(self, reader: Frontiers) -> Iterator[Frontiers]:
        """Yield the collections that a query reads and this process knows."""
        return (self.by_id[from_id] for from_id in reader.wanted_query.from_ids if from_id in self.by_id)

    def _is_fed(self, query: Frontiers) -> bool:
        """Whether the query writes a collection, and runs on this instance."""
        return query.address.writes_collection and query.wanted_query.instance == self.instance

    def _downgrade(self, collection: Frontiers) -> None:
        """Advance the since of a collection to its read capabilities, if this instance feeds it."""
        if self._is_fed(collection):
            # Storage follows at the next survey of the collection, not with each of its micro-batches.
            collection.since = collection.wanted_since


def _held_steps(reader: GlobalId, collection: Frontiers) -> str | None:
    step = collection.holds.get(reader, collection.upper)
    if step >= min(collection.implied, collection.upper):
        return None
    limit = max_hold(collection.wanted_query.description)
    return (
        f"It has read {collection.address} up to step {step}, and later rows are kept for "
        f"it{f', for at most {limit}' if limit else ''}."
    )
