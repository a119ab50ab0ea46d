"""Holds the secret values that commands send to a runner, until the runner uses them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping

from mzplan.secrets.policy import Flow, SecretValues

_MAX_STORED = 8  # proposals, and commits, with stored values; the values of killed commands are never used

Values = Mapping[str, str]


class ReceivedSecretValues:
    """Values of `${env:NAME}` references that commands have sent, held until the runner uses them.

    - A proposal's values serve only its validation, so a proposal leaves no trace.
    - The runner starts to use a commit's values together with the commit.
    - The runner uses all other values at once. They come from commands that have nothing to commit.

    The socket's threads call `receive`, and the runner's thread calls `take`. `grant` gets the servers that
    the secrets may go to, as soon as they arrive (mzplan.secrets.policy).
    """

    def __init__(self, grant: Callable[[Collection[Flow]], None] = lambda flows: None) -> None:
        self._grant = grant
        self._lock = threading.Lock()
        self._proposed: dict[str, Values] = {}
        self._committed: dict[str, Values] = {}
        self._due: dict[str, str] = {}
        self._retry_failed = False
        self._received = 0

    def receive(self, secret_values: SecretValues) -> int:
        """Store the values. Return the number of messages so far that are due at once.

        The values of such a message are in use once `take` has returned its number or a greater one.
        """
        self._grant(secret_values.flows)
        with self._lock:
            if secret_values.proposal:
                _store(self._proposed, secret_values.proposal, secret_values.values)
            elif secret_values.state:
                _store(self._committed, secret_values.state, secret_values.values)
            elif secret_values.values or secret_values.retry_failed:
                self._due.update(secret_values.values)
                self._retry_failed |= secret_values.retry_failed
                self._received += 1
            return self._received

    def proposed(self, proposal: str) -> Values:
        """Return the values for the validation of a proposal."""
        with self._lock:
            return self._proposed.get(proposal, {})

    def forget(self, proposal: str) -> None:
        """Forget the values of a proposal, because it is answered."""
        with self._lock:
            self._proposed.pop(proposal, None)

    def take(self) -> tuple[Values, bool, int]:
        """Return the values for use at once, whether to retry failed queries, and the number of messages."""
        with self._lock:
            due, retry_failed = self._due, self._retry_failed
            self._due, self._retry_failed = {}, False
            return due, retry_failed, self._received

    def take_committed(self, digest: Callable[[], str | None]) -> Values:
        """Return the values for the committed state. Calls `digest` only if there are any values."""
        with self._lock:
            waiting = bool(self._committed)
        committed = digest() if waiting else None
        with self._lock:
            return self._committed.pop(committed, {}) if committed is not None else {}


def _store(stored: dict[str, Values], key: str, values: Values) -> None:
    stored.pop(key, None)
    stored[key] = values
    if len(stored) > _MAX_STORED:
        del stored[next(iter(stored))]
