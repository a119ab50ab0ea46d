"""Where a query keeps what it must not lose, below the warehouse; and the recorded identity of its upstream.

    <warehouse>/collections/<id>/g<n>              the Delta table of a source
    <warehouse>/checkpoints/<id>/g<n>/spark        Spark's checkpoint
    <warehouse>/checkpoints/<id>/g<n>/upstream.json
    <warehouse>/checkpoints/<id>/g<n>/collection.json
    <warehouse>/checkpoints/<id>/g<n>/steps        what a durable endpoint remembers of its steps
    <warehouse>/checkpoints/<id>/g<n>/backfills    which step of a source is a backfill, and of what
    <warehouse>/checkpoints/<id>/g<n>/delivery.json
    <warehouse>/checkpoints/<id>/g<n>/begun.json
    <warehouse>/checkpoints/<id>/g<n>/versions.json

`collection.json` has the id of the source's table: a query that runs makes a table anew that somebody has
removed under it, and nobody would miss the rows. `upstream.json` is written before the very first start,
for Spark's offsets don't say what they count. It is read without Spark, so that a check works before a
session is open. `delivery.json` says how a sink has written last, and where to: what its target remembers
of steps means something only with that. `begun.json` says under which descriptions its steps began.
`versions.json`: which Spark and Delta have written here last, recorded before they do.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mzplan.host.files import UnfitError
from mzplan.host.guarded import GuardedFolder
from mzplan.model.address import ID, Place
from mzplan.model.codec import decode, encode
from mzplan.model.observed import Versions
from mzplan.warehouse.backfills import Backfills
from mzplan.warehouse.begun import History
from mzplan.warehouse.checkpoint_log import CheckpointLog
from mzplan.warehouse.folder import is_there, open_folder, read_text, remote, write_text
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

    @property
    def log(self) -> CheckpointLog:
        """What Spark has logged there."""
        return CheckpointLog(self.spark)

    @property
    def backfills(self) -> Backfills:
        """Those of a source."""
        return Backfills(self.folder)

    @property
    def steps(self) -> str:
        """Where a durable endpoint keeps what it must remember of its steps; it goes with the generation."""
        return f"{self.folder}/steps"

    def position(self) -> str | None:
        """The source's entry in Spark's offset log after which it resumes; None when no batch is done.

        Raises OSError.
        """
        log = self.log
        return log.entry(log.committed())

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
        recorded = self._fact("departure")
        return recorded if recorded is not None and self.log.committed() <= recorded["batch"] else None

    def record_departure(self, upstream: Mapping[str, Any], position: str) -> None:
        """Write down, durably, what a move is about to leave."""
        fact = {"upstream": dict(upstream), "position": position, "batch": self.log.committed() + 1}
        self._record("departure", fact)

    def forget_departure(self) -> None:
        """It has been gone back to."""
        self._record("departure", {"upstream": {}, "position": "", "batch": -2})

    def collection(self) -> str | None:
        """The id of the Delta table that the source writes, None if it was not recorded. Raises OSError."""
        recorded = self._fact("collection")
        return str(recorded["table"]) if recorded is not None else None

    def record_collection(self, table_id: str) -> None:
        """Write down, durably and whole, which table the source writes: another one is not its own."""
        self._record("collection", {"table": table_id})

    def delivery(self) -> dict[str, Any] | None:
        """How the sink has written last: `{delivery, target}`, where `target` is its target's identity. None
        if nothing was recorded. Raises OSError, also for a file that holds something else."""
        return self._fact("delivery")

    def record_delivery(self, delivery: Mapping[str, Any]) -> None:
        """Write down, durably and whole, how the sink writes from now on."""
        self._record("delivery", delivery)

    def begun(self) -> History:
        """Under which descriptions the steps of a sink began. Raises OSError, also for a file that holds
        something else."""
        recorded = self._fact("begun")
        try:
            return decode(History, recorded) if recorded is not None else History()
        except ValueError as problem:
            raise OSError(f"{self.folder}/begun.json is damaged: {problem}") from None

    def record_begun(self, history: History) -> None:
        """Write it down, durably and whole, before a step begins under the last of them."""
        self._record("begun", encode(history))

    def versions(self) -> Versions | None:
        """What has written here last; None where nothing was recorded, as by an older mzplan. Raises OSError,
        also for a file that holds something else."""
        recorded = self._fact("versions")
        try:
            return decode(Versions, recorded) if recorded is not None else None
        except ValueError as problem:
            raise OSError(f"{self.folder}/versions.json is damaged: {problem}") from None

    def record_versions(self, versions: Versions) -> None:
        """Write down, durably and whole, what is about to write here."""
        self._record("versions", encode(versions))

    def leaves(self) -> dict[str, Any] | None:
        """The description (as JSON) of a query that has made something on its upstream or in its target, to
        be removed with this generation; None if nothing was recorded, empty once it is done. Raises
        OSError."""
        return self._fact("leaves")

    def record_leaves(self, description: Mapping[str, Any]) -> None:
        """Write down, durably and whole, whose it is."""
        self._record("leaves", description)

    def layout(self) -> int:
        """The version of mzplan's own layout here, 1 where nothing else was recorded. Raises OSError."""
        recorded = self._fact("layout")
        return int(recorded["version"]) if recorded is not None else 1

    def _fact(self, name: str) -> dict[str, Any] | None:
        text = read_text(f"{self.folder}/{name}.json")
        if text is None:
            return None
        try:
            return dict(json.loads(text)[name])
        except (ValueError, KeyError, TypeError) as problem:
            raise OSError(f"{self.folder}/{name}.json is damaged: {problem}") from None

    def _record(self, name: str, fact: Mapping[str, Any]) -> None:
        data = {"format_version": FORMAT_VERSION, name: dict(fact)}
        write_text(f"{self.folder}/{name}.json", json.dumps(data, indent=2, sort_keys=True) + "\n")


def places_below(warehouse: str) -> list[Place]:
    """The id and generation of everything that has storage in a warehouse, sorted. What has another name than
    mzplan gives is none of it, and what is a link leads elsewhere. Raises OSError."""
    found = set()
    for kind in ("collections", "checkpoints"):
        for id_ in filter(ID.fullmatch, _folders(warehouse, kind)):
            names = _folders(warehouse, f"{kind}/{id_}")
            found |= {(id_, int(name[1:])) for name in names if _GENERATION.fullmatch(name)}
    return sorted(found)


def _folders(warehouse: str, inner: str) -> list[str]:
    local = local_path(warehouse)
    if local is None:
        return open_folder(absolute(warehouse, inner)).names()
    if not local.is_dir():
        return []
    try:
        found = GuardedFolder(local).entries(inner)
    except NotADirectoryError:
        return []
    return [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]


def table_id(collection: str) -> str | None:
    """The id that a Delta table got when it was made; None where its log does not reach back to that (it is
    an old one), or has none. Raises OSError."""
    for line in (read_text(f"{collection}/_delta_log/{0:020}.json") or "").splitlines():
        try:
            action = json.loads(line)
        except ValueError:
            return None
        if isinstance(action, dict) and isinstance(action.get("metaData"), dict):
            return str(action["metaData"].get("id"))
    return None


def is_untouched(collection: str) -> bool:
    """Whether a collection's table was created and never written: its log ends at version 0.

    False also where that can't be seen.
    """
    try:
        first, second = (read_text(f"{collection}/_delta_log/{version:020}.json") for version in (0, 1))
    except OSError:
        return False
    return first is not None and second is None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFiles:
    """What is below a folder. `changed`: when anything of it was last written, in seconds since the epoch;
    None where that is not known."""

    files: int = 0
    bytes: int = 0
    changed: float | None = None


def stored_in(folder: str) -> StoredFiles | None:
    """What is below a folder, None if that is not there. Links are not followed. Raises OSError."""
    local = local_path(folder)
    if local is not None:
        try:
            return _stored_locally(local) if is_there(folder) and local.is_dir() else None
        except UnfitError:
            return None
    from pyarrow import fs

    system, path = remote(folder)
    infos = system.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
    files = [info for info in infos if info.type == fs.FileType.File]
    times = [info.mtime_ns for info in files]
    known = bool(times) and None not in times
    size = sum(info.size or 0 for info in files)
    return (
        StoredFiles(files=len(files), bytes=size, changed=max(times) / 1e9 if known else None)
        if infos
        else None
    )


def _stored_locally(folder: Path) -> StoredFiles:
    def failed(problem: OSError) -> None:
        if not isinstance(problem, FileNotFoundError):
            raise problem

    files, size, changed = 0, 0, folder.stat().st_mtime
    for place, folders, names in os.walk(folder, onerror=failed):
        for name in (*folders, *names):
            try:
                found = os.lstat(f"{place}/{name}")
            except FileNotFoundError:
                continue  # what a writer has renamed or removed meanwhile
            changed = max(changed, found.st_mtime)
            if name in names:
                files, size = files + 1, size + found.st_size
    return StoredFiles(files=files, bytes=size, changed=changed)
