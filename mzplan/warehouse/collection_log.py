"""The log of a collection's Delta table, without Spark: which version holds which step, in which files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from mzplan.secrets.resolved import shortened
from mzplan.warehouse.folder import decoding, open_folder
from mzplan.warehouse.log_entries import (
    Commit,
    Features,
    decode_commit,
    features_of,
    partitions_of,
    place_of,
)
from mzplan.warehouse.table_checkpoints import actions_in, checkpoints_of

T = TypeVar("T")

_CACHED = 4096  # commits
_SHOWN = 10  # names of an error


class CollectionLog:
    """Reads single commits; keeps what it has read. Raises OSError for what the storage did."""

    def __init__(self, collection: str):
        self.collection = collection
        self._folder = open_folder(f"{collection}/_delta_log")
        self._kept: dict[int, Commit] = {}

    def commit(self, version: int) -> Commit | None:
        """One version; None when it is not written yet, or its log is gone (Delta keeps it for 30 days)."""
        if version not in self._kept:
            data = self._folder.read(f"{version:020}.json")
            if data is None:
                return None
            if len(self._kept) >= _CACHED:
                self._kept.clear()
            with decoding(f"{self.collection}/_delta_log/{version:020}.json"):
                self._kept[version] = decode_commit(self.collection, version, data)
        return self._kept[version]

    def digest(self, version: int) -> str | None:
        """The SHA-256 of a commit's file; None if it is missing. Another table has another one."""
        data = self._folder.read(f"{version:020}.json")
        return hashlib.sha256(data).hexdigest() if data is not None else None

    def after(self, version: int) -> Iterator[Commit]:
        """The versions after one (-1: all), in order, as far as the log reaches back."""
        if self.commit(version + 1) is None:
            version = min((v for v in self.versions() if v > version), default=version + 1) - 1
        while (commit := self.commit(version + 1)) is not None:
            yield commit
            version += 1

    def last_transaction(self, application: str) -> int | None:
        """The newest step that this writer has committed; None for one that never has. Raises OSError."""
        versions = self.versions()
        for version in reversed(versions):
            commit = self.commit(version)
            if commit is not None and commit.transaction is not None and commit.transaction[0] == application:
                return commit.transaction[1]
        # The log was cut off: Delta keeps of each writer the newest in its checkpoints.
        if not versions or versions[0] == 0:
            return None
        with decoding(f"the checkpoint of {self.collection}"):
            checkpoints = self._checkpoints()
            rows = self._actions(checkpoints.get(max(checkpoints, default=-1), []), "txn")
            return max((int(row["version"]) for row in rows if row["appId"] == application), default=None)

    def features(self) -> Features | None:
        """What the newest version asks for. None where there is no table, or its log does not say. Raises
        OSError."""
        return self._newest("protocol", features_of, lambda commit: commit.features)

    def partitions(self) -> Mapping[str, str] | None:
        """The partition columns of the newest version with their types, in order, looked for in the same way.
        None where there is no table. Raises OSError."""
        return self._newest("metaData", partitions_of, lambda commit: commit.partitions)

    def _newest(
        self, action: str, read: Callable[[Mapping[str, Any]], T], of: Callable[[Commit], T | None]
    ) -> T | None:
        checkpoints = self._checkpoints()
        version = max(checkpoints, default=-1)
        actions = self._actions(checkpoints.get(version, []), action)
        with decoding(f"the checkpoint {version} of {self.collection}"):
            newest = read(actions[0]) if actions else None
        for commit in self.after(version):
            newest = now if (now := of(commit)) is not None else newest
        return newest

    def _checkpoints(self) -> dict[int, list[str]]:
        """The files of each of Delta's checkpoints."""
        return checkpoints_of(self._folder.names())

    def _actions(self, names: list[str], action: str) -> list[dict[str, Any]]:
        """What these files of a checkpoint have of one kind of action."""
        log = f"{self.collection}/_delta_log"
        return [row for name in names for row in actions_in(log, name, action)]

    def place(self, name: str) -> str:
        """The path or URI of a file, by its name in the log."""
        return place_of(self.collection, name)

    def oldest(self) -> int | None:
        """The first version whose entry is still there; None where there is no log."""
        return min(self.versions(), default=None)

    def versions(self) -> list[int]:
        """The versions whose entries are there."""
        stems = (name.removesuffix(".json") for name in self._folder.names() if name.endswith(".json"))
        return sorted(int(stem) for stem in stems if _is_version(stem))


def listed(names: Sequence[str]) -> str:
    """The first of names that others have written."""
    return ", ".join([shortened(name, 80) for name in names[:_SHOWN]] + ["…"] * (len(names) > _SHOWN))


def _is_version(stem: str) -> bool:
    return len(stem) == 20 and stem.isascii() and stem.isdecimal()


def versions_between(start: Any, end: Any, collection: CollectionLog) -> tuple[int, int] | None:
    """The first and last version of the collection that Delta's offsets reach into; None for none.

    An offset is a version and the index of a file in it; a negative index is before all its files. With
    `isStartingVersion`, it is within the snapshot that a reader begins with: of that version and all before.
    Of the changes of a keyed collection, an offset stays at the last file of a version that is read.
    """
    if not isinstance(end, dict) or "reservoirVersion" not in end:
        return None
    with decoding(f"an offset in {collection.collection}"):
        last = int(end["reservoirVersion"]) - (0 if int(end.get("index", -1)) >= 0 else 1)
        first = 0
        if isinstance(start, dict) and not start.get("isStartingVersion"):
            first = int(start.get("reservoirVersion", 0))
            begun = collection.commit(first) if int(start.get("index", -1)) >= 0 else None
            first += begun is not None and begun.is_read_by(int(start["index"]))
        return (first, last) if first <= last else None


def steps_of(collection: CollectionLog, first: int, last: int) -> tuple[tuple[int, int] | None, int | None]:
    """The first and last step that these versions hold, and their rows; None for unknown values."""
    commits = list(filter(None, map(collection.commit, range(first, last + 1))))
    steps = [commit.step for commit in commits if commit.step is not None]
    if not steps:
        return None, None
    if len(commits) <= last - first:
        # The log of the oldest is gone: a reader that began at 0 has seen step 0 all the same.
        return ((0 if first == 0 else min(steps)), max(steps)), None
    rows = [commit.rows for commit in commits if commit.step is not None]
    known = sum(r for r in rows if r is not None) if None not in rows else None
    return (min(steps), max(steps)), known


def is_at_boundary(offset: Any) -> bool:
    """Whether an offset is between two versions. Raises OSError for one that is none."""
    with decoding("an offset"):
        return offset is None or (isinstance(offset, dict) and int(offset.get("index", -1)) < 0)
