"""state gc: lists unused storage in the warehouse, and removes it on request."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from mzplan.connectors.admission import GuardedSecrets, committed_guard
from mzplan.connectors.releases import release_upstream, remove_generation
from mzplan.model.address import Address, Place, natural
from mzplan.model.diagnostics import Diagnostic, MzplanError, error
from mzplan.model.state import State
from mzplan.model.words import count, size
from mzplan.operations.project import Project, Reporter, locked, read_state, unreadable
from mzplan.render.text import Paint, aligned_lines
from mzplan.secrets.providers import RemoteSecrets
from mzplan.store.claims import places_of, recorded_instances, recorded_places
from mzplan.store.store import Store
from mzplan.warehouse.checkpoints import Checkpoint, collection_path
from mzplan.warehouse.paths import absolute
from mzplan.warehouse.storage import places_below
from mzplan.warehouse.stored_files import stored_in


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedStorage:
    """The unused storage of one generation.

    - `address`: the query's last address; None if this state never had the id.
    - `changed`: the time of the last write, in seconds since the epoch; None if unknown.
    - `kept`: why `state gc --apply` keeps it; None if it doesn't.
    """

    id: str
    generation: int
    address: Address | None
    what: tuple[str, ...]
    bytes: int
    changed: float | None
    removed: bool = False
    kept: str | None = None

    @property
    def place(self) -> Place:
        return (self.id, self.generation)


def find_unused_storage(project: Project, reporter: Reporter, *, foreign: bool) -> list[UnusedStorage]:
    """Return the unused storage, and why some of it would be kept. Changes nothing, and takes no lock."""
    return _unused_storage(project, read_state(project.store, reporter), reporter, foreign)


def remove_unused_storage(
    project: Project, reporter: Reporter, *, foreign: bool
) -> tuple[list[UnusedStorage], list[Diagnostic]]:
    """Remove unused storage that nothing has written to for `retain_dropped`.

    Holds the lock, so no import or commit runs meanwhile. Returns the unused storage, and a diagnostic for
    each failed removal. Raises MzplanError MZ038 (exit 7) while a runner still has to take in the newest
    serial, or an export is being prepared.
    """
    problems: list[Diagnostic] = []
    with locked(project.store, reporter, "state gc"):
        state = read_state(project.store, reporter)
        _ensure_quiet(project.store, state)
        entries = _unused_storage(project, state, reporter, foreign)
        for index, entry in enumerate(entries):
            if entry.kept is not None:
                continue
            try:
                with reporter.working(f"removing {entry.id} g{entry.generation}"):
                    _remove(project, state, entry.place)
            except MzplanError as problem:
                problems += problem.diagnostics
                entries[index] = replace(entry, kept="it could not be removed")
                continue
            entries[index] = replace(entry, removed=True)
    return entries, problems


def _remove(project: Project, state: State, place: Place) -> None:
    """Remove storage, and the objects that its query created on its upstream or target.

    Only the storage records these objects. A secret is sent to a server only if the committed state allows
    it."""
    directory, warehouse = project.settings.directory, _warehouse(project, state)
    secrets = GuardedSecrets(directory, committed_guard(project.store, state), remote=RemoteSecrets())
    release_upstream(warehouse, place, secrets, directory)
    remove_generation(warehouse, place, secrets, directory)


def _unused_storage(project: Project, state: State, reporter: Reporter, foreign: bool) -> list[UnusedStorage]:
    warehouse = _warehouse(project, state)
    with reporter.working(f"looking at {warehouse}"):
        names, forgotten = _history(project.store, state)
        recorded = recorded_places(project.store) | forgotten
        try:
            places = sorted({*places_below(warehouse)} - places_of(state) - recorded)
            retain = (state.settings or project.settings.runner).retain_dropped
            return [_inspect(warehouse, place, names, foreign, retain) for place in places]
        except OSError as problem:
            raise unreadable("The warehouse can't be read", problem) from None


def _history(store: Store, state: State) -> tuple[dict[str, Address], set[Place]]:
    """Return the last address of each id, and the storage that `state rm` kept in any serial.

    A rollback would need that storage. Raises MzplanError for an unreadable serial."""
    names: dict[str, Address] = {}
    forgotten: set[Place] = set()
    for serial in store.serials():
        earlier = store.read_serial(serial)
        if earlier is None or earlier.lineage != state.lineage:
            continue
        names |= {record.id: address for address, record in earlier.resources.items()}
        names |= {id_: address for id_, (address, _) in earlier.forgotten.items()}
        forgotten |= {(id_, generation) for id_, (_, generation) in earlier.forgotten.items()}
    names |= {record.id: address for address, record in state.resources.items()}
    return names, forgotten


def _inspect(
    warehouse: str, place: Place, names: Mapping[str, Address], foreign: bool, retain: float
) -> UnusedStorage:
    folders = {
        "collection": collection_path(warehouse, *place),
        "checkpoint": Checkpoint.of(warehouse, *place).folder,
    }
    stored = {
        part: contents for part, folder in folders.items() if (contents := stored_in(folder)) is not None
    }
    times = [contents.changed for contents in stored.values()]
    known_times = [at for at in times if at is not None]
    changed = max(known_times) if known_times and len(known_times) == len(times) else None
    return UnusedStorage(
        id=place[0],
        generation=place[1],
        address=names.get(place[0]),
        what=tuple(sorted(stored)),
        bytes=sum(contents.bytes for contents in stored.values()),
        changed=changed,
        kept=_why_kept(place[0] in names or foreign, changed, retain),
    )


def _why_kept(is_ours: bool, changed: float | None, retain: float) -> str | None:
    if not is_ours:
        return "this state never had that id: it is from another project or a failed import (--foreign)"
    if changed is None:
        return "the time of its last write is unknown"
    if time.time() - changed < retain:
        return "it was written to within retain_dropped"
    return None


def _ensure_quiet(store: Store, state: State) -> None:
    if not state.lineage:
        raise _refused(
            "Nothing was ever committed here",
            "Without a state, mzplan can't tell which storage is unused.",
            "check `state` in mzplan.yaml: does the warehouse belong to it?",
        )
    for name in sorted({*state.instances, *recorded_instances(store)}, key=natural):
        prepared = store.read_prepared(name)
        if prepared:
            raise _refused(
                f"An export of instance {name} is being prepared",
                f"It is {prepared[0].id}, of {prepared[0].from_id}.",
                "wait until it is created or cancelled.",
            )
        status = store.read_status(name)
        taken_in = status.serial if status is not None else 0
        if store.leases.leader(name) is not None and taken_in < state.serial:
            raise _refused(
                f"The runner of instance {name} is still at serial {taken_in}",
                f"The state is at {state.serial}: the runner may still use storage that nothing else uses.",
                "wait until it has taken in that serial: mzplan status.",
            )


def _refused(summary: str, detail: str, hint: str) -> MzplanError:
    return error("MZ038.gc-refused", what=summary, why=detail, how=hint)


def _warehouse(project: Project, state: State) -> str:
    return absolute(project.settings.directory, state.warehouse or project.settings.warehouse)


def render_unused_storage(entries: list[UnusedStorage], *, applied: bool, color: bool = False) -> str:
    """Return a table, and a summary of the storage that would be removed or, with `applied`, was removed."""
    paint = Paint(color)
    if not entries:
        return "All storage in the warehouse is in use."
    header = ("WAS", "ID", "GENERATION", "WHAT", "SIZE", "LAST WRITTEN (UTC)", "")
    first, *rows = aligned_lines([header, *(_row(entry, applied) for entry in entries)])
    lines = [paint(first, "bold"), *rows]
    removed = [entry for entry in entries if (entry.removed if applied else entry.kept is None)]
    total = size(sum(entry.bytes for entry in removed))
    if applied:
        lines.append(f"Removed {count(len(removed), 'generation')}, {total}.")
    elif removed:
        lines.append(f"`mzplan state gc --apply` removes {count(len(removed), 'generation')}, {total}.")
    else:
        lines.append("Nothing would be removed now.")
    return "\n".join(lines)


def _row(entry: UnusedStorage, applied: bool) -> tuple[str, ...]:
    when = datetime.fromtimestamp(entry.changed, UTC).strftime("%Y-%m-%d %H:%M:%S") if entry.changed else "?"
    kept = f"kept: {entry.kept}" if entry.kept else "" if applied else "to remove"
    note = "removed" if entry.removed else kept
    name = str(entry.address) if entry.address is not None else "?"
    return name, entry.id, str(entry.generation), "+".join(entry.what), size(entry.bytes), when, note
