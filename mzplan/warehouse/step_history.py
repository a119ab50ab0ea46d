"""All steps of one query: the index, and what has come since it was last written."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from mzplan.model.address import Place
from mzplan.warehouse.checkpoint_log import (
    CheckpointLog,
    in_flight,
    sink_tail,
    source_tail,
    steps_of,
    versions_between,
)
from mzplan.warehouse.checkpoints import Checkpoint, collection_path
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.step_index import StepIndex
from mzplan.warehouse.step_record import StepRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Steps in order, of which at most the last is not committed. `since`: the oldest that was not expired;
    `upper`: the one that comes next."""

    since: int
    upper: int
    records: tuple[StepRecord, ...]


class StepHistory:
    """Reads what is recorded of a source (`source` None) or a sink (`source`: the place of what it reads).

    Changes nothing. Raises OSError for what the storage did.
    """

    def __init__(self, warehouse: str, place: Place, source: Place | None = None):
        checkpoint = Checkpoint.of(warehouse, *place)
        self.is_source = source is None
        self.index = StepIndex(checkpoint)
        self.log = CheckpointLog(checkpoint)
        self.collection = CollectionLog(collection_path(warehouse, *(source or place)))

    def tail(self, last: StepRecord | None, upto: int | None = None) -> list[StepRecord]:
        """The committed steps after the `last` known one."""
        return (source_tail if self.is_source else sink_tail)(self.log, self.collection, last, upto)

    def read(self, count: int | None = None, first: int = 0) -> Steps:
        """The newest `count` steps (None: all), not below `first`."""
        newest = self.index.last()
        since = self.index.since()
        found = self.tail(newest)
        last = found[-1] if found else newest  # it may have been given up, as all before it
        tail = [r for r in found if r.step >= since]
        running = in_flight(self.log, None if self.is_source else self.collection, last)
        recent = [*tail, running] if running is not None else tail
        older: list[StepRecord] = []
        if count is None or count > len(recent):
            backwards = (r for r in self.index.backwards())
            for record in islice(backwards, None if count is None else count - len(recent)):
                if record.step < first:
                    break
                older.append(record)
        records = [r for r in (*reversed(older), *recent) if r.step >= first]
        return Steps(
            since=since,
            upper=last.step + 1 if last is not None else since,
            records=tuple(records[-count:] if count else records),
        )

    def committed(self, first: int, last: int | None) -> list[StepRecord]:
        """The committed steps from `first` to `last` (None: the newest)."""
        found = self.read(first=first).records
        return [r for r in found if r.committed and (last is None or r.step <= last)]

    def first_young(self, when: float) -> int:
        """The first committed step that became durable at `when` or later; the newest where all are older,
        0 where there is none."""
        newest = self.index.last()
        tail = self.tail(newest)
        young = self.index.first_young(when) or next((r for r in tail if r.time and r.time >= when), None)
        last = tail[-1] if tail else newest
        found = young or last
        return found.step if found is not None else 0

    def covers(self, step: int) -> tuple[int, int] | None:
        """Of a sink: the first and last step of its source that a planned step covers, at least in part. None
        where that is not known (any more), also for what the storage did."""
        try:
            start, end, _ = self.log.range_of(step, None)
            versions = versions_between(start, end, self.collection)
            return steps_of(self.collection, *versions)[0] if versions is not None else None
        except OSError:
            return None

    def upper(self) -> int:
        """The step that comes next."""
        last = self.index.last()
        tail = self.tail(last)
        last = tail[-1] if tail else last
        return last.step + 1 if last is not None else self.index.since()
