"""Reading what a files sink has written, without Spark: each row once.

Spark's file sink lists what counts in `_spark_metadata`; a file that is not listed is what a killed attempt
has left. Spark itself follows the list; other readers can ask here for the files:

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
    """The paths of the files that count, in the order of their steps. Empty before the first step.

    Raises ValueError for a list that this version does not know. A step that is being written just now is in
    the list whole, or not yet.
    """
    log = Path(folder) / LOG
    batches = {path.name: path for path in log.iterdir()} if log.is_dir() else {}
    compacted = [int(name.removesuffix(_COMPACT)) for name in batches if name.endswith(_COMPACT)]
    # A compacted entry holds all before it, and itself.
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
    """A path of the list, as a path or, in an object store, as its URI."""
    parts = urlsplit(uri)
    return unquote(parts.path) if parts.scheme in ("", "file") else uri
