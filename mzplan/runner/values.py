"""Values of `${env:NAME}` references that commands have handed over, and when each is used.

What a command only proposes must leave no trace: its values serve the validation of that proposal. Those of a
commit are taken over with it; all others, which come from a command that has nothing to commit, at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping

from mzplan.secrets.policy import Flow, Handed

_KEPT = 8  # proposals, and commits, whose values are kept: a killed command does not come back for its own

Values = Mapping[str, str]


class HandedValues:
    """Used from several threads: the socket's receives, the runner's takes. `grant` takes where secrets may
    go, at once (mzplan.secrets.policy)."""

    def __init__(self, grant: Callable[[Collection[Flow]], None] = lambda flows: None) -> None:
        self._grant = grant
        self._lock = threading.Lock()
        self._proposed: dict[str, Values] = {}
        self._committed: dict[str, Values] = {}
        self._due: dict[str, str] = {}
        self._received = 0

    def receive(self, handed: Handed) -> int:
        """The number of hand-overs so far. What is due at once is in use when `take` has given this number,
        or a greater one."""
        self._grant(handed.flows)
        with self._lock:
            if handed.proposal:
                _keep(self._proposed, handed.proposal, handed.values)
            elif handed.state:
                _keep(self._committed, handed.state, handed.values)
            elif handed.values:
                self._due.update(handed.values)
                self._received += 1
            return self._received

    def proposed(self, proposal: str) -> Values:
        """Those for the validation of a proposal."""
        with self._lock:
            return self._proposed.get(proposal, {})

    def forget(self, proposal: str) -> None:
        """The proposal is answered."""
        with self._lock:
            self._proposed.pop(proposal, None)

    def take(self) -> tuple[Values, int]:
        """What is due at once, and the number of hand-overs that this makes."""
        with self._lock:
            due, self._due = self._due, {}
            return due, self._received

    def take_committed(self, digest: Callable[[], str | None]) -> Values:
        """Those of the state that is committed, whose digest is asked for only if there are any."""
        with self._lock:
            waiting = bool(self._committed)
        found = digest() if waiting else None
        with self._lock:
            return self._committed.pop(found, {}) if found is not None else {}


def _keep(kept: dict[str, Values], key: str, values: Values) -> None:
    kept.pop(key, None)
    kept[key] = values
    if len(kept) > _KEPT:
        del kept[next(iter(kept))]
