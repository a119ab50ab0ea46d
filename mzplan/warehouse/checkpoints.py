"""Where a query keeps what it must not lose, below the warehouse; and the recorded identity of its upstream.

    <warehouse>/collections/<id>/g<n>              the Delta table of a source
    <warehouse>/checkpoints/<id>/g<n>/spark        Spark's checkpoint
    <warehouse>/checkpoints/<id>/g<n>/upstream.json
    <warehouse>/checkpoints/<id>/g<n>/collection.json
    <warehouse>/checkpoints/<id>/g<n>/steps        what a durable endpoint remembers of its steps
    <warehouse>/checkpoints/<id>/g<n>/delivery.json

`collection.json` has the id of the source's table: a query that runs makes a table anew that somebody has
removed under it, and nobody would miss the rows. `upstream.json` is written before the very first start,
for Spark's offsets don't say what they count. It is read without Spark, so that a check works before a
session is open. `delivery.json` says how a sink has written last, and where to: what its target remembers
of steps means something only with that.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mzplan.model.address import Place
from mzplan.model.reading import ID
from mzplan.warehouse.paths import absolute, local_path

FORMAT_VERSION = 1
_GENERATION = re.compile(r"g[1-9][0-9]{0,17}")


def collection_path(warehouse: str, id_: str, generation: int) -> str:
    """The path or URI of a source's Delta table."""
    return absolute(warehouse, f"collections/{id_}/g{generation}")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The checkpoint of one generation of a query."""

    folder: str

    @classmethod
    def of(cls, warehouse: str, id_: str, generation: int) -> Checkpoint:
        return cls(absolute(warehouse, f"checkpoints/{id_}/g{generation}"))

    @property
    def spark(self) -> str:
        """Spark's own checkpoint location."""
        return f"{self.folder}/spark"

    def has_begun(self) -> bool:
        """Whether Spark has noted down offsets here, so that they mean something from now on."""
        return any(_names(f"{self.spark}/{inner}") for inner in ("sources", "offsets"))

    @property
    def steps(self) -> str:
        """Where a durable endpoint keeps what it must remember of its steps; it goes with the generation."""
        return f"{self.folder}/steps"

    def position(self) -> str | None:
        """The source's entry in Spark's offset log after which it resumes; None when no batch is done.

        Raises OSError.
        """
        return self._entry("commits")

    def logged(self) -> str | None:
        """The source's newest entry in Spark's offset log, its batch done or not; None when there is none.

        Raises OSError.
        """
        return self._entry("offsets")

    def _entry(self, log: str) -> str | None:
        numbers = [int(name) for name in _names(f"{self.spark}/{log}") if name.isdecimal()]
        text = _read(f"{self.spark}/offsets/{max(numbers)}") if numbers else None
        # A version, the batch's settings, then one line for each source.
        lines = (text or "").splitlines()
        return lines[2] if len(lines) == 3 else None

    def unfinished(self) -> int | None:
        """The micro-batch that Spark has planned and not noted down as done, so that it is run again: its
        rows may be in the target. None if there is none. Raises OSError."""
        numbers = {
            inner: [int(name) for name in _names(f"{self.spark}/{inner}") if name.isdecimal()]
            for inner in ("offsets", "commits")
        }
        planned, done = (max(numbers[inner], default=-1) for inner in ("offsets", "commits"))
        return planned if planned > done else None

    def done(self) -> int:
        """The last micro-batch that Spark has noted down as done; -1 if there is none. Raises OSError."""
        return self._last("commits")

    def query_id(self) -> str | None:
        """The id of the streaming query that this checkpoint is of; None before its first start. Raises
        OSError."""
        text = _read(f"{self.spark}/metadata")
        try:
            return str(json.loads(text)["id"]) if text else None
        except (ValueError, KeyError, TypeError) as problem:
            raise OSError(f"{self.spark}/metadata is damaged: {problem}") from None

    def upstream(self) -> dict[str, Any] | None:
        """The recorded identity of the upstream, None if there is none. Raises OSError, also for a file
        that holds something else."""
        return self._fact("upstream")

    def record_upstream(self, upstream: Mapping[str, Any]) -> None:
        """Write the identity down, durably and whole."""
        self._record("upstream", upstream)

    def departure(self) -> dict[str, Any] | None:
        """The upstream that the checkpoint was last moved away from and its position there, `{upstream,
        position, batch}`; None once a batch of the new one is done. Raises OSError."""
        noted = self._fact("departure")
        return noted if noted is not None and self._last("commits") <= noted["batch"] else None

    def note_departure(self, upstream: Mapping[str, Any], position: str) -> None:
        """Write down, durably, what a move is about to leave."""
        fact = {"upstream": dict(upstream), "position": position, "batch": self._last("commits") + 1}
        self._record("departure", fact)

    def forget_departure(self) -> None:
        """It has been gone back to."""
        self._record("departure", {"upstream": {}, "position": "", "batch": -2})

    def move(self, position: str) -> None:
        """Let the next batch begin at `position`: a micro-batch without rows, planned and done at once. One
        that was planned before and is not done is replaced by it. The query must not run. Raises OSError."""
        batch = self._last("commits") + 1
        planned = self._last("offsets")
        text = _read(f"{self.spark}/offsets/{planned}") if planned >= 0 else None
        head = (text or "").splitlines()[:2]
        if len(head) < 2:
            settings = {"batchWatermarkMs": 0, "batchTimestampMs": int(time.time() * 1000), "conf": {}}
            head = ["v1", json.dumps(settings)]
        done = _read(f"{self.spark}/commits/{batch - 1}") if batch else None
        _replace(f"{self.spark}/offsets", str(batch), "\n".join([*head, position]))
        _replace(f"{self.spark}/commits", str(batch), done or 'v1\n{"nextBatchWatermarkMs":0}')

    def _last(self, log: str) -> int:
        return max((int(n) for n in _names(f"{self.spark}/{log}") if n.isdecimal()), default=-1)

    def collection(self) -> str | None:
        """The id of the Delta table that the source writes, None if it was not noted down. Raises OSError."""
        noted = self._fact("collection")
        return str(noted["table"]) if noted is not None else None

    def record_collection(self, table_id: str) -> None:
        """Write down, durably and whole, which table the source writes: another one is not its own."""
        self._record("collection", {"table": table_id})

    def delivery(self) -> dict[str, Any] | None:
        """How the sink has written last: `{delivery, target}`, where `target` is its target's identity. None
        if nothing was noted down. Raises OSError, also for a file that holds something else."""
        return self._fact("delivery")

    def record_delivery(self, delivery: Mapping[str, Any]) -> None:
        """Write down, durably and whole, how the sink writes from now on."""
        self._record("delivery", delivery)

    def leaves(self) -> dict[str, Any] | None:
        """The description (as JSON) of a source that has made something on its upstream, to be removed when
        this generation is given up; None if nothing was noted down, empty once it is done. Raises OSError."""
        return self._fact("leaves")

    def record_leaves(self, description: Mapping[str, Any]) -> None:
        """Write down, durably and whole, whose it is."""
        self._record("leaves", description)

    def layout(self) -> int:
        """The version of mzplan's own layout here, 1 where nothing else was noted. Raises OSError."""
        noted = self._fact("layout")
        return int(noted["version"]) if noted is not None else 1

    def _fact(self, name: str) -> dict[str, Any] | None:
        text = _read(f"{self.folder}/{name}.json")
        if text is None:
            return None
        try:
            return dict(json.loads(text)[name])
        except (ValueError, KeyError, TypeError) as problem:
            raise OSError(f"{self.folder}/{name}.json is damaged: {problem}") from None

    def _record(self, name: str, fact: Mapping[str, Any]) -> None:
        data = {"format_version": FORMAT_VERSION, name: dict(fact)}
        _write(f"{self.folder}/{name}.json", json.dumps(data, indent=2, sort_keys=True) + "\n")


def _replace(folder: str, name: str, text: str) -> None:
    """Write an entry of Spark's logs, without the checksum of what was there."""
    local = local_path(folder)
    if local is not None:
        (local / f".{name}.crc").unlink(missing_ok=True)
    _write(f"{folder}/{name}", text)


def places_below(warehouse: str) -> list[Place]:
    """The id and generation of everything that has storage in a warehouse, sorted. What has another name than
    mzplan gives is none of it, and what is a link leads elsewhere. Raises OSError."""
    found = set()
    for kind in ("collections", "checkpoints"):
        for id_ in filter(ID.fullmatch, _folders(absolute(warehouse, kind))):
            names = _folders(absolute(warehouse, f"{kind}/{id_}"))
            found |= {(id_, int(name[1:])) for name in names if _GENERATION.fullmatch(name)}
    return sorted(found)


def _folders(folder: str) -> list[str]:
    local = local_path(folder)
    if local is None:
        return _names(folder)
    there = local.iterdir() if local.is_dir() else ()
    return [path.name for path in there if path.is_dir() and not path.is_symlink()]


def table_id(collection: str) -> str | None:
    """The id that a Delta table got when it was made; None where its log does not reach back to that (it is
    an old one), or has none. Raises OSError."""
    for line in (_read(f"{collection}/_delta_log/{0:020}.json") or "").splitlines():
        try:
            action = json.loads(line)
        except ValueError:
            return None
        if isinstance(action, dict) and isinstance(action.get("metaData"), dict):
            return str(action["metaData"].get("id"))
    return None


def is_untouched(collection: str) -> bool:
    """Whether a collection's table was created and never written: its log ends at version 0.

    False also where that can't be told.
    """
    try:
        first, second = (_read(f"{collection}/_delta_log/{version:020}.json") for version in (0, 1))
    except OSError:
        return False
    return first is not None and second is None


def is_there(place: str) -> bool:
    """Whether a file is there. Raises OSError where that can't be told."""
    local = local_path(place)
    if local is not None:
        return local.exists()
    from pyarrow import fs

    system, path = remote(place)
    return bool(system.get_file_info(path).type != fs.FileType.NotFound)


def _names(folder: str) -> list[str]:
    local = local_path(folder)
    if local is not None:
        return [path.name for path in local.iterdir()] if local.is_dir() else []
    from pyarrow import fs

    system, path = remote(folder)
    return [info.base_name for info in system.get_file_info(fs.FileSelector(path, allow_not_found=True))]


def _read(place: str) -> str | None:
    local = local_path(place)
    if local is not None:
        try:
            return local.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
    system, path = remote(place)
    try:
        with system.open_input_stream(path) as stream:
            return str(stream.read().decode())
    except FileNotFoundError:
        return None


def _write(place: str, text: str) -> None:
    local = local_path(place)
    if local is not None:
        _write_durably(local, text)
        return
    system, path = remote(place)
    system.create_dir(path.rpartition("/")[0], recursive=True)
    with system.open_output_stream(path) as stream:  # object stores show an object when it is whole
        stream.write(text.encode())


def _write_durably(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remote(place: str) -> tuple[Any, str]:
    """The file system of a URI, and the path in it. Raises OSError, also for what is no URI of any."""
    from pyarrow import fs

    # Hadoop says s3a, everybody else s3.
    try:
        system, path = fs.FileSystem.from_uri(place.replace("s3a://", "s3://", 1))
    except ValueError as problem:
        raise OSError(f"{place}: {problem}") from None
    return system, path


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What is below a folder. `changed`: when anything of it was last written, in seconds since the epoch;
    None where that is not known."""

    files: int = 0
    bytes: int = 0
    changed: float | None = None


def stored_in(folder: str) -> Stored | None:
    """What is below a folder, None if that is not there. Links are not followed. Raises OSError."""
    local = local_path(folder)
    if local is not None:
        return _stored_locally(local) if local.is_dir() and not local.is_symlink() else None
    from pyarrow import fs

    system, path = remote(folder)
    infos = system.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
    files = [info for info in infos if info.type == fs.FileType.File]
    times = [info.mtime_ns for info in files]
    known = bool(times) and None not in times
    size = sum(info.size or 0 for info in files)
    return (
        Stored(files=len(files), bytes=size, changed=max(times) / 1e9 if known else None) if infos else None
    )


def _stored_locally(folder: Path) -> Stored:
    def failed(problem: OSError) -> None:
        raise problem

    files, size, changed = 0, 0, folder.stat().st_mtime
    for place, folders, names in os.walk(folder, onerror=failed):
        for name in (*folders, *names):
            found = os.lstat(f"{place}/{name}")
            changed = max(changed, found.st_mtime)
            if name in names:
                files, size = files + 1, size + found.st_size
    return Stored(files=files, bytes=size, changed=changed)
