"""The latency of rows: from the creation of a micro-batch's oldest record to its commit.

Times come from the clocks of the upstream and of Spark; docs/metrics.md defines the latency. Measuring it
needs no Spark job and looks at no row: a source's steps record the time, and a sink's step names the source
steps that it covers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from mzplan.model.address import Place
from mzplan.warehouse.step_history import StepHistory
from mzplan.warehouse.step_record import StepRecord

_KEPT = 100  # steps per source whose creation times are kept in memory


class Latencies:
    """Latencies of the queries of one process, from their recorded steps. For one thread."""

    def __init__(self) -> None:
        self._created_at: dict[Place, dict[int, float]] = {}

    def add(self, history: StepHistory, records: Sequence[StepRecord]) -> None:
        """Add recorded steps of a query, oldest first."""
        if history.is_source:
            times = self._created_at.setdefault(history.written, {})
            times |= {record.step: at for record in records if (at := _creation_time(record)) is not None}
            for old in list(times)[:-_KEPT]:
                del times[old]

    def latency(self, history: StepHistory, record: StepRecord, end: float | None) -> float | None:
        """Return the seconds from the creation of a step's oldest record to `end` (since the epoch).

        None if either time is unknown. Never negative, even if clocks disagree.
        """
        at = record.oldest if history.is_source else self._source_time(history, record)
        return max(0.0, end - at) if at is not None and end is not None else None

    def _source_time(self, sink: StepHistory, record: StepRecord) -> float | None:
        """Return the creation time of the first source step that a sink's step covers."""
        if record.sources is None:
            return None
        first = record.sources[0]
        at = self._created_at.get(sink.written, {}).get(first)
        if at is not None:
            return at
        try:
            read = sink.step_read(first)  # the source runs elsewhere, or the step is older than this process
        except OSError:
            return None
        return _creation_time(read) if read is not None else None


def end_time(progress: Mapping[str, Any]) -> float | None:
    """Return when a micro-batch was recorded as done, in seconds since the epoch.

    `progress`: the JSON of a StreamingQueryProgress.
    """
    began, took = progress.get("timestamp"), progress["durationMs"].get("triggerExecution")
    if began is None or took is None:
        return None
    return datetime.fromisoformat(str(began)).timestamp() + float(took) / 1000


def _creation_time(record: StepRecord) -> float | None:
    """Return when the rows of a source's step were created; if unknown, when the step was durable."""
    return record.oldest if record.oldest is not None else record.time
