"""Counts the rows that a Delta source has read and that its table no longer has, from the table's log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.delta_rs import open_delta
from mzplan.warehouse.log_entries import Commit

_RESTORE = "RESTORE"
# These commits write the rows that they keep into new files.
_REWRITES = ("DELETE", "UPDATE", "MERGE", _RESTORE)


class LostRows(NamedTuple):
    """How many rows a source has read, and how many of them are gone. None if the log doesn't say.

    - `versions`: the versions of the commits that removed some of these rows.
    """

    lost_rows: int | None
    read_rows: int | None
    versions: tuple[int, ...]


def count_lost_rows(log: CollectionLog, first: int, last: int) -> LostRows:
    """Count the lost rows of a source that has read the snapshot of version `first`, then the rows added up
    to version `last`. If the log begins after `first`, counting starts at its oldest version. Raises
    OSError."""
    oldest = log.oldest() or 0
    files = _files_at(log, oldest) if oldest else {}
    first, read, lost = max(first, oldest), _sum(files.values()), _sum(())
    versions: list[int] = []
    removed_files: dict[str, int | None] = {}
    for commit in log.after(oldest if oldest else -1):
        removed = {name: files.pop(name) for name in commit.removes if name in files}
        removed_files |= removed
        added = {add.name: add.rows for add in commit.adds}
        restores = commit.operation == _RESTORE
        if restores:
            added = {name: rows for name, rows in added.items() if name in removed_files}
        if commit.version > first and commit.deletes:
            if removed or restores:
                lost = _sum((lost, _lost(commit, _sum(removed.values()), _sum(added.values()))))
                versions += [commit.version] if removed else []
            are_read = restores or (bool(removed) and commit.operation in _REWRITES)
        else:
            are_read = commit.version <= last or bool(removed)
        if are_read:
            files |= added
        if commit.version <= first:
            read = _sum(files.values())
        elif commit.version <= last and not commit.deletes:
            read = _sum((read, *(add.rows for add in commit.adds if add.has_new_rows)))
    return LostRows(max(0, lost) if lost is not None else None, read, tuple(versions))


def _lost(commit: Commit, removed: int | None, added: int | None) -> int | None:
    """Return how many rows a commit removed; negative if it restored some."""
    if removed is None or (commit.operation in _REWRITES and added is None):
        return None
    if commit.operation not in _REWRITES:
        return removed
    difference = removed - (added or 0)
    return difference if commit.operation == _RESTORE else max(difference, commit.deleted or 0, 0)


def _files_at(log: CollectionLog, version: int) -> dict[str, int | None]:
    """Return the number of rows of each file of a version, by the file's name in the log."""
    from deltalake.exceptions import DeltaError

    try:
        actions = open_delta(log.collection, version).get_add_actions(flatten=True)
    except DeltaError as problem:
        raise OSError(str(problem)) from None
    columns = {name: actions.column(name).to_pylist() for name in actions.schema.names}
    counts = columns.get("num_records") or [None] * len(columns["path"])
    return dict(zip(columns["path"], counts, strict=True))


def _sum(numbers: Iterable[int | None]) -> int | None:
    """Return the sum, or None if a number is None."""
    known = list(numbers)
    return None if None in known else sum(number for number in known if number is not None)
