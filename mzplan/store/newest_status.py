"""The status of an instance for those who look at it again and again."""

from __future__ import annotations

from mzplan.model.observed import Status
from mzplan.store.store import Store


class NewestStatus:
    """Reads a status where there is a new one: to decode that of hundreds of queries takes what their runner
    needs. `status` and its `version` are those of the last look, None where there is none. One thread."""

    def __init__(self, store: Store, instance: str):
        self._store = store
        self._instance = instance
        self._looked = False
        self.version: str | None = None
        self.status: Status | None = None

    def read(self) -> Status | None:
        """The status now. Raises MzplanError where it can't be read."""
        version = self._store.status_version(self._instance)
        if not self._looked or version != self.version:
            self.status = self._store.read_status(self._instance)
            self._looked, self.version = True, version
        return self.status
