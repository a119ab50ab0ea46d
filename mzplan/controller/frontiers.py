"""The rows and frontiers of hosted collections: which steps can be read, and which expire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from mzplan.controller.hosting import Hosting
from mzplan.controller.maintenance import Maintenance, Survey, max_hold
from mzplan.controller.terms import (
    AppendCommand,
    CollectionDescription,
    CollectionState,
    Diff,
    GlobalId,
    InstanceId,
    ReadBeforeSinceError,
    ReadPolicy,
    Row,
    Step,
    StorageError,
)
from mzplan.model.address import Place

LOCAL_TYPE = "local"  # the type of sources that are appended to


class Frontiers(Hosting):
    """Methods of StorageController that read or write collections, or move their frontiers."""

    maintenance: Maintenance

    def append(self, commands: Sequence[AppendCommand]) -> Future[None]:
        self.instances.require()
        planned = [(self.collection(command.id).description, command) for command in commands]
        for description, _ in planned:
            if description.query.type != LOCAL_TYPE:
                raise StorageError(
                    f"{description.query.address} isn't a local source, so it doesn't accept appends."
                )
        subject = ", ".join(str(description.query.address) for description, _ in planned)
        return self.jobs.submit("append", subject, self._append, planned)

    def _append(self, planned: Sequence[tuple[CollectionDescription, AppendCommand]]) -> None:
        self.storage.append(planned)
        self.wake()

    def snapshot(self, id_: GlobalId, as_of: Step) -> list[tuple[Row, Diff]]:
        state = self.collection(id_)
        extent = self.storage.extent(state.place)
        since = max(state.since, extent.since)
        if not since <= as_of < extent.upper:
            raise ReadBeforeSinceError(
                f"{state.description.query.address} can be read as of steps {since} to {extent.upper} "
                f"(excluded), not {as_of}."
            )
        return self.storage.snapshot(state.place, as_of)

    def set_read_policy(self, policies: Sequence[tuple[GlobalId, ReadPolicy]]) -> None:
        self.instances.require()
        states = [(self.collection(id_), policy) for id_, policy in policies]
        for state, policy in states:
            state.policy = policy
            # Don't ask storage about a collection without known steps: it has nothing to expire yet, and a
            # runner that starts has hundreds of collections.
            state.advance(self.maintenance.first_recent(state.place, policy) if state.upper else None)
        for state, _ in states:
            self._downgrade(state)

    def update_write_frontiers(self, updates: Sequence[tuple[GlobalId, Step]]) -> None:
        for id_, upper in updates:
            collection = self._collections.get(id_)
            if collection is not None and collection.advance_upper(upper):
                collection.advance()
                self._downgrade(collection)
            if (export := self._exports.get(id_)) is not None:
                export.upper = max(export.upper, upper)

    def update_read_capabilities(self, updates: Mapping[GlobalId, Mapping[str, Step | None]]) -> None:
        for id_, holders in updates.items():
            collection = self._collections.get(id_)
            if collection is None:
                continue
            for holder, step in holders.items():
                if step is None:
                    collection.release(holder)
                    continue
                held = collection.hold(holder, step)
                if holder in self._exports:
                    self._exports[holder].read_holds[id_] = held
            self._downgrade(collection)

    def maintain(self, instance: InstanceId) -> None:
        """Survey the collection of this instance that is due."""
        self.maintenance.log_result()
        if (survey := self.maintenance.take_survey()) is not None:
            self._apply_survey(survey)
        self.maintenance.start_due(
            {i: c for i, c in self._collections.items() if c.description.instance == instance},
            self._readers,
        )

    def _apply_survey(self, survey: Survey) -> None:
        collection = self._collections.get(survey.id)
        if collection is None or collection.place != survey.place:
            return
        collection.since = max(collection.since, survey.extent.since)
        collection.advance_upper(survey.extent.upper)
        if collection.policy == survey.policy:
            collection.advance(survey.first_recent)
        self.update_read_capabilities(
            {survey.id: {sink: max(step, survey.hold_limit) for sink, step in survey.first_unread.items()}}
        )
        address = collection.description.query.address
        self.maintenance.maintain(address, survey.place, collection.since)

    def describe_holds(self, sink: GlobalId) -> str | None:
        """Describe the steps that collections keep for a sink, beyond their policy; None if none."""
        export = self._exports.get(sink)
        read = self._collections_read_by(export) if export is not None else ()
        return " ".join(filter(None, (_held_steps(sink, collection) for collection in read))) or None

    def _readers(self, id_: GlobalId) -> dict[GlobalId, Place]:
        """Return the checkpoint places of a collection's exports, by id."""
        return {i: export.place for i, export in self._exports.items() if id_ in export.description.from_ids}

    def _downgrade(self, collection: CollectionState) -> None:
        """Advance the since of a collection to its read capabilities, if this instance feeds it."""
        attached = self.instances.attached
        if attached is not None and collection.description.instance == attached.instance:
            # Storage follows at the next survey of the collection, not with each of its micro-batches.
            collection.since = collection.wanted_since


def _held_steps(reader: GlobalId, collection: CollectionState) -> str | None:
    step = collection.holds.get(reader, collection.upper)
    if step >= min(collection.implied, collection.upper):
        return None
    limit = max_hold(collection.description.query)
    return (
        f"It has read {collection.description.query.address} up to step {step}, and later rows are kept for "
        f"it{f', for at most {limit}' if limit else ''}."
    )
