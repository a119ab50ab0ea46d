"""Where a source has stored dead letters that an erasure doesn't reach."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mzplan.model.resources import Body
from mzplan.model.state import ResourceState, State
from mzplan.store.store import Store


def letters_elsewhere(source: ResourceState, earlier: Iterable[ResourceState]) -> tuple[str, ...]:
    """Return the places, in words. An erasure only reaches a folder that the source uses now.

    `earlier`: the source as it was committed before.
    """
    bodies = [record.body for record in (*earlier, source) if "dead_letter" in record.body]
    now = source.body
    return tuple(dict.fromkeys(_place(body, now) for body in bodies if not _is_reached(body, now)))


def earlier_records(store: Store, source: ResourceState, state: State) -> Iterator[ResourceState]:
    """Yield a source as each earlier serial has it. Raises MzplanError if the store fails."""
    for serial in store.serials():
        earlier = store.read_serial(serial)
        if earlier is not None and earlier.lineage == state.lineage:
            yield from (record for record in earlier.resources.values() if record.id == source.id)


def _is_reached(body: Body, now: Body) -> bool:
    """Whether the letters of a former body are in the folder that is searched, and of the topic."""
    path = body["dead_letter"].get("path")
    is_same_folder = path is not None and path == now.get("dead_letter", {}).get("path")
    return is_same_folder and body.get("topic") == now.get("topic")


def _place(body: Body, now: Body) -> str:
    letters = body["dead_letter"]
    place = f"folder {letters['path']}" if "path" in letters else f"topic {letters.get('topic')}"
    return place if body.get("topic") == now.get("topic") else f"{place} (from topic {body.get('topic')})"
