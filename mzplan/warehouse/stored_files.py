"""Counts the files in a warehouse folder, with their total size and last change."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from mzplan.host.files import UnfitError
from mzplan.warehouse.folder import exists, remote
from mzplan.warehouse.paths import local_path


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
