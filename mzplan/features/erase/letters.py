"""The dead letters of a source, and of the views that follow from it, that an erasure doesn't reach."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mzplan.model.diagnostics import Diagnostic
from mzplan.model.graph import DependencyGraph
from mzplan.model.resources import Body
from mzplan.model.state import ResourceState, State
from mzplan.store.store import Store


def letters_elsewhere(source: ResourceState, states: Iterable[State]) -> Iterator[Diagnostic]:
    """Yield a warning for each query with dead letters that stay.

    An erasure only reaches a folder that the source uses now. `states`: the committed states, newest last.
    """
    places: dict[str, None] = {}
    folders: dict[str, dict[str, None]] = {}  # by a view's id
    views: dict[str, ResourceState] = {}
    for state in states:
        record = next((record for record in state.resources.values() if record.id == source.id), None)
        if record is None:
            continue
        if "dead_letter" in record.body and not _is_reached(record.body, source.body):
            places[_place(record.body, source.body)] = None
        for view in _views_with_letters(state, record):
            views[view.id] = view
            folders.setdefault(view.id, {})[f"folder {view.body['dead_letter']['path']}"] = None
    if places:
        yield Diagnostic.of("MZ403.letters", address=source.address, places=tuple(places))
    for view in views.values():
        yield Diagnostic.of("MZ403.view-letters", address=view.address, places=tuple(folders[view.id]))


def committed_states(store: Store, newest: State) -> Iterator[State]:
    """Yield the state of each earlier serial, then the newest one. Raises MzplanError if the store fails."""
    for serial in store.serials():
        earlier = store.read_serial(serial)
        if earlier is not None and earlier.lineage == newest.lineage:
            yield earlier
    yield newest


def _views_with_letters(state: State, source: ResourceState) -> list[ResourceState]:
    """Return the views that follow from a source and keep dead letters."""
    found = [r for r in state.resources.values() if "dead_letter" in r.body and r.reads]
    reached = set(DependencyGraph.of(state.resources).all_dependents([source.address])) if found else ()
    return [record for record in found if record.address in reached]


def _is_reached(body: Body, now: Body) -> bool:
    """Whether the letters of a former body are in the folder that is searched, and of the topic."""
    path = body["dead_letter"].get("path")
    is_same_folder = path is not None and path == now.get("dead_letter", {}).get("path")
    return is_same_folder and body.get("topic") == now.get("topic")


def _place(body: Body, now: Body) -> str:
    letters = body["dead_letter"]
    place = f"folder {letters['path']}" if "path" in letters else f"topic {letters.get('topic')}"
    return place if body.get("topic") == now.get("topic") else f"{place} (from topic {body.get('topic')})"
