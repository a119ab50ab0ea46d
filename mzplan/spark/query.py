"""One streaming query that was started: how it is stopped, and what is reported of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mzplan.controller.executor import QueryName, QueryReport
from mzplan.model.diagnostics import Diagnostic, MzplanError, error
from mzplan.model.observed import Versions
from mzplan.model.tasks import TaskOutcome
from mzplan.spark import failures
from mzplan.spark.failures import Failure
from mzplan.spark.pools import DEFAULT
from mzplan.spark.progress import Progress
from mzplan.spark.step_recorder import RecordedSteps
from mzplan.warehouse.checkpoints import Checkpoint

log = logging.getLogger("mzplan.spark")

# How long a stop waits for the running micro-batch before it interrupts it, in seconds.
_IDLE_WAIT_S = 2.0
# What Spark says of a query once it has looked for data: nothing new, and nothing to do until the next look.
_IDLE_MESSAGES = ("Waiting for data to arrive", "Waiting for next trigger")

_NOTHING = RecordedSteps()


@dataclass(slots=True)
class Running:
    """A query that was started and not stopped. `java` is Spark's StreamingQuery, and `place` what it talks
    to, for people. `pool`: the scheduler pool where its jobs wait for a core. `failed` is what our own code
    raised in a batch, `warning` the last thing that it warned of, `left_out` counts the records that it kept
    aside, and `interruptions` end a batch that waits for a server. `resumed` is where it has gone on (see
    RunFacts). `step` is the last micro-batch before this run: of one that finds nothing to do, Spark reports
    none. `was_idle`: it has finished a trigger. `written_with`: what has written its checkpoint before, where
    that is another Spark or Delta. `tasks_done`: see RunFacts. `asked_at`: when it
    was looked at last, in seconds, monotonic."""

    name: QueryName
    place: str
    pool: str = DEFAULT
    query_id: str = ""
    run_id: str = ""
    java: Any = None
    step: int = -1
    failed: BaseException | None = None
    warning: str | None = None
    left_out: int = 0
    resumed: Mapping[str, Any] | None = None
    interruptions: list[Callable[[], None]] = field(default_factory=list)
    ended: Failure | None = None
    was_idle: bool = False
    written_with: Versions | None = None
    tasks_done: tuple[TaskOutcome, ...] = ()
    begun: float = field(default_factory=time.time)
    asked_at: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fail(self, problem: BaseException) -> None:
        """Keep the error of a batch: it says more than what Spark makes of it."""
        self.failed = problem

    def leave_out(self, count: int) -> None:
        """So many malformed records were kept aside."""
        self.left_out += count

    def warn(self, warning: Diagnostic) -> None:
        """Warn of something that the query goes on in spite of: in the log, and in the status."""
        text = failures.of_exception(MzplanError(warning)).text
        self.warning = f"[{warning.code}] {text}"
        log.warning("%s %s", self.name.address, self.warning)

    def stop(self) -> None:
        """End the query; when this returns, it has ended. Two threads may stop the same one.

        Raises MzplanError MZ063 when it has not ended within Spark's stopTimeout.
        """
        with self.lock:
            if not self.java.isActive():
                return
            if not self._becomes_idle():
                for interrupt in self.interruptions:
                    interrupt()
            try:
                self.java.stop()
            except Exception as problem:
                if not self.java.isActive():
                    return
                raise error(
                    "MZ063",
                    f"{self.name.address} could not be stopped",
                    failures.of_exception(problem).text,
                    "it is busy with a server that does not answer; it is tried again.",
                    address=self.name.address,
                ) from None

    def has_ended(self) -> bool:
        """Whether it runs no more; then `ended` says of what."""
        if self.ended is None and not self.java.isActive():
            self.ended = self._ending()
        return self.ended is not None

    def look(self, progress: Progress | None) -> bool:
        """Ask Spark whether it has ended, and whether it has finished a trigger; `progress` is its newest.
        Returns whether it has ended since the last look."""
        self.asked_at = time.monotonic()
        ended_before = self.ended is not None
        if self.has_ended():
            return not ended_before
        if progress is None and not self.was_idle:
            # Spark reports a trigger without data to its listeners only after ten idle seconds, but its
            # status says so at once, until data comes.
            self.was_idle = self.java.status().message() in _IDLE_MESSAGES and not self._has_to_tell()
        return False

    def _has_to_tell(self) -> bool:
        """Whether the report of a trigger with data is on its way to us: that one tells what was read."""
        last = self.java.lastProgress()
        return last is not None and bool(last.durationMs().containsKey("addBatch"))

    def report(self, progress: Progress | None, recorded: RecordedSteps = _NOTHING) -> QueryReport:
        """What is reported to the controller, with the newest progress (None: no trigger has finished), and
        what is recorded of its steps."""
        ended = self.ended
        newest = progress or Progress()
        step = max(newest.step, self.step)
        counted = recorded.recent[0].step if recorded.recent else -1
        return QueryReport(
            name=self.name,
            query_id=self.query_id,
            run_id=self.run_id,
            active=ended is None,
            triggered=progress is not None or (ended is None and self.was_idle),
            step=step,
            input_rows_per_second=0.0 if ended else newest.input_rows_per_second,
            processed_rows_per_second=0.0 if ended else newest.processed_rows_per_second,
            lag=newest.lag,
            left_out=self.left_out + newest.left_out,
            recent=recorded.recent,
            run_rows=recorded.rows if counted >= step else None,
            resumed=self.resumed,
            warning=self.warning,
            heard_at=None if ended else (newest.heard_at if progress else self.begun),
            error=(ended.text or None) if ended else None,
            error_code=(ended.code or None) if ended else None,
            error_kind=ended.kind if ended else "",
            written_with=self.written_with if step == self.step else None,
            batch_seconds=newest.batch_seconds,
            latency_seconds=recorded.latency,
            state_rows=newest.state_rows,
            state_bytes=newest.state_bytes,
            watermark_timestamp_seconds=newest.watermark_timestamp_seconds,
            late_rows=newest.late_rows,
            tasks_done=self.tasks_done,
        )

    def _ending(self) -> Failure:
        """Why it ended; an empty Failure when it was stopped."""
        if self.failed is not None:
            return failures.of_exception(self.failed)
        return failures.of_query(self.java, self.place) or Failure("", "")

    def _becomes_idle(self) -> bool:
        """Wait for the end of the running micro-batch, for a moment: an interrupted one is done again."""
        deadline = time.monotonic() + _IDLE_WAIT_S
        while self.java.isActive() and self.java.status().isTriggerActive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def resumed(checkpoint: Checkpoint, step: int) -> Mapping[str, Any] | None:
    """Where a run goes on after this step, its last; None where there was none. See RunFacts."""
    if step < 0:
        return None
    return {"step": step, "position": checkpoint.log.offset(step)[0]}
