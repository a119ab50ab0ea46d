"""Keeping the log of a Delta table short.

Delta itself removes entries of its log that are older than `delta.logRetentionDuration`, a property of the
table, which can't follow who still reads it. So collections are made with one that is never reached, and what
nobody needs is removed here, as Delta does it: everything before a checkpoint. It is no commit, and nobody
who reads from that checkpoint on notices.
"""

from __future__ import annotations

import bisect
import re

from mzplan.endpoints.folder import LocalFolder, open_folder
from mzplan.steps.collection_log import CollectionLog

# Commits, their checksums, and checkpoints, whole or in parts.
_ENTRY = re.compile(r"(\d{20})\.(json|crc|checkpoint\.[0-9a-z.-]+)")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")


def clean_log(table: CollectionLog, version: int, when: float) -> int:
    """Remove what is before the newest checkpoint that is not after `version`, and older than `when` (seconds
    since the epoch); from there on, every version can be read as before. How many entries that were. Raises
    OSError for what the storage did."""
    folder = open_folder(f"{table.collection}/_delta_log")
    names = folder.names()
    checkpoints = [int(found[1]) for name in names if (found := _CHECKPOINT.fullmatch(name))]

    def is_young(one: int) -> bool:
        commit = table.commit(one)
        return commit is None or commit.time is None or commit.time >= when

    possible = sorted(one for one in checkpoints if one <= version)
    old = bisect.bisect_left(possible, True, key=is_young)
    first = possible[old - 1] if old else 0
    gone = [name for name in names if (found := _ENTRY.fullmatch(name)) and int(found[1]) < first]
    for name in gone:  # oldest first: stopped half-way, the log is as whole as it was
        folder.delete(name)
        if isinstance(folder, LocalFolder):
            folder.delete(f".{name}.crc")  # Hadoop's, of each file on a file system
    return len(gone)
