"""How far a local source has read its steps, by what is kept apart from them."""

from __future__ import annotations

from typing import Any

from mzplan.endpoints.interface import Step
from mzplan.model.address import Place
from mzplan.warehouse.step_history import StepHistory


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
    return max(map(_step_of, ends))


def _step_of(offset: Any) -> Step:
    step = offset.get("step") if isinstance(offset, dict) else None
    return step if isinstance(step, int) else 0
