"""Detects whether a slot has changes, and records how far it has none.

The stream stays open while there are no changes. The idle position is stored next to the steps.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

import psycopg

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.postgres.source.continuity import streaming
from mzplan.connectors.postgres.source.decoder import commit_of, tables_changed
from mzplan.connectors.postgres.source.replication import Lsn, ReplicationLink, lsn_of, lsn_text
from mzplan.connectors.postgres.source.slots import Names
from mzplan.warehouse.folder import decoding, open_folder

_IDLE = "idle.json"


class Watch:
    """Reads the log up to a position, and stops at the first change. Tasks then read the changes.

    A slot has only one reader at a time, so call `close` before anything else reads it. Raises
    psycopg.Error.
    """

    def __init__(self, query: ResolvedQuery, names: Names):
        self._query = query
        self._names = names
        self._open: contextlib.ExitStack | None = None
        self._link: ReplicationLink | None = None
        self._change_commit: Lsn | None = None
        self._commit: Lsn = 0

    def has_changes(self, after: Lsn, to: Lsn, oids: Mapping[str, int]) -> bool:
        """Return whether a transaction that changed the source's tables commits in (after, to]."""
        has_change = self._change_commit is not None or self._find_change(after, to, set(oids.values()))
        if not has_change or self._change_commit is None or self._change_commit >= to:
            return False
        self.close()
        return True

    def confirm(self, lsn: Lsn) -> None:
        """Let the server discard the log before a position."""
        if self._link is not None and self._change_commit is None:
            self._link.confirm(lsn)

    def close(self) -> None:
        stack, self._open, self._link, self._change_commit = self._open, None, None, None
        if stack is not None:
            stack.close()

    def _find_change(self, after: Lsn, to: Lsn, ours: set[int]) -> bool:
        """Read the open stream, or open one. If the open stream has ended, open another one.

        Between rare triggers, the server's timeout may end a stream.
        """
        for is_reused in (self._link is not None, False):
            try:
                if self._link is None:
                    self._begin(after)
                return self._read_until_change(after, to, ours)
            except psycopg.Error:
                self.close()
                if not is_reused:
                    raise
        raise AssertionError("the second attempt returns or raises")

    def _begin(self, after: Lsn) -> None:
        with contextlib.ExitStack() as stack:
            self._link = stack.enter_context(streaming(self._query, self._names, after))
            self._commit, self._open = 0, stack.pop_all()

    def _read_until_change(self, after: Lsn, to: Lsn, ours: set[int]) -> bool:
        assert self._link is not None
        for end, data in self._link.messages():
            if end is not None:
                if end >= to:
                    return False
                continue
            commit = commit_of(data)
            if commit is not None:
                self._commit = commit
                continue
            # Messages identify tables by oid, which doesn't change if a table is renamed.
            if self._commit >= after and ours.intersection(tables_changed(data)):
                self._change_commit = self._commit
                return True
        raise psycopg.OperationalError("the server ended the stream")


class IdlePosition:
    """The position up to which the log has no changes since the last step.

    The slot may have advanced to it.
    """

    def __init__(self, storage: str):
        self._folder, self._place = open_folder(storage), f"{storage}/{_IDLE}"

    def read(self) -> tuple[Lsn, int | None]:
        """Return the idle position (0 for none) and its timeline. Raises OSError."""
        data = self._folder.read(_IDLE)
        with decoding(self._place):
            idle: dict[str, Any] = json.loads(data) if data is not None else {"to": "0/0", "timeline": None}
            return lsn_of(idle["to"]), idle["timeline"]

    def record(self, to: Lsn, timeline: int | None) -> None:
        """Store the idle position. It is durable when this returns."""
        self._folder.write(_IDLE, json.dumps({"to": lsn_text(to), "timeline": timeline}).encode())
