"""A started streaming query: stops it, and reports its progress."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from mzplan.controller.executor import QueryName, QueryReport
from mzplan.model.diagnostics import Diagnostic, MzplanError, error
from mzplan.model.observed import Versions
from mzplan.model.tasks import TaskOutcome
from mzplan.model.violations import ViolationCount
from mzplan.schema.user_functions import FunctionName
from mzplan.spark import failures
from mzplan.spark.failures import Failure
from mzplan.spark.foreign_changes import ForeignChanges
from mzplan.spark.process.pools import DEFAULT
from mzplan.spark.progress import Progress
from mzplan.spark.step_recorder import RecordedSteps
from mzplan.warehouse.checkpoints import Checkpoint

log = logging.getLogger("mzplan.spark")

# How many seconds a stop waits for the running micro-batch before it interrupts it.
_IDLE_WAIT_S = 2.0
# Spark's messages for a query that found no new data and waits for the next look.
_IDLE_MESSAGES = ("Waiting for data to arrive", "Waiting for next trigger")

_NO_STEPS = RecordedSteps()


@dataclass(slots=True)
class RunningQuery:
    """A query that was started and hasn't been stopped.

    `place`: the server or folder that the query uses, for messages.
    `pool`: the scheduler pool in which its jobs wait for a core.
    `java`: Spark's StreamingQuery.
    `step`: the last micro-batch before this run. Spark reports no micro-batch for a run that finds nothing to
    do.
    `error`: the error that our own code raised in a batch.
    `warning`: the run's last warning.
    `malformed_records`: how many malformed records the run skipped or stored as dead letters.
    `resumed`, `tasks_done`, `refreshed`, `violations`: see RunFacts.
    `interruptions`: functions that interrupt a batch that waits for a server.
    `was_idle`: whether the run has finished a trigger.
    `written_with`: the Spark and Delta that wrote the checkpoint before, if they differ from these.
    `function`: the user's function that computes or writes the rows; None for none.
    `release`, `release_before`: see `function` and `function_before` of RunFacts.
    `asked_at`: when the query was last looked at, in monotonic seconds.
    `foreign_changes`: the watch of the collections that it reads; None for a source.
    """

    name: QueryName
    place: str
    pool: str = DEFAULT
    query_id: str = ""
    run_id: str = ""
    java: Any = None
    step: int = -1
    error: BaseException | None = None
    warning: str | None = None
    malformed_records: int = 0
    resumed: Mapping[str, Any] | None = None
    interruptions: list[Callable[[], None]] = field(default_factory=list)
    end_failure: Failure | None = None
    was_idle: bool = False
    written_with: Versions | None = None
    tasks_done: tuple[TaskOutcome, ...] = ()
    function: FunctionName | None = None
    release: str = ""
    release_before: str = ""
    started_at: float = field(default_factory=time.time)
    asked_at: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)
    foreign_changes: ForeignChanges | None = None
    refreshed: str | None = None
    violations: Mapping[str, ViolationCount] = field(default_factory=dict)

    def note_violations(self, violations: Mapping[str, ViolationCount]) -> None:
        """Keep how often the rows of all steps have violated each expectation."""
        self.violations = violations

    def note_refresh(self, how: str) -> None:
        """Keep how the last step of a current view has computed its rows."""
        self.refreshed = how

    def fail(self, problem: BaseException) -> None:
        """Keep the error of a batch: it says more than Spark's error about it."""
        self.error = problem

    def count_malformed(self, count: int) -> None:
        """Count malformed records that were skipped or stored as dead letters."""
        self.malformed_records += count

    def warn(self, warning: Diagnostic) -> None:
        """Report a problem that doesn't stop the query, in the log and in the status."""
        text = failures.of_exception(MzplanError(warning)).text
        self.warning = f"[{warning.code}] {text}"
        log.warning("%s %s", self.name.address, self.warning)

    def warn_of_changes(self) -> None:
        """Warn if another writer has deleted or changed rows of a collection that the query reads."""
        if self.foreign_changes is None:
            return
        with suppress(OSError, ValueError):  # look again later
            if (warning := self.foreign_changes.look()) is not None:
                self.warn(warning)

    def stop(self) -> None:
        """Stop the query and wait until it has ended. Two threads may stop the same query.

        Raises MzplanError MZ063 if it hasn't ended within Spark's stopTimeout.
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
                    "MZ063.not-stopped", address=self.name.address, why=failures.of_exception(problem).text
                ) from None

    def has_ended(self) -> bool:
        """Return whether the query has ended; `end_failure` then holds the reason."""
        if self.end_failure is None and not self.java.isActive():
            self.end_failure = self._find_ending()
        return self.end_failure is not None

    def look(self, progress: Progress | None) -> bool:
        """Ask Spark whether the query has ended, and whether it has finished a trigger.

        `progress`: the query's newest progress. Returns whether it has ended since the last look.
        """
        self.asked_at = time.monotonic()
        had_ended = self.end_failure is not None
        if self.has_ended():
            return not had_ended
        if progress is None and not self.was_idle:
            # Spark reports a trigger without data to its listeners only after ten idle seconds. Its status
            # shows it immediately, until data arrives.
            self.was_idle = self.java.status().message() in _IDLE_MESSAGES and not self._has_unreported_rows()
        return False

    def _has_unreported_rows(self) -> bool:
        """Return whether the run has finished a trigger with data that Spark hasn't reported yet."""
        last = self.java.lastProgress()
        return last is not None and bool(last.durationMs().containsKey("addBatch"))

    def report(self, progress: Progress | None, recorded: RecordedSteps = _NO_STEPS) -> QueryReport:
        """Return the report for the controller.

        `progress`: the newest progress; None if no trigger has finished.
        `recorded`: the recorded steps of the query.
        """
        ending = self.end_failure
        newest = progress or Progress()
        step = max(newest.step, self.step)
        counted = recorded.recent[0].step if recorded.recent else -1
        return QueryReport(
            name=self.name,
            query_id=self.query_id,
            run_id=self.run_id,
            active=ending is None,
            triggered=progress is not None or (ending is None and self.was_idle),
            step=step,
            input_rows_per_second=0.0 if ending else newest.input_rows_per_second,
            processed_rows_per_second=0.0 if ending else newest.processed_rows_per_second,
            lag=newest.lag,
            left_out=self.malformed_records + newest.left_out,
            recent=recorded.recent,
            run_rows=recorded.rows if counted >= step else None,
            resumed=self.resumed,
            warning=self.warning,
            last_progress_at=None if ending else (newest.heard_at if progress else self.started_at),
            error=(ending.text or None) if ending else None,
            error_code=(ending.code or None) if ending else None,
            error_kind=ending.kind if ending else "",
            function=self.release,
            function_before=self.release_before,
            written_with=self.written_with if step == self.step else None,
            batch_seconds=newest.batch_seconds,
            latency_seconds=recorded.latency,
            state_rows=newest.state_rows,
            state_bytes=newest.state_bytes,
            watermark_timestamp_seconds=newest.watermark_timestamp_seconds,
            late_rows=newest.late_rows,
            null_time_rows=newest.null_time_rows,
            tasks_done=self.tasks_done,
            refreshed=self.refreshed,
            violations=self.violations,
        )

    def _find_ending(self) -> Failure:
        """Return why the query ended; an empty Failure if it was stopped."""
        if self.error is not None:
            return failures.of_exception(self.error, self.name.address, self.function)
        ending = failures.of_query(self.java, self.place, self.name.address, self.function)
        return ending or Failure("", "")

    def _becomes_idle(self) -> bool:
        """Wait briefly for the end of the running micro-batch, because an interrupted batch runs again."""
        deadline = time.monotonic() + _IDLE_WAIT_S
        while self.java.isActive() and self.java.status().isTriggerActive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def resume_point(checkpoint: Checkpoint, step: int) -> Mapping[str, Any] | None:
    """Return the step and position after which a run resumes, or None. See RunFacts."""
    if step < 0:
        return None
    return {"step": step, "position": checkpoint.log.offset(step)[0]}
