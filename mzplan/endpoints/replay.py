"""The output rule of seed 003, over Arrow batches and without I/O, so that each connector need not write it.

    replay = StepReplay(step, written=what the output recorded of the step, last=the newest step in it)
    for batch in pushed:
        fresh = replay.push(batch)        # what is to be written; nothing, while it repeats what is there
        …write fresh, in one transaction with…
    note = replay.finish()                # …this: rows and digest of the step, as they are recorded

What is pushed again for a step is discarded up to the previously written length, and compared with what was
written. Beyond that length rows are appended if those before them are the ones that are written, and the step
is the last one in the output. Otherwise the step stands as it is written: rows that follow other ones are of
another version of the step, so that some would be lost and some there twice; and behind later steps they
would be out of order. Both are reported.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Literal

from mzplan.endpoints.interface import Step, StepError, Written, checked_step
from mzplan.warehouse.content_hash import ContentHash, hash_of

if TYPE_CHECKING:
    from pyarrow import RecordBatch

log = logging.getLogger("mzplan.endpoints")

Compare = Literal["warn", "fail", "off"]
LATER = "and the output already has steps up to "
"""In each warning of a step that is not the last one; the number of that follows."""


def total(parts: Iterable[Written]) -> Written:
    """Of a step that was written in parts: all rows, and their hash; not known if that of one part is not."""
    whole: ContentHash | None = ContentHash()
    rows = 0
    for part in parts:
        rows += part.rows
        known = ContentHash.parse(part.rows, part.digest)
        whole = whole + known if whole is not None and known is not None else None
    return Written(rows=rows, digest=str(whole) if whole is not None else None)


class DiffersError(Exception):
    """A step was pushed again with other rows than were written, and the sink says `compare: fail`."""


# Warnings, by thread. No ContextVar: this module travels with tasks, and that can't be pickled.
_collected: dict[int, list[str]] = {}


@contextlib.contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """What replays warn of meanwhile: the adapter reports it, so that an output need not."""
    texts: list[str] = []
    _collected[threading.get_ident()] = texts
    try:
        yield texts
    finally:
        del _collected[threading.get_ident()]


def report_warning(text: str) -> None:
    """Warn: in the log, and where the adapter listens."""
    log.warning(text)
    _collected.get(threading.get_ident(), []).append(text)


class StepReplay:
    """One step that is pushed, perhaps not for the first time.

    `written`: what is recorded of it, None for a step that is new to the output. `last`: the newest step that
    the output holds, None if it is empty. `warn` takes warnings: see
    `report_warning`. Raises StepError for a step that
    is not written and lies before the last: it was expired, or skipped.
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
        self._before = written
        self._length = written.rows if written else 0
        self._is_last = last is None or step >= last
        self._last = last
        self._compare = compare
        self._warn = warn
        self._pushed = 0
        self._surplus = 0
        self._difference = ""  # of the rows that came again to those that are written
        self._hash = ContentHash()
        # Of the rows that are written: None where that was not recorded, or in a way that we don't know.
        self._known = ContentHash.parse(written.rows, written.digest) if written else ContentHash()
        self._compared = written is None or self._length == 0
        if written is None and not self._is_last:
            raise StepError(
                f"step {step} is not known to the output, whose newest is {last}: it was expired, "
                "or it was never written"
            )
        if not self._is_last:
            self._warn(f"step {step} is written again, {LATER}{last}")

    @property
    def repeats(self) -> bool:
        """Whether the step was written before."""
        return self._before is not None

    def push(self, batch: RecordBatch) -> RecordBatch:
        """The rows of the batch that are to be written: none of it, its end, or all. Raises DiffersError,
        before anything beyond the written length is returned."""
        missing = max(0, min(batch.num_rows, self._length - self._pushed))
        again, fresh = batch.slice(0, missing), batch.slice(missing)
        self._pushed += batch.num_rows
        self._take(again)
        if self._pushed >= self._length and not self._compared:
            self._check()
        if self._stands:
            self._surplus += fresh.num_rows
            return fresh.slice(0, 0)
        self._take(fresh)
        return fresh

    def finish(self) -> Written:
        """What is to be recorded of the step. Raises DiffersError when fewer rows came than were written."""
        if self._pushed < self._length:
            self._differs(f"{self._pushed} rows were pushed where {self._length} are written")
        self._report()
        if self._before is not None and (self._pushed <= self._length or self._stands):
            return self._before
        return Written(rows=self._pushed, digest=str(self._hash) if self._known is not None else None)

    @property
    def _stands(self) -> bool:
        return bool(self._difference) or not self._is_last

    def _report(self) -> None:
        beyond = f"{self._surplus} rows beyond the {self._length} that are written are not appended"
        if self._difference and self._compare == "warn":
            more = f", and {beyond}" if self._surplus else ""
            self._warn(f"{self._difference}; what is written stays{more}")
        elif self._surplus and not self._is_last:
            self._warn(f"step {self.step}: {beyond}, {LATER}{self._last}")

    def _take(self, rows: RecordBatch) -> None:
        if rows.num_rows:
            self._hash += hash_of(rows)

    def _check(self) -> None:
        """All rows that were written have come again."""
        self._compared = True
        if self._known is not None and self._known != self._hash:
            self._differs(f"the first {self._length} rows differ from those that are written")

    def _differs(self, how: str) -> None:
        self._difference = f"step {self.step} is written again with other rows: {how}"
        if self._compare == "fail":
            raise DiffersError(self._difference)
