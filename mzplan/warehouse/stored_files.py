"""Counts the files in a warehouse folder, and finds steps that are missing in the Delta table.

A step can be done in a checkpoint but missing in the table. This happens if the table was restored to an
older copy. Spark doesn't notice it: the next step gets the version of the lost step, and the lost rows stay
unnoticed. But each step is a commit, even without rows, and the commit has the query's id and the step's
number (`txn`). So if a done step has no commit, or if there is a gap between the commits of a query, somebody
has changed the table from outside.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from mzplan.host.files import UnfitError
from mzplan.warehouse.checkpoint_log import CheckpointLog
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.folder import exists, remote
from mzplan.warehouse.paths import local_path

_MAX_COMMITS = 20  # of the query to look at, if there is no result of an earlier check


class HeldStep(NamedTuple):
    """A version of a table, and the query's step that it holds."""

    version: int
    step: int


def lost_steps(
    table: CollectionLog, log: CheckpointLog, last_complete: HeldStep | None = None
) -> tuple[int, int] | None:
    """Return the first and last step that are missing in the table. For several gaps, return the newest one.

    Returns None if no step is missing, or if that is unknown: the commits of a hand-written query may not
    have the steps' numbers. `last_complete`: up to here, an earlier check found no step missing (see
    `newest_held`). Raises OSError."""
    query_id, committed = log.query_id(), log.last_written()
    if query_id is None or committed < 0:
        return None
    steps: list[int] = []
    for held in _held_steps(table, query_id):
        if (
            not steps
            and last_complete is not None
            and held.version - last_complete.version == held.step - last_complete.step
        ):
            # Every version since `last_complete` is a step.
            return (held.step + 1, committed) if held.step < committed else None
        steps.insert(0, held.step)
        if held.step <= last_complete.step if last_complete is not None else len(steps) == _MAX_COMMITS:
            break
    if not steps:
        newest = table.last_transaction(query_id)
        if newest is None:
            return (0, committed) if _names_its_steps(table) else None
        steps = [newest]
    if steps[-1] < committed:
        return steps[-1] + 1, committed
    planned = log.planned()
    for before, after in reversed(list(pairwise(steps))):
        # A gap counts only if the checkpoint has its steps.
        if any(log.is_written(step) for step in planned if before < step < after):
            return before + 1, after - 1
    return None


def newest_held(table: CollectionLog, log: CheckpointLog) -> HeldStep | None:
    """Return the newest step that the table holds. Raises OSError."""
    query_id = log.query_id()
    return next(_held_steps(table, query_id), None) if query_id is not None else None


def _held_steps(table: CollectionLog, query_id: str) -> Iterator[HeldStep]:
    """Yield the query's commits in the log, the newest first."""
    for version in reversed(table.versions()):
        commit = table.commit(version)
        if commit is not None and commit.transaction is not None and commit.transaction[0] == query_id:
            yield HeldStep(version, commit.transaction[1])


def _names_its_steps(table: CollectionLog) -> bool:
    """Whether all commits with rows in the log name their writer. False for an empty log."""
    commits = [table.commit(version) for version in table.versions()]
    return bool(commits) and all(
        commit is None or commit.transaction is not None or not commit.adds for commit in commits
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFiles:
    """The files below a folder.

    `changed`: the time of the last write to any of them, in seconds since the epoch; None if unknown."""

    files: int = 0
    bytes: int = 0
    changed: float | None = None


def stored_in(folder: str) -> StoredFiles | None:
    """Return the files below a folder; None if it is missing. Follows no links. Raises OSError."""
    local = local_path(folder)
    if local is not None:
        try:
            return _stored_locally(local) if exists(folder) and local.is_dir() else None
        except UnfitError:
            return None
    from pyarrow import fs

    system, path = remote(folder)
    infos = system.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
    files = [info for info in infos if info.type == fs.FileType.File]
    times = [info.mtime_ns for info in files]
    has_times = bool(times) and None not in times
    size = sum(info.size or 0 for info in files)
    return (
        StoredFiles(files=len(files), bytes=size, changed=max(times) / 1e9 if has_times else None)
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
                status = os.lstat(f"{place}/{name}")
            except FileNotFoundError:
                continue  # a writer has renamed or removed it meanwhile
            changed = max(changed, status.st_mtime)
            if name in names:
                files, size = files + 1, size + status.st_size
    return StoredFiles(files=files, bytes=size, changed=changed)
