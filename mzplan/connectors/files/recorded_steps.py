"""What a folder of files has recorded of the steps of a sink: for `mzplan verify`."""

from __future__ import annotations

import csv
import io

from mzplan.connectors.api.protocols import Recorded, ResolvedQuery
from mzplan.connectors.api.recorded_steps import held
from mzplan.connectors.files.manifest import COMPACT, files_of, open_list
from mzplan.connectors.network.folders import folder_of
from mzplan.endpoints.interface import Step, Written
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.folder import read_text

_MOST_BYTES = 1 << 32  # of one file of text


class FilesRecorded(Recorded):
    """Reads the list in the folder, and the files that it names for a step: their rows, and for Parquet the
    hash. The list is merged every ten steps; then it is unknown which older file is of which step."""

    def __init__(self, query: ResolvedQuery):
        self._format: str = query.body["format"]["type"]
        self._log = open_list(folder_of(query))

    def step(self, step: Step) -> Written | None:
        listed = files_of(self._log, str(step))
        if listed is None:
            listed = self._newest_of(step)
        if listed is None:
            return None
        if self._format == "parquet":
            return held(listed)
        return Written(rows=sum(_count(file, self._format) for file in listed))

    def _newest_of(self, step: Step) -> list[str] | None:
        """The files of a step whose entry is a merged one: those that no entry before it has."""
        merged = files_of(self._log, f"{step}{COMPACT}")
        before: set[str] = set()
        for earlier in range(step - 1, -1, -1):
            known, plain = (files_of(self._log, f"{earlier}{end}") for end in (COMPACT, ""))
            before.update(known or plain or ())
            if known is not None:
                break
            if plain is None:
                return None
        return [file for file in merged if file not in before] if merged is not None else None


def _count(file: str, format_: str) -> int:
    """The rows of a file of JSON lines, or of CSV with a header. Raises GoneError, OSError."""
    text = read_text(file, _MOST_BYTES)
    if text is None:
        raise GoneError(f"{file}, which the target says this step has written, is gone.")
    if format_ == "json":
        return sum(1 for line in text.split("\n") if line)
    rows = csv.reader(io.StringIO(text, newline=""), escapechar="\\", doublequote=False)
    return max(0, sum(1 for _ in rows) - 1)
