"""How long rows are on their way: from when an upstream's oldest record of a micro-batch was made until the
micro-batch was noted down as done, by whichever clocks said so. docs/metrics.md defines it.

It costs no Spark job and no look at a row: a source's steps have the time, and a sink's step says which of
these it covers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from mzplan.model.address import Place
from mzplan.warehouse.step_history import StepHistory
from mzplan.warehouse.step_record import StepRecord

_KEPT = 100  # steps of each source of which is at hand when they were made


class Latencies:
    """Of the queries of one process, whose steps are given as they are recorded. For one thread."""

    def __init__(self) -> None:
        self._made: dict[Place, dict[int, float]] = {}

    def take(self, history: StepHistory, found: Sequence[StepRecord]) -> None:
        """Steps of a query were recorded, the newest last."""
        if history.is_source:
            times = self._made.setdefault(history.written, {})
            times |= {record.step: at for record in found if (at := _made(record)) is not None}
            for old in list(times)[:-_KEPT]:
                del times[old]

    def latency(self, history: StepHistory, record: StepRecord, ended: float | None) -> float | None:
        """Seconds until a step ended (`ended`: since the epoch) from when the oldest record of it was made;
        None where one of the two is not known. Never negative, whatever the clocks say."""
        at = record.oldest if history.is_source else self._read_from(history, record)
        return max(0.0, ended - at) if at is not None and ended is not None else None

    def _read_from(self, sink: StepHistory, record: StepRecord) -> float | None:
        """When the first step of its source that a sink's step covers was made."""
        if record.sources is None:
            return None
        first = record.sources[0]
        at = self._made.get(sink.written, {}).get(first)
        if at is not None:
            return at
        try:
            read = sink.step_read(first)  # of a source that runs elsewhere, or of before this process
        except OSError:
            return None
        return _made(read) if read is not None else None


def ended(progress: Mapping[str, Any]) -> float | None:
    """When a micro-batch was noted down as done, in seconds since the epoch (JSON of a
    StreamingQueryProgress)."""
    began, took = progress.get("timestamp"), progress["durationMs"].get("triggerExecution")
    if began is None or took is None:
        return None
    return datetime.fromisoformat(str(began)).timestamp() + float(took) / 1000


def _made(record: StepRecord) -> float | None:
    """When the rows of a source's step were made; of an upstream that does not say, when it was durable."""
    return record.oldest if record.oldest is not None else record.time
