"""The secret values that commands send to a runner, until it uses them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping

from mzplan.secrets.policy import Flow, SecretValues

_KEPT = 8  # proposals, and commits, whose values are kept: a killed command does not come back for its own

Values = Mapping[str, str]


class ReceivedSecretValues:
    """Values of `${env:NAME}` references that commands have sent, and when each is used.

    What a command only proposes must leave no trace: its values serve the validation of that proposal. Those
    of a commit are taken over with it; all others, which come from a command that has nothing to commit, at
    once. Used from several threads: the socket's receives, the runner's takes. `grant` takes where secrets
    may go, at once (mzplan.secrets.policy).
    """

    def __init__(self, grant: Callable[[Collection[Flow]], None] = lambda flows: None) -> None:
        self._grant = grant
        self._lock = threading.Lock()
        self._proposed: dict[str, Values] = {}
        self._committed: dict[str, Values] = {}
        self._due: dict[str, str] = {}
        self._again = False
        self._received = 0

    def receive(self, secret_values: SecretValues) -> int:
        """The number of hand-overs so far. What is due at once is in use when `take` has given this number,
        or a greater one."""
        self._grant(secret_values.flows)
        with self._lock:
            if secret_values.proposal:
                _keep(self._proposed, secret_values.proposal, secret_values.values)
            elif secret_values.state:
                _keep(self._committed, secret_values.state, secret_values.values)
            elif secret_values.values or secret_values.again:
                self._due.update(secret_values.values)
                self._again |= secret_values.again
                self._received += 1
            return self._received

    def proposed(self, proposal: str) -> Values:
        """The values for the validation of a proposal."""
        with self._lock:
            return self._proposed.get(proposal, {})

    def forget(self, proposal: str) -> None:
        """The proposal is answered."""
        with self._lock:
            self._proposed.pop(proposal, None)

    def take(self) -> tuple[Values, bool, int]:
        """What is due at once, whether what has failed is, and the number of hand-overs that this makes."""
        with self._lock:
            due, again = self._due, self._again
            self._due, self._again = {}, False
            return due, again, self._received

    def take_committed(self, digest: Callable[[], str | None]) -> Values:
        """The values for the state that is committed, whose digest is asked for only if there are any
        values."""
        with self._lock:
            waiting = bool(self._committed)
        committed = digest() if waiting else None
        with self._lock:
            return self._committed.pop(committed, {}) if committed is not None else {}


def _keep(kept: dict[str, Values], key: str, values: Values) -> None:
    kept.pop(key, None)
    kept[key] = values
    if len(kept) > _KEPT:
        del kept[next(iter(kept))]
