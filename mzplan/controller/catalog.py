"""What is wanted, and what is known of it: collections, exports, exports that are prepared. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set

from mzplan.controller.reconcile import CHANGED, Desired
from mzplan.controller.terms import (
    CollectionDescription,
    CollectionState,
    CreateExportToken,
    ExportDescription,
    ExportState,
    GlobalId,
    IdentifierMissingError,
    IdentifierReusedError,
    InstanceId,
    Step,
    StorageError,
)
from mzplan.model.address import Address, Place
from mzplan.schema.description import Description


class Catalog:
    """Commands on it are all or nothing: each looks at everything before it changes anything. `kept`: storage
    that is somebody's although nothing here runs on it."""

    def __init__(self) -> None:
        self.collections: dict[GlobalId, CollectionState] = {}
        self.exports: dict[GlobalId, ExportState] = {}
        self.prepared: dict[tuple[GlobalId, GlobalId], CreateExportToken] = {}
        self.kept: frozenset[Place] = frozenset()
        self._dropped: set[tuple[str, GlobalId]] = set()

    def collection(self, id_: GlobalId) -> CollectionState:
        """Raises IdentifierMissingError."""
        if id_ not in self.collections:
            raise IdentifierMissingError("collection", id_)
        return self.collections[id_]

    def state_of(self, query: Description) -> CollectionState | ExportState | None:
        """What is known of a query of this generation."""
        state = self.collections.get(query.id) or self.exports.get(query.id)
        return state if state is not None and state.place == query.place else None

    def reached(self, query: Description) -> Step:
        """The last step that is known of a query; -1 where none is."""
        state = self.state_of(query)
        return state.upper - 1 if state is not None else -1

    def export(self, id_: GlobalId) -> ExportState:
        """Raises IdentifierMissingError."""
        if id_ not in self.exports:
            raise IdentifierMissingError("export", id_)
        return self.exports[id_]

    def hosted(self) -> Mapping[Address, CollectionDescription | ExportDescription]:
        """All descriptions, by what they are called."""
        states: list[CollectionState | ExportState] = [*self.collections.values(), *self.exports.values()]
        return {state.description.query.address: state.description for state in states}

    def desired(self, instance: InstanceId) -> dict[Address, Desired]:
        """What is to run on an instance."""
        return {
            address: Desired(
                description=hosted.query, paused=hosted.paused, because=hosted.because or CHANGED
            )
            for address, hosted in self.hosted().items()
            if hosted.instance == instance
        }

    def claimed(self) -> set[Place]:
        """Storage that something here is on, or that is kept."""
        states: list[CollectionState | ExportState] = [*self.collections.values(), *self.exports.values()]
        return {state.place for state in states} | self.kept

    def readers(self, id_: GlobalId) -> dict[GlobalId, Place]:
        """Where the exports of a collection keep their checkpoints, by id."""
        return {i: export.place for i, export in self.exports.items() if id_ in export.description.from_ids}

    def ensure_known(self, ids: Sequence[GlobalId], kind: str, was: Callable[[str, GlobalId], bool]) -> None:
        """Raises IdentifierMissingError for the first id that neither this nor the durable history (`was`)
        knows."""
        known: Mapping[GlobalId, object] = self.collections if kind == "source" else self.exports
        for id_ in ids:
            if id_ not in known and (kind, id_) not in self._dropped and not was(kind, id_):
                raise IdentifierMissingError(kind, id_)

    def create_collections(self, given: Sequence[tuple[GlobalId, CollectionDescription]]) -> None:
        """Install or alter. A new generation is another collection: it begins without steps."""
        wanted: dict[GlobalId, CollectionDescription] = {}
        for id_, description in given:
            if id_ != description.query.id:
                raise StorageError(f"{id_} is described as {description.query.id}.")
            is_other = id_ in self.exports and not description.query.reads
            if is_other or wanted.setdefault(id_, description) != description:
                raise IdentifierReusedError(f"{id_} is another one's: {description.query.address} can't be.")
        for id_, description in wanted.items():
            before = self.collections.get(id_)
            if before is None or before.place != (id_, description.query.generation):
                self.collections[id_] = CollectionState(description=description)
                if before is not None:
                    self.collections[id_].policy = before.policy
            else:
                before.description = description

    def to_prepare(self, wanted: Sequence[tuple[GlobalId, GlobalId]]) -> list[CreateExportToken]:
        """The tokens of exports by id, each to read a collection from its since on. What is prepared for that
        collection already: the same token. Changes nothing."""
        for id_, from_id in wanted:
            self.collection(from_id)
            if id_ in self.collections and not self.collections[id_].description.query.reads:
                raise IdentifierReusedError(f"{id_} is a collection's: no export can be.")
        return [self._token(id_, from_id) for id_, from_id in wanted]

    def _token(self, id_: GlobalId, from_id: GlobalId) -> CreateExportToken:
        prepared = self.prepared.get((id_, from_id))
        if prepared is not None:
            return prepared
        return CreateExportToken(id=id_, from_id=from_id, step=self.collection(from_id).since)

    def prepare(self, tokens: Iterable[CreateExportToken]) -> None:
        """Hold the since of the collections."""
        for token in tokens:
            self.prepared[token.id, token.from_id] = token
            self.collection(token.from_id).hold(_prepared(token.id), token.step)

    def cancel(self, token: CreateExportToken) -> None:
        """No error when it was used or cancelled before."""
        if not self.is_prepared(token):
            return
        del self.prepared[token.id, token.from_id]
        if token.from_id in self.collections:
            self.collections[token.from_id].release(_prepared(token.id))

    def is_prepared(self, token: CreateExportToken) -> bool:
        """Whether the token was neither used nor cancelled."""
        return self.prepared.get((token.id, token.from_id)) == token

    def left_prepared(self, wanted: Container[GlobalId]) -> list[CreateExportToken]:
        """The tokens that nobody will use: of other exports, and of collections that are gone or that the
        export doesn't read."""
        tokens = self.prepared.values()
        return [
            token
            for token in tokens
            if token.id not in wanted
            or token.from_id not in self.collections
            or (token.id in self.exports and token.from_id not in self.exports[token.id].description.from_ids)
        ]

    def without(self, tokens: Set[CreateExportToken]) -> list[CreateExportToken]:
        """What is prepared besides."""
        return [token for token in self.prepared.values() if token not in tokens]

    def ensure_installable(self, given: Sequence[tuple[CreateExportToken, ExportDescription]]) -> None:
        """Raises IdentifierMissingError for a token that is not there any more, or whose collection is not;
        StorageError for one of another export; IdentifierReusedError for two descriptions of one."""
        wanted: dict[GlobalId, ExportDescription] = {}
        for token, description in given:
            if token.id != description.query.id or token.from_id not in description.from_ids:
                raise StorageError(
                    f"The token is for {token.id}, a reader of {token.from_id}; {description.query.address} "
                    f"is {description.query.id} and reads {' and '.join(description.from_ids)}."
                )
            if not self.is_prepared(token):
                raise IdentifierMissingError("prepared export", token.id)
            self.collection(token.from_id)
            if wanted.setdefault(token.id, description) != description:
                raise IdentifierReusedError(f"{token.id} is described twice, as {description.query.address}.")

    def create_exports(self, given: Sequence[tuple[CreateExportToken, ExportDescription]]) -> None:
        """Install or alter, consuming the tokens. `ensure_installable` is asked before."""
        for token, description in given:
            self._install(token, description)

    def _install(self, token: CreateExportToken, description: ExportDescription) -> None:
        export = self.exports.get(token.id)
        if export is None or export.place != (token.id, description.query.generation):
            self.drop(token.id, "sink")
            export = self.exports[token.id] = ExportState(description=description)
        export.description = description
        for former in export.read_holds.keys() - set(description.from_ids):
            del export.read_holds[former]
            if former in self.collections:
                self.collections[former].release(token.id)
        if token.from_id not in export.read_holds:
            export.read_holds[token.from_id] = token.step
            self.collection(token.from_id).hold(token.id, token.step)
        self.cancel(token)

    def drop(self, id_: GlobalId, kind: str) -> None:
        """Forget a source's collection, or a sink's export and what it holds, but for that it was here; no
        error when it is not there."""
        dropped: object
        if kind == "source":
            dropped = self.collections.pop(id_, None)
        else:
            dropped = export = self.exports.pop(id_, None)
            for from_id in export.description.from_ids if export is not None else ():
                if from_id in self.collections:
                    self.collections[from_id].release(id_)
        if dropped is not None:
            self._dropped.add((kind, id_))

    def adopt(self, token: CreateExportToken) -> None:
        """Take a token out of the journal: its hold is back as soon as its collection is."""
        self.prepared[token.id, token.from_id] = token

    def restore_holds(self) -> None:
        """After collections were created: what tokens and exports hold of them."""
        for token in self.prepared.values():
            if token.from_id in self.collections:
                self.collections[token.from_id].hold(_prepared(token.id), token.step)
        for id_, export in self.exports.items():
            for from_id in export.description.from_ids:
                if from_id in self.collections:
                    self.collections[from_id].hold(id_, export.read_holds.get(from_id, 0))


def _prepared(id_: GlobalId) -> str:
    return f"prepared:{id_}"
