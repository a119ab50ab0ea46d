"""The durable command history: what any controller of this project has ever hosted."""

from __future__ import annotations

from mzplan.controller.claims import Claims
from mzplan.controller.types import GlobalId
from mzplan.store.store import Store


def was_known(store: Store, claims: Claims | None, kind: str, id_: GlobalId) -> bool:
    """Whether the durable history has seen this id: what ran, what was dropped, what was committed."""
    if claims is not None:
        if any(d.id == id_ and a.kind == kind for a, d in claims.accepted.items()):
            return True
        if any(entry.id == id_ and entry.kind == kind for entry in claims.dropped):
            return True
    states = [store.read_state()]
    serials = reversed(store.serials())
    while True:
        for state in states:
            if any(r.id == id_ and a.kind == kind for a, r in state.resources.items()):
                return True
        earlier = next(serials, None)
        if earlier is None:
            return False
        found = store.read_serial(earlier)
        states = [found] if found is not None else []
