"""The log of a collection's Delta table, without Spark: which version holds which step, in which files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError, error
from mzplan.secrets.resolved import shortened
from mzplan.warehouse.folder import MalformedError, decoding, open_folder
from mzplan.warehouse.log_entries import (
    Commit,
    Features,
    OutsideError,
    computing_of,
    decode_commit,
    ensure_inside,
    features_of,
    partitions_of,
    place_of,
)
from mzplan.warehouse.table_checkpoints import actions_in, checkpoints_of

T = TypeVar("T")

_CACHED = 4096  # commits
_LOOKED_THROUGH = 1 << 28  # bytes of commits after a checkpoint; Delta makes one every 10, or 20
_SHOWN = 10  # names of an error
_IN_CHECKSUMS = {"metaData": "metadata", "protocol": "protocol"}


class CollectionLog:
    """Reads single commits; keeps what it has read. Raises OSError for what the storage did."""

    def __init__(self, collection: str):
        self.collection = collection
        self._folder = open_folder(f"{collection}/_delta_log")
        self._kept: dict[int, Commit] = {}
        self._read = 0  # bytes of commits
        self._inside: set[int] = set()  # checkpoints that name no file outside
        self._inside_after: tuple[int, int] | None = None  # commits that don't: after one, up to another

    def commit(self, version: int) -> Commit | None:
        """One version; None when it is not written yet, or its log is gone (Delta keeps it for 30 days)."""
        if version not in self._kept:
            data = self._folder.read(f"{version:020}.json")
            if data is None:
                return None
            self._read += len(data)
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

    def computing(self) -> tuple[str, ...] | None:
        """What Delta is to compute with each write of the newest version (see Commit), looked for in the same
        way. None where there is no table. Raises OSError."""
        return self._newest("metaData", computing_of, lambda commit: commit.computing)

    def partitions(self) -> Mapping[str, str] | None:
        """The partition columns of the newest version with their types, in order, looked for in the same way.
        None where there is no table. Raises OSError."""
        return self._newest("metaData", partitions_of, lambda commit: commit.partitions)

    def ensure_inside(self, first: int | None = None) -> None:
        """Raise OutsideError where what Delta reads from a version on (None: the newest) names a file outside
        the table: the checkpoints that it begins with, and the commits after the earlier one. What was looked
        at is not again. Raises OSError, also for a log that mzplan and Delta would read differently."""
        checkpoints = self._checkpoints()
        begin = max((at for at in checkpoints if first is None or at <= first), default=-1)
        for version in {begin, max(checkpoints, default=-1)} - self._inside - {-1}:
            for action in ("add", "remove"):
                rows = self._actions(checkpoints[version], action)
                entry = checkpoints[version][0]
                with decoding(f"{self.collection}/_delta_log/{entry}"):
                    ensure_inside(self.collection, entry, ({action: row} for row in rows))
            self._inside.add(version)
        known = self._inside_after
        for commit in self.after(known[1] if known is not None and known[0] <= begin <= known[1] else begin):
            known = (min(begin, known[0]) if known is not None else begin, commit.version)
        self._inside_after = known

    def _newest(
        self, action: str, read: Callable[[Mapping[str, Any]], T], of: Callable[[Commit], T | None]
    ) -> T | None:
        checkpoints = self._checkpoints()
        version = max(checkpoints, default=-1)
        actions = self._actions(checkpoints.get(version, []), action)
        with decoding(f"the checkpoint {version} of {self.collection}"):
            newest = read(actions[0]) if actions else None
            if any(read(other) != newest for other in actions):
                raise ValueError(f"it has more than one {action}")
        begun = self._read
        for commit in self.after(version):
            if self._read - begun > _LOOKED_THROUGH:
                raise OSError(
                    f"{self.collection} has over {_LOOKED_THROUGH >> 20} MiB of commits after {version}"
                )
            version = commit.version
            newest = now if (now := of(commit)) is not None else newest
        self._ensure_same(version, action, read, newest)
        return newest

    def _ensure_same(
        self, version: int, action: str, read: Callable[[Mapping[str, Any]], T], newest: T | None
    ) -> None:
        """Spark takes what a table is from the checksum of its newest version, where there is one."""
        name = f"{version:020}.crc"
        with decoding(f"{self.collection}/_delta_log/{name}"):
            noted = json.loads(self._folder.read(name) or b"{}").get(_IN_CHECKSUMS[action])
            if noted is not None and newest is not None and read(noted) != newest:
                raise ValueError(f"it has another {action} than the log")

    def _checkpoints(self) -> dict[int, list[str]]:
        """The files of each of Delta's checkpoints. By a listing: what `_last_checkpoint` says, anybody can
        have written."""
        with decoding(f"{self.collection}/_delta_log"):
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

    def between(self, first: int, last: int) -> Sequence[int]:
        """The versions from one to another, but for some that are not there. An offset may name any: of many,
        none is looked for that the log does not list."""
        if last - first < _CACHED:
            return range(first, last + 1)
        return [version for version in self.versions() if first <= version <= last]


def require_inside(table: CollectionLog, address: Address, *, own: bool = True) -> None:
    """Before Spark reads or writes a table: raise MzplanError MZ283 where its log leads out of it, and MZ063
    where that can't be seen. Unless it is mzplan's `own`, the storage may be one that only Spark reaches."""
    try:
        table.ensure_inside()
    except OutsideError as problem:
        raise problem.at(address) from None
    except OSError as problem:
        if own or isinstance(problem, MalformedError):
            raise unseen(address, f"Where the log of {table.collection} leads", problem) from None


def require_uncomputed(table: CollectionLog, address: Address, *, own: bool = True) -> None:
    """Raise MzplanError MZ282 for a table that has Delta compute something, which mzplan's own never do: it
    would run with the rights of the runner; and MZ063 where that can't be seen, as require_inside."""
    try:
        computing = table.computing()
    except OSError as problem:
        if own or isinstance(problem, MalformedError):
            raise unseen(address, f"What {table.collection} has Delta compute", problem) from None
        return
    if computing:
        raise error(
            "MZ282",
            f"A table of {address} computes what mzplan has not declared",
            f"{table.collection} has generated columns, defaults, constraints or types that name a class: "
            f"{listed(computing)}. None of it was run.",
            "look who else writes there, and take them out of the table; or, of a collection, begin anew: "
            f"mzplan apply --replace {address} --allow-replace",
            address=address,
        )


def listed(names: Sequence[str]) -> str:
    """The first of names that others have written."""
    return ", ".join([shortened(name, 80) for name in names[:_SHOWN]] + ["…"] * (len(names) > _SHOWN))


def unseen(address: Address, what: str, problem: OSError) -> MzplanError:
    """MZ063 for what has to be looked at before a start, and can't be."""
    return error(
        "MZ063",
        f"{address} could not be started",
        f"{what} can't be seen: {problem}. None of it was run.",
        "it is tried again; where its log is damaged, look who else writes there.",
        address=address,
    )


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
    """The first and last step that these versions hold, and their rows; None for what is not known."""
    commits = list(filter(None, map(collection.commit, collection.between(first, last))))
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
