"""The hosted collections and exports: methods of StorageController that run no query.

`controller.core` runs the queries that are hosted here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from mzplan.controller.claims import Claims, is_recorded
from mzplan.controller.executor import Executor
from mzplan.controller.instances import Instances
from mzplan.controller.jobs import Jobs
from mzplan.controller.reconcile import COMMITTED_CHANGE, Desired
from mzplan.controller.runs import EventQueue
from mzplan.controller.storage import Storage
from mzplan.controller.terms import (
    CollectionDescription,
    CollectionState,
    CreateExportToken,
    ExportDescription,
    ExportState,
    Gate,
    GlobalId,
    HostedQuery,
    IdentifierMissingError,
    IdentifierReusedError,
    InstanceId,
    InstanceInUseError,
    Step,
    StorageError,
)
from mzplan.model.address import Address, Place
from mzplan.schema.description import Description
from mzplan.secrets.references import Secrets
from mzplan.store.store import Store

log = logging.getLogger("mzplan.controller")
Tokens = Mapping[tuple[GlobalId, GlobalId], CreateExportToken]
"""Prepared exports, by the ids of the export and the collection."""


class Hosting:
    """Hosts collections and exports.

    Methods write to the journal before they change anything. A method that raises has changed nothing.
    `clock` returns monotonic seconds. Setting `wake_event` makes `ready` return. `retained` is storage that
    must stay although no query here uses it.
    """

    def __init__(
        self,
        store: Store,
        executor: Executor,
        storage: Storage,
        secrets: Secrets,
        jobs: Jobs,
        clock: Callable[[], float],
        gates: Sequence[Gate],
        wake_event: threading.Event,
    ):
        self.store, self.executor, self.storage = store, executor, storage
        self.secrets, self.jobs, self.clock, self.gates = secrets, jobs, clock, gates
        self.wake_event = wake_event
        self.events = EventQueue()
        self.instances = Instances(store, self._stop_queries)
        self.claims: Claims | None = None  # of the attached instance
        self.prepared: dict[tuple[GlobalId, GlobalId], CreateExportToken] = {}
        self.retained: frozenset[Place] = frozenset()
        self._collections: dict[GlobalId, CollectionState] = {}
        self._exports: dict[GlobalId, ExportState] = {}
        self._dropped: set[tuple[str, GlobalId]] = set()

    def wake(self) -> None:
        """Make `ready` return. Any thread may call it."""
        self.wake_event.set()

    # --- instances

    def _stop_queries(self) -> None:
        """Stop every query, because the lease is lost. Called on the thread that kept the lease."""
        log.error("the lease is lost: %s; stopping every query", self.instances.loss)
        self.executor.close()
        self.wake()

    def create_instance(self, id_: InstanceId) -> None:
        self.instances.create(id_)

    def drop_instance(self, id_: InstanceId) -> None:
        self.instances.ensure(id_)
        hosted = sorted(str(address) for address in self.desired(id_))
        if hosted:
            raise InstanceInUseError(f"Instance {id_} still has {', '.join(hosted[:5])}: drop them first.")
        self.instances.drop(id_)

    # --- the queries that are hosted

    def hosted(self) -> Mapping[Address, HostedQuery]:
        """Return all descriptions by address."""
        return {state.description.query.address: state.description for state in self._states()}

    def desired(self, instance: InstanceId) -> dict[Address, Desired]:
        """Return the queries that should run on an instance."""
        return {
            address: Desired(
                description=hosted.query, paused=hosted.paused, cause=hosted.because or COMMITTED_CHANGE
            )
            for address, hosted in self.hosted().items()
            if hosted.instance == instance
        }

    def claimed(self) -> set[Place]:
        """Return the storage that hosted queries use, and the storage that must stay."""
        return {state.place for state in self._states()} | self.retained

    def state_of(self, query: Description) -> CollectionState | ExportState | None:
        """Return the state of a query of this generation."""
        state = self._collections.get(query.id) or self._exports.get(query.id)
        return state if state is not None and state.place == query.place else None

    def last_step(self, query: Description) -> Step:
        """Return the last known step of a query, or -1."""
        state = self.state_of(query)
        return state.upper - 1 if state is not None else -1

    def claim_storage(self, places: Iterable[Place]) -> None:
        """Keep storage that no query here uses, for other instances or on purpose."""
        self.retained = frozenset(places)
        self.wake()

    def _states(self) -> list[CollectionState | ExportState]:
        return [*self._collections.values(), *self._exports.values()]

    # --- collections

    def collection(self, id_: GlobalId) -> CollectionState:
        if id_ not in self._collections:
            raise IdentifierMissingError("collection", id_)
        return self._collections[id_]

    collection_mut = collection  # states are mutable, so both methods are the same

    def collections(self) -> Iterator[tuple[GlobalId, CollectionState]]:
        return iter(sorted(self._collections.items()))

    def migrate_collections(self, collections: Sequence[tuple[GlobalId, CollectionDescription]]) -> None:
        self.instances.require()
        try:
            self.storage.migrate([collection.query.place for _, collection in collections])
        except (OSError, StorageError) as problem:  # each query's own check reports it
            log.warning("can't read the layout of storage: %s", problem)

    def create_collections(self, collections: Sequence[tuple[GlobalId, CollectionDescription]]) -> None:
        self.instances.require()
        wanted: dict[GlobalId, CollectionDescription] = {}
        for id_, description in collections:
            if id_ != description.query.id:
                raise StorageError(f"{id_} is described as {description.query.id}.")
            is_other = id_ in self._exports and not description.query.reads
            if is_other or wanted.setdefault(id_, description) != description:
                raise IdentifierReusedError(f"{id_} is in use: {description.query.address} needs another id.")
        for id_, description in wanted.items():
            before = self._collections.get(id_)
            if before is not None and before.place == description.query.place:
                before.description = description
                continue
            # A new generation is another collection, which starts without steps.
            state = self._collections[id_] = CollectionState(description=description)
            if before is not None:
                state.policy = before.policy
        self._restore_holds()
        self.wake()

    def drop_sources(self, ids: Sequence[GlobalId]) -> None:
        self._drop(ids, "source")

    def drop_sources_unvalidated(self, ids: Sequence[GlobalId]) -> None:
        self._drop(ids, "source", validated=False)

    def _restore_holds(self) -> None:
        """Add the holds of prepared and created exports to new collections."""
        for token in self.prepared.values():
            if token.from_id in self._collections:
                self._collections[token.from_id].hold(_holder(token.id), token.step)
        for id_, export in self._exports.items():
            for collection in self._collections_read_by(export):
                collection.hold(id_, export.read_holds.get(collection.description.query.id, 0))

    def _collections_read_by(self, export: ExportState) -> list[CollectionState]:
        """Return the collections that an export reads and this controller hosts."""
        from_ids = export.description.from_ids
        return [self._collections[from_id] for from_id in from_ids if from_id in self._collections]

    def _drop(self, ids: Sequence[GlobalId], kind: str, *, validated: bool = True) -> None:
        self.instances.require()
        hosted = self._collections.keys() if kind == "source" else self._exports.keys()
        for id_ in ids if validated else ():
            known = id_ in hosted or (kind, id_) in self._dropped
            if not known and not is_recorded(self.store, self.claims, kind, id_):
                raise IdentifierMissingError(kind, id_)
        for id_ in ids:
            self._forget(id_, kind)
        self.wake()

    def _forget(self, id_: GlobalId, kind: str) -> None:
        states: dict[GlobalId, CollectionState] | dict[GlobalId, ExportState]
        states = self._collections if kind == "source" else self._exports
        dropped = states.pop(id_, None)
        if isinstance(dropped, ExportState):
            for collection in self._collections_read_by(dropped):
                collection.release(id_)
        if dropped is not None:
            self._dropped.add((kind, id_))

    # --- exports

    def export(self, id_: GlobalId) -> ExportState:
        if id_ not in self._exports:
            raise IdentifierMissingError("export", id_)
        return self._exports[id_]

    export_mut = export  # states are mutable, so both methods are the same

    def exports(self) -> Iterator[tuple[GlobalId, ExportState]]:
        """Return all exports by id."""
        return iter(sorted(self._exports.items()))

    def prepare_export(self, id_: GlobalId, from_id: GlobalId) -> CreateExportToken:
        (token,) = self.prepare_exports([(id_, from_id)])
        return token

    def prepare_exports(self, wanted: Sequence[tuple[GlobalId, GlobalId]]) -> list[CreateExportToken]:
        """Prepare all these exports or none.

        Writes the journal only once, because a starting runner may have hundreds of exports.
        """
        instance = self.instances.require()
        tokens = []
        for id_, from_id in wanted:
            since = self.collection(from_id).since
            if id_ in self._collections and not self._collections[id_].description.query.reads:
                raise IdentifierReusedError(f"{id_} is the id of a collection, so no export can use it.")
            new = CreateExportToken(id=id_, from_id=from_id, step=since)
            tokens.append(self.prepared.get((id_, from_id), new))
        after = {**self.prepared, **{(token.id, token.from_id): token for token in tokens}}
        if after != self.prepared:
            self._journal(instance, after)
            self.prepared = after
            for token in tokens:
                self.collection(token.from_id).hold(_holder(token.id), token.step)
        return tokens

    def cancel_prepare_export(self, token: CreateExportToken) -> None:
        self._cancel([token] if self._is_prepared(token) else [])

    def cancel_stale_tokens(self, wanted: Collection[GlobalId]) -> None:
        """Cancel tokens that a crash or a failed command left behind.

        Such a token's export isn't wanted or doesn't read the collection, or the collection is gone.
        """
        stale = []
        for token in self.prepared.values():
            export = self._exports.get(token.id)
            is_read = export is None or token.from_id in export.description.from_ids
            if token.id not in wanted or token.from_id not in self._collections or not is_read:
                stale.append(token)
        self._cancel(stale)

    def create_exports(self, exports: Sequence[tuple[CreateExportToken, ExportDescription]]) -> None:
        instance = self.instances.require()
        wanted: dict[GlobalId, ExportDescription] = {}
        for token, description in exports:
            if token.id != description.query.id or token.from_id not in description.from_ids:
                raise StorageError(
                    f"The token is for {token.id}, a reader of {token.from_id}; {description.query.address} "
                    f"is {description.query.id} and reads {' and '.join(description.from_ids)}."
                )
            if not self._is_prepared(token):
                raise IdentifierMissingError("prepared export", token.id)
            self.collection(token.from_id)
            if wanted.setdefault(token.id, description) != description:
                raise IdentifierReusedError(f"{token.id} is described twice, as {description.query.address}.")
        if exports:
            self._journal(instance, self._prepared_without([token for token, _ in exports]))
        for token, description in exports:
            self._install(token, description)
        self.wake()

    def drop_sinks(self, ids: Sequence[GlobalId]) -> None:
        self._drop(ids, "sink")

    def drop_sinks_unvalidated(self, ids: Sequence[GlobalId]) -> None:
        self._drop(ids, "sink", validated=False)

    def _is_prepared(self, token: CreateExportToken) -> bool:
        return self.prepared.get((token.id, token.from_id)) == token

    def _cancel(self, tokens: Sequence[CreateExportToken]) -> None:
        instance = self.instances.require()
        if tokens:
            self._journal(instance, self._prepared_without(tokens))
        for token in tokens:
            log.info("cancelled the prepared read of %s by %s: no query needs it", token.from_id, token.id)
            self._consume(token)

    def _install(self, token: CreateExportToken, description: ExportDescription) -> None:
        """Create or alter an export, and consume the token: its read hold passes to the export."""
        export = self._exports.get(token.id)
        if export is None or export.place != description.query.place:
            self._forget(token.id, "sink")
            export = self._exports[token.id] = ExportState(description=description)
        export.description = description
        for former in export.read_holds.keys() - set(description.from_ids):
            del export.read_holds[former]
            if former in self._collections:
                self._collections[former].release(token.id)
        if token.from_id not in export.read_holds:
            export.read_holds[token.from_id] = token.step
            self.collection(token.from_id).hold(token.id, token.step)
        self._consume(token)

    def _consume(self, token: CreateExportToken) -> None:
        if self.prepared.pop((token.id, token.from_id), None) and token.from_id in self._collections:
            self._collections[token.from_id].release(_holder(token.id))

    def _prepared_without(self, tokens: Iterable[CreateExportToken]) -> Tokens:
        removed = {(token.id, token.from_id) for token in tokens}
        return {key: token for key, token in self.prepared.items() if key not in removed}

    def _journal(self, instance: InstanceId, tokens: Tokens) -> None:
        """Write tokens to the store before they count as prepared. If this raises, nothing changes."""
        self.store.write_prepared(instance, list(tokens.values()))


def _holder(id_: GlobalId) -> str:
    return f"prepared:{id_}"
