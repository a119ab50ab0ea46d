"""The storage controller of seed 004: its 27 methods over the kernel (mzplan.controller.core).

A controller hosts collections (sources) and exports (sinks) on storage instances. Commands set the desired
state, and the controller converges: `ready` waits for work, and `process` does it. The runner doesn't use it,
but gives the committed state to the kernel.

Every method may raise `NotAttachedError` once another runner has taken the instance over. A command that
raises has changed nothing. Where the seed panics or leaks, this controller raises an error
(docs/internals/controller.md compares each method).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import chain

from mzplan.controller.core import Controller
from mzplan.controller.decision import WantedQuery
from mzplan.controller.terms import (
    AppendCommand,
    CreateExportToken,
    Diff,
    Frontiers,
    GlobalId,
    IdentifierMissingError,
    IdentifierReusedError,
    InstanceId,
    InstanceInUseError,
    ReadBeforeSinceError,
    ReadPolicy,
    ReplicaLocation,
    Row,
    Step,
    StorageError,
    StorageParameters,
)
from mzplan.model.address import COLLECTIONS, READERS
from mzplan.model.diagnostics import MzplanError

LOCAL_TYPE = "local"  # the type of sources that are appended to
Tokens = Mapping[tuple[GlobalId, GlobalId], CreateExportToken]
"""Prepared exports, by the ids of the export and the collection."""


class StorageController:
    """Hosts collections and exports on `kernel`. One thread calls it; long work runs on other threads."""

    def __init__(self, kernel: Controller):
        self.kernel = kernel
        self.prepared: Tokens = {}
        self._instances: set[InstanceId] = set()
        self._collections: dict[GlobalId, WantedQuery] = {}
        self._exports: dict[GlobalId, WantedQuery] = {}
        self._dropped: set[tuple[str, GlobalId]] = set()

    def initialization_complete(self) -> None:
        """Mark the end of the initialization commands.

        Until then, commands are only recorded; afterwards, `process` acts on them. Idempotent.
        """
        self.kernel.initialization_complete()

    def update_configuration(self, parameters: StorageParameters) -> None:
        """Change parallelism, backoff and retention of dropped storage, without restarting queries."""
        self.kernel.update_configuration(parameters)

    # --- instances

    def create_instance(self, id_: InstanceId) -> None:
        """Register an instance without a replica. Raises IdentifierReusedError if the name is in use."""
        if id_ in self._instances:
            raise IdentifierReusedError(f"Instance {id_} already exists.")
        self._instances.add(id_)

    def drop_instance(self, id_: InstanceId) -> None:
        """Forget an instance. Raises IdentifierMissingError; InstanceInUseError if it is in use.

        It is in use while it has queries or a live lease. The seed would leak an attached replica instead.
        """
        self._ensure_instance(id_)
        hosted = sorted(str(q.description.address) for q in self._hosted() if q.instance == id_)
        if hosted:
            raise InstanceInUseError(f"Instance {id_} still has {', '.join(hosted[:5])}: drop them first.")
        leader = self.kernel.store.leases.leader(id_)
        if leader is not None:
            raise InstanceInUseError(
                f"Instance {id_} has a runner: process {leader.pid} on {leader.host}, epoch {leader.epoch}. "
                "Stop it first."
            )
        self._instances.discard(id_)

    def connect_replica(self, id_: InstanceId, location: ReplicaLocation) -> int:
        """Attach a runner, and return its new epoch, which fences the former runner from its targets.

        The former runner finds its lease taken, and stops its queries. They resume from their checkpoints.
        Raises IdentifierMissingError.
        """
        self._ensure_instance(id_)
        epoch = self.kernel.lead(id_, location.owner)
        self.prepared = {(token.id, token.from_id): token for token in self.kernel.store.read_prepared(id_)}
        return epoch

    # --- collections

    def collection(self, id_: GlobalId) -> Frontiers:
        """Return a collection's state, which the caller only reads. Raises IdentifierMissingError."""
        return self._frontiers("collection", self._collections, id_)

    def collection_mut(self, id_: GlobalId) -> Frontiers:
        """Return a collection's state, which the caller may change. Raises IdentifierMissingError."""
        return self.collection(id_)

    def collections(self) -> Iterator[tuple[GlobalId, Frontiers]]:
        """Return all collections, by id."""
        return ((id_, self.collection(id_)) for id_ in sorted(self._collections))

    def migrate_collections(self, collections: Sequence[tuple[GlobalId, WantedQuery]]) -> None:
        """Migrate the storage of collections to the current layout, before they are created. Idempotent."""
        self.kernel.migrate([collection.description.place for _, collection in collections])

    def create_collections(self, collections: Sequence[tuple[GlobalId, WantedQuery]]) -> None:
        """Create or alter all these collections or none. Their queries start with the next `process`.

        Raises IdentifierReusedError for an id of an export, or an id with two descriptions.
        """
        self.kernel.instances.require()
        wanted: dict[GlobalId, WantedQuery] = {}
        for id_, query in collections:
            if id_ != query.description.id:
                raise StorageError(f"{id_} is described as {query.description.id}.")
            is_sink = id_ in self._exports and not query.from_ids
            if is_sink or wanted.setdefault(id_, query) != query:
                raise IdentifierReusedError(f"{id_} is in use: {query.description.address} needs another id.")
        self._collections |= wanted
        self._follow()

    def drop_sources(self, ids: Sequence[GlobalId]) -> None:
        """Stop all these queries or none, and release their holds. Idempotent.

        Their storage is reclaimed after `retain_dropped`. Raises IdentifierMissingError for an unknown id.
        """
        self._drop(ids, "source", self._collections)

    def drop_sources_unvalidated(self, ids: Sequence[GlobalId]) -> None:
        """Drop sources as drop_sources does, but ignore unknown ids."""
        self._drop(ids, "source", self._collections, validated=False)

    # --- exports

    def export(self, id_: GlobalId) -> Frontiers:
        """Return the state of an export, for reading. Raises IdentifierMissingError."""
        return self._frontiers("export", self._exports, id_)

    def export_mut(self, id_: GlobalId) -> Frontiers:
        """Return the state of an export, for changes. Raises IdentifierMissingError."""
        return self.export(id_)

    def prepare_export(self, id_: GlobalId, from_id: GlobalId) -> CreateExportToken:
        """Hold the since of a collection until the export is created. Idempotent.

        The hold is journalled, so that a crash doesn't leak it. Raises IdentifierMissingError for the
        collection, IdentifierReusedError for an export id that belongs to a collection.
        """
        instance = self.kernel.instances.require()
        collection = self.collection(from_id)
        if id_ in self._collections and not self._collections[id_].from_ids:
            raise IdentifierReusedError(f"{id_} is the id of a collection, so no export can use it.")
        token = self.prepared.get((id_, from_id))
        if token is None:
            token = CreateExportToken(id=id_, from_id=from_id, step=collection.since)
            self._journal(instance, {**self.prepared, (id_, from_id): token})
            self._hold_prepared()
        return token

    def cancel_prepare_export(self, token: CreateExportToken) -> None:
        """Release the token's hold. No error if the token was used or cancelled before."""
        if self._is_prepared(token):
            self._consume([token])

    def create_exports(self, exports: Sequence[tuple[CreateExportToken, WantedQuery]]) -> None:
        """Create or alter all these exports or none. Their queries start with the next `process`.

        Consumes the tokens: their holds pass to the exports. Raises IdentifierMissingError for a cancelled
        token, StorageError for a token of another collection.
        """
        self.kernel.instances.require()
        wanted: dict[GlobalId, WantedQuery] = {}
        for token, query in exports:
            address = query.description.address
            if token.id != query.description.id or token.from_id not in query.from_ids:
                raise StorageError(
                    f"The token is for {token.id}, a reader of {token.from_id}; {address} is "
                    f"{query.description.id} and reads {' and '.join(query.from_ids)}."
                )
            if not self._is_prepared(token):
                raise IdentifierMissingError("prepared export", token.id)
            self.collection(token.from_id)
            if wanted.setdefault(token.id, query) != query:
                raise IdentifierReusedError(f"{token.id} is described twice, as {address}.")
        before = self._exports
        self._exports = {**before, **wanted}
        self._follow()  # the holds pass to the exports before the tokens' holds are released
        try:
            self._consume([token for token, _ in exports])
        except MzplanError:
            self._exports = before
            self._follow()
            raise

    def drop_sinks(self, ids: Sequence[GlobalId]) -> None:
        """Stop all these queries or none, and release their holds on collections (see drop_sources)."""
        self._drop(ids, "sink", self._exports)

    def drop_sinks_unvalidated(self, ids: Sequence[GlobalId]) -> None:
        """Drop sinks as drop_sinks does, but ignore unknown ids."""
        self._drop(ids, "sink", self._exports, validated=False)

    # --- data and frontiers

    def append(self, commands: Sequence[AppendCommand]) -> Future[None]:
        """Append to local inputs and advance their uppers. The future is done when all steps are durable.

        An append whose `key` was used before writes nothing and succeeds. After an error, nothing is written.

        Raises IdentifierMissingError; UpdateBeyondUpperError for an update at or above the new upper;
        InvalidUppersError if another client has appended, even if its number of steps isn't decided yet;
        StorageError for an input that isn't local, a row that doesn't fit its columns, or an invalid diff.
        """
        self.kernel.instances.require()
        planned = [(self.collection(command.id).wanted_query.description, command) for command in commands]
        for query, _ in planned:
            if query.type != LOCAL_TYPE:
                raise StorageError(f"{query.address} isn't a local source, so it doesn't accept appends.")

        def write() -> None:
            self.kernel.storage.append(planned)
            self.kernel.wake()

        return self.kernel.jobs.submit("append", ", ".join(str(q.address) for q, _ in planned), write)

    def snapshot(self, id_: GlobalId, as_of: Step) -> list[tuple[Row, Diff]]:
        """Return all updates of a collection up to and including a step, consolidated.

        Raises IdentifierMissingError; ReadBeforeSinceError for a step below `since`, or at or above `upper`.
        """
        collection, storage = self.collection(id_), self.kernel.storage
        extent = storage.extent(collection.place)
        since = max(collection.since, extent.since)
        if not since <= as_of < extent.upper:
            raise ReadBeforeSinceError(
                f"{collection.address} can be read as of steps {since} to {extent.upper} (excluded), "
                f"not {as_of}."
            )
        return storage.snapshot(collection.place, as_of)

    def set_read_policy(self, policies: Sequence[tuple[GlobalId, ReadPolicy]]) -> None:
        """Assign read policies to collections, in order: all or none. The last policy of an id counts.

        Sinces move forward at once if the policy allows it, but never back. Raises IdentifierMissingError.
        """
        self.kernel.instances.require()
        for id_, _ in policies:
            self.collection(id_)
        self.kernel.frontiers.set_policies(policies)

    def update_write_frontiers(self, updates: Sequence[tuple[GlobalId, Step]]) -> None:
        """Advance the uppers of queries. Ignores unknown ids, and uppers that aren't ahead."""
        self.kernel.frontiers.advance(updates)

    def update_read_capabilities(self, updates: Mapping[GlobalId, Mapping[str, Step | None]]) -> None:
        """Move read capabilities of collections, by holder: forward to a step, or (None) release them.

        Storage follows at the next survey (`maintain_every`). Ignores unknown ids.
        """
        self.kernel.frontiers.move_holds(updates)

    # --- work

    def ready(self) -> None:
        """Wait until there is work to process. Can be cancelled at any time."""
        self.kernel.ready()

    def process(self) -> None:
        """Take the next step of each query, and return soon. Raises NotAttachedError without the lease."""
        self.kernel.process()

    def reconcile_state(self) -> None:
        """Stop the queries of this project that no description claims, and log unclaimed storage.

        Call it after the first descriptions have been created. It removes no storage.
        """
        self.kernel.stop_unclaimed()

    # --- inside

    def _hosted(self) -> Collection[WantedQuery]:
        return {**self._exports, **self._collections}.values()

    def _follow(self) -> None:
        self.kernel.follow(list(self._hosted()))
        self._hold_prepared()

    def _hold_prepared(self) -> None:
        """Add the holds of prepared exports to their collections."""
        for token in self.prepared.values():
            if token.from_id in self._collections:
                self.collection(token.from_id).hold(_holder(token), token.step)

    def _ensure_instance(self, id_: InstanceId) -> None:
        if id_ not in self._instances:
            raise IdentifierMissingError("instance", id_)

    def _frontiers(self, what: str, hosted: Mapping[GlobalId, WantedQuery], id_: GlobalId) -> Frontiers:
        if id_ not in hosted:
            raise IdentifierMissingError(what, id_)
        return self.kernel.frontiers.by_id[id_]

    def _drop(
        self,
        ids: Sequence[GlobalId],
        kind: str,
        hosted: dict[GlobalId, WantedQuery],
        *,
        validated: bool = True,
    ) -> None:
        self.kernel.instances.require()
        for id_ in ids if validated else ():
            if id_ not in hosted and (kind, id_) not in self._dropped and not self._is_recorded(kind, id_):
                raise IdentifierMissingError(kind, id_)
        for id_ in ids:
            if hosted.pop(id_, None) is not None:
                self._dropped.add((kind, id_))
        self._follow()

    def _is_recorded(self, kind: str, id_: GlobalId) -> bool:
        """Whether an accepted, dropped or committed query has this id, now or in the history.

        `kind` is "source" for a collection and "sink" for an export; a view is both.
        """
        kinds, store, queries = (
            COLLECTIONS if kind == "source" else READERS,
            self.kernel.store,
            self.kernel.queries,
        )
        if queries is not None:
            claims = queries.claims
            if any(d.id == id_ and a.kind in kinds for a, d in claims.accepted.items()):
                return True
            if any(entry.id == id_ and entry.kind in kinds for entry in claims.dropped):
                return True
        earlier = (store.read_serial(serial) for serial in reversed(store.serials()))
        return any(
            resource.id == id_ and address.kind in kinds
            for state in chain([store.read_state()], earlier)
            if state is not None
            for address, resource in state.resources.items()
        )

    def _is_prepared(self, token: CreateExportToken) -> bool:
        return self.prepared.get((token.id, token.from_id)) == token

    def _consume(self, tokens: Sequence[CreateExportToken]) -> None:
        """Forget used or cancelled tokens, and release their holds."""
        instance, used = self.kernel.instances.require(), {(token.id, token.from_id) for token in tokens}
        self._journal(instance, {key: token for key, token in self.prepared.items() if key not in used})
        for token in tokens:
            if token.from_id in self._collections:
                self.collection(token.from_id).release(_holder(token))

    def _journal(self, instance: InstanceId, tokens: Tokens) -> None:
        """Write tokens to the store before they count as prepared. If this raises, nothing changes."""
        self.kernel.store.write_prepared(instance, list(tokens.values()))
        self.prepared = tokens


def _holder(token: CreateExportToken) -> str:
    return f"prepared:{token.id}"
