"""The output rule of seed 003, over Arrow batches and without I/O, so that connectors share it.

    replay = StepReplay(step, written=the output's record of the step, last=the newest step in the output)
    for batch in pushed:
        fresh = replay.push(batch)        # the rows to write; none while they repeat existing rows
        …write fresh, in one transaction with…
    note = replay.finish()                # …this: the step's rows and digest, to record

Rows that are pushed again are compared with the written rows and discarded, up to the previously written
length. Rows beyond that length are appended if the rows before them equal the written rows, and if the step
is the last one in the output. Otherwise the output keeps the step as it is, and the replay reports the
difference. If the rows differ, the new rows belong to another version of the step: some rows would be lost
and others duplicated. If the output has later steps, appended rows would be out of order.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Literal

from mzplan.endpoints.interface import Step, StepError, Written, checked_step
from mzplan.warehouse.rows.content_hash import ContentHash, hash_of

if TYPE_CHECKING:
    from pyarrow import RecordBatch

log = logging.getLogger("mzplan.endpoints")

Compare = Literal["warn", "fail", "off"]
LATER = "and the output already has steps up to "
"""Part of each warning about a step that isn't the last one. The newest step's number follows it."""


def combine_parts(parts: Iterable[Written]) -> Written:
    """Combine the records of a step that was written in parts.

    The digest is None if any part's digest is unknown.
    """
    whole: ContentHash | None = ContentHash()
    rows = 0
    for part in parts:
        rows += part.rows
        part_hash = ContentHash.parse(part.rows, part.digest)
        whole = whole + part_hash if whole is not None and part_hash is not None else None
    return Written(rows=rows, digest=str(whole) if whole is not None else None)


class DiffersError(Exception):
    """A step was pushed again with different rows, and the sink sets `compare: fail`."""


# Warnings by thread id, not a ContextVar: tasks pickle this module, and a ContextVar can't be pickled.
_warnings_by_thread: dict[int, list[str]] = {}


@contextlib.contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Collect the warnings of replays in this thread. The adapter reports them, so that outputs needn't."""
    texts: list[str] = []
    _warnings_by_thread[threading.get_ident()] = texts
    try:
        yield texts
    finally:
        del _warnings_by_thread[threading.get_ident()]


def report_warning(text: str) -> None:
    """Log a warning, and pass it to collected_warnings."""
    log.warning(text)
    _warnings_by_thread.get(threading.get_ident(), []).append(text)


class StepReplay:
    """One step that is pushed, possibly again.

    - `written`: the output's record of the step, or None if the output doesn't have the step.
    - `last`: the newest step in the output, or None if the output is empty.
    - `warn`: receives warnings; see report_warning.

    Raises StepError if the output doesn't have the step but has later steps: it has expired, or was skipped.
    """

    def __init__(
        self,
        step: Step,
        *,
        written: Written | None,
        last: Step | None,
        compare: Compare = "warn",
        warn: Callable[[str], None] = report_warning,
    ):
        self.step = checked_step(step)
        self._written = written
        self._length = written.rows if written else 0
        self._is_last = last is None or step >= last
        self._last = last
        self._compare = compare
        self._warn = warn
        self._pushed = 0
        self._surplus = 0
        self._difference = ""  # how the pushed rows differ from the written rows
        self._hash = ContentHash()
        # The hash of the written rows, or None if it wasn't recorded in a format that we know.
        self._written_hash = ContentHash.parse(written.rows, written.digest) if written else ContentHash()
        self._is_compared = written is None or self._length == 0
        if written is None and not self._is_last:
            raise StepError(
                f"the output doesn't know step {step}, and its newest step is {last}: the step has expired, "
                "or it was never written"
            )
        if not self._is_last:
            self._warn(f"step {step} is written again, {LATER}{last}")

    @property
    def repeats(self) -> bool:
        """Return whether the step was written before."""
        return self._written is not None

    def push(self, batch: RecordBatch) -> RecordBatch:
        """Return the rows of the batch that must be written: none, the last ones, or all.

        Raises DiffersError before it returns anything beyond the written length.
        """
        repeated_count = max(0, min(batch.num_rows, self._length - self._pushed))
        repeated, fresh = batch.slice(0, repeated_count), batch.slice(repeated_count)
        self._pushed += batch.num_rows
        self._add_to_hash(repeated)
        if self._pushed >= self._length and not self._is_compared:
            self._check()
        if self._keeps_written:
            self._surplus += fresh.num_rows
            return fresh.slice(0, 0)
        self._add_to_hash(fresh)
        return fresh

    def finish(self) -> Written:
        """Return the record to store for the step. Raises DiffersError if fewer rows came than are
        written."""
        if self._pushed < self._length:
            self._record_difference(f"{self._pushed} rows were pushed, but {self._length} are written")
        self._report()
        if self._written is not None and (self._pushed <= self._length or self._keeps_written):
            return self._written
        return Written(rows=self._pushed, digest=str(self._hash) if self._written_hash is not None else None)

    @property
    def _keeps_written(self) -> bool:
        return bool(self._difference) or not self._is_last

    def _report(self) -> None:
        beyond = f"{self._surplus} rows beyond the {self._length} written rows are not appended"
        if self._difference and self._compare == "warn":
            more = f", and {beyond}" if self._surplus else ""
            self._warn(f"{self._difference}; the written rows stay{more}")
        elif self._surplus and not self._is_last:
            self._warn(f"step {self.step}: {beyond}, {LATER}{self._last}")

    def _add_to_hash(self, rows: RecordBatch) -> None:
        if rows.num_rows:
            self._hash += hash_of(rows)

    def _check(self) -> None:
        """Compare the rows, once all written rows have been pushed again."""
        self._is_compared = True
        if self._written_hash is not None and self._written_hash != self._hash:
            self._record_difference(f"the first {self._length} rows differ from the written rows")

    def _record_difference(self, difference: str) -> None:
        self._difference = f"step {self.step} is written again with other rows: {difference}"
        if self._compare == "fail":
            raise DiffersError(self._difference)
