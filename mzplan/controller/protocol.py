"""The storage controller (seed 004): the one way from mzplan to what runs.

A controller hosts collections (sources) and exports (sinks) on storage instances. Commands say what should
be, and it converges: `ready` waits for something to do, `process` does it. Commands survive it: the committed
serials are their durable history, and a journal has what a serial can't carry.

These are the seed's 27 methods. What a runner needs besides are methods of the controllers that implement
them (mzplan.controller.core.Controller), which say it themselves.

Every method may raise `NotAttachedError` once another runner has taken the instance over; a command that
raises has changed nothing. Where the seed panics or leaks, this refuses
(docs/internals/controller.md compares each method).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

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
    ReadPolicy,
    ReplicaLocation,
    Row,
    Step,
    StorageParameters,
)


class StorageController(Protocol):
    """Hosts collections and exports. One thread calls it; what takes long, it does on threads of its own."""

    def initialization_complete(self) -> None:
        """ "Marks the end of any initialization commands." Before it, commands are taken and held; after it,
        `process` acts on them. Calling it again changes nothing."""

    def update_configuration(self, parameters: StorageParameters) -> None:
        """Parallelism, back-off, retention of dropped storage: from now on, without a restart of any
        query."""

    # --- instances

    def create_instance(self, id_: InstanceId) -> None:
        """Register an instance, without a replica. Raises IdentifierReusedError if there is one of that
        name."""

    def drop_instance(self, id_: InstanceId) -> None:
        """Forget an instance. Raises IdentifierMissingError; InstanceInUseError while it has queries, or a
        runner whose lease has not lapsed: "if you call this method while the storage instance has a replica
        attached, that replica will be leaked" is what must not happen."""

    def connect_replica(self, id_: InstanceId, location: ReplicaLocation) -> int:
        """Attach a runner, with a new epoch, which is returned. "If the storage instance is already attached
        to a replica, communication with that replica is severed in favor of the new replica": it finds its
        lease taken, stops its queries, and is fenced from exactly-once targets by the epoch; the queries go
        on from their checkpoints. Raises IdentifierMissingError."""

    # --- collections

    def collection(self, id_: GlobalId) -> CollectionState:
        """The state of a collection, to be looked at. Raises IdentifierMissingError."""

    def collection_mut(self, id_: GlobalId) -> CollectionState:
        """The state of a collection, to be changed. Raises IdentifierMissingError."""

    def collections(self) -> Iterator[tuple[GlobalId, CollectionState]]:
        """All collections, by id."""

    def migrate_collections(self, collections: Sequence[tuple[GlobalId, CollectionDescription]]) -> None:
        """Bring storage of earlier versions of mzplan to this one's layout. Must see every collection that
        is to be created, before it is; again, it finds nothing to do. A query whose storage has the layout of
        a later version is refused by itself: it does not start."""

    def create_collections(self, collections: Sequence[tuple[GlobalId, CollectionDescription]]) -> None:
        """Install collections; their queries start when the controller is next processed. All or none: an id
        that is an export's, or twice in the list with two descriptions, is IdentifierReusedError and nothing
        is installed. Creating one again is no error: with another description it is altered, and its query
        goes on from its checkpoint."""

    def drop_sources(self, ids: Sequence[GlobalId]) -> None:
        """Stop the queries, release what they hold, and let their storage be reclaimed after
        `retain_dropped`. All or none; raises IdentifierMissingError for an id that neither this controller
        nor the durable history knows. Dropping one again, before its storage is reclaimed, changes
        nothing."""

    def drop_sources_unvalidated(self, ids: Sequence[GlobalId]) -> None:
        """As drop_sources, but ids that nobody knows are ignored."""

    # --- exports

    def export(self, id_: GlobalId) -> ExportState:
        """The state of an export, to be looked at. Raises IdentifierMissingError."""

    def export_mut(self, id_: GlobalId) -> ExportState:
        """The state of an export, to be changed. Raises IdentifierMissingError."""

    def prepare_export(self, id_: GlobalId, from_id: GlobalId) -> CreateExportToken:
        """Hold the since of a collection until the export is created: so it can still read all that is there
        now. Journalled, so that a crash in between leaks no hold. Raises IdentifierMissingError for the
        collection, IdentifierReusedError for an id that is a collection's. Prepared again: the same
        token."""

    def cancel_prepare_export(self, token: CreateExportToken) -> None:
        """Release what the token holds; no error when it was used or cancelled before."""

    def create_exports(self, exports: Sequence[tuple[CreateExportToken, ExportDescription]]) -> None:
        """Install sinks; their queries start when the controller is next processed. Consumes the tokens:
        what they hold passes to the exports. All or none. Raises IdentifierMissingError for a token that was
        cancelled, StorageError for one that is of another collection. An export that is there is altered."""

    def drop_sinks(self, ids: Sequence[GlobalId]) -> None:
        """As drop_sources; the collection's since is no longer held by them."""

    def drop_sinks_unvalidated(self, ids: Sequence[GlobalId]) -> None:
        """As drop_sinks, but ids that nobody knows are ignored."""

    # --- data and frontiers

    def append(self, commands: Sequence[AppendCommand]) -> Future[None]:
        """Append to local inputs and advance their uppers. The updates must not be before the input's upper,
        and below the new one (UpdateBeyondUpperError); each step between the two becomes durable, without
        rows where there is none. The future is done when all is durable. Raises IdentifierMissingError,
        InvalidUppersError when somebody else has appended (also while that is not planned to be read, for
        how many steps it makes is decided then), StorageError for an input that is not local, a
        row that does not fit its columns, or a diff that the input cannot have. A keyed input takes +1 (the
        row of its key is added or updated) and -1 (it is deleted), any other input +1 alone. After an error
        nothing was written. An append whose `key` was used before writes nothing, and is done."""

    def snapshot(self, id_: GlobalId, as_of: Step) -> list[tuple[Row, Diff]]:
        """What a collection held as of a step: all updates up to it, consolidated. Raises
        IdentifierMissingError; ReadBeforeSinceError below `since`, and at or after `upper`."""

    def set_read_policy(self, policies: Sequence[tuple[GlobalId, ReadPolicy]]) -> None:
        """ "The policies are assigned in the order presented, and repeated identifiers should conclude with
        the last policy. Changing a policy will immediately downgrade the read capability if appropriate, but
        it will not recover the read capability if the prior capability is already ahead of it." Raises
        IdentifierMissingError, and then assigns none."""

    def update_write_frontiers(self, updates: Sequence[tuple[GlobalId, Step]]) -> None:
        """Take the uppers of collections and exports, from whoever writes them; one that is not ahead of what
        is known is ignored. Read capabilities follow (`update_read_capabilities`). Ids that are not there are
        ignored: what was dropped meanwhile may still report."""

    def update_read_capabilities(self, updates: Mapping[GlobalId, Mapping[str, Step | None]]) -> None:
        """Move read capabilities of collections, by holder: forward to a step, or given back (None). Where
        the since of a collection moves with it, storage follows when it is looked at next (`maintain_every`):
        small files are merged, and what only older steps need is reclaimed. Ids that are not there are
        ignored."""

    # --- work

    def ready(self) -> None:
        """Wait until there is something to process. Can be cancelled at any time."""

    def process(self) -> None:
        """Process what is there, quickly: starts, stops, checks and maintenance go on elsewhere. Must be
        awaited to its end. Raises NotAttachedError when the instance has another runner; then its queries
        here are stopped."""

    def reconcile_state(self) -> None:
        """After the first descriptions have been given: stop the queries of this project that none of them
        claims, and list in the log the storage that nothing claims (`mzplan state gc` removes it). Queries of
        other projects are never touched, and no storage is removed."""
