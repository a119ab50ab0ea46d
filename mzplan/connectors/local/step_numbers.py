"""The lock on appends to local sources, and the mapping from a source's steps to its collection's steps.

A micro-batch is one step of the collection. It reads consecutive steps of the source: all appends since the
last micro-batch. Spark logs their range in the checkpoint before it reads them. Separate steps (see
`Appender.append`) become micro-batches of their own, so their collection steps are known before that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from typing import Any

from mzplan.connectors.adapter.config import endpoint_steps
from mzplan.connectors.adapter.source import step_of
from mzplan.connectors.local.appender import Appender
from mzplan.connectors.local.steps import LocalSteps
from mzplan.endpoints.interface import Step
from mzplan.model.address import Place
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.paths import local_path
from mzplan.warehouse.step_history import StepHistory


@contextlib.contextmanager
def appenders(
    warehouse: str,
    places: Collection[Place],
    exclude_others: Callable[[], contextlib.AbstractContextManager[object]],
) -> Iterator[dict[Place, Appender]]:
    """Yield an appender for each source, by place. Until the block ends, no other process can append to them.

    `exclude_others`: keeps other processes out of an object store, which has no lock. Raises LostStepsError,
    OSError."""
    with contextlib.ExitStack() as stack:
        if local_path(warehouse) is None:
            stack.enter_context(exclude_others())
        # Locking in the same order everywhere prevents a deadlock.
        folders = {place: Checkpoint.of(warehouse, *place).steps for place in sorted(set(places))}
        yield {
            place: stack.enter_context(LocalSteps(folder).appender(next_unread_step(warehouse, place)))
            for place, folder in folders.items()
        }


class StepNumbers:
    """The mapping for one source, while nobody else can append to it. Raises OSError."""

    def __init__(self, appender: Appender, warehouse: str, place: Place):
        self._appender, self._view = appender, appender.view
        self._warehouse = warehouse
        self._place = place

    def upper(self) -> Step | None:
        """Return the collection step of the next append, if its steps are separate. None if that depends on
        how Spark reads the waiting steps."""
        stop = self._planned_step(self._view.stop)
        return None if stop is None else stop + self._appender.stop - self._view.stop

    @property
    def next(self) -> Step:
        """The collection step that is planned next."""
        return self._next[0]

    def collection_step(self, step: Step) -> Step | None:
        """Return the collection step that contains, or will contain, a source step. None if that isn't known
        yet, or no longer."""
        planned_step = self._planned_step(step)
        if planned_step is not None or step >= self._next[1]:
            return planned_step
        for record in reversed(self._history.read().records):
            try:
                if step in endpoint_steps(record):
                    return record.step
            except GoneError:
                continue
        return None

    @cached_property
    def _history(self) -> StepHistory:
        return StepHistory(self._warehouse, self._place)

    @cached_property
    def _next(self) -> tuple[Step, Step]:
        """The collection step that is planned next, and the first source step that it reads."""
        # If that source step doesn't exist, it is the very first step, which is about to be created.
        newest = self._history.log.newest()
        position = self._history.log.entry(newest)
        read = step_of(position) if position is not None else None
        return newest + 1, self._view.start if read is None else read

    def _planned_step(self, step: Step) -> Step | None:
        if self._view.start == 0 and self._view.are_separate(range(step)):
            return step  # every step so far was a micro-batch of its own
        next_step, unread = self._next
        if step < min(unread, self._view.stop) or not self._view.are_separate(range(unread, step)):
            return None
        return next_step + step - unread


def next_unread_step(warehouse: str, place: Place) -> Step:
    """Return the step after the last step that a source has read. Checkpoint, index and collection log may
    each have been restored, so the highest step among them counts. Raises OSError."""
    history = StepHistory(warehouse, place)
    log = history.log
    newest = log.newest()
    # The offsets of the first micro-batch may name a step that doesn't exist yet, so they count only once the
    # micro-batch is committed. All later offsets name existing steps.
    offset, _ = log.offset(newest if newest > 0 else log.committed())
    last = history.index.last()
    ends = [offset, *(record.end for record in [last, *history.tail(last)] if record is not None)]
    return max(map(_step_in, ends))


def _step_in(offset: Any) -> Step:
    step = offset.get("step") if isinstance(offset, dict) else None
    return step if isinstance(step, int) else 0
