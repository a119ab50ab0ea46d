"""The storage controller (seed 004): the only way from mzplan to running queries.

A controller hosts collections (sources) and exports (sinks) on storage instances. Commands set the desired
state, and the controller converges: `ready` waits for work, and `process` does it. Commands are durable: the
committed serials are their history, and a journal has the rest.

The protocol has the seed's 27 methods. The runner also uses methods of the implementation,
mzplan.controller.core.Controller, which have their own docstrings.

Every method may raise `NotAttachedError` once another runner has taken the instance over. A command that
raises has changed nothing. Where the seed panics or leaks, this controller raises an error
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
    """Hosts collections and exports. One thread calls it; long work runs on other threads."""

    def initialization_complete(self) -> None:
        """Mark the end of the initialization commands.

        Until then, commands are only recorded; afterwards, `process` acts on them. Idempotent.
        """

    def update_configuration(self, parameters: StorageParameters) -> None:
        """Change parallelism, backoff and retention of dropped storage, without restarting queries."""

    # --- instances

    def create_instance(self, id_: InstanceId) -> None:
        """Register an instance without a replica. Raises IdentifierReusedError if the name is in use."""

    def drop_instance(self, id_: InstanceId) -> None:
        """Forget an instance.

        Raises IdentifierMissingError; InstanceInUseError while it has queries, or a runner whose lease hasn't
        lapsed. The seed would leak an attached replica instead.
        """

    def connect_replica(self, id_: InstanceId, location: ReplicaLocation) -> int:
        """Attach a runner, and return its new epoch.

        "If the storage instance is already attached to a replica, communication with that replica is severed
        in favor of the new replica": the former runner finds its lease taken and stops its queries. The epoch
        fences it from exactly-once targets. The queries resume from their checkpoints. Raises
        IdentifierMissingError.
        """

    # --- collections

    def collection(self, id_: GlobalId) -> CollectionState:
        """Return a collection's state, which the caller only reads. Raises IdentifierMissingError."""

    def collection_mut(self, id_: GlobalId) -> CollectionState:
        """Return a collection's state, which the caller may change. Raises IdentifierMissingError."""

    def collections(self) -> Iterator[tuple[GlobalId, CollectionState]]:
        """Return all collections, by id."""

    def migrate_collections(self, collections: Sequence[tuple[GlobalId, CollectionDescription]]) -> None:
        """Migrate the storage of earlier versions of mzplan to the current layout. Idempotent.

        Must be called with every collection before it is created. A query whose storage has the layout of a
        later version doesn't start.
        """

    def create_collections(self, collections: Sequence[tuple[GlobalId, CollectionDescription]]) -> None:
        """Install all these collections or none. Their queries start with the next `process`.

        Alters a collection that exists; its query resumes from its checkpoint. Raises IdentifierReusedError
        for an id of an export, or an id that is listed with two descriptions.
        """

    def drop_sources(self, ids: Sequence[GlobalId]) -> None:
        """Stop all these queries or none, and release their holds. Idempotent.

        Their storage is reclaimed after `retain_dropped`. Raises IdentifierMissingError for an id that
        neither this controller nor the durable history knows.
        """

    def drop_sources_unvalidated(self, ids: Sequence[GlobalId]) -> None:
        """Drop sources as drop_sources does, but ignore unknown ids."""

    # --- exports

    def export(self, id_: GlobalId) -> ExportState:
        """Return the state of an export, for reading. Raises IdentifierMissingError."""

    def export_mut(self, id_: GlobalId) -> ExportState:
        """Return the state of an export, for changes. Raises IdentifierMissingError."""

    def prepare_export(self, id_: GlobalId, from_id: GlobalId) -> CreateExportToken:
        """Hold the since of a collection until the export is created.

        The export can then read all current steps. The hold is journalled, so that a crash doesn't leak it.
        Preparing an export again returns the same token. Raises IdentifierMissingError for the collection,
        IdentifierReusedError for an export id that belongs to a collection.
        """

    def cancel_prepare_export(self, token: CreateExportToken) -> None:
        """Release the token's hold. No error if the token was used or cancelled before."""

    def create_exports(self, exports: Sequence[tuple[CreateExportToken, ExportDescription]]) -> None:
        """Install all these sinks or none. Their queries start with the next `process`.

        Consumes the tokens: their holds pass to the exports. Alters an export that exists. Raises
        IdentifierMissingError for a cancelled token, StorageError for a token of another collection.
        """

    def drop_sinks(self, ids: Sequence[GlobalId]) -> None:
        """Stop all these queries or none, and release their holds on collections (see drop_sources)."""

    def drop_sinks_unvalidated(self, ids: Sequence[GlobalId]) -> None:
        """Drop sinks as drop_sinks does, but ignore unknown ids."""

    # --- data and frontiers

    def append(self, commands: Sequence[AppendCommand]) -> Future[None]:
        """Append to local inputs and advance their uppers. The future is done when all steps are durable.

        Updates must be at or above the input's upper, and below the new one. Each step between the two
        becomes durable, even without rows. A keyed input takes the diffs +1 (adds or updates the row of its
        key) and -1 (deletes the row); any other input takes +1 only. An append whose `key` was used before
        writes nothing and succeeds. After an error, nothing was written.

        Raises IdentifierMissingError; UpdateBeyondUpperError for an update at or above the new upper;
        InvalidUppersError if another client has appended, even if its number of steps isn't decided yet;
        StorageError for an input that isn't local, a row that doesn't fit its columns, or an invalid diff.
        """

    def snapshot(self, id_: GlobalId, as_of: Step) -> list[tuple[Row, Diff]]:
        """Return all updates of a collection up to and including a step, consolidated.

        Raises IdentifierMissingError; ReadBeforeSinceError for a step below `since`, or at or above `upper`.
        """

    def set_read_policy(self, policies: Sequence[tuple[GlobalId, ReadPolicy]]) -> None:
        """Assign read policies to collections, in order.

        "Repeated identifiers should conclude with the last policy. Changing a policy will immediately
        downgrade the read capability if appropriate, but it will not recover the read capability if the prior
        capability is already ahead of it." If it raises IdentifierMissingError, it has assigned none.
        """

    def update_write_frontiers(self, updates: Sequence[tuple[GlobalId, Step]]) -> None:
        """Advance the uppers of collections and exports to the values that their writers report.

        An upper that isn't ahead of the known one is ignored. Read capabilities follow
        (`update_read_capabilities`). Unknown ids are ignored, because a dropped query may still report.
        """

    def update_read_capabilities(self, updates: Mapping[GlobalId, Mapping[str, Step | None]]) -> None:
        """Move read capabilities of collections, by holder: forward to a step, or (None) release them.

        If the since of a collection advances, storage follows at the next survey (`maintain_every`): it
        merges small files and reclaims older steps. Unknown ids are ignored.
        """

    # --- work

    def ready(self) -> None:
        """Wait until there is work to process. Can be cancelled at any time."""

    def process(self) -> None:
        """Process the work that is ready, and return soon. Must not be cancelled.

        Starts, stops, checks and maintenance run on other threads. Raises NotAttachedError if the instance
        has another runner; its queries here are then stopped.
        """

    def reconcile_state(self) -> None:
        """Stop the queries of this project that no description claims, and log unclaimed storage.

        Called after the first descriptions have been created. Queries of other projects are never stopped,
        and no storage is removed (`mzplan state gc` does that).
        """
