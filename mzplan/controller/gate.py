"""What may keep a committed query waiting. A controller is given its gates, and looks at them in each round,
before it decides of a query: a gate itself starts and stops nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mzplan.model.address import Address
from mzplan.model.state import Condition
from mzplan.schema.description import Description


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What holds for a query instead of what is committed. `description`: this one is to run; None: nothing
    is started or stopped, and where nothing runs, the query is in `condition`. `check`: whether it is checked
    before it is started."""

    description: Description | None = None
    condition: Condition = "starting"
    check: bool = True


class Gate(Protocol):
    """Holds queries back (see mzplan.runner.handover and mzplan.runner.canaries)."""

    def hold(self, wanted: Description, accepted: Description | None) -> Held | None:
        """What holds for a committed query, of which `accepted` has run last; None: it may pass."""

    def started(self, address: Address) -> None:
        """A query was started (called from the pool)."""
