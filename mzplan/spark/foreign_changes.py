"""Finds commits of other writers that delete or change rows of the collections that a query reads.

The stream of a collection that only grows skips such commits (streams.SKIP_CHANGES).
"""

from __future__ import annotations

from mzplan.model.diagnostics import Diagnostic
from mzplan.model.words import count
from mzplan.schema.description import CollectionRead, Description
from mzplan.schema.source_columns import keys_of
from mzplan.secrets.resolved import shortened
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.log_entries import Commit
from mzplan.warehouse.step_history import StepHistory

_DELETES = ("DELETE", "TRUNCATE")  # Delta's names for operations that add no rows


class ForeignChanges:
    """Watches the collections that one run of a query reads as streams, from its checkpoint's position on."""

    def __init__(self, warehouse: str, description: Description):
        """Raises OSError."""
        self._address = description.address
        self._unread: list[tuple[CollectionRead, CollectionLog, int]] = []  # with the last version looked at
        for read in description.reads.values():
            if keys_of(read.type, read.body):  # its stream follows all changes
                continue
            history = StepHistory(warehouse, description.place, read.place)
            position = history.position()
            if isinstance(position, dict) and history.has_read(position):
                last = int(position["reservoirVersion"]) - 1
            else:  # it begins with the rows that are there now
                last = max(history.collection.versions(), default=-1)
            self._unread.append((read, history.collection, last))

    def look(self) -> Diagnostic | None:
        """Return a warning about the newest change since the last look, if there is one. Raises OSError."""
        found = None
        for number, (read, log, last) in enumerate(self._unread):
            commits = list(log.after(last))
            if commits:
                self._unread[number] = (read, log, commits[-1].version)
            # Each commit of mzplan that removes rows is a step.
            changes = [commit for commit in commits if commit.deletes and commit.step is None]
            found = self._warning(read, log, changes[-1]) if changes else found
        return found

    def _warning(self, read: CollectionRead, log: CollectionLog, commit: Commit) -> Diagnostic:
        is_delete = commit.operation in _DELETES
        rows = count(commit.deleted, "row") if is_delete and commit.deleted else "Rows"
        verb = f"{'was' if rows == '1 row' else 'were'} {'deleted' if is_delete else 'changed'}"
        others = "" if is_delete else " It doesn't read rows that the commit added."
        return Diagnostic.of(
            "MZ305.skipped",
            address=self._address,
            rows=rows,
            source=read.address,
            verb=verb,
            version=commit.version,
            operation=shortened(commit.operation, 40),
            path=log.collection,
            others=others,
        )
