"""What a streaming query that somebody wrote by hand has left: a checkpoint, and a Delta table.

A checkpoint goes on in a copy: with its query id, its log of offsets and commits, and what its source has
logged. So does its Delta table, whose log says which micro-batch of that query it has. Together they go
on exactly where the query stopped: a micro-batch that was planned and not finished is planned again with the
same offsets, and the table knows whether it has it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mzplan.host.guarded import GuardedFolder
from mzplan.warehouse.checkpoint_log import CheckpointLog
from mzplan.warehouse.checkpoints import Checkpoint, collection_path
from mzplan.warehouse.folder import (
    decoding,
    ensure_plain,
    ensure_readable_log,
    file_system,
    open_folder,
    read_text,
)
from mzplan.warehouse.paths import absolute, local_path, split_storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What a query has left: where, and how far it had come. `planned` and `done` are the newest numbers of
    its logs, -1 for none; `position` is its source's newest entry in the log of offsets."""

    checkpoint: str
    table: str
    query_id: str
    planned: int
    done: int
    position: str
    version: int

    @property
    def mark(self) -> tuple[int, int, int]:
        """Differs once the query has gone on."""
        return (self.planned, self.done, self.version)


class NotAdoptableError(Exception):
    """Why a query can't be adopted: all reasons, each a sentence."""

    def __init__(self, *reasons: str):
        super().__init__(" ".join(reasons))
        self.reasons = reasons


def look(checkpoint: str, table: str) -> Left:
    """Read what is there. Raises RefusedError, and OSError for what the storage did."""
    for folder in (checkpoint, table):
        ensure_plain(folder, deep=True)
    log = CheckpointLog(checkpoint)
    query_id = log.query_id()
    if query_id is None:
        raise NotAdoptableError(f"{checkpoint} is no checkpoint of a streaming query: it has no metadata.")
    planned = log.newest()
    if planned < 0:
        raise NotAdoptableError("The query has not read anything yet: declare the source as new.")
    if open_folder(f"{checkpoint}/state").names():
        raise NotAdoptableError(
            "The query keeps state (an aggregation, a join, or dropped duplicates), and a source does not."
        )
    lines = log.lines(planned)
    if lines[:1] != ["v1"] or len(lines) != 3:
        raise NotAdoptableError(
            f"The query reads {max(0, len(lines) - 2)} upstreams, and a source reads one."
            if lines[:1] == ["v1"]
            else "Its log of offsets is of a format that is not known."
        )
    return Left(
        checkpoint=checkpoint,
        table=table,
        query_id=query_id,
        planned=planned,
        done=log.committed(),
        position=lines[2],
        version=open_table(table).version(),
    )


def copy(left: Left, warehouse: str, id_: str) -> None:
    """Copy it to where a query of this id has it, generation 1. Raises OSError; RefusedError when the query
    went on meanwhile."""
    _copy(left.table, collection_path(warehouse, id_, 1))
    _copy(left.checkpoint, Checkpoint.of(warehouse, id_, 1).spark)
    if look(left.checkpoint, left.table).mark != left.mark:
        raise NotAdoptableError("The query still runs: it has written while it was copied. Stop it first.")


def files_read(left: Left) -> Iterator[str]:
    """The files that a file stream has logged as read, as URIs."""
    folder = f"{left.checkpoint}/sources/0"
    for name in open_folder(folder).names():
        for line in (read_text(f"{folder}/{name}") or "").splitlines()[1:]:
            with decoding(f"{folder}/{name}"):
                path = str(json.loads(line)["path"])
            yield path


def open_table(table: str) -> Any:
    """A deltalake.DeltaTable, without Spark. Raises RefusedError, OSError."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    ensure_readable_log(table)
    try:
        return DeltaTable(table.replace("s3a://", "s3://", 1))
    except (DeltaError, ValueError) as problem:
        problems = str(problem).splitlines()[0][:200]
        raise NotAdoptableError(f"{table} is not a Delta table that can be read here: {problems}.") from None


def _copy(from_: str, to: str) -> None:
    one, other = local_path(from_), local_path(to)
    if one is not None and other is not None:
        root, inner = split_storage(other)
        _copy_folder(GuardedFolder(one), GuardedFolder(root, inner))
        return
    from pyarrow import fs

    (source, path), (target, place) = file_system(from_), file_system(to)
    fs.copy_files(path, place, source_filesystem=source, destination_filesystem=target)


def _copy_folder(source: GuardedFolder, target: GuardedFolder, inner: str = "") -> None:
    """No link is followed, on either side. Of data, which Delta never changes in place, the copy is a second
    name where the disk allows one."""
    with target.folder(inner, make=True) as there:
        for entry in source.entries(inner):
            name = f"{inner}/{entry.name}".lstrip("/")
            if entry.is_dir(follow_symlinks=False):
                _copy_folder(source, target, name)
                continue
            with os.fdopen(source.open(name), "rb") as file:
                is_data = name.endswith(".parquet") and "_delta_log" not in name.split("/")
                if is_data and _linked(source.path(name), entry.name, there):
                    continue
                with target.replacing(name, durable=False) as copied:
                    shutil.copyfileobj(file, copied)


def _linked(from_: Path, name: str, folder: int) -> bool:
    try:
        os.link(from_, name, dst_dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True


def place(path: str) -> str:
    """A path as a person gives it on the command line: relative to where they are."""
    return absolute(str(Path.cwd()), path)
