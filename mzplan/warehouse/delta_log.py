"""Keeping the log of a Delta table short.

Delta itself removes entries of its log that are older than `delta.logRetentionDuration`, a property of the
table, which can't follow who still reads it. So collections are made with one that is never reached, and what
nobody needs is removed here, as Delta does it: everything before a checkpoint. It is no commit, and nobody
who reads from that checkpoint on notices.

It matters for speed: whoever looks at a table lists its log, several times in each micro-batch, and where the
storage can't list from a name on, that is all of it.
"""

from __future__ import annotations

import json
import re

from mzplan.warehouse.folder import Folder, delete_checksum, open_folder

# Commits, their checksums, and checkpoints, whole or in parts.
_ENTRY = re.compile(r"(\d{20})\.(json|crc|checkpoint\.[0-9a-z.-]+)")
_CHECKSUM = re.compile(r"(\d{20})\.crc")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
_VACUUMED = "_last_vacuum_info"


def clean_log(collection: str, version: int) -> int:
    """Remove what is before the newest checkpoint that neither `version` nor the next VACUUM … LITE needs
    more than; from there on, every version can be read as before. How many entries that were. Raises OSError
    for what the storage did."""
    folder = _log(collection)
    names = folder.names()
    limit = min(version, last_vacuumed(collection))
    first = max((one for one in _versions(names, _CHECKPOINT) if one <= limit), default=0)
    gone = [name for name in names if (found := _ENTRY.fullmatch(name)) and int(found[1]) < first]
    for name in gone:  # oldest first: stopped half-way, the log is as whole as it was
        _delete(folder, name)
    return len(gone)


def tidy_log(collection: str) -> int:
    """Remove the checksums of the versions before the newest checkpoint: nobody reads them any more, and they
    are three of four files that a commit leaves on a file system. How many. Raises OSError."""
    folder = _log(collection)
    names = folder.names()
    newest = max(_versions(names, _CHECKPOINT), default=0)
    old = [version for version in _versions(names, _CHECKSUM) if version < newest]
    for version in old:
        delete_checksum(folder, f"{version:020}.json")
        _delete(folder, f"{version:020}.crc")
    return len(old)


def last_vacuumed(collection: str) -> int:
    """The last version that is older than what the last VACUUM … LITE was to keep: the next one looks through
    the log from there on. -1 when there was none. Raises OSError."""
    data = _log(collection).read(_VACUUMED)
    try:
        return int(json.loads(data)["latestCommitVersionOutsideOfRetentionWindow"]) if data else -1
    except (ValueError, KeyError, TypeError):
        return -1


def _versions(names: list[str], pattern: re.Pattern[str]) -> list[int]:
    return [int(found[1]) for name in names if (found := pattern.fullmatch(name))]


def _log(collection: str) -> Folder:
    return open_folder(f"{collection}/_delta_log")


def _delete(folder: Folder, name: str) -> None:
    delete_checksum(folder, name)
    folder.delete(name)
