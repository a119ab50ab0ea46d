"""The storage that a state and its runners claim. `state gc` and runners use it to find unclaimed storage."""

from __future__ import annotations

import re

from mzplan.model.address import Place
from mzplan.model.state import State
from mzplan.store.store import Store

_RECORDED = re.compile(
    r"(?:journal|status)/([a-z][a-z0-9_]*)(?:\.(?:prepared|former)\.jsonl|\.accepted\.json|\.jsonl|\.json)"
)


def places_of(state: State) -> set[Place]:
    """Return the storage of a state's queries, on any instance, and of queries that it has forgotten."""
    claimed = {r.place for r in state.resources.values()}
    return claimed | {(id_, generation) for id_, (_, generation) in state.forgotten.items()}


def recorded_places(store: Store) -> set[Place]:
    """Return the storage that current and former runners have recorded.

    It is the storage of the queries that ran last, which a rollback may need, and the storage that waits for
    removal. Raises MzplanError if a record can't be read.
    """
    places: set[Place] = set()
    for instance in recorded_instances(store):
        places |= {d.place for d in store.read_accepted(instance).values()}
        places |= {entry.place for entry in store.read_journal(instance)}
    return places


def recorded_instances(store: Store) -> list[str]:
    """Return the instances whose runners have recorded anything, including removed instances."""
    keys = [key for prefix in ("journal/", "status/") for key in store.backend.list(prefix)]
    return sorted({match[1] for match in map(_RECORDED.fullmatch, keys) if match is not None})
