"""Reading what a files sink has written, without Spark: each row once.

Spark's file sink lists the valid files in `_spark_metadata`; a file that is not listed was left by a killed
attempt. Spark itself follows the list; other readers can get it here:

    from mzplan.connectors.files.manifest import committed_files
    table = pyarrow.parquet.ParquetDataset(committed_files("/lake/orders")).read()
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOG = "_spark_metadata"
_COMPACT = ".compact"
_VERSION = "v1"


def committed_files(folder: str | Path) -> list[str]:
    """The paths of the valid files, in the order of their steps. Empty before the first step.

    Raises ValueError for a list in an unknown version. A step that is just being written is in the list
    whole, or not at all.
    """
    log = Path(folder) / LOG
    batches = {path.name: path for path in log.iterdir()} if log.is_dir() else {}
    compacted = [int(name.removesuffix(_COMPACT)) for name in batches if name.endswith(_COMPACT)]
    # A compacted entry contains all entries before it, and its own.
    start = max(compacted, default=-1)
    later = sorted(int(name) for name in batches if name.isdecimal() and int(name) > start)
    names = ([f"{start}{_COMPACT}"] if compacted else []) + [str(number) for number in later]
    return [path for name in names for path in _files(batches[name])]


def _files(entry: Path) -> list[str]:
    version, *lines = entry.read_text(encoding="utf-8").splitlines()
    if version != _VERSION:
        raise ValueError(f"{entry} is of version {version!r}, not {_VERSION!r}")
    found = (json.loads(line) for line in lines)
    return [listed_path(file["path"]) for file in found if file.get("action", "add") == "add"]


def listed_path(uri: str) -> str:
    """An entry of the list as a local path or, in an object store, as its URI."""
    parts = urlsplit(uri)
    return unquote(parts.path) if parts.scheme in ("", "file") else uri
