"""The turns of those who append to local sources, and how the steps of one and those of its collection
correspond.

A micro-batch, which is one step of the collection, reads what has been appended since the last one: steps of
the source that follow each other. Spark logs in the checkpoint which ones, before it reads them. Steps of an
append that names them (`Turn.append`, apart) are micro-batches of their own, so that where they will be is
known before they are read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from typing import Any

from mzplan.connectors.adapter.rows import endpoint_steps
from mzplan.connectors.adapter.source import step_of
from mzplan.connectors.local.endpoint import LocalSteps, Turn
from mzplan.endpoints.interface import Step
from mzplan.model.address import Place
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.paths import local_path
from mzplan.warehouse.step_history import StepHistory


@contextlib.contextmanager
def turns(
    warehouse: str,
    places: Collection[Place],
    alone: Callable[[], contextlib.AbstractContextManager[object]],
) -> Iterator[dict[Place, Turn]]:
    """While nobody else can append to these sources. `alone` keeps other processes out where the storage has
    no lock: in an object store. Raises LostStepsError, OSError."""
    with contextlib.ExitStack() as stack:
        if local_path(warehouse) is None:
            stack.enter_context(alone())
        # In the same order everywhere: nobody waits for one who waits for us.
        folders = {place: Checkpoint.of(warehouse, *place).steps for place in sorted(set(places))}
        yield {
            place: stack.enter_context(LocalSteps(folder).turn(passed_step(warehouse, place)))
            for place, folder in folders.items()
        }


class Numbering:
    """Of one source, while nobody else can append to it. Raises OSError."""

    def __init__(self, turn: Turn, warehouse: str, place: Place):
        self._turn, self._view = turn, turn.view
        self._warehouse = warehouse
        self._place = place

    def upper(self) -> Step | None:
        """The step of the collection that what is appended next becomes, each step apart; None where that is
        decided only when what waits is read."""
        stop = self._planned(self._view.stop)
        return None if stop is None else stop + self._turn.stop - self._view.stop

    @property
    def next(self) -> Step:
        """The step of the collection that is planned next."""
        return self._next[0]

    def collected(self, step: Step) -> Step | None:
        """The step of the collection that a step of the source is in or becomes; None where that is not known
        (any more, or yet)."""
        planned = self._planned(step)
        if planned is not None or step >= self._next[1]:
            return planned
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
        """The step of the collection that is planned next, and the first step of the source that it reads."""
        # Where that is beyond the steps that are there, it is the very first, which is about to be made.
        newest = self._history.log.newest()
        position = self._history.log.entry(newest)
        read = step_of(position) if position is not None else None
        return newest + 1, self._view.start if read is None else read

    def _planned(self, step: Step) -> Step | None:
        if self._view.start == 0 and self._view.are_alone(range(step)):
            return step  # each was one of its own from the beginning
        following, unread = self._next
        if step < min(unread, self._view.stop) or not self._view.are_alone(range(unread, step)):
            return None
        return following + step - unread


def passed_step(warehouse: str, place: Place) -> Step:
    """The step after the last one that a source has read, as its checkpoint, its index and its collection's
    log say; the highest of them, for one of them may have been restored, too. Raises OSError."""
    history = StepHistory(warehouse, place)
    log = history.log
    newest = log.newest()
    # The offsets of the very first micro-batch may be of a step that is only about to be made: they count
    # once it is done. All later ones are of steps that are there.
    offset, _ = log.offset(newest if newest > 0 else log.committed())
    last = history.index.last()
    ends = [offset, *(record.end for record in [last, *history.tail(last)] if record is not None)]
    return max(map(_step_in, ends))


def _step_in(offset: Any) -> Step:
    step = offset.get("step") if isinstance(offset, dict) else None
    return step if isinstance(step, int) else 0
