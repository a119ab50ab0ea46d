"""Finishes interrupted steps: of a sink with its old description, and of a source before a task.

When a query starts, Spark repeats its last micro-batch with the query's current definition. If the sink was
changed in between, it is first started with its old definition for this one micro-batch. This applies to all
sinks, whether they write a step atomically or in parts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, error
from mzplan.schema.description import Description
from mzplan.schema.kinds import resource_kind
from mzplan.schema.sql.view_query import gives_same_rows
from mzplan.spark import failures
from mzplan.spark.failures import Failure
from mzplan.spark.query import RunningQuery
from mzplan.warehouse.checkpoints import Checkpoint, StepDescription

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_LOOK_S = 0.05

RunOnce = Callable[[Description, RunningQuery], "StreamingQuery"]
"""Submits a query for one micro-batch: the interrupted step, if there is one."""


class InterruptedSteps:
    """Finishes interrupted steps before their queries start. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[RunningQuery] = []
        self._closing = False

    def close(self) -> None:
        """Stop the queries that finish interrupted steps, and any that start later."""
        with self._lock:
            self._closing, running = True, list(self._running)
        for query in running:
            with suppress(Exception):
                query.stop()

    def begin(
        self, description: Description, checkpoint: Checkpoint, running: RunningQuery, run_once: RunOnce
    ) -> None:
        """Finish a sink's step that began under another description, and record the current description.

        If the step can't be finished, `running` gets a warning (MZ131), and the sink writes the step again
        under its current description. Raises OSError, and MzplanError MZ063 if the sink was stopped.
        """
        kind = resource_kind(description.address.kind, description.type)
        rows = _row_properties(description)
        history, step = checkpoint.descriptions(), checkpoint.log.unfinished()
        start = history.to_finish(step, rows)
        first = checkpoint.log.committed() + 1
        if start is not None and step is not None and not gives_same_rows(kind, start.rows, rows):
            finishing = RunningQuery(running.name, running.place)
            problem = self._finish(start.earlier(description), finishing, run_once)
            running.warning, first = finishing.warning, step + 1
            if checkpoint.log.unfinished() is not None:
                if self._closing:
                    raise error("MZ063.stopped-in-step", address=description.address, step=step)
                # The history keeps the old description for the next start: the failure may be temporary.
                running.warn(_not_finished(description.address, step, problem))
        record_description(description, checkpoint, first)

    def finish(
        self, description: Description, checkpoint: Checkpoint, finishing: RunningQuery, run_once: RunOnce
    ) -> None:
        """Finish an interrupted or planned step, if there is one, as a separate query (`finishing`).

        Raises OSError, and MzplanError MZ063 if the step can't be finished.
        """
        step = checkpoint.log.unfinished()
        if step is None:
            return
        problem = self._finish(description, finishing, run_once)
        if checkpoint.log.unfinished() is not None:
            raise error(
                "MZ063.step-unfinished",
                address=description.address,
                step=step,
                why=problem or "It was stopped meanwhile.",
            )

    def _finish(self, earlier: Description, finishing: RunningQuery, run_once: RunOnce) -> str:
        """Run the step to its end. Return why it failed, "" if it didn't."""
        try:
            finishing.java = run_once(earlier, finishing)._jsq
            with self._lock:
                self._running.append(finishing)
            while not finishing.has_ended():
                if self._closing:
                    finishing.stop()
                time.sleep(_LOOK_S)
        except Exception as problem:
            return failures.of_exception(problem).text
        finally:
            with self._lock:
                self._running = [query for query in self._running if query is not finishing]
        return (finishing.end_failure or Failure("", "")).text


def record_description(description: Description, checkpoint: Checkpoint, first: int) -> None:
    """Record the description under which the steps from `first` on begin. Raises OSError."""
    history, rows = checkpoint.descriptions(), _row_properties(description)
    now = history.extended_by(StepDescription(step=first, digest=description.digest, rows=rows))
    if now != history:
        checkpoint.record_descriptions(now)


def _row_properties(description: Description) -> dict[str, Any]:
    kind = resource_kind(description.address.kind, description.type)
    return {name: description.body[name] for name in kind.row_properties if name in description.body}


def _not_finished(address: Address, step: int, why: str) -> Diagnostic:
    """Return MZ131. It quotes the failure (`why`) without its fix, because there is nothing to repair."""
    changed, writer = "select or where were", "sink"
    if address.writes_collection:
        changed, writer = "its query was", address.kind
    reason = f"{why.partition('. Fix: ')[0].rstrip('.') or 'it ended early'}."
    return Diagnostic.of(
        "MZ131.old-definition", address=address, step=step, changed=changed, reason=reason, writer=writer
    )
