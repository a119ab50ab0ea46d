"""A listener that keeps the newest progress of each run, as Spark reports it.

Spark pushes one event per trigger, and reading its JSON takes one call. Polling would cost several calls into
the JVM per query and second.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mzplan.connectors.formats.records import SKIPPED
from mzplan.connectors.frames.row_hash import null_times_of
from mzplan.model.times import instant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The newest known progress of one run. See QueryReport for the fields."""

    step: int = -1
    input_rows_per_second: float = 0.0
    processed_rows_per_second: float = 0.0
    lag: int | None = None
    left_out: int = 0
    heard_at: float = 0.0
    batch_seconds: float | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    watermark_timestamp_seconds: float | None = None
    late_rows: int | None = None
    null_time_rows: int | None = None

    def after(self, before: Progress) -> Progress:
        """Add the counts of this run `before`; keep values that only a micro-batch reports."""
        unchanged = {
            name: getattr(before, name)
            for name in ("batch_seconds", "state_rows", "state_bytes", "watermark_timestamp_seconds")
            if getattr(self, name) is None
        }
        return replace(
            self,
            **unchanged,
            left_out=before.left_out + self.left_out,
            late_rows=_sum(before.late_rows, self.late_rows),
            null_time_rows=_sum(before.null_time_rows, self.null_time_rows),
        )


class ProgressListener:
    """Spark calls the listener from its own thread; `get` may be called from any thread."""

    def __init__(self, on_progress: Callable[[dict[str, Any]], None] | None = None) -> None:
        """`on_progress` is called with the JSON of each StreamingQueryProgress."""
        self._lock = threading.Lock()
        self._runs: dict[str, Progress] = {}
        self._expected: set[str] = set()
        self._active: set[str] = set()
        self._foreign: dict[str, str] = {}
        self._on_progress = on_progress

    def get(self, run_id: str) -> Progress | None:
        """Return the newest progress of a run; None until it has finished its first trigger."""
        with self._lock:
            return self._runs.get(run_id)

    def forget(self, run_id: str) -> None:
        with self._lock:
            self._runs.pop(run_id, None)
            self._active.discard(run_id)

    def follow(self, run_id: str) -> None:
        """Start to watch whether a run ends; see has_ended."""
        with self._lock:
            self._active.add(run_id)

    def has_ended(self, run_id: str) -> bool:
        """Return whether Spark has reported the end of a followed run.

        The report can be missing: Spark drops events when too many are queued, and a run may end before it is
        followed.
        """
        with self._lock:
            return run_id not in self._active

    def expect(self, name: str) -> None:
        """Announce that a query of this name is started here."""
        with self._lock:
            self._expected.add(name)

    def foreign(self) -> list[str]:
        """Return the queries of this session that weren't started here, by name (or by id)."""
        with self._lock:
            return sorted(self._foreign.values())

    # The methods of Spark's PythonStreamingQueryListener. An exception here would only reach Spark's log.

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        name = event.name()
        with self._lock:
            if name not in self._expected:
                self._foreign[event.runId().toString()] = name or event.id().toString()

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        data = json.loads(event.progress().json())
        with self._lock:
            before = self._runs.get(data["runId"], Progress())
            self._runs[data["runId"]] = replace(parse_progress(data).after(before), heard_at=time.time())
        if self._on_progress is not None:
            self._on_progress(data)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        run_id = event.runId().toString()
        with self._lock:
            before = self._runs.get(run_id, Progress())
            self._runs[run_id] = replace(
                before,
                input_rows_per_second=0.0,
                processed_rows_per_second=0.0,
                lag=0,
                heard_at=time.time(),
            )

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        run_id = event.runId().toString()
        with self._lock:
            self._foreign.pop(run_id, None)
            self._active.discard(run_id)

    class Java:
        """Names the Java interface that the class implements, for Py4J."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


def listen(spark: SparkSession, listener: ProgressListener) -> Callable[[], Any]:
    """Register a listener for the queries of a session. Return the function that removes it."""
    java: Any = spark._jvm
    wrapper = java.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(listener)
    streams = spark._jsparkSession.streams()
    streams.addListener(wrapper)
    return partial(streams.removeListener, wrapper)


def parse_progress(data: dict[str, Any]) -> Progress:
    """Return the progress from the JSON of a StreamingQueryProgress."""
    # A trigger without data reports the number of the next batch.
    durations = data.get("durationMs", {})
    executed = "addBatch" in durations
    return Progress(
        step=int(data["batchId"]) if executed else int(data["batchId"]) - 1,
        input_rows_per_second=float(data.get("inputRowsPerSecond") or 0.0),
        processed_rows_per_second=float(data.get("processedRowsPerSecond") or 0.0),
        lag=_lag(data.get("sources") or []),
        left_out=_left_out(data) if executed else 0,
        batch_seconds=durations.get("triggerExecution", 0) / 1000 if executed else None,
        **(_state_of(data) if executed else {}),
    )


def late_rows_of(data: Mapping[str, Any]) -> int | None:
    """Return how many rows a micro-batch dropped as late; None for a query without state.

    `data`: the JSON of the micro-batch's StreamingQueryProgress.
    """
    operators = data.get("stateOperators") or []
    if not operators:
        return None
    return sum(int(operator.get("numRowsDroppedByWatermark") or 0) for operator in operators)


def _sum(one: int | None, other: int | None) -> int | None:
    known = [number for number in (one, other) if number is not None]
    return sum(known) if known else None


def null_time_rows_of(data: Mapping[str, Any]) -> int | None:
    """Return how many rows of a micro-batch have NULL as event time; None for a query without state.

    `data`: the JSON of the micro-batch's StreamingQueryProgress.
    """
    return null_times_of(data) if data.get("stateOperators") else None


def _state_of(data: dict[str, Any]) -> dict[str, Any]:
    """Return the Progress fields about stateful operators; empty for a stateless query."""
    operators = data.get("stateOperators") or []
    if not operators:
        return {}
    return {
        "state_rows": sum(int(operator.get("numRowsTotal") or 0) for operator in operators),
        "state_bytes": sum(_size(operator) for operator in operators),
        "watermark_timestamp_seconds": _watermark(data.get("eventTime") or {}),
        "late_rows": late_rows_of(data),
        "null_time_rows": null_time_rows_of(data),
    }


def _size(operator: dict[str, Any]) -> int:
    """Return the bytes of RocksDB's files, or of the state in memory while it has no files."""
    files = (operator.get("customMetrics") or {}).get("rocksdbSstFileSize")
    return int(files or operator.get("memoryUsedBytes") or 0)


def _watermark(event_time: dict[str, Any]) -> float | None:
    """Return the watermark in seconds since the epoch; None before Spark has seen a row."""
    milliseconds = instant(str(event_time.get("watermark", "")))
    return milliseconds / 1000 if milliseconds else None


def _left_out(data: dict[str, Any]) -> int:
    """Return how many malformed records a micro-batch skipped."""
    return int(((data.get("observedMetrics") or {}).get(SKIPPED) or {}).get("records") or 0)


def _lag(sources: list[dict[str, Any]]) -> int | None:
    """Return how many records the query is behind. For a Delta table: 0 or None (unknown)."""
    if len(sources) != 1:
        return None
    source = sources[0]
    latest, end = source.get("latestOffset"), source.get("endOffset")
    description = str(source.get("description", ""))
    if description.startswith("Kafka"):
        return _kafka_lag(latest, end)
    if description.startswith("RatePerMicroBatchStream"):  # each micro-batch reads all that is there
        return 0
    outstanding = (source.get("metrics") or {}).get("numFilesOutstanding")
    return 0 if outstanding in ("0", 0) else None


def _kafka_lag(latest: Any, end: Any) -> int | None:
    if not isinstance(latest, dict) or not isinstance(end, dict):
        return None
    return sum(
        max(0, int(offset) - int(end.get(topic, {}).get(partition, offset)))
        for topic, partitions in latest.items()
        for partition, offset in partitions.items()
    )
