"""Read capabilities of collections: from policies, exports and tokens to `since`, and to what storage gives
up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mzplan.controller import frontiers
from mzplan.controller.catalog import Catalog
from mzplan.controller.instances import Instances
from mzplan.controller.maintenance import Maintenance, Surveyed, max_hold
from mzplan.controller.types import CollectionState, GlobalId, InstanceId, ReadPolicy, Step


class Capabilities:
    """Moves the frontiers of what the catalog has. Only the instance that feeds a collection moves its
    since."""

    def __init__(self, catalog: Catalog, maintenance: Maintenance, instances: Instances):
        self._catalog = catalog
        self._maintenance = maintenance
        self._instances = instances

    def set_policies(self, policies: Sequence[tuple[GlobalId, ReadPolicy]]) -> None:
        """See StorageController.set_read_policy."""
        states = [(self._catalog.collection(id_), policy) for id_, policy in policies]
        for state, policy in states:
            state.policy = policy
            frontiers.advance(state, self._young(state, policy))
        for state, _ in states:
            self._downgrade(state)

    def advance_uppers(self, updates: Sequence[tuple[GlobalId, Step]]) -> None:
        """See StorageController.update_write_frontiers."""
        for id_, upper in updates:
            collection = self._catalog.collections.get(id_)
            if collection is not None and frontiers.advance_upper(collection, upper):
                frontiers.advance(collection)
                self._downgrade(collection)
            export = self._catalog.exports.get(id_)
            if export is not None:
                export.upper = max(export.upper, upper)

    def move(self, updates: Mapping[GlobalId, Mapping[str, Step | None]]) -> None:
        """See StorageController.update_read_capabilities."""
        for id_, holders in updates.items():
            collection = self._catalog.collections.get(id_)
            if collection is None:
                continue
            for holder, step in holders.items():
                if step is None:
                    frontiers.release(collection, holder)
                    continue
                held = frontiers.hold(collection, holder, step)
                if holder in self._catalog.exports:
                    self._catalog.exports[holder].read_hold = held
            self._downgrade(collection)

    def maintain(self, instance: InstanceId) -> None:
        """Look at the collection that is due, of those that this instance feeds."""
        self._maintenance.harvest()
        found = self._maintenance.surveyed()
        if found is not None:
            self._take_survey(found)
        self._maintenance.look(
            {i: c for i, c in self._catalog.collections.items() if c.description.instance == instance},
            self._catalog.readers,
        )

    def _take_survey(self, found: Surveyed) -> None:
        collection = self._catalog.collections.get(found.id)
        if collection is None or collection.place != found.place:
            return
        collection.since = max(collection.since, found.extent.since)
        frontiers.advance_upper(collection, found.extent.upper)
        if collection.policy == found.policy:
            frontiers.advance(collection, found.young)
        self.move({found.id: {sink: max(step, found.limit) for sink, step in found.needed.items()}})
        address = collection.description.query.address
        self._maintenance.maintain(address, found.place, collection.since)

    def holds_back(self, sink: GlobalId) -> str | None:
        """What a sink keeps its collection from giving up, in words; None where that is not more than the
        policy keeps in any case."""
        export = self._catalog.exports.get(sink)
        source = self._catalog.collections.get(export.description.from_id) if export is not None else None
        held = source.holds.get(sink, source.upper) if source is not None else 0
        if source is None or held >= min(source.implied, source.upper):
            return None
        limit = max_hold(source.description.query)
        return (
            f"It has read {source.description.query.address} up to step {held}, and what has come since is "
            f"kept for it{f', for {limit} at most' if limit else ''}."
        )

    def _young(self, state: CollectionState, policy: ReadPolicy) -> Step | None:
        """The first step within a policy's duration. Storage is not asked of a collection without known
        steps: nothing of it can be given up yet, and a runner that starts has hundreds."""
        return self._maintenance.young(state.place, policy) if state.upper else None

    def _downgrade(self, collection: CollectionState) -> None:
        """Let since follow the read capabilities, of a collection that this instance feeds."""
        attached = self._instances.attached
        wanted = collection.wanted_since
        if attached is None or collection.description.instance != attached[0] or wanted <= collection.since:
            return
        # Storage follows when the collection is looked at next, not with each of its micro-batches.
        collection.since = wanted
