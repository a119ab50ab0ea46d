"""What is recorded of a step, and how it is written down."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, NamedTuple

from mzplan.model.codec import decode, encode
from mzplan.model.stored import OPTIONAL, SPARSE, integer_from, stored

Line = str | bytes
Count = Annotated[int, integer_from(0, math.inf)]
DigestOrigin = Literal["stream", "collection"]


class StepTask(NamedTuple):
    """A one-off task that has written a step: its kind, and the serial that requested it."""

    kind: str
    serial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A micro-batch. What is not known is None.

    `start` and `end` are Spark's entries in the offset log before and after it (`start` of the very first is
    None where the upstream has no beginning to name). `rows` are those that a source has written to its
    collection, a sink to its target; `total` those of this step and all before it. `time` is when it became
    durable (sinks: when it began), in seconds since the epoch. Of sources: `bytes` and `version` (of the
    collection's table), and the content hash `digest`, 16 hexadecimal digits; it was computed while the rows
    went by (`stream`), or later from what the collection held (`collection`). Of sinks: `sources`, the first
    and last step of its source that it covers, at least in part. Of sources whose records have a time:
    `oldest`, that of the oldest one of the step, in seconds since the epoch.
    `task`: the one-off task that wrote this step; `start` and `end` are then a range that was read again,
    or equal if the task has read none. `migrated`: the generation whose rows a source begins with in this
    step. Of views that keep state: `late`, how many late rows this step and all before it have dropped.
    """

    step: Count
    start: Any = field(default=None, metadata=stored("from"))
    end: Any = field(default=None, metadata=stored("to"))
    rows: Count | None = None
    total: Count | None = None
    bytes: Count | None = None
    time: float | None = None
    committed: bool = field(default=True, metadata=OPTIONAL)
    version: Count | None = None
    digest: str | None = field(default=None, metadata=stored("hash"))
    digest_from: DigestOrigin | None = field(default=None, metadata=stored("hash_from"))
    sources: tuple[Count, Count] | None = None
    oldest: float | None = None
    task: StepTask | None = field(default=None, metadata=SPARSE)
    migrated: int | None = field(default=None, metadata=SPARSE)
    late: Count | None = None

    @property
    def reads_upstream(self) -> bool:
        """Whether a source has read the rows of this step from its upstream."""
        return self.migrated is None and (self.task is None or self.start != self.end)

    def line(self) -> str:
        """One line of the index: of a committed step, without what is not known."""
        known = {k: v for k, v in encode(self).items() if v is not None and k != "committed"}
        return json.dumps(known, separators=(",", ":"))

    @classmethod
    def parse(cls, line: Line) -> StepRecord:
        """Parse a line of the index. Raises ValueError for anything else."""
        return decode(cls, json.loads(line))


def with_totals(records: Sequence[StepRecord], before: StepRecord | None) -> list[StepRecord]:
    """Add the rows of all steps so far, where they are known of all. `before`: the last record before."""
    total = before.total if before is not None else 0 if records[0].step == 0 else None
    totalled = []
    for record in records:
        total = known_sum([total, record.rows])
        totalled.append(replace(record, total=total))
    return totalled


def with_late_rows(
    records: Sequence[StepRecord], before: StepRecord | None, late: Mapping[int, int | None]
) -> list[StepRecord]:
    """Add the late rows that all steps so far have dropped, where they are known of all. `late`: by step,
    also of steps between that have no record because they wrote nothing."""
    total, last = (before.late, before.step) if before is not None else (0, -1)
    summed = []
    for record in records:
        is_known = total is not None and record.step - last <= len(late)
        steps = range(last + 1, record.step + 1) if is_known else ()
        total = known_sum([total, *map(late.get, steps)]) if is_known else None
        last = record.step
        summed.append(replace(record, late=total))
    return summed


def known_sum(numbers: Iterable[int | None]) -> int | None:
    """Return the sum; None where one of the numbers is not known."""
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total
