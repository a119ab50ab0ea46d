"""Lists the files that a files sink has written, without Spark. Together, they have each row once.

Spark's file sink lists the valid files in `_spark_metadata`; an unlisted file was left by a killed attempt.
Spark itself reads only listed files. Other readers can get the list here:

    from mzplan.connectors.files.manifest import committed_files
    table = pyarrow.parquet.ParquetDataset(committed_files("/lake/orders")).read()
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mzplan.warehouse.folder import Folder, open_folder
from mzplan.warehouse.paths import local_path

LOG = "_spark_metadata"
COMPACT = ".compact"
_VERSION = "v1"


def committed_files(folder: str | Path) -> list[str]:
    """Return the paths of the valid files, in the order of their steps. Empty before the first step.

    The list contains all files of a step or none, even while the step is being written. Raises ValueError for
    a list in an unknown version.
    """
    return read_list(str(folder))[1]


def read_list(folder: str) -> tuple[int, list[str]]:
    """Return the newest step in the list (-1 for none), and the files of all steps. Raises ValueError, and
    OSError for storage errors."""
    log = open_list(folder)
    names = log.names()
    # A compacted entry lists its own files and the files of all entries before it.
    compacted = max((int(n.removesuffix(COMPACT)) for n in names if n.endswith(COMPACT)), default=-1)
    later = sorted(int(name) for name in names if name.isdecimal() and int(name) > compacted)
    entries = [f"{compacted}{COMPACT}"] if compacted >= 0 else []
    files = [file for entry in [*entries, *map(str, later)] for file in files_of(log, entry) or ()]
    return max([compacted, *later]), files


def open_list(folder: str) -> Folder:
    """Open the list in a folder. Its entries are named `3` or `9.compact`."""
    return open_folder(f"{folder}/{LOG}")


def files_of(log: Folder, entry: str) -> list[str] | None:
    """Return the files of an entry, or None if it is missing. Raises ValueError, and OSError for storage
    errors."""
    data = log.read(entry)
    if data is None:
        return None
    version, *lines = data.decode().splitlines()
    if version != _VERSION:
        raise ValueError(f"{entry} in {LOG} is of version {version!r}, not {_VERSION!r}")
    files = (json.loads(line) for line in lines)
    return [_path(file["path"]) for file in files if file.get("action", "add") == "add"]


def hadoop_path(file: str) -> str:
    """Return a listed file's path as Hadoop and Spark write it: without the percent-encoding of a URI."""
    return file if local_path(file) is not None else unquote(file)


def _path(uri: str) -> str:
    """Return an entry's URI as a local path or, in an object store, unchanged."""
    parts = urlsplit(uri)
    return unquote(parts.path) if parts.scheme in ("", "file") else uri
