"""Which storage a state and its runners claim: the one rule by which both sides know what is garbage."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mzplan.model.address import Place
from mzplan.model.state import State
from mzplan.store.store import Store

_RECORDED = re.compile(
    r"(?:journal|status)/([a-z][a-z0-9_]*)(?:\.(?:prepared|former)\.jsonl|\.accepted\.json|\.jsonl|\.json)"
)


def places_of(state: State) -> set[Place]:
    """All storage that a state claims, on whatever instance, or keeps on purpose."""
    claimed = {r.place for r in state.resources.values()}
    return claimed | {(id_, generation) for id_, (_, generation) in state.forgotten.items()}


def recorded_places(store: Store) -> set[Place]:
    """All storage that runners, also former ones, have recorded: what ran last and can be gone back to, and
    what waits for its removal. Raises MzplanError for what can't be read."""
    places: set[Place] = set()
    for instance in recorded_instances(store):
        places |= {d.place for d in store.read_accepted(instance).values()}
        places |= {entry.place for entry in store.read_journal(instance)}
    return places


def recorded_instances(store: Store) -> list[str]:
    """The instances whose runners have recorded anything, also those that are no more."""
    keys = [key for prefix in ("journal/", "status/") for key in store.backend.list(prefix)]
    return sorted({match[1] for match in map(_RECORDED.fullmatch, keys) if match is not None})


def unclaimed(listed: Iterable[Place], claimed: set[Place], recorded: set[Place]) -> list[Place]:
    """What of the storage that is there nothing claims."""
    return sorted(set(listed) - claimed - recorded)
