"""A step that a crash has interrupted, finished: a sink's under the description that began it, a source's
before a backfill.

Spark runs its last micro-batch again when a query starts, as the query is then. Where the sink has changed
meanwhile, it is first started as it was, for that one micro-batch. This holds for all kinds of sinks: those
that write a step whole or not at all, and those of which a part may be there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, error
from mzplan.schema.description import Description
from mzplan.schema.kinds import resource_kind
from mzplan.spark import failures
from mzplan.spark.failures import Failure
from mzplan.spark.query import Running
from mzplan.warehouse.checkpoints import Begun, Checkpoint

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_LOOK_S = 0.05

RunOnce = Callable[[Description, Running], "StreamingQuery"]
"""Submits a query for one micro-batch: of a step that was interrupted, that one."""


class UnfinishedSteps:
    """The steps that are being finished before their sinks start. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[Running] = []
        self._closing = False

    def close(self) -> None:
        """Stop all of them, and finish no more."""
        with self._lock:
            self._closing, running = True, list(self._running)
        for query in running:
            with suppress(Exception):
                query.stop()

    def begin(
        self, description: Description, checkpoint: Checkpoint, running: Running, run_once: RunOnce
    ) -> None:
        """Before a sink starts: finish what began under another description, and record what its steps begin
        under from now on.

        Where it can't be finished, `running` warns (MZ131): the step is pushed again as the sink is now, and
        the output rule keeps it from becoming a mixture. Raises OSError, and MzplanError MZ063 when it was
        stopped meanwhile.
        """
        names = resource_kind(description.address.kind, description.type).row_properties
        rows = {name: description.body[name] for name in names if name in description.body}
        history, step = checkpoint.begun(), checkpoint.log.unfinished()
        before = history.to_finish(step, rows)
        first = checkpoint.log.committed() + 1
        if before is not None and step is not None:
            earlier = replace(description, body=before.body(description.body, names))
            finishing = Running(running.name, running.place)
            problem = self._finish(earlier, finishing, run_once)
            running.warning, first = finishing.warning, step + 1
            if checkpoint.log.unfinished() is not None:
                self._insist(description.address, step)
                # The history keeps what it began under, for the next start: the failure may pass.
                running.warn(_not_finished(description.address, step, problem))
        now = history.going_on(Begun(step=first, digest=description.digest, rows=rows))
        if now != history:
            checkpoint.record_begun(now)

    def finish(
        self, description: Description, checkpoint: Checkpoint, finishing: Running, run_once: RunOnce
    ) -> None:
        """Finish the step that was interrupted, or planned, if there is one, as a query of its own
        (`finishing`). Raises MzplanError MZ063 where that fails, and OSError."""
        step = checkpoint.log.unfinished()
        if step is None:
            return
        problem = self._finish(description, finishing, run_once)
        if checkpoint.log.unfinished() is not None:
            raise error(
                "MZ063",
                f"Step {step} of {description.address} could not be finished",
                problem or "It was stopped meanwhile.",
                "it is tried again.",
                address=description.address,
            )

    def _finish(self, earlier: Description, finishing: Running, run_once: RunOnce) -> str:
        """Run the step to its end. Returns why it failed; empty where it did not."""
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
        return (finishing.ended or Failure("", "")).text

    def _insist(self, address: Address, step: int) -> None:
        """Raises MzplanError where we were stopped: nothing may start then."""
        if self._closing:
            raise error(
                "MZ063",
                f"{address} was stopped while it finished step {step}",
                "The step began before the sink was changed.",
                "nothing to do: it is finished at the next start.",
                address=address,
            )


def _not_finished(address: Address, step: int, why: str) -> Diagnostic:
    return Diagnostic(
        severity="warning",
        code="MZ131",
        summary=f"Step {step} of {address} could not be finished as it began",
        detail="It began before select or where were changed. As the sink was then: "
        f"{why or 'it ended early.'} It is written as the sink is now; rows that the target has stay "
        "(MZ088).",
        hint=f"nothing, unless MZ088 follows; mzplan verify {address} --steps {step} looks at it.",
        address=address,
    )
