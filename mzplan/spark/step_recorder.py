"""Updates the index of each query's steps on a separate thread, so that no query waits for it.

Spark's progress events carry a running step's own figures: its content hash and the rows that a sink wrote.
All other facts are read from Spark's logs, including steps that ran while no recorder was running.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mzplan.connectors.frames.row_hash import WRITTEN, hash_from_progress, oldest_of
from mzplan.controller.executor import QueryName
from mzplan.model.address import Address
from mzplan.model.observed import Counters
from mzplan.spark.latency import Latencies, end_time
from mzplan.spark.progress import late_rows_of, null_time_rows_of
from mzplan.warehouse.rows.content_hash import ContentHash
from mzplan.warehouse.rows.replay import collection_hash
from mzplan.warehouse.step_history import StepHistory
from mzplan.warehouse.step_index import RECENT_STEPS, ForeignVersion
from mzplan.warehouse.step_record import StepRecord, known_sum, with_late_rows, with_totals

log = logging.getLogger("mzplan.steps")

EVERY = 1.0  # seconds between looks at reported steps
CLOSING = 10.0  # seconds that the last look may take
# Missing hashes are computed for this many of the newest steps, if a step's files have at most so many bytes.
_COMPUTED_STEPS = 100
_COMPUTED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    """The figures of one step; None for a figure that was not reported (yet).

    `oldest`: the time of the step's oldest record, in seconds since the epoch.
    `late`, `null_times`: how many rows the step dropped as late, and read with NULL as event time.
    `ended_at`: when the step ended, in seconds since the epoch.
    """

    hash: ContentHash | None = None
    rows: int | None = None
    oldest: float | None = None
    late: int | None = None
    null_times: int | None = None
    ended_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSteps:
    """The recorded steps of a query.

    `recent`: the last recorded steps, newest first.
    `rows`: the number of rows in this run's steps; None if unknown.
    `latency`: the age in seconds of the last step's oldest record; None if unknown.
    """

    recent: tuple[StepRecord, ...] = ()
    rows: int | None = None
    latency: float | None = None


@dataclass(slots=True)
class _Recording:
    """The recording of one query.

    `last_reported`: the newest step whose whole report has arrived, so that it can be recorded.
    `base`: the last step before this run.
    `rows`: the rows of the steps after `base`.
    `ended_at`: when the query was stopped, in monotonic seconds; its outstanding reports are still awaited.
    `unwritten`: the reports of steps without rows, which aren't in the collection.
    `bound_late_rows`: bounds the late rows of a step that Spark hasn't reported.
    """

    history: StepHistory
    last_reported: int
    address: Address | None
    latency: float | None = None
    recent: tuple[StepRecord, ...] = ()
    is_loaded: bool = False
    base: int = -1
    rows: int | None = 0
    due: bool = True
    ended_at: float | None = None
    problem: str = ""
    on_lost: Callable[[], None] = lambda: None
    bound_late_rows: Callable[[int], int | None] = lambda step: None
    reports: dict[int, _Report] = field(default_factory=dict)
    unwritten: dict[int, _Report] = field(default_factory=dict)


class StepRecorder:
    """Records the steps of queries, by query name.

    Methods may be called from any thread; one thread writes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, _Recording] = {}
        self._counters: dict[Address, Counters] = {}
        self._latencies = Latencies()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(
        self,
        name: str,
        history: StepHistory,
        on_lost: Callable[[], None] = lambda: None,
        bound_late_rows: Callable[[int], int | None] = lambda step: None,
    ) -> None:
        """Record the earlier steps of a query that is about to start, and its steps from now on.

        `on_lost` is called on a new thread when a source's finished step is missing in its collection because
        the table was restored to an older copy. For a sink, it is called after each look at new steps.
        `bound_late_rows` returns at most how many rows a step has dropped as late, for a step that Spark
        hasn't reported; None if that is unknown. May raise OSError.
        """
        try:
            finished = history.log.committed()
        except OSError as problem:
            log.warning("%s: its steps are not recorded: %s", name, problem)
            return
        # Read now, so that rows are counted from the first trigger: commands wait for that. Nothing is
        # written yet, because the last step of the previous run may still be reported.
        try:
            recent = history.index.recent()
        except Exception:  # the thread tries again, and logs the problem
            recent = ()
        parsed = QueryName.parse(name)
        address = parsed.address if parsed is not None else None
        with self._lock:
            query = self._queries.setdefault(name, _Recording(history, finished, address))
            query.last_reported, query.due, query.ended_at = max(query.last_reported, finished), True, None
            query.on_lost, query.bound_late_rows = on_lost, bound_late_rows
            query.latency = None
            query.is_loaded = False  # another process may have written since
            query.base, query.rows = finished, 0
            query.recent = recent or query.recent
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="steps", daemon=True)
                self._thread.start()

    def recorded(self, name: str) -> RecordedSteps:
        """Return the recorded steps of a query."""
        with self._lock:
            query = self._queries.get(name)
            if query is None:
                return RecordedSteps()
            return RecordedSteps(recent=query.recent, rows=query.rows, latency=query.latency)

    def counted(self) -> dict[Address, Counters]:
        """Return the rows and micro-batches of each query that this process has run, over all its runs."""
        with self._lock:
            return dict(self._counters)

    def record_progress(self, progress: Mapping[str, Any]) -> None:
        """Record a finished trigger. `progress`: the JSON of its StreamingQueryProgress."""
        if "addBatch" not in progress.get("durationMs", {}):
            return  # a trigger without data is no step
        with self._lock:
            query = self._queries.get(progress.get("name") or "")
            if query is None:
                return
            step = int(progress["batchId"])
            report = query.reports.get(step)
            rows = report.rows if report is not None and report.rows is not None else _rows_of_sink(progress)
            query.reports[step] = _Report(
                hash=hash_from_progress(progress),
                rows=rows,
                oldest=oldest_of(progress),
                late=late_rows_of(progress),
                null_times=null_time_rows_of(progress),
                ended_at=end_time(progress),
            )
            query.last_reported = max(query.last_reported, step)
            query.due = True

    def record_rows(self, name: str, step: int, rows: int) -> None:
        """Record how many rows a sink wrote in a step. The step's progress reports later that it is done."""
        with self._lock:
            query = self._queries.get(name)
            if query is not None:
                query.reports[step] = _Report(rows=rows)

    def stop(self, name: str) -> None:
        """Note that a query has been stopped."""
        with self._lock:
            query = self._queries.get(name)
            if query is not None:
                query.ended_at = time.monotonic()

    def close(self) -> None:
        """Record all outstanding steps, then stop."""
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
        # Sources first, because sinks look up when their steps' records were created. Otherwise in start
        # order, because two queries may share an index.
        for name, query in sorted(due, key=lambda pair: not pair[1].history.is_source):
            self._write(name, query)
        with self._lock:
            for name, query in list(self._queries.items()):
                if query.ended_at is not None and now - query.ended_at > EVERY and not query.due:
                    del self._queries[name]

    def _write(self, name: str, query: _Recording) -> None:
        with self._lock:
            query.due, last_reported = False, query.last_reported
            reports = {step: report for step, report in query.reports.items() if step <= last_reported}
        try:
            records = _update(query, last_reported, reports)
            self._latencies.add(query.history, records)
            newest = records[-1] if records and records[-1].step in reports else None
            ended_at = reports[newest.step].ended_at if newest is not None else None
            latency = self._latencies.latency(query.history, newest, ended_at) if newest else None
        except Exception as problem:  # the thread must survive any storage failure, and tries again
            if str(problem) != query.problem:  # log it once, not every second
                log.warning("%s: its steps could not be recorded: %s", name, problem)
            query.problem = str(problem)
            with self._lock:
                query.due = query.ended_at is None
            return
        query.problem = ""
        recorded = max((record.step for record in query.recent), default=-1)
        # A sink's steps come from its checkpoint, so ask each time whether the target holds them.
        if any(step > recorded for step in reports) or (records and not query.history.is_source):
            threading.Thread(target=query.on_lost, name="lost steps", daemon=True).start()
        with self._lock:
            query.latency = latency if latency is not None else query.latency
            for step, report in reports.items():
                query.reports.pop(step, None)
                if step > recorded:
                    query.unwritten[step] = report
            if query.address is not None:
                # Count only steps that ran here: the index may miss earlier steps of other processes.
                self._count(query.address, [record for record in records if record.step in reports])

    def _count(self, address: Address, ran: Sequence[StepRecord]) -> None:
        before = self._counters.get(address, Counters())
        rows = before.rows + sum(record.rows or 0 for record in ran)
        self._counters[address] = replace(before, rows=rows, batches=before.batches + len(ran))


def _update(query: _Recording, last_reported: int, reports: Mapping[int, _Report]) -> list[StepRecord]:
    """Add new steps to the index; return them."""
    history = query.history
    if not query.is_loaded:
        query.recent, query.is_loaded = history.index.recent(), True
    last = query.recent[0] if query.recent else None
    tail = history.tail(last, last_reported)
    newest = tail[-1].step if tail else -1
    records = [
        _with_report(history, record, reports, compute=record.step > newest - _COMPUTED_STEPS)
        for record in tail
    ]
    if records:
        reported = {**query.unwritten, **reports}
        late = _late_rows(query, reported, last.step + 1 if last is not None else 0, records[-1].step)
        null_times = {step: report.null_times for step, report in reported.items()}
        records = with_late_rows(with_totals(records, last), last, late, null_times)
        if history.is_source and (found := _foreign(history, last, records[-1])) is not None:
            history.index.mark_foreign(found)  # before the records: after them, nobody looks there again
        history.index.append(records)
        query.unwritten.clear()
        query.recent = (*reversed(records[-RECENT_STEPS:]), *query.recent)[:RECENT_STEPS]
        query.rows = known_sum([query.rows, *(record.rows for record in records if record.step > query.base)])
    return records


def _late_rows(
    query: _Recording, reports: Mapping[int, _Report], first: int, last: int
) -> dict[int, int | None]:
    """Return the late rows by step. A step has no report if its runner was killed just after it."""
    late = {step: report.late for step, report in reports.items()}
    for step in range(first, last + 1):
        if step not in late:
            try:
                late[step] = query.bound_late_rows(step)
            except OSError as problem:
                log.warning("step %d: its late rows could not be counted: %s", step, problem)
                late[step] = None
    return late


def _foreign(history: StepHistory, last: StepRecord | None, newest: StepRecord) -> ForeignVersion | None:
    """Return the newest version between two steps in which another writer changed rows."""
    version = last.version if last is not None else 0
    return history.foreign_between(version, newest.version) if version is not None else None


def _rows_of_sink(progress: Mapping[str, Any]) -> int | None:
    """Return how many rows Spark's own sink wrote; None if mzplan's code wrote the batch.

    mzplan's code reports its rows with `record_rows`. The number of rows that Spark read isn't used, because
    Spark may read a row twice.
    """
    return ((progress.get("observedMetrics") or {}).get(WRITTEN) or {}).get("rows")


def _with_report(
    history: StepHistory, record: StepRecord, reports: Mapping[int, _Report], *, compute: bool
) -> StepRecord:
    """Return the record with the step's reported figures.

    After a crash, the report has no hash. With `compute`, this computes the hash of a small step."""
    report = reports.get(record.step)
    if not history.is_source:
        return replace(record, rows=report.rows) if report is not None and report.rows is not None else record
    if report is not None:
        record = replace(record, oldest=report.oldest)
    # A repeated step that the collection already contains reports no rows.
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
