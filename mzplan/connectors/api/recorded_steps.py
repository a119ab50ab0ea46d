"""What each kind of target has recorded of the steps of a sink: for `mzplan verify`."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mzplan.connectors.api.protocols import ResolvedQuery
from mzplan.connectors.files.manifest import LOG, listed_path
from mzplan.connectors.files.source import folder_of
from mzplan.endpoints.interface import OutputEndpoint, Step
from mzplan.endpoints.replay import Written, total
from mzplan.model.diagnostics import MzplanError, error
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.content_hash import content_hash
from mzplan.warehouse.folder import open_folder
from mzplan.warehouse.parquet import read_batches, read_bytes
from mzplan.warehouse.source_replay import GoneError

if TYPE_CHECKING:
    from pyarrow import RecordBatch


def nothing_recorded(query: ResolvedQuery, why: str) -> MzplanError:
    """MZ100."""
    return error(
        "MZ100",
        f"The target of {query.address} keeps no record of its steps",
        why,
        f"verify its source: mzplan verify {query.description.upstream.address}"
        if query.description.upstream
        else "",
        address=query.address,
    )


class DeltaRecorded:
    """The table itself: each commit names the query and its step. Of an append, the rows of the files that
    the commit has added; of a MERGE, only how many rows it was given."""

    def __init__(self, query: ResolvedQuery, query_id: str | None):
        self.keys: Sequence[str] = query.body["key"] if query.body["mode"] == "upsert" else ()
        commits = CollectionLog(folder_of(query)).after(-1)
        found = [(one.transaction, one) for one in commits if one.transaction is not None]
        self._commits = {made[1]: commit for made, commit in found if made[0] == query_id}

    def step(self, step: Step) -> Written | None:
        commit = self._commits.get(step)
        if commit is None:
            return None
        if self.keys:
            return Written(rows=commit.merged) if commit.merged is not None else None
        return _held(commit.files)

    def close(self) -> None:
        """Nothing is open."""


class FilesRecorded:
    """The list in the folder, and the files that it names for a step: their rows, and of Parquet the hash.
    The list is merged every ten steps; which of the older files are of which step is not known then."""

    keys: Sequence[str] = ()

    def __init__(self, query: ResolvedQuery):
        self._folder = folder_of(query)
        self._format: str = query.body["format"]["type"]
        self._log = open_folder(f"{self._folder}/{LOG}")

    def step(self, step: Step) -> Written | None:
        listed = self._entry(str(step))
        if listed is None:
            listed = self._newest_of(step)
        if listed is None:
            return None
        if self._format == "parquet":
            return _held(listed)
        return Written(rows=sum(_count(file, self._format) for file in listed))

    def _newest_of(self, step: Step) -> list[str] | None:
        """The files of the step whose entry is a merged one: those that no entry before it has."""
        merged = self._entry(f"{step}.compact")
        before: set[str] = set()
        for earlier in range(step - 1, -1, -1):
            known = self._entry(f"{earlier}.compact")
            before.update(known or self._entry(str(earlier)) or ())
            if known is not None:
                break
            if self._entry(str(earlier)) is None:
                return None
        return [file for file in merged if file not in before] if merged is not None else None

    def _entry(self, name: str) -> list[str] | None:
        data = self._log.read(name)
        if data is None:
            return None
        return [listed_path(json.loads(line)["path"]) for line in data.decode().splitlines()[1:]]

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class EndpointRecorded:
    """What the endpoints of a connector say (`written`); of several in parallel, their sum."""

    endpoints: Sequence[OutputEndpoint]
    keys: Sequence[str] = field(default=())

    def step(self, step: Step) -> Written | None:
        parts = [part for one in self.endpoints if (part := one.written(step)) is not None]  # type: ignore[attr-defined]
        return total(parts) if len(parts) == len(self.endpoints) else None

    def close(self) -> None:
        for one in self.endpoints:
            close = getattr(one, "close", None)
            if close is not None:
                close()


def _held(files: Iterable[str]) -> Written:
    """The rows of Parquet files. Raises GoneError, OSError."""

    def batches() -> Iterator[RecordBatch]:
        for file in files:
            try:
                yield from read_batches(file)
            except FileNotFoundError:
                raise GoneError(f"{file}, which the target says this step has written, is gone.") from None

    found = content_hash(batches())
    return Written(rows=found.rows, digest=str(found))


def _count(file: str, format_: str) -> int:
    """The rows of a file of JSON lines, or of CSV with a header. Raises GoneError, OSError."""
    try:
        text = read_bytes(file).decode()
    except FileNotFoundError:
        raise GoneError(f"{file}, which the target says this step has written, is gone.") from None
    if format_ == "json":
        return sum(1 for line in text.split("\n") if line)
    rows = csv.reader(io.StringIO(text, newline=""), escapechar="\\", doublequote=False)
    return max(0, sum(1 for _ in rows) - 1)
