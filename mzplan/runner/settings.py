"""What a runner that runs takes over from mzplan.yaml: the pace of retries, and how long storage is kept."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mzplan.controller.reconcile import Pace
from mzplan.controller.types import StorageParameters
from mzplan.model.diagnostics import MzplanError
from mzplan.model.resources import ProjectSettings

log = logging.getLogger("mzplan.runner")


def parameters_of(settings: ProjectSettings, now: StorageParameters | None = None) -> StorageParameters:
    """What mzplan.yaml says of parameters; of others, those of `now`."""
    retries = settings.retries
    pace = Pace(first=retries.first, last=retries.last, budget=retries.budget)
    return replace(now or StorageParameters(), retain_dropped=settings.retain_dropped, pace=pace)


class SettingsWatch:
    """Reads the settings again when their file has changed. `read` raises MzplanError."""

    def __init__(self, path: Path, read: Callable[[], ProjectSettings]):
        self._path = path
        self._read = read
        self._seen = self._version()

    def look(self, now: StorageParameters) -> StorageParameters | None:
        """The parameters that the file says now, where they are others than `now`. A file that has a mistake,
        or is gone, changes nothing: it is being edited."""
        version = self._version()
        if version is None or version == self._seen:
            return None
        self._seen = version
        try:
            wanted = parameters_of(self._read(), now)
        except MzplanError as problem:
            log.warning("%s is not taken over: %s", self._path, problem)
            return None
        if wanted == now:
            return None
        log.info("retries and retain_dropped are those of %s from now on", self._path)
        return wanted

    def _version(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
