"""Keeps the index of each query's steps up to date, on a thread of its own: no query waits for it.

What a running step reports (its content hash, the rows that a sink wrote) comes with Spark's progress events;
everything else is read from Spark's own logs, also what happened while nobody was looking.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mzplan.connectors.frames.metrics import WRITTEN, oldest_of
from mzplan.connectors.frames.row_hash import of_progress
from mzplan.controller.executor import QueryName
from mzplan.model.address import Address
from mzplan.model.observed import Counters
from mzplan.spark.latency import Latencies, ended
from mzplan.spark.progress import late_rows_of
from mzplan.warehouse.content_hash import ContentHash
from mzplan.warehouse.replay import collection_hash
from mzplan.warehouse.step_history import StepHistory
from mzplan.warehouse.step_index import RECENT
from mzplan.warehouse.step_record import StepRecord, known_sum, with_late_rows, with_totals

log = logging.getLogger("mzplan.steps")

EVERY = 1.0  # seconds between looks at what was reported
CLOSING = 10.0  # seconds that the last look may take
# A hash that was not reported is computed here, of so many of the newest steps and so many bytes of files.
_COMPUTED_STEPS = 100
_COMPUTED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reported:
    """Of a step: its hash, its rows, the time of its oldest record, how many rows it has dropped as late, and
    when it ended (seconds since the epoch); None for what it has not reported (yet)."""

    hash: ContentHash | None = None
    rows: int | None = None
    oldest: float | None = None
    late: int | None = None
    ended: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSteps:
    """What is recorded of a query: the `recent` of its steps, the newest first, and the `rows` of those since
    it began to run, None where that is not known. `latency`: how many seconds the oldest record of the last
    step was on its way, where that is known."""

    recent: tuple[StepRecord, ...] = ()
    rows: int | None = None
    latency: float | None = None


@dataclass(slots=True)
class _Recorded:
    """One query. `upto`: the newest step that may be written down, for all that it reports has come. `base`:
    the last step before this run, and `rows` those of the steps since. `ended_at`: when it was stopped; what
    it still reports is waited for. `unwritten`: the late rows of steps that have reported and aren't in the
    collection (they had no rows to write)."""

    history: StepHistory
    upto: int
    address: Address | None
    latency: float | None = None
    recent: tuple[StepRecord, ...] = ()
    begun: bool = False
    base: int = -1
    rows: int | None = 0
    due: bool = True
    ended_at: float | None = None
    problem: str = ""
    lost: Callable[[], None] = lambda: None
    reported: dict[int, _Reported] = field(default_factory=dict)
    unwritten: dict[int, int | None] = field(default_factory=dict)


class StepRecorder:
    """Queries by name. Methods may be called from any thread; one of its own writes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, _Recorded] = {}
        self._counters: dict[Address, Counters] = {}
        self._latencies = Latencies()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def begins(self, name: str, history: StepHistory, lost: Callable[[], None] = lambda: None) -> None:
        """A query is about to start: record what it did before, and does from now on. `lost` is called, on a
        thread of its own, when a source has done a step that its collection does not hold behind the step
        before (somebody has restored the table under it), and after each look at new steps of a sink."""
        try:
            finished = history.log.committed()
        except OSError as problem:
            log.warning("%s: its steps are not recorded: %s", name, problem)
            return
        # So that its rows are counted from its first trigger on: commands wait for that. Nothing is written
        # yet: the last step of the run before may still be reported.
        try:
            recent = history.index.recent()
        except Exception:  # told by the thread, which tries again
            recent = ()
        parsed = QueryName.parse(name)
        address = parsed.address if parsed is not None else None
        with self._lock:
            query = self._queries.setdefault(name, _Recorded(history, finished, address))
            query.upto, query.due, query.ended_at = max(query.upto, finished), True, None
            query.lost = lost
            query.latency = None
            query.begun = False  # somebody else may have written since
            query.base, query.rows = finished, 0
            query.recent = recent or query.recent
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="steps", daemon=True)
                self._thread.start()

    def recorded(self, name: str) -> RecordedSteps:
        """What is written down of a query by now."""
        with self._lock:
            query = self._queries.get(name)
            if query is None:
                return RecordedSteps()
            return RecordedSteps(recent=query.recent, rows=query.rows, latency=query.latency)

    def counted(self) -> dict[Address, Counters]:
        """The rows and micro-batches of each query that this process has run, over all of its runs."""
        with self._lock:
            return dict(self._counters)

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """A query has finished a trigger: the JSON of a StreamingQueryProgress."""
        if "addBatch" not in progress.get("durationMs", {}):
            return  # without data: no step
        with self._lock:
            query = self._queries.get(progress.get("name") or "")
            if query is None:
                return
            step = int(progress["batchId"])
            reported = query.reported.get(step)
            rows = reported.rows if reported is not None and reported.rows is not None else _written(progress)
            query.reported[step] = _Reported(
                hash=of_progress(progress),
                rows=rows,
                oldest=oldest_of(progress),
                late=late_rows_of(progress),
                ended=ended(progress),
            )
            query.upto = max(query.upto, step)
            query.due = True

    def wrote(self, name: str, step: int, rows: int) -> None:
        """A sink has written so many rows in a step, which its progress will report as done."""
        with self._lock:
            query = self._queries.get(name)
            if query is not None:
                query.reported[step] = _Reported(rows=rows)

    def ended(self, name: str) -> None:
        """A query has been stopped."""
        with self._lock:
            query = self._queries.get(name)
            if query is not None:
                query.ended_at = time.monotonic()

    def close(self) -> None:
        """Write down what there is, and end."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(CLOSING)

    def _run(self) -> None:
        while not self._stopping.wait(EVERY):
            self._look()
        self._look()

    def _look(self) -> None:
        now = time.monotonic()
        with self._lock:
            due = [(name, query) for name, query in self._queries.items() if query.due]
        # Sources first, for sinks ask when their steps were made; and in the order in which they began: two
        # may have the same index.
        for name, query in sorted(due, key=lambda pair: not pair[1].history.is_source):
            self._write(name, query)
        with self._lock:
            for name, query in list(self._queries.items()):
                if query.ended_at is not None and now - query.ended_at > EVERY and not query.due:
                    del self._queries[name]

    def _write(self, name: str, query: _Recorded) -> None:
        with self._lock:
            query.due, upto = False, query.upto
            reported = {step: report for step, report in query.reported.items() if step <= upto}
        try:
            records = _update(query, upto, reported)
            self._latencies.take(query.history, records)
            newest = records[-1] if records and records[-1].step in reported else None
            ended_at = reported[newest.step].ended if newest is not None else None
            latency = self._latencies.latency(query.history, newest, ended_at) if newest else None
        except Exception as problem:  # the thread must outlive whatever a storage does; it is tried again
            if str(problem) != query.problem:  # once, not every second
                log.warning("%s: its steps could not be recorded: %s", name, problem)
            query.problem = str(problem)
            with self._lock:
                query.due = query.ended_at is None
            return
        query.problem = ""
        recorded = max((record.step for record in query.recent), default=-1)
        # A sink's steps are read from its checkpoint: whether its target holds them is asked each time.
        if any(step > recorded for step in reported) or (records and not query.history.is_source):
            threading.Thread(target=query.lost, name="lost steps", daemon=True).start()
        with self._lock:
            query.latency = latency if latency is not None else query.latency
            for step, report in reported.items():
                query.reported.pop(step, None)
                if step > recorded:
                    query.unwritten[step] = report.late
            if query.address is not None:
                # Those that have run here: an index may lack others', that ran before.
                self._count(query.address, [record for record in records if record.step in reported])

    def _count(self, address: Address, ran: Sequence[StepRecord]) -> None:
        before = self._counters.get(address, Counters())
        rows = before.rows + sum(record.rows or 0 for record in ran)
        self._counters[address] = replace(before, rows=rows, batches=before.batches + len(ran))


def _update(query: _Recorded, upto: int, reported: Mapping[int, _Reported]) -> list[StepRecord]:
    """Add what is new to the index; which steps that were."""
    history = query.history
    if not query.begun:
        query.recent, query.begun = history.index.recent(), True
    last = query.recent[0] if query.recent else None
    tail = history.tail(last, upto)
    newest = tail[-1].step if tail else -1
    records = [
        _filled(history, record, reported, compute=record.step > newest - _COMPUTED_STEPS) for record in tail
    ]
    if records:
        late = {**query.unwritten, **{step: report.late for step, report in reported.items()}}
        records = with_late_rows(with_totals(records, last), last, late)
        history.index.append(records)
        query.unwritten.clear()
        query.recent = (*reversed(records[-RECENT:]), *query.recent)[:RECENT]
        query.rows = known_sum([query.rows, *(record.rows for record in records if record.step > query.base)])
    return records


def _written(progress: Mapping[str, Any]) -> int | None:
    """The rows that went to a target by Spark's own sink; None where a batch was ours to write, which tells
    it by `wrote`: what Spark has read for that, perhaps twice, says nothing."""
    return ((progress.get("observedMetrics") or {}).get(WRITTEN) or {}).get("rows")


def _filled(
    history: StepHistory, record: StepRecord, reported: Mapping[int, _Reported], *, compute: bool
) -> StepRecord:
    """With what the step reported; what it did not (a crash came first) is computed where that is cheap."""
    report = reported.get(record.step)
    if not history.is_source:
        return replace(record, rows=report.rows) if report is not None and report.rows is not None else record
    if report is not None:
        record = replace(record, oldest=report.oldest)
    # A step that is run again, and that the collection has already, reports no rows.
    if report is not None and report.hash is not None and report.hash.rows == record.rows:
        return replace(record, digest=str(report.hash), digest_from="stream")
    if not compute or record.bytes is None or record.bytes > _COMPUTED_BYTES:
        return record
    try:
        return replace(
            record, digest=str(collection_hash(history.collection, record)), digest_from="collection"
        )
    except Exception as problem:
        log.warning("step %d: its hash could not be computed: %s", record.step, problem)
        return record
