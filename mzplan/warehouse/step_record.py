"""The record of a step, and its line in the index."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """The record of a micro-batch. Unknown values are None.

    - `start`, `end`: Spark's entries in the offset log before and after it. For the first step, `start` is
      None if the upstream's beginning has no offset.
    - `rows`: the rows that a source wrote to its collection, or a sink to its target.
    - `total`: the rows of this and all earlier steps.
    - `time`: when it became durable (sinks: when it began), in seconds since the epoch.
    - `bytes`, `version`: for sources, the size, and the version of the collection's table.
    - `digest`: for sources, the content hash, 16 hexadecimal digits.
    - `digest_from`: whether it was computed while the step was written (`stream`) or later (`collection`).
    - `sources`: for sinks, the first and last step of its source that it covers, even partly.
    - `oldest`: the time of the step's oldest record, in seconds since the epoch, if records have one.
    - `task`: the one-off task that wrote this step. Then `start` and `end` are the range that the task read
      again; they are equal if it read nothing from the upstream.
    - `migrated`: the generation whose rows this step has migrated. It is the first step of its generation.
    - `refreshed`: how a step of a current view has computed its rows, as a clause.
    - `violations`: for sources and views, how many of its rows violate each expectation, by name.
    - `late`: for views that keep state, the late rows that this and all earlier steps dropped. For a step
      that Spark hasn't reported, all its rows behind the watermark.
    - `null_times`: for views that keep state, the rows with NULL as event time that they all read.
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
    refreshed: str | None = field(default=None, metadata=SPARSE)
    violations: Mapping[str, int] | None = field(default=None, metadata=SPARSE)
    late: Count | None = None
    null_times: Count | None = None

    @property
    def reads_upstream(self) -> bool:
        """Whether a source has read this step's rows from its upstream. Migrated rows aren't."""
        return self.migrated is None and (self.task is None or self.start != self.end)

    def line(self) -> str:
        """Return the index line of a committed step, as JSON. Omits `committed`, and values that are None."""
        values = {k: v for k, v in encode(self).items() if v is not None and k != "committed"}
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def parse(cls, line: Line) -> StepRecord:
        """Parse a line of the index. Raises ValueError for invalid text."""
        return decode(cls, json.loads(line))


def with_totals(records: Sequence[StepRecord], before: StepRecord | None) -> list[StepRecord]:
    """Add the total rows of all steps so far, if all are known. `before`: the record before these."""
    total = before.total if before is not None else 0 if records[0].step == 0 else None
    totalled = []
    for record in records:
        total = known_sum([total, record.rows])
        totalled.append(replace(record, total=total))
    return totalled


def with_late_rows(
    records: Sequence[StepRecord],
    before: StepRecord | None,
    late: Mapping[int, int | None],
    null_times: Mapping[int, int | None],
) -> list[StepRecord]:
    """Add the totals of late rows, and of rows with NULL as event time, so far, if all are known.

    `late`, `null_times`: by step, including steps without a record because they wrote nothing."""
    totals, last = ((before.late, before.null_times), before.step) if before is not None else ((0, 0), -1)
    summed = (
        _sums(records, last, total, numbers)
        for total, numbers in zip(totals, (late, null_times), strict=True)
    )
    return [replace(r, late=one, null_times=other) for r, one, other in zip(records, *summed, strict=True)]


def _sums(
    records: Sequence[StepRecord], last: int, total: int | None, numbers: Mapping[int, int | None]
) -> Iterator[int | None]:
    """Yield the total after each record. `last`, `total`: the step before the records, and its total."""
    for record in records:
        is_known = total is not None and record.step - last <= len(numbers)
        steps = range(last + 1, record.step + 1) if is_known else ()
        total = known_sum([total, *map(numbers.get, steps)]) if is_known else None
        last = record.step
        yield total


def known_sum(numbers: Iterable[int | None]) -> int | None:
    """Return the sum; None if one of the numbers is unknown."""
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total
