"""What a controller hosts: instances, collections, exports, and who may read how much of a collection.

The methods of StorageController that run no query themselves: `controller.core` runs what is hosted here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor as Pool
from concurrent.futures import Future
from functools import partial

from mzplan.controller.catalog import Catalog
from mzplan.controller.claims import Claims, was_known
from mzplan.controller.instances import Instances
from mzplan.controller.maintenance import Maintenance, Surveyed, max_hold
from mzplan.controller.storage import Storage
from mzplan.controller.terms import (
    AppendCommand,
    CollectionDescription,
    CollectionState,
    CreateExportToken,
    Diff,
    ExportDescription,
    ExportState,
    GlobalId,
    InstanceId,
    InstanceInUseError,
    ReadBeforeSinceError,
    ReadPolicy,
    Row,
    Step,
    StorageError,
)
from mzplan.model.address import Place
from mzplan.store.journal import Prepared
from mzplan.store.store import Store

log = logging.getLogger("mzplan.controller")

LOCAL = "local"  # the type of sources that are appended to


class Hosting:
    """Journals what a crash must not forget before it acts, and changes nothing where it raises. `sever` is
    called when the lease is lost."""

    def __init__(
        self,
        store: Store,
        storage: Storage,
        pool: Pool,
        clock: Callable[[], float],
        sever: Callable[[], None],
    ):
        self.store = store
        self.storage = storage
        self.pool = pool
        self.woken = threading.Event()
        self.instances = Instances(store, sever)
        self.catalog = Catalog()
        self.maintenance = Maintenance(storage, pool, clock, self.woken.set)
        self.claims: Claims | None = None  # of the attached instance

    def wake(self) -> None:
        """Let `ready` end; any thread may."""
        self.woken.set()

    # --- instances

    def create_instance(self, id_: InstanceId) -> None:
        self.instances.create(id_)

    def drop_instance(self, id_: InstanceId) -> None:
        self.instances.ensure(id_)
        hosted = sorted(str(a) for a, entry in self.catalog.hosted().items() if entry.instance == id_)
        if hosted:
            raise InstanceInUseError(f"Instance {id_} still has {', '.join(hosted[:5])}: drop them first.")
        self.instances.drop(id_)

    # --- collections and exports

    def collection(self, id_: GlobalId) -> CollectionState:
        return self.catalog.collection(id_)

    collection_mut = collection  # the same: who asks may change it

    def collections(self) -> Iterator[tuple[GlobalId, CollectionState]]:
        return iter(sorted(self.catalog.collections.items()))

    def migrate_collections(self, collections: Sequence[tuple[GlobalId, CollectionDescription]]) -> None:
        self.instances.require()
        places = [collection.query.place for _, collection in collections]
        try:
            self.storage.migrate(places)
        except (OSError, StorageError) as problem:  # each query's own check will say so
            log.warning("the layout of storage is not known: %s", problem)

    def create_collections(self, collections: Sequence[tuple[GlobalId, CollectionDescription]]) -> None:
        self.instances.require()
        self.catalog.create_collections(collections)
        self.catalog.restore_holds()
        self.wake()

    def export(self, id_: GlobalId) -> ExportState:
        return self.catalog.export(id_)

    export_mut = export  # the same: who asks may change it

    def exports(self) -> Iterator[tuple[GlobalId, ExportState]]:
        """All exports, by id."""
        return iter(sorted(self.catalog.exports.items()))

    def prepare_export(self, id_: GlobalId, from_id: GlobalId) -> CreateExportToken:
        (token,) = self.prepare_exports([(id_, from_id)])
        return token

    def prepare_exports(self, wanted: Sequence[tuple[GlobalId, GlobalId]]) -> list[CreateExportToken]:
        """`prepare_export` for many, all or none, with one entry into the journal: a runner that starts has
        hundreds."""
        instance = self.instances.require()
        tokens = self.catalog.to_prepare(wanted)
        after = {**self.catalog.prepared, **{(token.id, token.from_id): token for token in tokens}}
        if after != self.catalog.prepared:
            # Journalled before they are given away: a crash must not forget what somebody relies on.
            self._journal_tokens(instance, after.values())
            self.catalog.prepare(tokens)
        return tokens

    def cancel_prepare_export(self, token: CreateExportToken) -> None:
        self._cancel([token] if self.catalog.is_prepared(token) else [])

    def keep_prepared(self, wanted: Collection[GlobalId]) -> None:
        """Cancel what is prepared for exports that are none of these, or for a collection that is gone: a
        crash, or a command that failed, has left it, and nobody will use it."""
        self._cancel(self.catalog.left_prepared(wanted))

    def _cancel(self, tokens: Sequence[CreateExportToken]) -> None:
        instance = self.instances.require()
        if tokens:
            self._journal_tokens(instance, self.catalog.without(set(tokens)))
        for token in tokens:
            log.info("%s was prepared to read %s, and is not wanted any more", token.id, token.from_id)
            self.catalog.cancel(token)

    def create_exports(self, exports: Sequence[tuple[CreateExportToken, ExportDescription]]) -> None:
        instance = self.instances.require()
        self.catalog.ensure_installable(exports)
        if exports:
            self._journal_tokens(instance, self.catalog.without({token for token, _ in exports}))
        self.catalog.create_exports(exports)
        self.wake()

    def drop_sources(self, ids: Sequence[GlobalId]) -> None:
        self._drop(ids, "source")

    def drop_sources_unvalidated(self, ids: Sequence[GlobalId]) -> None:
        self._drop(ids, "source", validated=False)

    def drop_sinks(self, ids: Sequence[GlobalId]) -> None:
        self._drop(ids, "sink")

    def drop_sinks_unvalidated(self, ids: Sequence[GlobalId]) -> None:
        self._drop(ids, "sink", validated=False)

    def _drop(self, ids: Sequence[GlobalId], kind: str, *, validated: bool = True) -> None:
        self.instances.require()
        if validated:
            self.catalog.ensure_known(ids, kind, partial(was_known, self.store, self.claims))
        for id_ in ids:
            self.catalog.drop(id_, kind)
        self.wake()

    def claim_storage(self, places: Iterable[Place]) -> None:
        """Storage that is somebody's although nothing here runs on it: of other instances, or kept on
        purpose."""
        self.catalog.kept = frozenset(places)
        self.wake()

    # --- data and frontiers

    def append(self, commands: Sequence[AppendCommand]) -> Future[None]:
        self.instances.require()
        planned = [(self.catalog.collection(command.id).description, command) for command in commands]
        for description, _ in planned:
            if description.query.type != LOCAL:
                raise StorageError(
                    f"{description.query.address} is not local: nothing can be appended to it."
                )
        return self.pool.submit(self._append, planned)

    def _append(self, planned: Sequence[tuple[CollectionDescription, AppendCommand]]) -> None:
        self.storage.append(planned)
        self.wake()

    def snapshot(self, id_: GlobalId, as_of: Step) -> list[tuple[Row, Diff]]:
        state = self.catalog.collection(id_)
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
        states = [(self.catalog.collection(id_), policy) for id_, policy in policies]
        for state, policy in states:
            state.policy = policy
            # Storage is not asked of a collection without known steps: nothing of it can be given up yet, and
            # a runner that starts has hundreds.
            state.advance(self.maintenance.young(state.place, policy) if state.upper else None)
        for state, _ in states:
            self._downgrade(state)

    def update_write_frontiers(self, updates: Sequence[tuple[GlobalId, Step]]) -> None:
        for id_, upper in updates:
            collection = self.catalog.collections.get(id_)
            if collection is not None and collection.advance_upper(upper):
                collection.advance()
                self._downgrade(collection)
            if (export := self.catalog.exports.get(id_)) is not None:
                export.upper = max(export.upper, upper)

    def update_read_capabilities(self, updates: Mapping[GlobalId, Mapping[str, Step | None]]) -> None:
        for id_, holders in updates.items():
            collection = self.catalog.collections.get(id_)
            if collection is None:
                continue
            for holder, step in holders.items():
                if step is None:
                    collection.release(holder)
                    continue
                held = collection.hold(holder, step)
                if holder in self.catalog.exports:
                    self.catalog.exports[holder].read_holds[id_] = held
            self._downgrade(collection)

    def maintain(self, instance: InstanceId) -> None:
        """Look at the collection of this instance that is due."""
        self.maintenance.harvest()
        if (survey := self.maintenance.surveyed()) is not None:
            self._take_survey(survey)
        self.maintenance.look(
            {i: c for i, c in self.catalog.collections.items() if c.description.instance == instance},
            self.catalog.readers,
        )

    def _take_survey(self, survey: Surveyed) -> None:
        collection = self.catalog.collections.get(survey.id)
        if collection is None or collection.place != survey.place:
            return
        collection.since = max(collection.since, survey.extent.since)
        collection.advance_upper(survey.extent.upper)
        if collection.policy == survey.policy:
            collection.advance(survey.young)
        self.update_read_capabilities(
            {survey.id: {sink: max(step, survey.limit) for sink, step in survey.needed.items()}}
        )
        address = collection.description.query.address
        self.maintenance.maintain(address, survey.place, collection.since)

    def holds_back(self, sink: GlobalId) -> str | None:
        """What a sink keeps its collection from giving up, in words; None where that is not more than the
        policy keeps in any case."""
        export = self.catalog.exports.get(sink)
        from_ids = export.description.from_ids if export is not None else ()
        read = (self.catalog.collections[id_] for id_ in from_ids if id_ in self.catalog.collections)
        return " ".join(filter(None, (_held_by(sink, collection) for collection in read))) or None

    def _downgrade(self, collection: CollectionState) -> None:
        """Let since follow the read capabilities, of a collection that this instance feeds."""
        attached = self.instances.attached
        wanted = collection.wanted_since
        if attached is None or collection.description.instance != attached[0] or wanted <= collection.since:
            return
        # Storage follows when the collection is looked at next, not with each of its micro-batches.
        collection.since = wanted

    # --- inside

    def _journal_tokens(self, instance: InstanceId, tokens: Iterable[CreateExportToken]) -> None:
        """Before the catalog has them, or has them no more: a journal that can't be written changes
        nothing."""
        entries = [Prepared(id=t.id, from_id=t.from_id, step=t.step) for t in tokens]
        self.store.write_prepared(instance, entries)


def _held_by(reader: GlobalId, collection: CollectionState) -> str | None:
    """See Hosting.holds_back."""
    held = collection.holds.get(reader, collection.upper)
    if held >= min(collection.implied, collection.upper):
        return None
    limit = max_hold(collection.description.query)
    return (
        f"It has read {collection.description.query.address} up to step {held}, and later rows are kept for "
        f"it{f', for at most {limit}' if limit else ''}."
    )
