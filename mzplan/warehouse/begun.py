"""Under which description the steps of a sink began, beside its checkpoint.

Spark runs a step again that a crash has interrupted, as the query is then. Of a step that began under another
description, part may be in the target already: so it is finished under that one, and the next steps begin
under the new one. Only what decides which rows a step makes is kept (`x-rows` in the schema of the sink).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mzplan.warehouse.step_record import Count

KEPT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """From `step` on, steps began under the description of this digest. `rows`: its properties that decide
    which rows a step makes, with references to secrets, never their values."""

    step: Count
    digest: str
    rows: Mapping[str, Any]

    def body(self, now: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        """The body of the sink as it is now, but for what decides its rows (properties of these names)."""
        return {**{name: value for name, value in now.items() if name not in names}, **self.rows}


@dataclass(frozen=True, slots=True)
class History:
    """All of it, in order: what is known of the oldest steps may be missing."""

    begun: tuple[Begun, ...] = ()

    def under(self, step: int) -> Begun | None:
        """What a step began under; None where that is not known."""
        return next((one for one in reversed(self.begun) if one.step <= step), None)

    def to_finish(self, step: int | None, rows: Mapping[str, Any]) -> Begun | None:
        """What a step that was interrupted (None: there is none) is finished under, where that is not what
        the sink is now."""
        found = self.under(step) if step is not None else None
        return found if found is not None and found.rows != rows else None

    def changed_at(self, step: int) -> Begun | None:
        """Of a step at which the sink was changed, what it may have been pushed under as well: the
        description after it, or the first that is known."""
        return next((one for one in self.begun if 0 < one.step in (step, step + 1)), None)

    def going_on(self, now: Begun) -> History:
        """The history once steps begin under another description; equal where they go on under the same.
        What it had of later steps is of a checkpoint that was set back since."""
        before = tuple(one for one in self.begun if one.step < now.step)
        if before and (before[-1].digest, before[-1].rows) == (now.digest, now.rows):
            return History(before)
        return History((*before, now)[-KEPT:])
