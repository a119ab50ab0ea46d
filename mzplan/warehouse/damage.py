"""Files of a collection that are not as they were written: by Delta's own doing, or damage.

A version takes a file out of the table (OPTIMIZE, MERGE), and VACUUM removes it later. The table's log has
both. A file that is gone otherwise was lost.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.folder import decoding, open_folder

_CHANGE_DATA = "/_change_data/"
_VACUUMED = "_last_vacuum_info"


class DamagedError(OSError):
    """A file of a collection that is damaged or lost. The message names it, without a full stop."""


class GoneError(Exception):
    """A step can't be replayed from the collection any more. The message is a sentence that says why."""


@dataclass(slots=True)
class _Removals:
    """What the log says of removal: the version that took a file out of the table, by its place; the versions
    of each VACUUM; the last version that the last VACUUM … LITE has looked at."""

    taken_out: dict[str, int] = field(default_factory=dict)
    vacuums: list[int] = field(default_factory=list)
    looked_at: int = -1


_known: WeakKeyDictionary[CollectionLog, _Removals] = WeakKeyDictionary()


def missing(log: CollectionLog, file: str, use: str) -> GoneError | DamagedError:
    """What a missing file means. `use`: what it was ("which step 3 has read"). Reads the whole log, once.
    Raises OSError."""
    removals = _removals(log)
    out = removals.taken_out.get(file)
    if out is None and _CHANGE_DATA not in file:
        return DamagedError(
            f"{file}, {use}, is missing, and no version has taken it out of the table: it was not mzplan or "
            "Delta that removed it"
        )
    # No version takes files of the change feed out: VACUUM goes by their age.
    vacuum = next((version for version in removals.vacuums if version > (out or 0)), None)
    if vacuum is None and removals.looked_at < (out or 0):
        return DamagedError(
            f"{file}, {use}, is missing, and the table's log has no VACUUM that would have removed it"
        )
    taken = f"version {out} has taken it out of the table (OPTIMIZE), and " if out is not None else ""
    number = f" of version {vacuum}" if vacuum is not None else ""
    return GoneError(f"{file}, {use}, is gone: {taken}the VACUUM{number} has removed it.")


def _removals(log: CollectionLog) -> _Removals:
    if log not in _known:
        removals = _Removals(looked_at=last_vacuumed(log.collection))
        for commit in filter(None, map(log.commit, log.versions())):
            if commit.is_vacuum:
                removals.vacuums.append(commit.version)
            removals.taken_out.update((log.place(name), commit.version) for name in commit.removes)
        _known[log] = removals
    return _known[log]


def last_vacuumed(collection: str) -> int:
    """The last version that is older than what the last VACUUM … LITE was to keep: the next one looks through
    the log from there on. -1 when there was none. Raises OSError."""
    data = open_folder(f"{collection}/_delta_log").read(_VACUUMED)
    try:
        with decoding(_VACUUMED):
            return int(json.loads(data)["latestCommitVersionOutsideOfRetentionWindow"]) if data else -1
    except OSError:
        return -1
