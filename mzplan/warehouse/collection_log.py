"""The log of a collection's Delta table and its checkpoints: the step and files of each version, without
Spark.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from mzplan.secrets.resolved import shortened
from mzplan.warehouse.folder import decoding, file_system, open_folder
from mzplan.warehouse.log_entries import (
    Commit,
    Features,
    action_of,
    decode_commit,
    features_of,
    partitions_of,
    place_of,
    table_id_of,
)

# The columns to read for each kind of action.
_COLUMNS = {
    "txn": ["txn.appId", "txn.version"],
    "protocol": ["protocol.minReaderVersion", "protocol.readerFeatures", "protocol.writerFeatures"],
    "metaData": ["metaData.id", "metaData.schemaString", "metaData.partitionColumns"],
}
_CHECKPOINT = re.compile(
    r"([0-9]{20})\.checkpoint(?:\.[0-9]{10}\.([0-9]{10})\.parquet|\.parquet"
    r"|\.[0-9a-f-]{36}\.(?:json|parquet))"
)


def checkpoints_of(names: Iterable[str]) -> dict[int, list[str]]:
    """Return the files of each complete checkpoint among the names in a log, by version."""
    files: dict[int, list[str]] = {}
    parts: dict[tuple[int, int], set[str]] = {}
    for match in filter(None, map(_CHECKPOINT.fullmatch, names)):
        version, number = int(match[1]), match[2]
        if number is not None:
            parts.setdefault((version, int(number)), set()).add(match[0])
        else:
            files.setdefault(version, []).append(match[0])
    for (version, number), names_of_parts in parts.items():
        if len(names_of_parts) == number:  # Delta ignores incomplete ones
            files.setdefault(version, []).extend(sorted(names_of_parts))
    return files


def actions_in(log: str, name: str, action: str) -> list[dict[str, Any]]:
    """Return the actions of one kind in a file of a Delta checkpoint. Raises OSError."""
    if name.endswith(".parquet"):
        return _in_parquet(f"{log}/{name}", action)
    with decoding(f"{log}/{name}"):
        entries = map(action_of, (open_folder(log).read(name) or b"").splitlines())
        return [entry[action] for entry in entries if action in entry]


def _in_parquet(place: str, action: str) -> list[dict[str, Any]]:
    import pyarrow as pa
    from pyarrow import parquet

    system, path = file_system(place)
    try:
        with parquet.ParquetFile(path, filesystem=system) as file:
            rows: list[dict[str, Any]] = file.read(_COLUMNS[action]).column(action).drop_null().to_pylist()
            return rows
    except (pa.ArrowException, KeyError, ValueError) as problem:
        raise OSError(f"{place} is damaged: {problem}") from None


T = TypeVar("T")

_CACHE_SIZE = 4096  # commits
_MAX_NAMES = 10  # names in an error


class CollectionLog:
    """Reads single commits and caches them. Raises OSError if the storage fails.

    `writer`: returns the id of the query whose steps the table holds; None if unknown. Commits of other
    queries are no steps."""

    def __init__(self, collection: str, writer: Callable[[], str | None] = lambda: None):
        self.collection = collection
        self._find_writer = writer
        self._writer: str | None = None
        self._folder = open_folder(f"{collection}/_delta_log")
        self._commits: dict[int, Commit] = {}

    def commit(self, version: int) -> Commit | None:
        """Return one version; None if it isn't written yet or its log is gone (Delta keeps 30 days)."""
        if version not in self._commits:
            data = self._folder.read(f"{version:020}.json")
            if data is None:
                return None
            if len(self._commits) >= _CACHE_SIZE:
                self._commits.clear()
            with decoding(f"{self.collection}/_delta_log/{version:020}.json"):
                commit = decode_commit(self.collection, version, data)
            self._writer = self._writer or self._find_writer()
            self._commits[version] = commit if commit.is_by(self._writer) else replace(commit, step=None)
        return self._commits[version]

    def digest(self, version: int) -> str | None:
        """Return the SHA-256 of a commit's file, which differs between tables; None if it is missing."""
        data = self._folder.read(f"{version:020}.json")
        return hashlib.sha256(data).hexdigest() if data is not None else None

    def after(self, version: int) -> Iterator[Commit]:
        """Yield the versions after one (-1: all), in order, as far back as the log goes."""
        if self.commit(version + 1) is None:
            version = min((v for v in self.versions() if v > version), default=version + 1) - 1
        yield from self.following(version)

    def following(self, version: int) -> Iterator[Commit]:
        """Yield the versions after one whose next version is still in the log. Doesn't list the log."""
        while (commit := self.commit(version + 1)) is not None:
            yield commit
            version += 1

    def has_step(self, application: str | None, step: int) -> bool:
        """Return whether this writer has committed a step, or a later one. Raises OSError."""
        last = self.last_transaction(application) if application is not None else None
        return last is not None and last >= step

    def last_transaction(self, application: str) -> int | None:
        """Return the newest step that this writer has committed, or None. Raises OSError."""
        versions = self.versions()
        for version in reversed(versions):
            commit = self.commit(version)
            if commit is not None and commit.transaction is not None and commit.transaction[0] == application:
                return commit.transaction[1]
        # Old entries of the log are gone. Delta's checkpoints keep each writer's newest transaction.
        if not versions or versions[0] == 0:
            return None
        with decoding(f"the checkpoint of {self.collection}"):
            checkpoints = self._checkpoints()
            rows = self._actions(checkpoints.get(max(checkpoints, default=-1), []), "txn")
            return max((int(row["version"]) for row in rows if row["appId"] == application), default=None)

    def features(self) -> Features | None:
        """Return the features that the newest version needs; None if there is no table or no record.

        Raises OSError."""
        return self._newest("protocol", features_of, lambda commit: commit.features)

    def table_id(self) -> str | None:
        """Return the newest version's id of the table; None without a table. Raises OSError."""
        return self._newest("metaData", table_id_of, lambda commit: commit.table)

    def partitions(self) -> Mapping[str, str] | None:
        """Return the newest version's partition columns in order, with types; None without a table.

        Raises OSError."""
        return self._newest("metaData", partitions_of, lambda commit: commit.partitions)

    def _newest(
        self, action: str, read: Callable[[Mapping[str, Any]], T], value_of: Callable[[Commit], T | None]
    ) -> T | None:
        checkpoints = self._checkpoints()
        version = max(checkpoints, default=-1)
        actions = self._actions(checkpoints.get(version, []), action)
        with decoding(f"the checkpoint {version} of {self.collection}"):
            newest = read(actions[0]) if actions else None
        for commit in self.after(version):
            newest = value if (value := value_of(commit)) is not None else newest
        return newest

    def _checkpoints(self) -> dict[int, list[str]]:
        """Return the files of each of Delta's checkpoints, by version."""
        return checkpoints_of(self._folder.names())

    def _actions(self, names: list[str], action: str) -> list[dict[str, Any]]:
        """Return the actions of one kind in these files of a checkpoint."""
        log = f"{self.collection}/_delta_log"
        return [row for name in names for row in actions_in(log, name, action)]

    def place(self, name: str) -> str:
        """Return the path or URI of a file, from its name in the log."""
        return place_of(self.collection, name)

    def oldest(self) -> int | None:
        """Return the first version that the log still has; None without a log."""
        return min(self.versions(), default=None)

    def versions(self) -> list[int]:
        """Return the versions that the log still has."""
        stems = (name.removesuffix(".json") for name in self._folder.names() if name.endswith(".json"))
        return sorted(int(stem) for stem in stems if _is_version(stem))


def name_list(names: Sequence[str]) -> str:
    """Return the first of these names as text. The names come from others, so each is shortened."""
    return ", ".join([shortened(name, 80) for name in names[:_MAX_NAMES]] + ["…"] * (len(names) > _MAX_NAMES))


def _is_version(stem: str) -> bool:
    return len(stem) == 20 and stem.isascii() and stem.isdecimal()


def versions_between(start: Any, end: Any, collection: CollectionLog) -> tuple[int, int] | None:
    """Return the first and last version between two of Delta's offsets in the collection, if any.

    An offset is a version and the index of a file in it; a negative index is before all files. With
    `isStartingVersion`, the offset is within the snapshot with which a reader begins. For a keyed
    collection's changes, the offset stays at the last file of the version that was read."""
    if not isinstance(end, dict) or "reservoirVersion" not in end:
        return None
    with decoding(f"an offset in {collection.collection}"):
        last = int(end["reservoirVersion"]) - (0 if int(end.get("index", -1)) >= 0 else 1)
        first = 0
        if isinstance(start, dict) and not start.get("isStartingVersion"):
            first = int(start.get("reservoirVersion", 0))
            commit = collection.commit(first) if int(start.get("index", -1)) >= 0 else None
            first += commit is not None and commit.is_read_by(int(start["index"]))
        return (first, last) if first <= last else None


def version_read(offset: Any) -> int | None:
    """Return the newest version of which an offset of Delta has read rows; None if it doesn't say.

    Raises OSError for an invalid offset."""
    if not isinstance(offset, dict) or "reservoirVersion" not in offset:
        return None
    with decoding("an offset"):
        is_begun = offset.get("isStartingVersion") or int(offset.get("index", -1)) >= 0
        return int(offset["reservoirVersion"]) - (0 if is_begun else 1)


def steps_of(collection: CollectionLog, first: int, last: int) -> tuple[tuple[int, int] | None, int | None]:
    """Return the first and last step in these versions, and their rows; None for unknown values."""
    commits = list(filter(None, map(collection.commit, range(first, last + 1))))
    steps = [commit.step for commit in commits if commit.step is not None]
    if not steps:
        return None, None
    if len(commits) <= last - first:
        # The oldest entries of the log are gone, but a reader that began at version 0 has read step 0.
        return ((0 if first == 0 else min(steps)), max(steps)), None
    rows = [commit.rows for commit in commits if commit.step is not None and not commit.is_erasure]
    total = sum(r for r in rows if r is not None) if None not in rows else None
    return (min(steps), max(steps)), total


def is_at_boundary(offset: Any) -> bool:
    """Whether an offset lies between two versions. Raises OSError for an invalid offset."""
    with decoding("an offset"):
        return offset is None or (isinstance(offset, dict) and int(offset.get("index", -1)) < 0)
