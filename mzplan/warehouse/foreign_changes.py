"""The rows that other writers added to a table, or removed from it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from mzplan.model.words import count
from mzplan.schema.columns import POSITION
from mzplan.secrets.resolved import shortened
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.log_entries import Commit
from mzplan.warehouse.rows.replay import CHANGE_TYPE, read_batches
from mzplan.warehouse.step_record import known_sum

_MAX_CHANGES = 10  # commits whose rows are read
_EXAMPLES = 3  # rows of a change, added and removed
_LONGEST = 200  # characters of an example
_MAX_ROWS = 200_000  # rows of a commit that are compared in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignChange:
    """The change that another writer's commit made. Unknown numbers are None.

    - `added`, `removed`: numbers of rows. An updated row counts as removed and added.
    - `added_rows`, `removed_rows`: some of these rows, as JSON.
    """

    version: int
    operation: str
    added: int | None
    removed: int | None
    added_rows: tuple[str, ...] = ()
    removed_rows: tuple[str, ...] = ()

    def __str__(self) -> str:
        sides = (("added", self.added, self.added_rows), ("removed", self.removed, self.removed_rows))
        parts = [_side(verb, number, rows) for verb, number, rows in sides if number != 0]
        changed = " and ".join(parts) or "changed no rows"
        return f"version {self.version} ({shortened(self.operation, 40)}) {changed}"


def _side(verb: str, number: int | None, rows: Sequence[str]) -> str:
    many = count(number, "row") if number is not None else "rows"
    return f"{verb} {many}" + (f" ({'; '.join(rows)})" if rows else "")


@dataclass(frozen=True, slots=True)
class ForeignChanges:
    """The versions of a table in which other writers changed rows, and the changes of the newest ones."""

    versions: tuple[int, ...]
    newest: tuple[ForeignChange, ...]

    def __str__(self) -> str:
        more = len(self.versions) - len(self.newest)
        earlier = f"{count(more, 'earlier version')} also changed rows." if more else ""
        changes = (f"{str(change)[:1].upper()}{str(change)[1:]}." for change in self.newest)
        return " ".join((*changes, earlier)).rstrip()


def foreign_changes(
    log: CollectionLog, commits: Sequence[Commit], replays: Sequence[Commit] = ()
) -> ForeignChanges | None:
    """Return the changes of these commits; None without any, or if the replays have undone them. Raises
    OSError."""
    if not commits or _are_undone(log, commits, replays):
        return None
    newest = tuple(foreign_change(log, commit) for commit in commits[-_MAX_CHANGES:])
    return ForeignChanges(tuple(commit.version for commit in commits), newest)


def foreign_change(log: CollectionLog, commit: Commit) -> ForeignChange:
    """Return the rows that a commit added and removed, as far as its files still exist. Raises OSError."""
    try:
        added, removed = _rows_changed(log, commit)
    except (FileNotFoundError, _TooManyRowsError):
        is_rewritten = bool(commit.adds and commit.removes)
        return ForeignChange(
            version=commit.version,
            operation=commit.operation,
            added=None if is_rewritten else known_sum(add.rows for add in commit.adds),
            removed=commit.deleted if commit.deletes else 0,
        )
    return ForeignChange(
        version=commit.version,
        operation=commit.operation,
        added=added.total(),
        removed=removed.total(),
        added_rows=_examples(added),
        removed_rows=_examples(removed),
    )


def _are_undone(log: CollectionLog, commits: Sequence[Commit], replays: Sequence[Commit]) -> bool:
    """Return whether the commits only removed rows, and later replays wrote all of these rows again."""
    if not replays or len(commits) > _MAX_CHANGES:
        return False
    left: Counter[str] = Counter()
    foreign = {commit.version for commit in commits}
    try:
        for commit in sorted([*commits, *replays], key=lambda commit: commit.version):
            added, removed = _rows_changed(log, commit)
            if commit.version not in foreign:
                left -= added
            elif added:
                return False
            else:
                left += removed
    except (FileNotFoundError, _TooManyRowsError):
        return False
    return not left


class _TooManyRowsError(Exception):
    """A commit has more rows than are compared."""


def _rows_changed(log: CollectionLog, commit: Commit) -> tuple[Counter[str], Counter[str]]:
    """Return the added and the removed rows, as JSON.

    From the commit's change feed; without one, from the files that it added and removed."""
    if commit.changes:
        feed = list(_texts(log, commit.changes))
        added = Counter(row for type_, row in feed if type_ in ("insert", "update_postimage"))
        removed = Counter(row for type_, row in feed if type_ in ("delete", "update_preimage"))
        return added, removed
    new, old = (
        Counter(row for _, row in _texts(log, files))
        for files in (commit.files, [log.place(name) for name in commit.removes])
    )
    return new - old, old - new


def _texts(log: CollectionLog, files: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the rows of files, each with its kind of change ("" outside a change feed)."""
    number = 0
    for file in files:
        partition = _partition(file.removeprefix(log.collection))
        for batch in read_batches(file):
            number += batch.num_rows
            if number > _MAX_ROWS:
                raise _TooManyRowsError
            for row in batch.to_pylist():
                yield str(row.pop(CHANGE_TYPE, "")), _text({**row, **partition})


def _partition(file: str) -> dict[str, str]:
    """Return the partition columns and values in a file's path. Some writers also put them into the file."""
    folders = (folder.partition("=") for folder in file.split("/")[:-1] if "=" in folder)
    return {unquote(name): unquote(value) for name, _, value in folders}


def _text(row: Mapping[str, Any]) -> str:
    return json.dumps({name: row[name] for name in row if name != POSITION}, default=str, ensure_ascii=False)


def _examples(rows: Counter[str]) -> tuple[str, ...]:
    return tuple(shortened(row, _LONGEST) for row in sorted(rows)[:_EXAMPLES])
