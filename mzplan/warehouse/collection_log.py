"""The log of a collection's Delta table, without Spark: which version holds which step, in which files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import unquote

from mzplan.warehouse.folder import decoding, ensure_file, file_system, open_folder
from mzplan.warehouse.paths import is_uri

T = TypeVar("T")

_CACHED = 4096  # commits
# What has Delta compute something with each write, or Spark load a class: of a field's metadata and of types.
_COMPUTING = (
    "delta.generationExpression",
    "delta.identity",
    "delta.invariants",
    "CURRENT_DEFAULT",
    "EXISTS_DEFAULT",
)
_CONSTRAINTS = "delta.constraints."
_LOOKED_THROUGH = 1 << 28  # bytes of commits after a checkpoint; Delta makes one every 10, or 20
_DECODED = 1 << 28  # bytes of a checkpoint, of one kind of action; of all its other rows there are some bits
_VALUES = 1 << 28  # of a checkpoint and one kind of action, nulls among them
_KEPT = 100_000  # of a checkpoint and one kind of action; there is one for each writer that the table has had
_TOO_LARGE = f"it holds more than {_DECODED >> 20} MiB, or {_KEPT:,} actions of a kind"
_ROWS = 1024  # of a checkpoint that are decoded at once
# Of each kind of action in a checkpoint, what is read here. The first column each one has.
_COLUMNS = {
    "txn": ["txn.appId", "txn.version"],
    "protocol": ["protocol.minReaderVersion", "protocol.readerFeatures", "protocol.writerFeatures"],
    "metaData": ["metaData.schemaString", "metaData.configuration", "metaData.partitionColumns"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """A file: its name in the log, its path or URI, when it was made (milliseconds), and whether its rows are
    new to the table (False: they were in other files before). `partition`: the values, as text, that all its
    rows have in the table's partition columns."""

    name: str
    place: str
    modified: int
    has_new_rows: bool
    partition: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Of Delta, by the names that its log has: those that whoever reads the table must have, and those that
    whoever writes it must."""

    reading: frozenset[str]
    writing: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One version. `step` is None for one that no streaming query wrote. `rows` are those that it added; of a
    MERGE those that it inserted, updated and deleted. `adds` are the Parquet files that it added, `removes`
    the names of those that it took away. `transaction` is who says that it wrote this, and as which step;
    `merged` the rows that a MERGE was given (None: it is none), and `changes` the Parquet files of its change
    feed: with none of them, its rows are those of `adds`, all new. `features`: what the table asks for from
    here on; None where that is as before. `computing`: likewise, what Delta is to compute with each write
    (generated columns, constraints, defaults), and types that name a class. `partitions`: likewise, the
    table's partition columns with their types, by Delta's names."""

    version: int
    step: int | None
    rows: int | None
    bytes: int | None
    time: float | None
    adds: tuple[Add, ...] = ()
    removes: tuple[str, ...] = ()
    transaction: tuple[str, int] | None = None
    merged: int | None = None
    is_vacuum: bool = False
    changes: tuple[str, ...] = ()
    features: Features | None = None
    computing: tuple[str, ...] | None = None
    partitions: Mapping[str, str] | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """Paths or URIs of the Parquet files that it added."""
        return tuple(add.place for add in self.adds)

    def is_read_by(self, index: int) -> bool:
        """Whether a reader of the change feed that is at this file of a MERGE has seen all of it."""
        return self.merged is not None and index >= len(self.changes or self.adds) - 1


class CollectionLog:
    """Reads single commits; keeps what it has read. Raises OSError for what the storage did."""

    def __init__(self, collection: str):
        self.collection = collection
        self._folder = open_folder(f"{collection}/_delta_log")
        self._kept: dict[int, Commit] = {}
        self._read = 0  # bytes of commits

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
                self._kept[version] = _commit(self.collection, version, data)
        return self._kept[version]

    def after(self, version: int) -> Iterator[Commit]:
        """The versions after one (-1: all), in order, as far as the log reaches back."""
        found = self.commit(version + 1)
        if found is None:
            version = min((v for v in self.versions() if v > version), default=version + 1) - 1
        while (found := self.commit(version + 1)) is not None:
            yield found
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
            kept = [one for one in self._actions(self._checkpoint()[1], "txn") if one["appId"] == application]
            return max((int(one["version"]) for one in kept), default=None)

    def features(self) -> Features | None:
        """What the newest version asks for. None where there is no table, or its log does not say. Raises
        OSError."""
        return self._newest("protocol", _features, lambda commit: commit.features)

    def computing(self) -> tuple[str, ...] | None:
        """What Delta is to compute with each write of the newest version (see Commit), looked for in the same
        way. None where there is no table. Raises OSError."""
        return self._newest("metaData", _computing, lambda commit: commit.computing)

    def partitions(self) -> Mapping[str, str] | None:
        """The partition columns of the newest version with their types, in order, looked for in the same way.
        None where there is no table. Raises OSError."""
        return self._newest("metaData", _partitions, lambda commit: commit.partitions)

    def _newest(
        self, action: str, read: Callable[[Mapping[str, Any]], T], of: Callable[[Commit], T | None]
    ) -> T | None:
        version, names = self._last_checkpoint() or self._checkpoint()
        actions = self._actions(names, action)
        with decoding(f"the checkpoint {version} of {self.collection}"):
            newest = read(actions[-1]) if actions else None
        begun = self._read
        for commit in self.after(version):
            if self._read - begun > _LOOKED_THROUGH:
                raise OSError(
                    f"{self.collection} has over {_LOOKED_THROUGH >> 20} MiB of commits after {version}"
                )
            newest = now if (now := of(commit)) is not None else newest
        return newest

    def _last_checkpoint(self) -> tuple[int, list[str]] | None:
        """What Delta notes as its newest checkpoint: its version and files; None where they take a listing.
        A newer one may be there: what it has, the commits have too."""
        data = self._folder.read("_last_checkpoint") or b""
        try:
            with decoding(f"{self.collection}/_delta_log/_last_checkpoint"):
                note = json.loads(data)
                if note.get("parts") or note.get("v2Checkpoint"):
                    return None
                return int(note["version"]), [f"{int(note['version']):020}.checkpoint.parquet"]
        except OSError:
            return None

    def _checkpoint(self) -> tuple[int, list[str]]:
        """Delta's newest checkpoint: its version and files; (-1, []) without one."""
        found: dict[int, list[str]] = {}
        for name in self._folder.names():
            stem, _, kind = name.partition(".")
            if _is_version(stem) and kind.startswith("checkpoint.") and kind.endswith(".parquet"):
                found.setdefault(int(stem), []).append(name)
        newest = max(found, default=-1)
        return newest, found.get(newest, [])

    def _actions(self, names: list[str], action: str) -> list[dict[str, Any]]:
        """What these files of a checkpoint have of one kind of action."""
        return [row for name in names for row in _actions(f"{self.collection}/_delta_log/{name}", action)]

    def place(self, name: str) -> str:
        """The path or URI of a file, by its name in the log."""
        return _file(self.collection, name)

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


def _is_version(stem: str) -> bool:
    return len(stem) == 20 and stem.isdecimal()


def _actions(place: str, action: str) -> list[dict[str, Any]]:
    """Of one kind, those in a file of one of Delta's checkpoints. Raises OSError, also for a file that
    decodes to far more than a checkpoint has: a few hundred bytes can hold a thousand million rows."""
    import pyarrow as pa
    from pyarrow import parquet

    ensure_file(place)
    system, path = file_system(place)
    found: list[dict[str, Any]] = []
    decoded = 0
    try:
        with parquet.ParquetFile(path, filesystem=system) as file:
            for batch in file.iter_batches(_rows_at_once(file.metadata, action), columns=_COLUMNS[action]):
                kept = batch.column(action).drop_null()
                if len(found) + len(kept) > _KEPT:
                    raise ValueError(_TOO_LARGE)
                # Of a dictionary, which is one text for many rows, Python has as many texts.
                rows = kept.to_pylist()
                decoded += batch.nbytes + sum(len(str(row)) for row in rows)
                if decoded > _DECODED:
                    raise ValueError(_TOO_LARGE)
                found += rows
    except (pa.ArrowException, KeyError, ValueError) as problem:
        raise OSError(f"{place} is damaged: {problem}") from None
    return found


def _rows_at_once(metadata: Any, action: str) -> int:
    """Of a checkpoint, so few that they fit even where each has the longest text that its file can hold."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    columns = (group.column(at) for group in groups for at in range(group.num_columns))
    read = [column for column in columns if column.path_in_schema.startswith(f"{action}.")]
    if sum(column.num_values for column in read) > _VALUES:
        raise ValueError(_TOO_LARGE)
    longest: int = max((column.total_uncompressed_size for column in read), default=0)
    return max(1, min(_ROWS, _DECODED // max(1, longest)))


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


def _commit(collection: str, version: int, data: bytes) -> Commit:
    info: dict[str, Any] = {}
    adds: list[dict[str, Any]] = []
    removes: list[str] = []
    changes: list[dict[str, Any]] = []
    transaction: tuple[str, int] | None = None
    features: Features | None = None
    computing: tuple[str, ...] | None = None
    partitions: Mapping[str, str] | None = None
    for line in data.splitlines():
        action = json.loads(line)
        if "commitInfo" in action:
            info = action["commitInfo"]
        elif "add" in action:
            adds.append(action["add"])
        elif "cdc" in action:
            changes.append(action["cdc"])
        elif "remove" in action:
            removes.append(action["remove"]["path"])
        elif "txn" in action:
            transaction = str(action["txn"]["appId"]), int(action["txn"]["version"])
        elif "protocol" in action:
            features = _features(action["protocol"])
        elif "metaData" in action:
            computing = _computing(action["metaData"])
            partitions = _partitions(action["metaData"])
    metrics = info.get("operationMetrics") or {}
    return Commit(
        version=version,
        step=_step(info, transaction),
        rows=_rows(info, metrics),
        bytes=sum(file["size"] for file in changes or adds),
        time=info["timestamp"] / 1000 if "timestamp" in info else None,
        adds=tuple(
            Add(
                name=add["path"],
                place=_file(collection, add["path"]),
                modified=int(add.get("modificationTime", 0)),
                has_new_rows=bool(add.get("dataChange", True)),
                partition=add.get("partitionValues") or {},
            )
            for add in adds
        ),
        removes=tuple(removes),
        transaction=transaction,
        merged=int(metrics["numSourceRows"]) if "numSourceRows" in metrics else None,
        is_vacuum=str(info.get("operation", "")).startswith("VACUUM"),
        changes=tuple(_file(collection, file["path"]) for file in changes),
        features=features,
        computing=computing,
        partitions=partitions,
    )


def _features(protocol: Mapping[str, Any]) -> Features:
    """Of a table's `protocol`; one of the time before features has none, and each Delta can read it."""
    reading, writing = protocol.get("readerFeatures"), protocol.get("writerFeatures")
    return Features(reading=frozenset(map(str, reading or ())), writing=frozenset(map(str, writing or ())))


def _computing(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Of a table's `metaData`, the properties and the columns, sorted."""
    settings = dict(metadata.get("configuration") or {})  # of a checkpoint: pairs
    found = {name for name in settings if name.lower().startswith(_CONSTRAINTS)}
    _look_at(json.loads(metadata["schemaString"]), "", found)
    return tuple(sorted(found))


def _partitions(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Of a table's `metaData`."""
    types = {field["name"]: field["type"] for field in json.loads(metadata["schemaString"])["fields"]}
    return {name: types[name] for name in metadata.get("partitionColumns") or ()}


def _look_at(type_: Any, column: str, found: set[str]) -> None:
    """Add the columns of a type, in Delta's JSON, that compute something or name a class."""
    if not isinstance(type_, dict):
        return
    if type_.get("type") == "udt":
        found.add(column)
    for field in type_.get("fields") or ():
        name = f"{column}.{field['name']}" if column else str(field["name"])
        if any(key.startswith(_COMPUTING) for key in field.get("metadata") or ()):
            found.add(name)
        _look_at(field["type"], name, found)
    for part in ("elementType", "keyType", "valueType", "type"):
        _look_at(type_.get(part), column, found)


def _step(info: dict[str, Any], transaction: tuple[str, int] | None) -> int | None:
    """Of which step a commit says that it is: Spark's own sink names it, what is written a micro-batch at a
    time (MERGE, WRITE) has it as its transaction."""
    if info.get("operation") in ("MERGE", "WRITE"):
        return transaction[1] if transaction is not None else None
    epoch = (info.get("operationParameters") or {}).get("epochId")
    return int(epoch) if info.get("operation") == "STREAMING UPDATE" and epoch is not None else None


def _rows(info: dict[str, Any], metrics: dict[str, Any]) -> int | None:
    if info.get("operation") == "MERGE":
        counted = [metrics.get(f"numTargetRows{what}") for what in ("Inserted", "Updated", "Deleted")]
        return sum(int(one) for one in counted if one is not None) if any(counted) else None
    return int(metrics["numOutputRows"]) if "numOutputRows" in metrics else None


def _file(collection: str, path: str) -> str:
    path = unquote(path)
    return path if is_uri(path) or path.startswith("/") else f"{collection}/{path}"
