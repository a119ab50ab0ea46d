"""Missing files of a collection: whether Delta has removed a file, or it was lost.

A version may take a file out of the table (OPTIMIZE, MERGE), and VACUUM removes the file later. The table's
log records these two events. If the log doesn't have them, the file was lost.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.folder import decoding, open_folder

if TYPE_CHECKING:
    pass

_CHANGE_DATA = "/_change_data/"
_VACUUMED = "_last_vacuum_info"


class DamagedError(OSError):
    """A file of a collection is damaged or lost. The message names it, without a full stop."""


class GoneError(Exception):
    """A step can't be replayed from the collection any more. The message is a full sentence."""


class VacuumedError(GoneError):
    """A VACUUM has removed a file of the step."""


@dataclass(slots=True)
class _Removals:
    """The removals in a table's log.

    - `removed_in`: by file, the version that removed the file from the table.
    - `vacuums`: the log version of each VACUUM.
    - `last_checked`: the newest version that the last VACUUM … LITE checked; -1 if none ran.
    """

    removed_in: dict[str, int] = field(default_factory=dict)
    vacuums: list[int] = field(default_factory=list)
    last_checked: int = -1


_cache: WeakKeyDictionary[CollectionLog, _Removals] = WeakKeyDictionary()


def missing_file_error(log: CollectionLog, file: str, use: str) -> GoneError | DamagedError:
    """Return the error for a missing file. Reads the whole log, once. Raises OSError.

    `use`: a relative clause about the file for the message, such as "which step 3 has read"."""
    removals = _removals(log)
    removed_in = removals.removed_in.get(file)
    if removed_in is None and _CHANGE_DATA not in file:
        return DamagedError(
            f"{file}, {use}, is missing, and no version has taken it out of the table: neither mzplan nor "
            "Delta has removed it"
        )
    # No version takes files of the change feed out of the table. VACUUM removes them by their age.
    vacuum = next((version for version in removals.vacuums if version > (removed_in or 0)), None)
    if vacuum is None and removals.last_checked < (removed_in or 0):
        return DamagedError(
            f"{file}, {use}, is missing, and the table's log has no VACUUM that would have removed it"
        )
    by_version = (
        f"version {removed_in} has taken it out of the table ({_operation(log, removed_in)}), and "
        if removed_in is not None
        else ""
    )
    number = f" of version {vacuum}" if vacuum is not None else ""
    return VacuumedError(f"{file}, {use}, is gone: {by_version}the VACUUM{number} has removed it.")


def _operation(log: CollectionLog, version: int) -> str:
    commit = log.commit(version)
    return "an erasure" if commit is not None and commit.is_erasure else "OPTIMIZE"


def _removals(log: CollectionLog) -> _Removals:
    if log not in _cache:
        removals = _Removals(last_checked=last_vacuumed(log.collection))
        for commit in filter(None, map(log.commit, log.versions())):
            if commit.is_vacuum:
                removals.vacuums.append(commit.version)
            removals.removed_in.update((log.place(name), commit.version) for name in commit.removes)
        _cache[log] = removals
    return _cache[log]


def last_vacuumed(collection: str) -> int:
    """Return the last version that was older than the retention of the last VACUUM … LITE; -1 if none ran.

    The next VACUUM … LITE reads the log from this version on. Raises OSError."""
    data = open_folder(f"{collection}/_delta_log").read(_VACUUMED)
    try:
        with decoding(_VACUUMED):
            return int(json.loads(data)["latestCommitVersionOutsideOfRetentionWindow"]) if data else -1
    except OSError:
        return -1
