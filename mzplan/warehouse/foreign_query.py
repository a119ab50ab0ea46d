"""The checkpoint and Delta table of a streaming query that somebody wrote by hand.

mzplan copies checkpoint and table, and continues from the copies. The checkpoint has the query's id, the logs
of offsets and commits, the source's own log, and the state. The table's log records which micro-batches of
the query the table has. So mzplan resumes exactly where the query stopped: Spark plans an unfinished
micro-batch again with the same offsets, and the table's log tells whether the table already has its rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mzplan.warehouse.checkpoint_log import CheckpointLog
from mzplan.warehouse.checkpoints import Checkpoint, collection_path
from mzplan.warehouse.copying import copy_folder
from mzplan.warehouse.folder import decoding, open_folder, read_text
from mzplan.warehouse.log_entries import open_delta
from mzplan.warehouse.paths import absolute


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignQuery:
    """The files of a stopped query, and its progress.

    - `last_planned`, `last_done`: the newest micro-batch in the logs of offsets and commits, or -1.
    - `positions`: for each upstream, its newest entry in the log of offsets.
    - `keeps_state`: whether the checkpoint has state.
    - `version`: the version of its table.
    """

    checkpoint: str
    table: str
    query_id: str
    last_planned: int
    last_done: int
    positions: tuple[str, ...]
    keeps_state: bool
    version: int

    @property
    def mark(self) -> tuple[int, int, int]:
        """A value that changes when the query makes progress."""
        return (self.last_planned, self.last_done, self.version)


class NotAdoptableError(Exception):
    """A query can't be adopted. `reasons`: all reasons, each a sentence."""

    def __init__(self, *reasons: str):
        super().__init__(" ".join(reasons))
        self.reasons = reasons


def inspect(checkpoint: str, table: str) -> ForeignQuery:
    """Read the query's files. Raises NotAdoptableError, and OSError if the storage fails."""
    log = CheckpointLog(checkpoint)
    query_id = log.query_id()
    if query_id is None:
        raise NotAdoptableError(f"{checkpoint} isn't a streaming query's checkpoint: it has no metadata.")
    planned = log.newest()
    if planned < 0:
        raise NotAdoptableError("The query has not read anything yet: declare it as new.")
    lines = log.lines(planned)
    if lines[:1] != ["v1"] or len(lines) < 3 or not log.has_known_commits():
        raise NotAdoptableError("The format of its log of offsets or commits is unknown.")
    return ForeignQuery(
        checkpoint=checkpoint,
        table=table,
        query_id=query_id,
        last_planned=planned,
        last_done=log.committed(),
        positions=tuple(lines[2:]),
        keeps_state=bool(open_folder(f"{checkpoint}/state").names()),
        version=open_table(table).version(),
    )


def copy(query: ForeignQuery, warehouse: str, id_: str) -> None:
    """Copy the files to the storage of a query with this id, generation 1. Raises OSError."""
    checkpoint = Checkpoint.of(warehouse, id_, 1)
    copy_folder(query.table, collection_path(warehouse, id_, 1))
    copy_folder(query.checkpoint, checkpoint.spark)
    checkpoint.record_adopted(query.version)


def ensure_unchanged(query: ForeignQuery) -> None:
    """Check after the copy that nothing changed. Raises NotAdoptableError, OSError."""
    if inspect(query.checkpoint, query.table).mark != query.mark:
        raise NotAdoptableError("The query is still running: it wrote while it was copied. Stop it first.")


def files_read(query: ForeignQuery) -> Iterator[str]:
    """Yield the URIs of the files that a file stream has logged as read."""
    folder = f"{query.checkpoint}/sources/0"
    for name in open_folder(folder).names():
        for line in (read_text(f"{folder}/{name}") or "").splitlines()[1:]:
            with decoding(f"{folder}/{name}"):
                path = str(json.loads(line)["path"])
            yield path


def open_table(table: str) -> Any:
    """Open a deltalake.DeltaTable, without Spark. Raises NotAdoptableError, OSError."""
    from deltalake.exceptions import DeltaError

    try:
        return open_delta(table)
    except (DeltaError, ValueError) as problem:
        problems = str(problem).splitlines()[0][:200]
        raise NotAdoptableError(f"{table} is not a Delta table that can be read here: {problems}.") from None


def place(path: str) -> str:
    """Return a path from the command line as absolute, relative to the current folder."""
    return absolute(str(Path.cwd()), path)
