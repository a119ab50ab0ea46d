"""The status of an instance, for callers that poll it."""

from __future__ import annotations

from mzplan.model.observed import Status
from mzplan.store.store import Store


class NewestStatus:
    """Reads an instance's status only if it has changed. For one thread.

    Decoding the status of hundreds of queries takes processor time, which the runner may need. `status` and
    `version` are from the last read; they are None if there was no status.
    """

    def __init__(self, store: Store, instance: str):
        self._store = store
        self._instance = instance
        self._has_read = False
        self.version: str | None = None
        self.status: Status | None = None

    def read(self) -> Status | None:
        """Return the current status. Raises MzplanError if it can't be read."""
        version = self._store.status_version(self._instance)
        if not self._has_read or version != self.version:
            self.status = self._store.read_status(self._instance)
            self._has_read, self.version = True, version
        return self.status
